"""Networks whose layers branch and join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.parts import check_arguments, convolution, finished, label_of, linear

if TYPE_CHECKING:
    from deep5.networks.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["inception"]

# Rows 3a, 3b and 4a of the paper's table 1: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 behind the pooling.
_MODULES = {
    "module3a": (64, 96, 128, 16, 32, 32),
    "module3b": (128, 128, 192, 32, 96, 64),
    "module4a": (192, 96, 208, 16, 48, 64),
}


def inception(
    *,
    classes: int = 10,
    width: int = 64,
    image: int = 32,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A small GoogLeNet for small colour images: a stem, three inception modules, global average pooling.

    The stem's first convolution is 3 x 3 with stride 1 instead of 7 x 7 with stride 2 and pooling; the modules are the
    paper's 3a, 3b and 4a; there are no auxiliary classifiers and no dropout.

    Args:
        classes: Number of classes.
        width: Channels of the first convolution, 64 in the paper; all others in proportion, at least 1.
        image: Extent of the square images; two max-poolings halve it.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Of the initial weights. The paper does not give them: convolutions He-normal, as every one feeds a ReLU,
            the last layer Glorot-uniform, biases zero.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is no whole number of at least 1.

    References:
        Szegedy et al., Going deeper with convolutions, CVPR 2015, figure 2b and table 1.
    """
    from deep5.networks.builder import NetworkBuilder, glorot_uniform

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    build = NetworkBuilder("inception", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 3, image, image)), label_of(build, loss, classes)

    def scaled(channels: int) -> int:
        return max(1, channels * width // 64)

    x = _conv_relu(build, x, "conv1", (width, 3), 3)
    x = _conv_relu(build, x, "conv2.reduce", (width, width), 1)
    x = _halved(build, _conv_relu(build, x, "conv2", (scaled(192), width), 3))
    into = scaled(192)
    for name, row in _MODULES.items():
        x = _halved(build, x) if name == "module4a" else x
        x, into = _module(build, x, name, into, [scaled(channels) for channels in row])
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return finished(build, linear(build, x, "fc", (classes, into), glorot_uniform), label, loss)


def _module(build: NetworkBuilder, x: Any, name: str, into: int, row: list[int]) -> tuple[Any, int]:
    one, before_three, three, before_five, five, pooled = row
    branches = [
        _conv_relu(build, x, f"{name}.one", (one, into), 1),
        _conv_relu(
            build,
            _conv_relu(build, x, f"{name}.three.reduce", (before_three, into), 1),
            f"{name}.three",
            (three, before_three),
            3,
        ),
        _conv_relu(
            build,
            _conv_relu(build, x, f"{name}.five.reduce", (before_five, into), 1),
            f"{name}.five",
            (five, before_five),
            5,
        ),
        _conv_relu(
            build,
            build.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
            f"{name}.pooled",
            (pooled, into),
            1,
        ),
    ]
    return build.op("Concat", *branches, axis=1), one + three + five + pooled


def _conv_relu(build: NetworkBuilder, x: Any, name: str, channels: tuple[int, int], kernel: int) -> Any:
    """A convolution that keeps the extents, with bias and ReLU; `channels` is (out, in)."""
    from deep5.networks.builder import he_normal, zeros

    weight = build.parameter(f"{name}.weight", (*channels, kernel, kernel), he_normal)
    bias = build.parameter(f"{name}.bias", channels[:1], zeros)
    return build.op("Relu", convolution(build, x, weight, bias, pad=kernel // 2))


def _halved(build: NetworkBuilder, x: Any) -> Any:
    return build.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
