"""What the networks of the zoo share: checks of their arguments, layers, losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deep5.errors import UsageError

if TYPE_CHECKING:
    from deep5.networks.builder import Initializer, NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["check_arguments", "check_ratio", "choice", "convolution", "dropped", "finished", "label_of", "linear"]

_LOSSES = ("cross_entropy", "mean_squared_error")


def check_arguments(dtype: str, loss: str, **sizes: int) -> None:
    """Refuse an unknown dtype or loss, and sizes that are no whole numbers of at least 1.

    Raises:
        UsageError: Which argument, and what is allowed.
    """
    if dtype not in ("float32", "float64"):
        raise UsageError(f"unknown dtype {dtype!r} of a network; allowed: float32, float64")
    if loss not in _LOSSES:
        raise UsageError(f"unknown loss {loss!r}; allowed: {', '.join(_LOSSES)}")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"got {name} = {size!r}; allowed: a whole number of at least 1")


def check_ratio(dropout: float) -> None:
    """Refuse a share of dropped values outside [0, 1).

    Raises:
        UsageError: Got, and what is allowed.
    """
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0.0 <= dropout < 1.0:
        raise UsageError(f"got dropout = {dropout!r}; allowed: a number from 0 up to, not including, 1")


def choice(what: str, got: str, allowed: Mapping[str, str]) -> str:
    """What a word stands for.

    Raises:
        UsageError: A word that is not allowed.
    """
    if got not in allowed:
        raise UsageError(f"unknown {what} {got!r}; allowed: {', '.join(allowed)}")
    return allowed[got]


def linear(build: NetworkBuilder, x: Any, name: str, sizes: tuple[int, int], init: Initializer) -> Any:
    """A fully connected layer on (N, in); `sizes` is (out, in), the bias starts at zero."""
    from deep5.networks.builder import zeros

    weight, bias = build.parameter(f"{name}.weight", sizes, init), build.parameter(f"{name}.bias", sizes[:1], zeros)
    return build.op("Gemm", x, weight, bias, transB=1)


def convolution(build: NetworkBuilder, x: Any, weight: Any, bias: Any = None, *, stride: int = 1, pad: int = 0) -> Any:
    """A convolution with a square kernel, whose extent the weight's shape says."""
    kernel = [int(extent) for extent in weight.shape[2:]]
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return build.op("Conv", *inputs, kernel_shape=kernel, pads=[pad] * 4, strides=[stride] * 2)


def dropped(build: NetworkBuilder, x: Any, ratio: float) -> Any:
    """A Dropout node, which drops this share of the values in training; no node where the share is zero."""
    return build.op("Dropout", x, build.scalar(ratio)) if ratio else x


def label_of(build: NetworkBuilder, loss: str, classes: int) -> Any:
    """Declare the input `label`: classes (N,) int64, or values (N, classes) for the squared error."""
    return build.input("label", ("N",), "int64") if loss == "cross_entropy" else build.input("label", ("N", classes))


def finished(build: NetworkBuilder, logits: Any, label: Any, loss: str) -> Network:
    """The network with the outputs `logits` and `loss`, a scalar: the mean over the batch, or over all elements."""
    if loss == "cross_entropy":
        value = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    else:
        difference = build.op("Sub", logits, label)
        value = build.op("ReduceMean", build.op("Mul", difference, difference), keepdims=0)
    return build.network({"logits": logits, "loss": value})
