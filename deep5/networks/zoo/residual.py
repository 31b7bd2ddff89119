"""Residual networks, of basic blocks and of bottlenecks, with both kinds of shortcuts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.errors import UsageError, brief
from deep5.networks.zoo.parts import check_arguments, convolution, finished, label_of, linear

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.builder import Initializer, NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["resnet", "resnet18", "resnet50"]


def resnet(
    *, depth: int = 44, classes: int = 10, loss: str = "cross_entropy", dtype: str = "float32", seed: int = 0
) -> Network:
    """The residual network for 32 x 32 colour images: 6n + 2 layers, shortcuts without parameters.

    Args:
        depth: 6n + 2: 8, 14, 20, 32, 44, 56, 110.
        classes: Number of classes.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Of the initial weights (He-normal).

    Returns:
        Inputs `input` (N, 3, 32, 32) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: A depth that is not 6n + 2, an unknown loss or dtype, or classes that are no whole number of at
            least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2 (option A shortcuts:
        every second pixel, missing channels zero).
    """
    from deep5.networks.builder import NetworkBuilder, glorot_uniform

    check_arguments(dtype, loss, depth=depth, classes=classes)
    if depth < 8 or (depth - 2) % 6:
        raise UsageError(f"a resnet of depth {depth!r} does not exist; allowed: 6n + 2, such as 8, 20, 44, 110")
    build = NetworkBuilder(f"resnet{depth}", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 3, 32, 32)), label_of(build, loss, classes)
    x = build.op("Relu", _conv_bn(build, x, "conv0", (16, 3, 3, 3), 1))
    into = 16
    for stage, out in enumerate((16, 32, 64), start=1):
        for block in range((depth - 2) // 6):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = _basic(build, x, name, (out, into), stride)
            if stride == 2:
                x = _option_a(build, x, name, out - into)
            x, into = build.op("Relu", build.op("Add", y, x)), out
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return finished(build, linear(build, x, "fc", (classes, 64), glorot_uniform), label, loss)


def resnet18(
    *,
    classes: int = 10,
    width: int = 64,
    image: int = 32,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """ResNet-18 for small colour images: four stages of two basic blocks, projection shortcuts.

    The first layer is a 3 x 3 convolution with stride 1 and no pooling follows, because 32 x 32 images would shrink
    to single pixels.

    Args:
        classes: Number of classes.
        width: Channels of the first stage; each further one has twice as many.
        image: Extent of the square images; three stages halve it.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Of the initial weights: convolutions He-normal, batch normalisation the identity, the last layer
            Glorot-uniform with zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is no whole number of at least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, table 1 (18 layers), option B shortcuts;
        initial weights: He et al., ICCV 2015, equation 10.
    """
    from deep5.networks.builder import NetworkBuilder, glorot_uniform

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    build = NetworkBuilder("resnet18", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 3, image, image)), label_of(build, loss, classes)
    x = build.op("Relu", _conv_bn(build, x, "conv0", (width, 3, 3, 3), 1))
    into = width
    for stage in range(1, 5):
        out = width << (stage - 1)
        for block in range(2):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = _basic(build, x, name, (out, into), stride)
            if stride == 2:
                x = _conv_bn(build, x, f"{name}.shortcut", (out, into, 1, 1), stride)
            x, into = build.op("Relu", build.op("Add", y, x)), out
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return finished(build, linear(build, x, "fc", (classes, into), glorot_uniform), label, loss)


def resnet50(
    *,
    classes: int = 1000,
    width: int = 64,
    image: int = 224,
    blocks: Sequence[int] = (3, 4, 6, 3),
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """ResNet-50 for photographs: four stages of bottleneck blocks, projection shortcuts.

    Where a stage halves the image, the 3 x 3 convolution of its first block does it, and the block's last batch
    normalisation begins with a scale of zero, so that every block begins as the identity: as those have it who trained
    it on ImageNet in an hour.

    Args:
        classes: Number of classes.
        width: Channels of the first stage's narrow convolutions; each further one has twice as many, its wide ones
            four times as many as its narrow ones.
        image: Extent of the square images; the first layers halve it twice, three stages once each.
        blocks: Bottlenecks a stage, four numbers: (3, 4, 23, 3) is ResNet-101, (3, 8, 36, 3) ResNet-152.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Of the initial weights: convolutions He-normal, the last layer normal with deviation 0.01 and zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is no whole number of at least 1, or `blocks` that are no four
            such numbers.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, table 1 (50 layers), option B shortcuts;
        place of the stride and initial weights: Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1
        hour, arXiv:1706.02677, section 5.1.
    """
    from deep5.networks.builder import NetworkBuilder, zeros

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    if not isinstance(blocks, (list, tuple)) or len(blocks) != 4:
        raise UsageError(f"got blocks = {brief(blocks)}; allowed: four whole numbers, such as (3, 4, 6, 3)")
    for count in blocks:
        check_arguments(dtype, loss, blocks=count)
    build = NetworkBuilder(f"resnet{2 + 3 * sum(blocks)}", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 3, image, image)), label_of(build, loss, classes)
    x = build.op("Relu", _conv_bn(build, x, "conv0", (width, 3, 7, 7), 2))
    x = build.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    into = width
    for stage, count in enumerate(blocks, start=1):
        narrow = width << (stage - 1)
        wide = 4 * narrow
        for block in range(count):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = build.op("Relu", _conv_bn(build, x, f"{name}.conv1", (narrow, into, 1, 1), 1))
            y = build.op("Relu", _conv_bn(build, y, f"{name}.conv2", (narrow, narrow, 3, 3), stride))
            y = _conv_bn(build, y, f"{name}.conv3", (wide, narrow, 1, 1), 1, scale=zeros)
            if block == 0:
                x = _conv_bn(build, x, f"{name}.shortcut", (wide, into, 1, 1), stride)
            x, into = build.op("Relu", build.op("Add", y, x)), wide
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return finished(build, linear(build, x, "fc", (classes, into), _hundredth), label, loss)


def _hundredth(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal with deviation 0.01."""
    return 0.01 * rng.standard_normal(shape)


