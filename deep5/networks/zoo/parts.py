"""Shared parts of the networks of the zoo: argument checks, layers, losses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError, suggestion

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import Initializer, NetworkBuilder
    from deep5.networks.network import Network

__all__ = [
    "activated",
    "check_arguments",
    "choice",
    "conv_bn",
    "conv_relu",
    "convolution",
    "convolved",
    "dropped",
    "finished",
    "halved",
    "hundredth",
    "images",
    "label_of",
    "language_model",
    "linear",
    "loss_of",
    "normalised",
    "pooled_flat",
    "stacked_linear",
]

_DTYPES = ("float32", "float64")
_LOSSES = ("cross_entropy", "mse")


def check_arguments(dtype: str, loss: str, dropout: float = 0.0, **sizes: int) -> None:
    """Check that dtype and loss are known, sizes are integers of at least 1, and dropout is in [0, 1).

    Raises:
        UsageError: An argument is invalid.
    """
    if dtype not in _DTYPES:
        near = suggestion(str(dtype), _DTYPES)
        raise UsageError(f"unknown dtype {dtype!r} of a network; allowed: {', '.join(_DTYPES)}{near}")
    if loss not in _LOSSES:
        raise UsageError(f"unknown loss {loss!r}; allowed: {', '.join(_LOSSES)}")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"got {name} = {size!r}; allowed: an integer of at least 1")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0.0 <= dropout < 1.0:
        raise UsageError(f"got dropout = {dropout!r}; allowed: a number from 0 up to, not including, 1")


def choice(what: str, got: str, allowed: Mapping[str, str]) -> str:
    """The value of a choice.

    Raises:
        UsageError: The choice is not allowed.
    """
    if got not in allowed:
        raise UsageError(f"unknown {what} {got!r}; allowed: {', '.join(allowed)}")
    return allowed[got]


def linear(build: NetworkBuilder, x: Any, name: str, sizes: tuple[int, int], init: Initializer) -> Any:
    """A fully connected layer on (N, in); `sizes` is (out, in), the bias starts at zero."""
    from deep5.networks.edit.builder import zeros

    weight, bias = build.parameter(f"{name}.weight", sizes, init), build.parameter(f"{name}.bias", sizes[:1], zeros)
    return build.op("Gemm", x, weight, bias, transB=1)


def stacked_linear(build: NetworkBuilder, x: Any, name: str, sizes: Sequence[int]) -> Any:
    """Fully connected layers on (N, sizes[0]), He-normal, with ReLU in between and none after the last."""
    from deep5.networks.edit.builder import he_normal

    for index, (into, out) in enumerate(itertools.pairwise(sizes)):
        x = build.op("Relu", x) if index else x
        x = linear(build, x, f"{name}{index}", (out, into), he_normal)
    return x


def convolution(
    build: NetworkBuilder, x: Any, weight: Any, bias: Any = None, *, stride: int = 1, pad: int = 0, group: int = 1
) -> Any:
    """A convolution with a square kernel, whose size follows from the weight's shape."""
    kernel = [int(extent) for extent in weight.shape[2:]]
    inputs = (x, weight) if bias is None else (x, weight, bias)
    grouped: dict[str, Any] = {} if group == 1 else {"group": group}
    return build.op("Conv", *inputs, kernel_shape=kernel, pads=[pad] * 4, strides=[stride] * 2, **grouped)


def conv_relu(
    build: NetworkBuilder, x: Any, name: str, shape: tuple[int, ...], *, stride: int = 1, pad: int | None = None
) -> Any:
    """A convolution with bias and ReLU, He-normal; `shape` is (out, in, k, k), the padding k // 2 unless given."""
    from deep5.networks.edit.builder import he_normal, zeros

    weight = build.parameter(f"{name}.weight", shape, he_normal)
    bias = build.parameter(f"{name}.bias", shape[:1], zeros)
    pad = shape[2] // 2 if pad is None else pad
    return build.op("Relu", convolution(build, x, weight, bias, stride=stride, pad=pad))


