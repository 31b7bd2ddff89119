"""Communication schemes on ranks in threads, and their papers' algorithms, hand-written in NumPy, float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import deep5 as d5
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.gossip import partner
from deep5.distributed.schemes.graphs import metropolis_weights, neighbours_of
from deep5.distributed.sharding import part_of
from pipeline_cases import Values, batch, executor, network, parameters

SIZES = (8, 8, 5, 3, 8, 2, 7, 8)
"""Samples of all ranks in each step: with three or four ranks some of them have none."""

LR = 0.5

Optimizer = Callable[[], Any]
Step = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What a rank ends with: parameters and those of evaluation, flat; its volume per step; its scheme."""

    values: np.ndarray
    judged: np.ndarray
    sent_bytes: int
    messages: int
    scheme: Any
    run: Any


def flat(run: Any) -> np.ndarray:
    return np.concatenate([value.reshape(-1) for value in parameters(run).values()])


def put(run: Any, values: np.ndarray) -> None:
    names = list(run.network.parameter_specs)
    run.write(names, values.astype(run.network.parameter_specs[names[0]].dtype))


def part(inputs: Values, rank: int, size: int) -> tuple[Values, int]:
    """A rank's part of a batch; one sample of another's where it has none."""
    begin, end = part_of(len(inputs["label"]), rank, size)
    count = end - begin
    return {name: value[begin:end] if count else value[:1] for name, value in inputs.items()}, count


def told(step: int, count: int, total: int) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=count, global_batch_size=total)


def trained(
    scheme: Any,
    optimizer: Optimizer,
    size: int,
    framework: str = "reference",
    *,
    sizes: Sequence[int] = SIZES,
    start: np.ndarray | None = None,
    dtype: str = "float64",
    accumulate: int = 1,
    saved_after: int | None = None,
) -> list[Rank]:
    """Train on `size` ranks.

    Args:
        scheme: Not yet wrapped around an optimizer.
        optimizer: Makes an optimizer; called once per rank.
        size: Number of ranks.
        framework: A name of `pipeline_cases.FRAMEWORKS`.
        sizes: Samples of all ranks, a number for each step.
        start: Parameters of each rank after `bind`, shape (size, numbers).
        dtype: Element type of parameters and inputs.
        accumulate: Micro-batches per step; each is divided among the ranks.
        saved_after: Number of steps after which everything is saved, and new objects resume.
    """

    def made(communicator: Any) -> tuple[Any, Any]:
        run = executor(framework, network(dtype))
        own = scheme.wrap(optimizer(), communicator, seed=5)
        own.bind(run)
        return run, own

    def work(communicator: Any) -> Rank:
        run, own = made(communicator)
        if start is not None:
            put(run, start[communicator.rank])
        before = communicator.sent_bytes, communicator.messages
        for step, count in enumerate(sizes):
            if step == saved_after:
                states = run.state_dict(), own.state_dict()
                run, own = made(communicator)
                run.load_state_dict(states[0])
                own.load_state_dict(states[1])
            whole = batch(step, count, dtype)
            if accumulate == 1:
                inputs, samples = part(whole, communicator.rank, communicator.size)
                own.step(inputs, told(step, samples, count))
                continue
            parts = [
                part({name: value[places] for name, value in whole.items()}, communicator.rank, communicator.size)
                for places in np.array_split(np.arange(count), accumulate)
                if len(places)
            ]
            total = sum(samples for _, samples in parts)
            given = [inputs if samples else None for inputs, samples in parts]
            own.accumulated_step(given if total else [parts[0][0]], told(step, total, count))
        sent = communicator.sent_bytes - before[0], communicator.messages - before[1]
        values = flat(run)
        with own.averaged():
            judged = flat(run)
        np.testing.assert_array_equal(flat(run), values)
        return Rank(values=values, judged=judged, sent_bytes=sent[0], messages=sent[1], scheme=own, run=run)

    return run_in_threads(size, work, timeout_s=300.0)