def _basic(build: NetworkBuilder, x: Any, name: str, channels: tuple[int, int], stride: int) -> Any:
    """The two convolutions of a basic block; `channels` is (out, in)."""
    out = channels[0]
    y = build.op("Relu", _conv_bn(build, x, f"{name}.conv1", (*channels, 3, 3), stride))
    return _conv_bn(build, y, f"{name}.conv2", (out, out, 3, 3), 1)


def _conv_bn(
    build: NetworkBuilder, x: Any, name: str, shape: tuple[int, ...], stride: int, *, scale: Initializer | None = None
) -> Any:
    """A convolution and the batch normalisation after it, whose scale begins with ones unless said otherwise."""
    from deep5.networks.builder import he_normal, ones, zeros

    out = shape[:1]
    weight = build.parameter(f"{name}.weight", shape, he_normal)
    x = convolution(build, x, weight, stride=stride, pad=shape[2] // 2)
    affine = build.parameter(f"{name}.scale", out, scale or ones), build.parameter(f"{name}.bias", out, zeros)
    statistics = build.parameter(f"{name}.mean", out, zeros), build.parameter(f"{name}.variance", out, ones)
    return build.op("BatchNormalization", x, *affine, *statistics, epsilon=1e-5, momentum=0.9)


def _option_a(build: NetworkBuilder, x: Any, name: str, channels: int) -> Any:
    import numpy as np

    def constant(suffix: str, *values: int) -> Any:
        return build.constant(f"{name}.{suffix}", np.array(values, dtype=np.int64))

    end = np.iinfo(np.int64).max
    x = build.op(
        "Slice",
        x,
        constant("starts", 0, 0),
        constant("ends", end, end),
        constant("axes", 2, 3),
        constant("steps", 2, 2),
    )
    return build.op("Pad", x, constant("pads", 0, channels // 2, 0, 0, 0, channels - channels // 2, 0, 0))
