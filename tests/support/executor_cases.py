"""Shared by the suites over executors: back-ends, small networks, batches for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import deep5 as d5
from backends import BACKENDS, Backend
from deep5.core.seeds import generator
from deep5.networks import Network, NetworkBuilder, mlp, ones, zeros

__all__ = [
    "RNG",
    "SMALL",
    "arrays",
    "batch",
    "batch_of",
    "executor",
    "idle",
    "info",
    "normal",
    "normalised",
    "passing",
    "reference",
    "shifting",
]

RNG = np.random.default_rng(7)
SMALL: dict[str, Any] = {"features": 4, "hidden": 3, "classes": 2}


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def batch(count: int = 5, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Batches of `mlp(**SMALL)`, and of `normalised`."""
    return {"input": normal(count, 4, dtype=dtype), "label": np.arange(count) % 2}


def executor(backend: Backend, network: Network | None = None, **options: Any) -> Any:
    return backend.framework.executor(network or mlp(**SMALL), **options)


def reference(network: Network, **options: Any) -> Any:
    return executor(BACKENDS["reference"], network, **options)


def batch_of(network: Any, size: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch for any network, the same for the same seed; integers are labels of three classes."""
    draw, found = generator(seed, "test_jax"), {}
    for name, spec in network.inputs.items():
        shape = tuple(size if isinstance(extent, str) else extent for extent in spec.shape)
        whole = spec.dtype.startswith("int")
        found[name] = (draw.integers(0, 3, shape) if whole else draw.standard_normal(shape)).astype(spec.dtype)
    return found


def info(step: int = 0, size: int = 5) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=size)


def arrays(values: Any) -> dict[str, np.ndarray]:
    """Copies that no later run changes."""
    return {name: np.array(d5.to_numpy(value)) for name, value in values.items()}


def normalised(dtype: str = "float32", count: int = 1) -> Network:
    """Some layers with batch normalization of several momenta, and a loss of classes."""
    build = NetworkBuilder("normalised", dtype=dtype, seed=2)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    for number in range(count):
        x = build.op("MatMul", x, build.parameter(f"w{number}", (4, 4)))
        names = [build.parameter(f"{name}{number}", (4,), ones) for name in ("scale", "shift", "mean", "variance")]
        x = build.op("BatchNormalization", x, *names, momentum=0.9 if number < 2 else 0.5)
    x = build.op("MatMul", x, build.parameter("w", (4, 2)))
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


def shifting(*extents: int, dtype: str = "float64") -> Network:
    """Batch normalization of one value with all its parameters, and a loss."""
    build = NetworkBuilder("shifting", dtype=dtype)
    x, one = build.input("x", ("N", 3, *extents)), (1,) * len(extents)
    statistics = build.parameter("mean", (3,), zeros), build.parameter("variance", (3,), ones)
    x = build.op("Mul", x, build.parameter("factor", (3, *one), ones))
    scale, bias = build.parameter("scale", (3,), ones), build.parameter("bias", (3,), zeros)
    y = build.op("BatchNormalization", x, scale, bias, *statistics, momentum=0.8, epsilon=1e-3)
    return build.network({"y": y, "loss": build.op("ReduceSum", build.op("Tanh", y), keepdims=0)})


def idle() -> Network:
    """A table whose rows are read by `x`, and a parameter that the loss does not depend on."""
    build = NetworkBuilder("idle")
    rows = build.op("Gather", build.parameter("table", (5, 3)), build.input("x", ("N",), "int64"), axis=0)
    other = build.op("ReduceSum", build.parameter("idle", (2, 3)), keepdims=0)
    loss = build.op("ReduceSum", build.op("Mul", rows, rows), keepdims=0)
    return build.network({"loss": loss, "other": other})


def passing() -> Network:
    """Outputs that hold an input's elements or a parameter's, and some that do not."""
    build = NetworkBuilder("passing", dtype="float32", seed=1)
    x, label = build.input("input", ("N", 1, 2, 2)), build.input("label", ("N",), "int64")

    def ints(name: str, *values: int) -> Any:
        return build.constant(name, np.array(values))

    flat, w = build.op("Flatten", x), build.parameter("w", (4, 3))
    logits = build.op("MatMul", flat, w)
    found = {
        "same": build.op("Identity", x),
        "flat": flat,
        "reshaped": build.op("Reshape", x, ints("shape", -1, 2, 2)),
        "squeezed": build.op("Identity", build.op("Squeeze", x, ints("first", 1))),
        "unsqueezed": build.op("Unsqueeze", flat, ints("front", 0)),
        "dropped": build.op("Dropout", flat),
        "transposed": build.op("Transpose", x, perm=[0, 2, 1, 3]),
        "all": build.op("Slice", x, ints("begin", 0), ints("end", 1 << 40), ints("axis", 0)),
        "some": build.op("Slice", x, ints("second", 4), ints("end2", 1 << 40), ints("axis2", 0)),
        "sum": build.op("ReduceSum", x, ints("one", 1)),
        "padded": build.op("Pad", x, ints("pads", *[0] * 8)),
        "negated twice": build.op("Neg", build.op("Neg", x)),
        "times one": build.op("Mul", x, build.constant("unit", np.float32(1))),
        "labels": build.op("Identity", label),
        "weight": build.op("Identity", w),
        "row": build.op("Gather", w, build.constant("of", np.array(1, np.int64)), axis=0),
        "logits": logits,
        "loss": build.op("SoftmaxCrossEntropyLoss", logits, label),
    }
    return build.network(found)
