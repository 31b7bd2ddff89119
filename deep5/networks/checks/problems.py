"""The small networks of `check_executor`, and their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.networks.checks.pair import Feed
from deep5.networks.edit.builder import NetworkBuilder, ones, zeros
from deep5.networks.network import Network

__all__ = [
    "FEATURES",
    "convolution",
    "drawn",
    "extremes",
    "kinks",
    "layouts",
    "noisy",
    "not_finite",
    "of_type",
    "sequences",
]

FEATURES = 6
"""Size of the last dimension of the inputs of `kinks`."""


def convolution(dtype: str) -> Network:
    """A convolution, tanh, pooling, and a linear layer, on images that are not square."""
    build = NetworkBuilder("convolution", dtype=dtype, seed=1)
    x, label = build.input("input", ("N", 2, 6, 4)), build.input("label", ("N",), "int64")
    weight, bias = build.parameter("conv.weight", (3, 2, 3, 3)), build.parameter("conv.bias", (3,), zeros)
    x = build.op("Tanh", build.op("Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1] * 4))
    x = build.op("Flatten", build.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = build.op("Gemm", x, build.parameter("fc.weight", (4, 18)), build.parameter("fc.bias", (4,), zeros), transB=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})


def noisy(dtype: str) -> Network:
    """Batch normalization and dropout, and a second loss: what training does otherwise than evaluation."""
    build = NetworkBuilder("noisy", dtype=dtype, seed=2)
    x, label = build.input("input", ("N", 5)), build.input("label", ("N",), "int64")
    # No bias: normalization cancels it, so that its gradient would be rounding errors.
    x = build.op("Gemm", x, build.parameter("fc1.weight", (7, 5)), transB=1)
    affine = [build.parameter("bn.scale", (7,), ones), build.parameter("bn.bias", (7,), zeros)]
    running = [build.parameter("bn.mean", (7,), zeros), build.parameter("bn.variance", (7,), ones)]
    x = build.op("BatchNormalization", x, *affine, *running, epsilon=1e-5, momentum=0.75)
    x = build.op("Dropout", build.op("Tanh", x), build.scalar(0.25))
    x = build.op("Gemm", x, build.parameter("fc2.weight", (3, 7)), build.parameter("fc2.bias", (3,), zeros), transB=1)
    loss = build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")
    second = build.op("ReduceMean", build.op("Mul", x, x), keepdims=0)
    return build.network({"logits": x, "loss": loss, "second": second})


def sequences(dtype: str) -> Network:
    """Two unknown dimensions: the mean over the steps of a sequence, between two linear layers."""
    build = NetworkBuilder("sequences", dtype=dtype, seed=3)
    x, label = build.input("input", ("N", "T", 3)), build.input("label", ("N",), "int64")
    states = build.op("Tanh", build.op("MatMul", x, build.parameter("in.weight", (3, 5))))
    x = build.op("ReduceMean", states, build.constant("axes", np.array([1])), keepdims=0)
    x = build.op("Gemm", x, build.parameter("fc.weight", (4, 5)), build.parameter("fc.bias", (4,), zeros), transB=1)
    loss = build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")
    return build.network({"logits": x, "states": states, "loss": loss})


def kinks(dtype: str) -> Network:
    """Functions with kinks, whose gradients are conventions (docs/results/validation.md), of inputs times ones."""
    build = NetworkBuilder("kinks", dtype=dtype, seed=4)
    x = build.op("Mul", build.input("input", ("N", FEATURES)), build.parameter("scale", (FEATURES,), ones))
    last = build.constant("last", np.array([1]))
    found = {
        "relu": build.op("Relu", x),
        "abs": build.op("Abs", x),
        "largest": build.op("ReduceMax", x, last, keepdims=1),
        "product": build.op("Mul", x, build.op("Sigmoid", x)),
        "share": build.op("Softmax", x, axis=1),
    }
    total = build.op("Concat", *found.values(), axis=1)
    return build.network({**found, "loss": build.op("ReduceMean", total, keepdims=0)})


def of_type(dtype: str) -> Network:
    """Sums and moves of elements of one type, without parameters."""
    build = NetworkBuilder(f"elements of {dtype}", dtype="float32")
    x = build.input("input", ("N", 3), dtype)
    turned = build.op("Transpose", x, perm=[1, 0])
    found = {"turned": turned, "double": build.op("Concat", x, x, axis=0)}
    found["sum"] = build.op("And", x, x) if dtype == "bool" else build.op("Add", x, x)
    return build.network(found)


def drawn(network: Network, seed: int, *purpose: str | int, **extents: int) -> Feed:
    """Normal numbers and classes as inputs.

    Args:
        network: The network; its classes are as many as its logits' last dimension.
        seed: Seed of the numbers.
        purpose: Distinguishes draws.
        extents: The symbolic dimensions: N, and T of `sequences`.
    """
    draw, feed = generator(seed, "check_executor", *purpose), {}
    for name, spec in network.inputs.items():
        shape = tuple(extents[each] if isinstance(each, str) else int(each) for each in spec.shape)
        if name == "label":
            feed[name] = draw.integers(0, int(network.outputs["logits"].shape[-1]), shape)
        elif spec.dtype == "bool":
            feed[name] = draw.integers(0, 2, shape).astype(bool)
        elif spec.dtype.startswith(("int", "uint")):
            feed[name] = draw.integers(0, 50, shape).astype(spec.dtype)
        else:
            feed[name] = draw.standard_normal(shape).astype(numpy_dtype(spec.dtype))
    return feed


def extremes(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Values at which code often differs, in the shape and type of some: zeros, ties, large and small numbers."""
    yield "of zeros", np.zeros_like(values)
    yield "of negative zeros", -np.zeros_like(values)
    yield "of equal values", np.full_like(values, 0.5)
    rounded = np.round(values)
    yield "with ties and zeros", rounded
    # Far from overflow in every type, squares excepted.
    power = 15 if values.dtype.itemsize > 2 else 2
    for word, factor in (("large", 10.0**power), ("small", 10.0**-power)):
        yield f"of {word} values", (values * factor).astype(values.dtype)


def not_finite(feed: Feed) -> Iterator[tuple[str, Feed]]:
    """NaN and infinities among floating-point numbers, in the first sample only."""
    for what, value in (("NaN", np.nan), ("inf", np.inf), ("-inf", -np.inf)):
        found = {name: given.copy() for name, given in feed.items()}
        for given in found.values():
            if given.dtype.kind not in "biu":
                given[0].reshape(-1)[0] = value
        yield f"with {what}", found


def layouts(feed: Feed) -> Iterator[tuple[str, Feed]]:
    """The same values in other memory."""
    yield "of strided memory", {name: np.repeat(value, 2, axis=0)[::2] for name, value in feed.items()}
    yield "of every second column", {name: np.repeat(value, 2, axis=-1)[..., ::2] for name, value in feed.items()}
    yield "in Fortran order", {name: np.asfortranarray(value) for name, value in feed.items()}
    yield "of reversed memory", {name: np.array(value[::-1])[::-1] for name, value in feed.items()}
    yield "of misaligned memory", {name: _misaligned(value) for name, value in feed.items()}
    frozen = {name: value.copy() for name, value in feed.items()}
    for value in frozen.values():
        value.flags.writeable = False
    yield "of read-only memory", frozen


def _misaligned(value: np.ndarray) -> np.ndarray:
    laid = np.ndarray(value.shape, value.dtype, np.zeros(value.nbytes + 1, np.uint8).data, offset=1)
    laid[...] = value
    return laid
