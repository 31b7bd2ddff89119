"""One ONNX file on one back-end: forward, backward and three steps, compared with plain ONNX Runtime.

What is known is written after every part, so that a part that hangs or ends the process takes nothing from the parts
before it.
"""

from __future__ import annotations

import json
import resource
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import onnx

import deep5 as d5
from deep5.core.child_main import Report
from deep5.core.errors import Deep5Error, MissingDependency, NetworkWarning, Unsupported
from deep5.core.seeds import generator
from deep5.networks.analysis.extents import batch_extents, chosen_extents
from deep5.networks.random_feed import random_feed

__all__ = [
    "EXPECTED",
    "GRADIENTS",
    "NEXT",
    "PARTS",
    "WORKS",
    "described",
    "done",
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

# Networks of hundreds of layers, in float32: allowed beside what one rounding of the weights changes, times 16.
_OF_LARGEST, _NOISE_TIMES = 1e-4, 16.0
# Plain ONNX Runtime's sigmoid has absolute errors, also where its value is small.
_FLOOR = 1e-6
_OF_GRADIENT, _OF_ALL = 1e-3, 1e-5
_NOISES, _STEPS, _RATE = 3, 3, 0.01
_ROUNDING = float(np.finfo(np.float32).eps)
_LONGEST, _SETTING = 600, 8


def originals(jobs: Sequence[tuple[str, Mapping[str, int], Mapping[str, Any]]], report: Report) -> None:
    """Run `original` for files, each with the folder that it is in, sizes and values.

    Args:
        jobs: The files.
        report: Reports `NEXT` before each.
    """
    for folder, sizes, values in jobs:
        report(NEXT)
        original(str(Path(folder, MODEL)), folder, sizes, values, report)
        done(Path(folder), "original").touch()


def trials(jobs: Sequence[tuple[str]], framework: str, last: str, report: Report) -> None:
    """Run `trial` for files, each in a folder of `originals`.

    Args:
        jobs: The folders.
        framework: Name of the back-end.
        last: The last part to run.
        report: Reports `NEXT` before each.
    """
    for (folder,) in jobs:
        report(NEXT)
        trial(str(Path(folder, MODEL)), folder, framework, last, report)
        done(Path(folder), framework).touch()


def done(folder: Path, name: str) -> Path:
    """The file that is there when `originals`, or a back-end, has finished a folder."""
    return folder / f".{name.replace(':', '-')}.done"


def original(path: str, folder: str, sizes: Mapping[str, int], values: Mapping[str, Any], report: Report) -> None:
    """Describe a file, import it, draw its inputs, and run it with plain ONNX Runtime, optimizations off.

    Args:
        path: The file.
        folder: Where `original.json` and the expected values are written.
        sizes: Sizes of unknown dimensions of inputs; the batch is 1 without one.
        values: Inputs that are not random, as `real_wheels.File` has them.
        report: Reports the current part.
    """
    found = _Found(Path(folder, "original.json"))
    report("reading the file")
    proto = onnx.load(path)
    found.add(**described(proto), bytes=Path(path).stat().st_size)
    report("the import")
    network = found.part("import", lambda: _read(path))
    if network is None:
        return
    report("the inputs")
    feed = found.part("inputs", lambda: _feed(network, sizes, values))
    if feed is None:
        return
    report("plain ONNX Runtime")

    def run() -> None:
        expected = _plain(proto, feed)
        changes = [_plain(_rounded(proto, seed), _rounded_feed(feed, seed)) for seed in range(_NOISES)]
        noise = {name: max(_largest(value, other[name]) for other in changes) for name, value in expected.items()}
        arrays = {f"in:{name}": value for name, value in feed.items()}
        arrays |= {f"out:{name}": value for name, value in expected.items()}
        np.savez(Path(folder, EXPECTED), **arrays, noise=np.array([noise[name] for name in expected]))  # type: ignore[arg-type]

    found.part("plain", run)


def trial(path: str, folder: str, framework: str, last: str, report: Report) -> None:
    """Run a file on a back-end; `original` has run before.

    The first back-end whose gradients are known writes them, and the others are compared with it.

    Args:
        path: The file.
        folder: Of the expected values; the result is written to `FRAMEWORK.json`.
        framework: Name of the back-end.
        last: The last part to run, a member of `PARTS`.
        report: Reports the current part.
    """
    found = _Found(Path(folder, f"{framework.replace(':', '-')}.json"))
    with np.load(Path(folder, EXPECTED)) as stored:
        feed = {name[3:]: stored[name] for name in stored.files if name.startswith("in:")}
        expected = {name[4:]: stored[name] for name in stored.files if name.startswith("out:")}
        noise = dict(zip(expected, stored["noise"], strict=True))
    report("the start of the framework")
    network = _read(path)
    back_end = d5.framework(framework)
    found.part("start", lambda: back_end.executor(d5.networks.mlp(features=2, classes=2), device="cpu"))
    report("forward")

    def forward() -> str | None:
        outputs = back_end.executor(network, device="cpu").inference(feed)
        return _compared({name: d5.to_numpy(value) for name, value in outputs.items()}, expected, noise)

    if found.part("forward", forward, checks=True) is None or last == "forward":
        return
    floats = [name for name, value in expected.items() if value.dtype.kind == "f"]
    if not floats or not network.trained_specs:
        found.add(backward="no floating-point output" if not floats else "no parameter is trained", steps="-")
        return
    report("backward")
    loss = with_loss(network, floats)
    made: list[Any] = []

    def backward() -> str | None:
        start = process_time()
        executor = back_end.executor(loss, device="cpu")
        made.append(executor)
        executor.inference_and_backprop(feed, loss="loss:all")
        executor.synchronize()
        found.add(gradient_s=round(process_time() - start, 3))
        own = {name: d5.to_numpy(value) for name, value in executor.gradients().items()}
        return _same_gradients(own, Path(folder, GRADIENTS), lambda: _gradient_noise(executor, feed, own))

    if found.part("backward", backward, checks=True) is None or last == "backward":
        return
    report("three steps")

    def steps() -> str | None:
        with np.load(Path(folder, GRADIENTS)) as stored:
            rate = float(stored["rate"])
        step = made[0].train_step(d5.SGD(rate), "loss:all")
        infos = [d5.StepInfo(step=number, batch_size=1) for number in range(_STEPS)]
        losses = [float(d5.to_numpy(step(feed, info)["loss:all"])) for info in infos]
        return _same_losses(losses, Path(folder, "losses.json"))

    found.part("steps", steps, checks=True)


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
    """What is known of a trial, written to a file after each part."""

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, dict[str, Any]()

    def add(self, **known: Any) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._known |= known | {"peak_bytes": peak}
        self._path.write_text(json.dumps(self._known))

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


def _feed(network: d5.Network, sizes: Mapping[str, int], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    batch = None if all(symbol in sizes for symbol in batch_extents(network)) else 1
    feed = random_feed(network, chosen_extents(network, batch, sizes))
    for name, value in values.items():
        if isinstance(value, Mapping):
            feed[name] = generator(0, name).integers(0, value["below"], feed[name].shape).astype(feed[name].dtype)
        else:
            feed[name] = np.full_like(feed[name], value)
    return feed


def _plain(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def _rounded(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with every weight of float32 changed by at most one rounding; settings, such as scales, are small."""
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    for tensor in other.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > _SETTING:
            value = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(_moved(value, seed, tensor.name), tensor.name))
    return other


def _rounded_feed(feed: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    return {name: _moved(value, seed, name) if value.dtype == np.float32 else value for name, value in feed.items()}


def _moved(value: np.ndarray, seed: int, name: str) -> np.ndarray:
    signs = generator(seed, "rounding", name).integers(-1, 2, value.shape)
    return np.asarray(value * (1 + _ROUNDING * signs), np.float32)


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference; infinite where one is not finite and the other is, or the shapes differ."""
    if one.shape != other.shape or one.dtype.kind not in "fiub":
        return 0.0 if one.shape == other.shape and np.array_equal(one, other) else np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(first - second))
    return float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))


def _compared(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], noise: Mapping[str, float]
) -> str | None:
    for name, value in expected.items():
        own = np.asarray(found[name])
        if own.shape != value.shape:
            return f"{name} has the shape {list(own.shape)}, expected {list(value.shape)}"
        error = _largest(value, own)
        largest = float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) if value.dtype.kind == "f" else 0.0
        allowed = _FLOOR + _OF_LARGEST * largest + _NOISE_TIMES * float(noise[name])
        if not error <= allowed:
            return f"{name} differs by {error:.2g}, of at most {largest:.2g}; allowed: {allowed:.2g}"
    return None