class ByHand:
    """The ranks' parameters as the rows of a matrix, and −γ times the gradient of each rank's part at its row."""

    def __init__(self, size: int, lr: float = LR) -> None:
        self.size, self.lr = size, lr
        self._run = executor("reference", network("float64"))
        self.start = flat(self._run)

    def gradient(self, values: np.ndarray, inputs: Values) -> np.ndarray:
        put(self._run, values)
        self._run.inference_and_backprop(inputs)
        return np.concatenate([np.asarray(value).reshape(-1) for value in self._run.gradients().values()])

    def updates(self, step: int, count: int, rows: np.ndarray) -> np.ndarray:
        found = np.zeros_like(rows)
        for rank in range(self.size):
            inputs, samples = part(batch(step, count, "float64"), rank, self.size)
            if samples:
                found[rank] = -self.lr * self.gradient(rows[rank], inputs)
        return found

    def run(self, algorithm: Step, sizes: Sequence[int] = SIZES, start: np.ndarray | None = None) -> np.ndarray:
        """The rows after all steps, each by `algorithm(step, rows, updates)`."""
        rows = np.tile(self.start, (self.size, 1)) if start is None else start.copy()
        for step, count in enumerate(sizes):
            rows = algorithm(step, rows, self.updates(step, count, rows))
        return rows


def local_sgd(every: int) -> Step:
    def step(number: int, rows: np.ndarray, updates: np.ndarray) -> np.ndarray:
        after = rows + updates
        return np.tile(after.mean(axis=0), (len(rows), 1)) if (number + 1) % every == 0 else after

    return step


class Easgd:
    """Equations 5 and 6, with a separate center."""

    def __init__(self, start: np.ndarray, every: int, alpha: float, beta: float) -> None:
        self.centre, self.every, self.alpha, self.beta = start.copy(), every, alpha, beta

    def __call__(self, number: int, rows: np.ndarray, updates: np.ndarray) -> np.ndarray:
        if number % self.every:
            return rows + updates
        after = rows + updates - self.alpha * (rows - self.centre)
        self.centre = (1 - self.beta) * self.centre + self.beta * rows.mean(axis=0)
        return after


def d_psgd(graph: Any, size: int) -> Step:
    weights = metropolis_weights(neighbours_of(graph, size))
    return lambda number, rows, updates: weights @ rows + updates


def gossip(seed: int = 5) -> Step:
    def step(number: int, rows: np.ndarray, updates: np.ndarray) -> np.ndarray:
        after = rows + updates
        others = [partner(rank, len(rows), seed, number) for rank in range(len(rows))]
        return np.stack(
            [after[rank] if other is None else (after[rank] + after[other]) / 2 for rank, other in enumerate(others)]
        )

    return step


def hierarchical(groups: Sequence[Sequence[int]], every: int, sizes: Sequence[int] = SIZES) -> Step:
    """Updates of a group are the mean over its samples; every `every` steps, the mean over all ranks."""

    def step(number: int, rows: np.ndarray, updates: np.ndarray) -> np.ndarray:
        after = rows.copy()
        for group in groups:
            counts = np.array([np.subtract(*part_of(sizes[number], rank, len(rows))[::-1]) for rank in group])
            if counts.any():
                after[list(group)] += counts @ updates[list(group)] / counts.sum()
        return np.tile(after.mean(axis=0), (len(rows), 1)) if (number + 1) % every == 0 else after

    return step


def rows_of(ranks: Sequence[Rank]) -> np.ndarray:
    return np.stack([rank.values for rank in ranks])


def apart(size: int) -> np.ndarray:
    """Parameters that differ between ranks."""
    start = ByHand(size).start
    return start + np.random.default_rng(size).standard_normal((size, start.size))


def check_states(got: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The entries are bit-identical."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(got[name], value, strict=True)
        else:
            assert got[name] == value
