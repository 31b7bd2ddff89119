"""Networks with few parameters for photographs: SqueezeNet and MobileNetV2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief
from deep5.networks.zoo.parts import (
    check_arguments,
    conv_bn,
    conv_relu,
    convolution,
    dropped,
    finished,
    hundredth,
    images,
    linear,
    pooled_flat,
)

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["mobilenet_v2", "squeezenet"]

# Table 1: channels of a fire module's squeeze convolution and of both expand convolutions; None is a max-pooling.
_FIRES = ((16, 64), (16, 64), (32, 128), None, (32, 128), (48, 192), (48, 192), (64, 256), None, (64, 256))
_SQUEEZENET_IMAGE = 35
# Table 2: expansion, channels, blocks, stride of the first block.
_BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def squeezenet(
    *,
    classes: int = 1000,
    width: int = 96,
    image: int = 224,
    dropout: float = 0.5,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """SqueezeNet 1.0: fire modules, which squeeze channels by 1 x 1 and expand them by 1 x 1 and 3 x 3 convolutions.

    Args:
        classes: Number of classes.
        width: Channels of the first convolution, 96 in the paper; all others scale proportionally, at least 1.
        image: Size of the square images, at least 35.
        dropout: Dropout probability before the last convolution.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal, biases zero; the last convolution normal with standard deviation
            0.01.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, a smaller image, or a dropout
            outside [0, 1).

    References:
        Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB model size,
            arXiv:1602.07360, table 1 and figure 2. Here the last convolution has no ReLU: its means are the logits.

    >>> import deep5 as d5
    >>> network = d5.networks.squeezenet()
    >>> str(network.inputs["input"]), str(network.outputs["logits"])
    ('float32[N, 3, 224, 224]', 'float32[N, 1000]')
    >>> sum(spec.size for spec in network.parameter_specs.values())
    1248424
    """
    from deep5.networks.edit.builder import zeros

    check_arguments(dtype, loss, dropout, classes=classes, width=width, image=image)
    if image < _SQUEEZENET_IMAGE:
        raise UsageError(
            f"got image = {image} for SqueezeNet; allowed: at least {_SQUEEZENET_IMAGE}, so that its layers leave a "
            "pixel"
        )
    build, x, label = images("squeezenet", image, classes, loss, dtype, seed)

    def scaled(channels: int) -> int:
        return max(1, channels * width // 96)

    def pooled(x: Any) -> Any:
        return build.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])

    x, into, number = pooled(conv_relu(build, x, "conv1", (width, 3, 7, 7), stride=2, pad=0)), width, 2
    for row in _FIRES:
        if row is None:
            x = pooled(x)
            continue
        squeezed, expanded = map(scaled, row)
        y = conv_relu(build, x, f"fire{number}.squeeze", (squeezed, into, 1, 1))
        branches = [
            conv_relu(build, y, f"fire{number}.expand{extent}", (expanded, squeezed, extent, extent))
            for extent in (1, 3)
        ]
        x, into, number = build.op("Concat", *branches, axis=1), 2 * expanded, number + 1
    weight = build.parameter("conv10.weight", (classes, into, 1, 1), hundredth)
    bias = build.parameter("conv10.bias", (classes,), zeros)
    x = convolution(build, dropped(build, x, dropout), weight, bias)
    return finished(build, pooled_flat(build, x), label, loss)


def mobilenet_v2(
    *,
    multiplier: float = 1.0,
    classes: int = 1000,
    image: int = 224,
    dropout: float = 0.2,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """MobileNetV2: inverted residuals of depthwise convolutions between narrow, linear bottlenecks.

    Args:
        multiplier: Factor for all channels, rounded to multiples of 8; it never narrows the last layer.
        classes: Number of classes.
        image: Size of the square images; five layers halve it.
        dropout: Dropout probability before the last layer.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: convolutions He-normal, batch normalization the identity, the last layer
            normal with standard deviation 0.01 and zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, a multiplier that is not a
            positive number, or a dropout outside [0, 1).

    References:
        Sandler et al., MobileNetV2: Inverted residuals and linear bottlenecks, CVPR 2018, tables 1 and 2.

    >>> import deep5 as d5
    >>> for multiplier in (0.5, 1.0):
    ...     network = d5.networks.mobilenet_v2(multiplier=multiplier)
    ...     print(multiplier, sum(spec.size for spec in network.parameter_specs.values()))
    0.5 1968680
    1.0 3504872
    """

    check_arguments(dtype, loss, dropout, classes=classes, image=image)
    if not is_finite(multiplier) or multiplier <= 0:
        raise UsageError(f"got multiplier = {brief(multiplier)}; allowed: a number above 0")
    build, x, label = images("mobilenet_v2", image, classes, loss, dtype, seed)
    bounds = {"low": build.scalar(0.0), "high": build.scalar(6.0)}

    def relu6(x: Any, name: str, shape: tuple[int, ...], stride: int = 1, group: int = 1) -> Any:
        """A convolution with batch normalization and ReLU6."""
        return build.op("Clip", conv_bn(build, x, name, shape, stride, group=group), bounds["low"], bounds["high"])

    into = _eighths(32 * multiplier)
    x = relu6(x, "conv0", (into, 3, 3, 3), 2)
    number = 0
    for expansion, channels, blocks, first in _BOTTLENECKS:
        out = _eighths(channels * multiplier)
        for block in range(blocks):
            name, stride, wide = f"block{number}", first if block == 0 else 1, into * expansion
            y = relu6(x, f"{name}.expand", (wide, into, 1, 1)) if expansion > 1 else x
            y = relu6(y, f"{name}.depthwise", (wide, 1, 3, 3), stride, group=wide)
            y = conv_bn(build, y, f"{name}.project", (out, wide, 1, 1))
            x = build.op("Add", x, y) if stride == 1 and into == out else y
            into, number = out, number + 1
    last = _eighths(1280 * max(1.0, multiplier))
    x = dropped(build, pooled_flat(build, relu6(x, "conv1", (last, into, 1, 1))), dropout)
    return finished(build, linear(build, x, "fc", (classes, last), hundredth), label, loss)


def _eighths(channels: float) -> int:
    """The nearest multiple of 8, at least 8 and at least 0.9 times the requested number, as in the authors' code."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