def _gradient_noise(executor: Any, feed: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> dict[str, float]:
    """How much one rounding of the parameters changes each gradient."""
    state = executor.state_dict()
    moved = {name: _moved(value, 0, name) if _is_trained(value, name, own) else value for name, value in state.items()}
    executor.load_state_dict(moved)
    executor.inference_and_backprop(_rounded_feed(feed, 0), loss="loss:all")
    changed = {name: d5.to_numpy(value) for name, value in executor.gradients().items()}
    executor.load_state_dict(state)
    return {name: float(np.linalg.norm(changed[name] - value)) for name, value in own.items()}


def _is_trained(value: Any, name: str, own: Mapping[str, np.ndarray]) -> bool:
    return name in own and value.dtype == np.float32


def _same_gradients(own: Mapping[str, np.ndarray], path: Path, measured: Callable[[], dict[str, float]]) -> str | None:
    """Compare gradients with the stored ones; the first are stored, if all of them are finite."""
    for name, value in own.items():
        if not np.isfinite(value).all():
            return f"the gradient of {name} is not finite"
    if not path.exists():
        noise, whole = (
            measured(),
            float(np.sqrt(sum(float(np.sum(np.square(value, dtype=np.float64))) for value in own.values()))),
        )
        arrays = {f"of:{name}": value for name, value in own.items()}
        noises = np.array([noise[name] for name in own])
        rate = _RATE / max(whole, 1.0)
        np.savez(path, **arrays, noise=noises, whole=np.array(whole), rate=np.array(rate))  # type: ignore[arg-type]
        return None
    with np.load(path) as stored:
        names = [name[3:] for name in stored.files if name.startswith("of:")]
        whole, noises = float(stored["whole"]), dict(zip(names, stored["noise"], strict=True))
        if set(names) != set(own):
            return f"gradients of {sorted(set(names) ^ set(own))[:3]} are on one side only"
        for name in names:
            wanted = stored[f"of:{name}"]
            error, size = float(np.linalg.norm(own[name] - wanted)), float(np.linalg.norm(wanted))
            allowed = _OF_GRADIENT * size + _OF_ALL * whole + _NOISE_TIMES * float(noises[name])
            if not error <= allowed:
                return f"the gradient of {name} differs by {error:.2g} of {size:.2g}; allowed: {allowed:.2g}"
    return None


def _same_losses(losses: Sequence[float], path: Path) -> str | None:
    if not np.isfinite(losses).all():
        return f"the losses are {losses}"
    if not path.exists():
        path.write_text(json.dumps(list(losses)))
        return None
    wanted = json.loads(path.read_text())
    if not np.allclose(losses, wanted, rtol=1e-2, atol=1e-6):
        return f"the losses are {losses}, expected {wanted}"
    return None
