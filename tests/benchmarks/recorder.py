"""A hand-written PyTorch loop, with the recorder and without it, and one region.

`python tests/benchmarks/recorder.py` takes steps of both loops in turn in one process and prints their ratio, for a
step of some milliseconds and for one of about one. `make bench ONLY=recorder` compares each with another commit's.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from registry import register

REGIONS, STEPS, BATCH, SMALL, PAIRS = 1000, 20, 64, 8, 3000


@contextmanager
def recording(folder: Path, goals: Any = None) -> Iterator[Any]:
    """A recorder in an epoch."""
    import deep5 as d5

    with d5.record("benchmark", goals, out=folder, quiet=True) as run, run.epoch():
        yield run


class Steps(NamedTuple):
    """Steps of LeNet that train one network, and their batches.

    Attributes:
        bare: Without the recorder.
        reading: Without it, and with the reading of the loss, as in a loop that reports its losses.
        recorded: With a recorder, its first argument.
        batches: Inputs and labels.
    """

    bare: Callable[[Any, Any], object]
    reading: Callable[[Any, Any], object]
    recorded: Callable[[Any, Any, Any], object]
    batches: list[tuple[Any, Any]]


def steps(batch: int) -> Steps:
    """Steps of a batch size, in samples."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    batches = [(torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))) for _ in range(STEPS)]

    def bare(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

    losses = [0.0]

    def reading(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses[0] = loss.item()

    def recorded(run: Any, x: Any, y: Any) -> None:
        with run.step(batch_size=batch):
            with run.region("forward"):
                optimizer.zero_grad()
                loss = cross_entropy(net(x), y)
            with run.region("backward"):
                loss.backward()
            with run.region("update"):
                optimizer.step()
            run.log(loss=loss)

    return Steps(bare, reading, recorded, batches)


@register("recorder.region", group="regions", unit="region", per_call=REGIONS)
def _region(folder: Path) -> Callable[[], object]:
    manager = recording(folder)
    run = manager.__enter__()
    step = run.step(batch_size=1)
    step.__enter__()

    def regions() -> None:
        for _ in range(REGIONS):
            with run.region("forward"):
                pass

    regions.keep = manager  # type: ignore[attr-defined]  # or it would end the recording
    return regions


@register("recorder.bare_loop", group="recorder", unit="step", per_call=STEPS)
def _bare(folder: Path) -> Callable[[], object]:
    bare, _, _, batches = steps(BATCH)

    def loop() -> None:
        for x, y in batches:
            bare(x, y)

    return loop


@register("recorder.recorded_loop", group="recorder", unit="step", per_call=STEPS)
def _recorded(folder: Path) -> Callable[[], object]:
    manager = recording(folder)
    run, (_, _, recorded, batches) = manager.__enter__(), steps(BATCH)

    def loop() -> None:
        for x, y in batches:
            recorded(run, x, y)

    loop.keep = manager  # type: ignore[attr-defined]
    return loop


def ratio(folder: Path, batch: int, pairs: int = PAIRS) -> dict[str, list[float]]:
    """Seconds of a step with the recorder, without it, without it again, and reading its loss, in random order.

    Evaluating and saving are not in it: they are at the ends of epochs, or after thousands of steps (see `step_ns`).
    """
    bare, reading, recorded, batches = steps(batch)
    times: dict[str, list[float]] = {"recorded": [], "bare": [], "again": [], "reading": []}
    draw = random.Random(0)  # noqa: S311 - an order of measurements
    with recording(folder, {"training_loss": None, "throughput": None, "wall_clock_time": None}) as run:
        run._state.due_ns = 1 << 62
        calls = {"recorded": partial(recorded, run), "bare": bare, "again": bare, "reading": reading}
        for number in range(pairs + 20):
            for name in draw.sample(list(calls), len(calls)):
                begin = perf_counter()
                calls[name](*batches[number % STEPS])
                if number >= 20:
                    times[name].append(perf_counter() - begin)
    return times


def region_ns(folder: Path) -> list[float]:
    """Nanoseconds per region of forty samples, the empty loop deducted."""
    found = []
    with recording(folder) as run, run.step(batch_size=1):
        for _ in range(40):
            begin = perf_counter_ns()
            for _ in range(REGIONS):
                with run.region("forward"):
                    pass
            middle = perf_counter_ns()
            for _ in range(REGIONS):
                pass
            found.append((2 * middle - begin - perf_counter_ns()) / REGIONS)
    return found


def step_ns(folder: Path, steps: int = 4096) -> dict[str, list[float]]:
    """Nanoseconds per step with three regions and a logged loss: in the loop, evaluated, and in a save of all steps."""
    import torch

    loss, found = torch.tensor(1.0), {"in the loop": [], "evaluating": [], "saving": []}
    with recording(folder, {"training_loss": None, "throughput": None, "wall_clock_time": None}) as run:
        run._state.due_ns = 1 << 62
        for number in range(1, 11):
            times = [perf_counter_ns()]
            for _ in range(steps - 1):
                with run.step(batch_size=1):
                    for name in ("forward", "backward", "update"):
                        with run.region(name):
                            pass
                    run.log(loss=loss)
            for call in (run._state.flush, run._outcome.save):
                times.append(perf_counter_ns())
                call()
            times.append(perf_counter_ns())
            parts = (end - begin for begin, end in pairwise(times))
            for (_, own), ns, count in zip(found.items(), parts, (steps, steps, number * steps), strict=True):
                own.append(ns / count)
    return found


def main() -> None:
    """Print the cost of a region and of a step, and the ratio of the loops."""
    from deep5.measuring.samples import median_interval, ratio_interval

    with tempfile.TemporaryDirectory() as folder:
        costs = {"region": region_ns(Path(folder))}
        costs |= {f"step, {name}": own for name, own in step_ns(Path(folder)).items()}
        for name, own in costs.items():
            ends = median_interval(own)
            sys.stdout.write(f"{name}: {median(own):.0f} ns ({ends.low:.0f} to {ends.high:.0f})\n")
        for batch in (BATCH, SMALL):
            times = ratio(Path(folder), batch)
            bare, reading = times.pop("bare"), times["reading"]
            sys.stdout.write(f"a step of {1e3 * median(bare):.2f} ms, {len(bare)} pairs\n")
            pairs = {f"{name} / bare": (own, bare) for name, own in times.items()}
            for name, (own, base) in (pairs | {"recorded / reading": (times["recorded"], reading)}).items():
                ends = ratio_interval(own, base)
                middle = median(one / other for one, other in zip(own, base, strict=True))
                sys.stdout.write(f"  {name}: {middle:.4f} ({ends.low:.4f} to {ends.high:.4f})\n")


if __name__ == "__main__":
    main()