def convolved(build: NetworkBuilder, x: Any, name: str, shape: tuple[int, ...], stride: int = 1, group: int = 1) -> Any:
    """A convolution without bias, He-normal; `shape` is (out, in, k, k), the padding k // 2."""
    from deep5.networks.edit.builder import he_normal

    weight = build.parameter(f"{name}.weight", shape, he_normal)
    return convolution(build, x, weight, stride=stride, pad=shape[2] // 2, group=group)


def activated(build: NetworkBuilder, x: Any, name: str, channels: int) -> Any:
    """Batch normalization and ReLU."""
    return build.op("Relu", normalised(build, x, name, channels))


def conv_bn(
    build: NetworkBuilder,
    x: Any,
    name: str,
    shape: tuple[int, ...],
    stride: int = 1,
    *,
    group: int = 1,
    scale: Initializer | None = None,
) -> Any:
    """`convolved`, followed by batch normalization."""
    return normalised(build, convolved(build, x, name, shape, stride, group), name, shape[0], scale=scale)


def normalised(build: NetworkBuilder, x: Any, name: str, channels: int, *, scale: Initializer | None = None) -> Any:
    """Batch normalization; its scale is initially one by default."""
    from deep5.networks.edit.builder import ones, zeros

    shape = (channels,)
    affine = build.parameter(f"{name}.scale", shape, scale or ones), build.parameter(f"{name}.bias", shape, zeros)
    statistics = build.parameter(f"{name}.mean", shape, zeros), build.parameter(f"{name}.variance", shape, ones)
    return build.op("BatchNormalization", x, *affine, *statistics, epsilon=1e-5, momentum=0.9)


def halved(build: NetworkBuilder, x: Any) -> Any:
    """3 x 3 max-pooling with stride 2: dimensions of size n become ceil(n / 2)."""
    return build.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])


def pooled_flat(build: NetworkBuilder, x: Any) -> Any:
    """The mean over all pixels of each channel: (N, C, H, W) becomes (N, C)."""
    return build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)


def dropped(build: NetworkBuilder, x: Any, ratio: float) -> Any:
    """A Dropout node with this probability; no node if it is zero."""
    return build.op("Dropout", x, build.scalar(ratio)) if ratio else x


def images(name: str, image: int, classes: int, loss: str, dtype: str, seed: int) -> tuple[NetworkBuilder, Any, Any]:
    """The start of a classifier of square color images: the builder, `input` (N, 3, image, image) and `label`."""
    from deep5.networks.edit.builder import NetworkBuilder

    build = NetworkBuilder(name, dtype=dtype, seed=seed)
    return build, build.input("input", ("N", 3, image, image)), label_of(build, loss, classes)


def label_of(build: NetworkBuilder, loss: str, classes: int) -> Any:
    """Declare the input `label`: classes (N,) int64, or values (N, classes) for the squared error."""
    return build.input("label", ("N",), "int64") if loss == "cross_entropy" else build.input("label", ("N", classes))


def loss_of(build: NetworkBuilder, scores: Any, label: Any, loss: str) -> Any:
    """The scalar loss of some logits: the mean over the batch or, for the squared error, over all elements."""
    if loss == "cross_entropy":
        return build.op("SoftmaxCrossEntropyLoss", scores, label, reduction="mean")
    difference = build.op("Sub", scores, label)
    return build.op("ReduceMean", build.op("Mul", difference, difference), keepdims=0)


def finished(build: NetworkBuilder, logits: Any, label: Any, loss: str, others: Sequence[Any] = ()) -> Network:
    """The network with the outputs `logits` and `loss`, to which the other losses are added."""
    value = loss_of(build, logits, label, loss)
    for other in others:
        value = build.op("Add", value, other)
    return build.network({"logits": logits, "loss": value})


def language_model(build: NetworkBuilder, logits: Any, label: Any, vocabulary: int) -> Network:
    """The network with the outputs `logits` (N, length, vocabulary) and `loss`, the mean over all tokens."""
    import numpy as np

    rows = build.op("Reshape", logits, build.constant("loss.rows", np.array([-1, vocabulary])))
    tokens = build.op("Reshape", label, build.constant("loss.tokens", np.array([-1])))
    return build.network({"logits": logits, "loss": loss_of(build, rows, tokens, "cross_entropy")})


def hundredth(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal with standard deviation 0.01."""
    return 0.01 * rng.standard_normal(shape)
