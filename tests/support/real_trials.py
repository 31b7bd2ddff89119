"""One ONNX file on one back-end: forward, backward and three steps, compared with plain ONNX Runtime.

What is known is written after every part, so that a part that hangs or ends the process takes nothing from the parts
before it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

import deep5 as d5
from deep5.core.child_main import Report
from deep5.core.errors import Deep5Error, MissingDependency, NetworkError, NetworkWarning, Unsupported
from deep5.core.files import write_atomically
from deep5.core.memory import peak_bytes
from deep5.core.seeds import generator
from deep5.networks.analysis.extents import batch_extents, chosen_extents
from deep5.networks.random_feed import random_feed
from real_compared import (
    compared,
    gradient_noise,
    gradients,
    is_float,
    largest,
    plain,
    restored,
    rounded,
    rounded_feed,
    same_gradients,
    same_losses,
    storable,
)

__all__ = [
    "EXPECTED",
    "GRADIENTS",
    "MODEL",
    "NEXT",
    "PARTS",
    "WORKS",
    "described",
    "done",
    "missing_parts",
    "original",
    "originals",
    "trial",
    "trials",
    "with_loss",
]

NEXT = "the next file"
"""Reported before each file, which has the whole time limit."""
MODEL = "model.onnx"
EXPECTED, GRADIENTS = "expected.npz", "gradients.npz"
"""Files of the values to compare with, beside the results."""
PARTS = ("forward", "backward", "steps")
"""The parts of a trial."""
WORKS = "works"
"""The outcome of a part that runs and is right; the others are a message after `refused:`, `wrong:` or `fails:`."""

_NOISES, _STEPS = 3, 3
_LONGEST = 600


def originals(
    jobs: Sequence[tuple[str, Mapping[str, int], Mapping[str, Any]]], origin: Mapping[str, str], report: Report
) -> None:
    """Run `original` for files, each with the folder that it is in, sizes and values.

    Args:
        jobs: The files.
        origin: What every result states first: the sources, and the commit.
        report: Reports `NEXT` before each.
    """
    for folder, sizes, values in jobs:
        report(NEXT)
        original(str(Path(folder, MODEL)), folder, sizes, values, report, origin=origin)
        done(Path(folder), "original").touch()


def trials(jobs: Sequence[tuple[str]], origin: Mapping[str, str], framework: str, last: str, report: Report) -> None:
    """Run `trial` for files, each in a folder of `originals`.

    Args:
        jobs: The folders.
        origin: What every result states first: the sources, and the commit.
        framework: Name of the back-end.
        last: The last part to run.
        report: Reports `NEXT` before each.
    """
    for (folder,) in jobs:
        report(NEXT)
        trial(str(Path(folder, MODEL)), folder, framework, last, report, origin=origin)
        done(Path(folder), framework).touch()


def done(folder: Path, name: str) -> Path:
    """The file that is there when `originals`, or a back-end, has finished a folder."""
    return folder / f".{name.replace(':', '-')}.done"


def original(
    path: str,
    folder: str,
    sizes: Mapping[str, int],
    values: Mapping[str, Any],
    report: Report,
    *,
    origin: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Describe a file, import it, draw its inputs, and run it with plain ONNX Runtime, optimizations off.

    Args:
        path: The file.
        folder: Where `original.json` and the expected values are written.
        sizes: Sizes of unknown dimensions of inputs; the batch is 1 without one.
        values: Inputs that are not random, as `real_wheels.File` has them.
        report: Reports the current part.
        origin: What the result states first.
    """
    found = _Found(Path(folder, "original.json"), origin)
    report("reading the file")
    proto = onnx.load(path)
    found.add(**described(proto), bytes=Path(path).stat().st_size)
    report("the import")
    network = found.part("import", lambda: _read_or_refuse(path))
    if network is None:
        return
    report("the inputs")
    feed = found.part("inputs", lambda: _feed(network, sizes, values))
    if feed is None:
        return
    report("plain ONNX Runtime")

    def run() -> None:
        expected = plain(proto, feed)
        changes = [plain(rounded(proto, seed), rounded_feed(feed, seed)) for seed in range(_NOISES)]
        noise = {name: max(largest(value, other[name]) for other in changes) for name, value in expected.items()}
        arrays = {f"in:{name}": storable(value) for name, value in feed.items()}
        arrays |= {f"out:{name}": storable(value) for name, value in expected.items()}
        np.savez(Path(folder, EXPECTED), **arrays, noise=np.array([noise[name] for name in expected]))  # type: ignore[arg-type]

    found.part("plain", run)


