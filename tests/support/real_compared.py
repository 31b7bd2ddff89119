"""Comparisons of a trial of a real file: outputs, gradients and losses, and what one rounding changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.seeds import generator

__all__ = [
    "compared",
    "gradient_noise",
    "gradients",
    "is_float",
    "largest",
    "plain",
    "restored",
    "rounded",
    "rounded_feed",
    "same_gradients",
    "same_losses",
    "storable",
]

# Networks of hundreds of layers, in float32: allowed beside what one rounding of the weights changes, times 16.
_OF_LARGEST, _NOISE_TIMES = 1e-4, 16.0
# Plain ONNX Runtime's sigmoid has absolute errors, also where its value is small.
_FLOOR = 1e-6
_OF_GRADIENT, _OF_ALL = 1e-3, 1e-5
_RATE = 0.01
# Relative spacing of the numbers of each type.
_ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_SETTING = 8


def plain(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs in plain ONNX Runtime, or in `onnx.reference` where it has no kernel of a type."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    written = proto.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(written, options, providers=["CPUExecutionProvider"])
    except NoKernel:
        names = [value.name for value in proto.graph.output]
        return dict(zip(names, ReferenceEvaluator(proto).run(names, dict(feed)), strict=True))
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def rounded(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with every weight changed by at most one rounding; settings, such as scales, are small."""
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    for tensor in other.graph.initializer:
        if tensor.data_type in _FLOATS and np.prod(tensor.dims) > _SETTING:
            value = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(_moved(value, seed, tensor.name), tensor.name))
    return other


def rounded_feed(feed: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    return {name: _moved(value, seed, name) if value.dtype.name in _ROUNDING else value for name, value in feed.items()}


def _moved(value: np.ndarray, seed: int, name: str) -> np.ndarray:
    signs = generator(seed, "rounding", name).integers(-1, 2, value.shape)
    return np.asarray(value.astype(np.float32) * (1 + _ROUNDING[value.dtype.name] * signs)).astype(value.dtype)


def largest(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference; infinite where one is not finite and the other is, or the shapes differ."""
    if one.shape != other.shape or not (one.dtype.kind in "iub" or is_float(one)):
        return 0.0 if one.shape == other.shape and np.array_equal(one, other) else np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(first - second))
    return float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))


def compared(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], noise: Mapping[str, float]
) -> str | None:
    for name, value in expected.items():
        own = np.asarray(found[name])
        if own.shape != value.shape:
            return f"{name} has the shape {list(own.shape)}, expected {list(value.shape)}"
        error = largest(value, own)
        size = float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) if is_float(value) else 0.0
        allowed = _FLOOR + _OF_LARGEST * size + _NOISE_TIMES * float(noise[name])
        if not error <= allowed:
            return f"{name} differs by {error:.2g}, of at most {size:.2g}; allowed: {allowed:.2g}"
    return None


def gradient_noise(executor: Any, feed: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> dict[str, float]:
    """How much one rounding of the parameters changes each gradient."""
    state = executor.state_dict()
    moved = {name: _moved(value, 0, name) if _is_trained(value, name, own) else value for name, value in state.items()}
    executor.load_state_dict(moved)
    executor.inference_and_backprop(rounded_feed(feed, 0), loss="loss:all")
    changed = gradients(executor)
    executor.load_state_dict(state)
    return {name: float(np.linalg.norm(changed[name] - value)) for name, value in own.items()}


def _is_trained(value: Any, name: str, own: Mapping[str, np.ndarray]) -> bool:
    return name in own and value.dtype.name in _ROUNDING


def gradients(executor: Any) -> dict[str, np.ndarray]:
    """The gradients, with those of fewer bits in float32."""
    found = {name: np.asarray(d5.to_numpy(value)) for name, value in executor.gradients().items()}
    return {name: value.astype(np.float32) if value.dtype.itemsize == 2 else value for name, value in found.items()}


def is_float(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" or value.dtype.name in _ROUNDING


def storable(value: np.ndarray) -> np.ndarray:
    """The array without objects: strings in an array of one width."""
    return value.astype(str) if value.dtype.kind == "O" else value


def restored(value: np.ndarray) -> np.ndarray:
    """The array of which `storable` was stored. NumPy's files do not name bfloat16."""
    if value.dtype.kind == "U":
        return value.astype(object)
    return value.view(ml_dtypes.bfloat16) if value.dtype.kind == "V" and value.dtype.itemsize == 2 else value


def same_gradients(own: Mapping[str, np.ndarray], path: Path, measured: Callable[[], dict[str, float]]) -> str | None:
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


def same_losses(losses: Sequence[float], path: Path) -> str | None:
    if not np.isfinite(losses).all():
        return f"the losses are {losses}"
    if not path.exists():
        path.write_text(json.dumps(list(losses)))
        return None
    wanted = json.loads(path.read_text())
    if not np.allclose(losses, wanted, rtol=1e-2, atol=1e-6):
        return f"the losses are {losses}, expected {wanted}"
    return None