def trial(
    path: str,
    folder: str,
    framework: str,
    last: str,
    report: Report,
    *,
    origin: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a file on a back-end; `original` has run before.

    The first back-end whose gradients are known writes them, and the others are compared with it. Parts that are known
    from the same sources do not run again.

    Args:
        path: The file.
        folder: Of the expected values; the result is written to `FRAMEWORK.json`.
        framework: Name of the back-end.
        last: The last part to run, a member of `PARTS`.
        report: Reports the current part.
        origin: What the result states first.
    """
    found = _Found(Path(folder, f"{framework.replace(':', '-')}.json"), origin, resumed=True)
    if not missing_parts(found.known, last):
        return
    before = found.known.get("processor_s", 0.0)
    with np.load(Path(folder, EXPECTED)) as stored:
        feed = {name[3:]: restored(stored[name]) for name in stored.files if name.startswith("in:")}
        expected = {name[4:]: restored(stored[name]) for name in stored.files if name.startswith("out:")}
        noise = dict(zip(expected, stored["noise"], strict=True))
    start = process_time()
    report("the start of the framework")
    network = _read(path)
    back_end = d5.framework(framework)
    if "start" not in found.known:
        found.part("start", lambda: back_end.executor(d5.networks.mlp(features=2, classes=2), device="cpu"))

    def forward() -> str | None:
        outputs = back_end.executor(network, device="cpu").inference(feed)
        return compared({name: d5.to_numpy(value) for name, value in outputs.items()}, expected, noise)

    floats = [name for name, value in expected.items() if is_float(value)]
    made: list[Any] = []

    def executor() -> Any:
        if not made:
            made.append(back_end.executor(with_loss(network, floats), device="cpu"))
        return made[0]

    def backward() -> str | None:
        start = process_time()
        executor().inference_and_backprop(feed, loss="loss:all")
        executor().synchronize()
        found.add(gradient_s=round(process_time() - start, 3))
        own = gradients(executor())
        return same_gradients(own, Path(folder, GRADIENTS), lambda: gradient_noise(executor(), feed, own))

    def steps() -> str | None:
        with np.load(Path(folder, GRADIENTS)) as stored:
            rate = float(stored["rate"])
        step = executor().train_step(d5.SGD(rate), "loss:all")
        infos = [d5.StepInfo(step=number, batch_size=1) for number in range(_STEPS)]
        losses = [float(d5.to_numpy(step(feed, info)["loss:all"])) for info in infos]
        return same_losses(losses, Path(folder, "losses.json"))

    for part, run in (("forward", forward), ("backward", backward), ("steps", steps)):
        if part in missing_parts(found.known, last):
            if part == "backward" and not (floats and network.trained_specs):
                found.add(backward="no floating-point output" if not floats else "no parameter is trained", steps="-")
                return
            report(part if part != "steps" else "three steps")
            found.part(part, run, checks=True)
            found.add(processor_s=round(before + process_time() - start, 3))


def missing_parts(known: Mapping[str, Any], last: str) -> list[str]:
    """The parts up to `last` that can still run: after a part that does not work, none."""
    wanted = PARTS[: PARTS.index(last) + 1]
    if any(known.get(part, WORKS) != WORKS for part in wanted):
        return []
    return [part for part in wanted if part not in known]


def with_loss(network: d5.Network, outputs: Sequence[str]) -> d5.Network:
    """The network with one more output, `loss:all`: the sum, over these outputs, of the mean of their squares."""
    network = network.add_parameter("loss:shape", np.zeros(0, np.int64))
    terms = []
    for number, name in enumerate(outputs):
        square, mean, scalar, term = (f"loss:{what}{number}" for what in ("square", "mean", "scalar", "term"))
        network = network.add_node("Mul", [name, name], [square])
        network = network.add_node("ReduceMean", [square], [mean], keepdims=0)
        network = network.add_node("Reshape", [mean, "loss:shape"], [scalar])
        network = network.add_node("Cast", [scalar], [term], to=onnx.TensorProto.FLOAT)
        terms.append(term)
    network = network.add_node("Sum", terms, ["loss:all"])
    return network.with_outputs([*network.outputs, "loss:all"])


def described(proto: onnx.ModelProto) -> dict[str, Any]:
    """Producer, opset, number of nodes (those in bodies too), and the operators with how often each occurs."""
    counts: dict[str, int] = {}
    waiting: list[Any] = [proto.graph, *proto.functions]
    while waiting:
        for node in waiting.pop().node:
            name = f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            counts[name] = counts.get(name, 0) + 1
            for own in node.attribute:
                waiting += [own.g] if own.HasField("g") else list(own.graphs)
    opset = max((own.version for own in proto.opset_import if own.domain in ("", "ai.onnx")), default=0)
    operators = dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
    return {"producer": proto.producer_name, "opset": opset, "nodes": sum(counts.values()), "operators": operators}


class _Found:
    """What is known of a trial, written to a file after each part; resumed, it begins with what the file has."""

    def __init__(self, path: Path, origin: Mapping[str, str], *, resumed: bool = False) -> None:
        stored = json.loads(path.read_text()) if resumed and path.is_file() else {}
        same = "sources" in origin and stored.get("sources") == origin["sources"]
        self.known: dict[str, Any] = stored if same else {}
        self.known |= origin
        self._path = path

    def add(self, **known: Any) -> None:
        peak = peak_bytes()
        self.known |= known | {"peak_bytes": max(peak, self.known.get("peak_bytes", 0))}
        write_atomically(self._path, json.dumps(self.known))

    def part(self, name: str, run: Callable[[], Any], *, checks: bool = False) -> Any:
        """Run a part, and note its outcome and the processor time; with `checks` it returns what is wrong, or None."""
        start = process_time()
        try:
            result = run()
            outcome = WORKS if not checks or result is None else f"wrong: {result}"
        except MissingDependency as error:
            result, outcome = None, f"not installed: {error}"
        except Unsupported as error:
            result, outcome = None, f"refused: {error}"
        except Exception as error:  # every other exception is a fault of deep5 or of the framework
            kind = "" if isinstance(error, Deep5Error) else f"{type(error).__name__}: "
            result, outcome = None, f"fails: {kind}{error}"
        seconds = process_time() - start
        outcome = outcome.replace(f"{self._path.parent}/", "")
        self.add(**{name: " ".join(outcome.split())[:_LONGEST], f"{name}_s": round(seconds, 3)})
        return (True if outcome == WORKS else None) if checks else result


def _read(path: str) -> d5.Network:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NetworkWarning)  # ignored declarations
        return d5.Network.from_onnx(path)


def _read_or_refuse(path: str) -> d5.Network:
    """Read a file that some engine runs; an error that names a remedy is a refusal, not a fault."""
    try:
        return _read(path)
    except NetworkError as error:
        if "remedy" not in str(error):
            raise
        raise Unsupported(str(error)) from error


def _feed(network: d5.Network, sizes: Mapping[str, int], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    batch = None if all(symbol in sizes for symbol in batch_extents(network)) else 1
    feed = random_feed(network, chosen_extents(network, batch, sizes))
    for name, value in values.items():
        if isinstance(value, Mapping):
            feed[name] = generator(0, name).integers(0, value["below"], feed[name].shape).astype(feed[name].dtype)
        else:
            feed[name] = np.full_like(feed[name], value)
    return feed
