"""Sequential networks for photographs: AlexNet and VGG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import (
    check_arguments,
    conv_relu,
    dropped,
    finished,
    hundredth,
    images,
    linear,
)

if TYPE_CHECKING:
    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["alexnet", "vgg"]

# Channels, kernel size, stride, padding; then the convolutions followed by a pooling.
_ALEXNET = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
_ALEXNET_POOLED = (0, 1, 4)
_ALEXNET_IMAGE = 63
# Columns A, B, D and E of the paper's table 1: convolutions per stage.
_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_VGG_IMAGE = 32


def alexnet(
    *,
    classes: int = 1000,
    width: int = 64,
    image: int = 224,
    dropout: float = 0.5,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """Single-column AlexNet: five convolutions, three max-poolings, three fully connected layers.

    No local response normalization and no split between two devices; 256 channels in the fourth convolution, as in the
    common variant with 61,100,840 parameters.

    Args:
        classes: Number of classes.
        width: Channels of the first convolution; the others scale proportionally, and the fully connected layers are 64
            times as wide.
        image: Size of the square images, at least 63.
        dropout: Dropout probability before each of the first two fully connected layers.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal, as every layer feeds a ReLU, biases zero; the last layer normal
            with standard deviation 0.01, as in the paper.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, a smaller image, or a dropout
            outside [0, 1).

    References:
        Krizhevsky, One weird trick for parallelizing convolutional neural networks, arXiv:1404.5997, section 5, after
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks, NeurIPS 2012.

    >>> import deep5 as d5
    >>> network = d5.networks.alexnet()  # the weights are drawn when they are first read
    >>> sum(spec.size for spec in network.parameter_specs.values())
    61100840
    >>> small = d5.networks.alexnet(classes=10, width=8, image=63)
    >>> str(small.inputs["input"]), str(small.outputs["logits"]), small.parameter_specs["conv1.weight"].shape
    ('float32[N, 3, 63, 63]', 'float32[N, 10]', (8, 3, 11, 11))
    """

    check_arguments(dtype, loss, dropout=dropout, classes=classes, width=width, image=image)
    _check_image("AlexNet", image, _ALEXNET_IMAGE)
    build, x, label = images("alexnet", image, classes, loss, dtype, seed)
    into, extent = 3, image
    for index, (channels, kernel, stride, pad) in enumerate(_ALEXNET):
        out = max(1, channels * width // 64)
        x = conv_relu(build, x, f"conv{index + 1}", (out, into, kernel, kernel), stride=stride, pad=pad)
        into, extent = out, (extent + 2 * pad - kernel) // stride + 1
        if index in _ALEXNET_POOLED:
            x = build.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
            extent = (extent - 3) // 2 + 1
    x = _classifier(build, x, (into * extent**2, 64 * width, classes), (dropout, dropout, 0.0))
    return finished(build, x, label, loss)


def vgg(
    *,
    depth: int = 16,
    classes: int = 1000,
    width: int = 64,
    image: int = 224,
    dropout: float = 0.5,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """VGG: five stages of 3 x 3 convolutions, each with a max-pooling, and three fully connected layers.

    Args:
        depth: Layers with weights: 11, 13, 16 or 19 (columns A, B, D and E).
        classes: Number of classes.
        width: Channels of the first stage; each of the next three doubles it, the fully connected layers are 64 times
            as wide.
        image: Size of the square images, at least 32; five poolings halve it.
        dropout: Dropout probability after each of the first two fully connected layers.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal, which trains all depths from scratch, biases zero; the last layer
            normal with standard deviation 0.01, as in the paper.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: Another depth, an unknown loss or dtype, a size that is not an integer of at least 1, a smaller
            image, or a dropout outside [0, 1).

    References:
        Simonyan and Zisserman, Very deep convolutional networks for large-scale image recognition, ICLR 2015, table 1;
        initial weights: He et al., ICCV 2015, equation 10.

    >>> import deep5 as d5
    >>> for depth in (11, 16):
    ...     network = d5.networks.vgg(depth=depth)
    ...     convolutions = [node for node in network.nodes if node.op_type == "Conv"]
    ...     print(depth, len(convolutions), sum(spec.size for spec in network.parameter_specs.values()))
    11 8 132863336
    16 13 138357544
    """

    check_arguments(dtype, loss, dropout=dropout, depth=depth, classes=classes, width=width, image=image)
    if depth not in _VGG:
        raise UsageError(f"a vgg of depth {depth} does not exist; allowed: {', '.join(map(str, _VGG))}")
    _check_image("VGG", image, _VGG_IMAGE)
    build, x, label = images(f"vgg{depth}", image, classes, loss, dtype, seed)
    into = 3
    for stage, count in enumerate(_VGG[depth], start=1):
        out = width << min(stage - 1, 3)
        for index in range(1, count + 1):
            x = conv_relu(build, x, f"conv{stage}_{index}", (out, into, 3, 3))
            into = out
        x = build.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = _classifier(build, x, (into * (image // 32) ** 2, 64 * width, classes), (0.0, dropout, dropout))
    return finished(build, x, label, loss)


def _classifier(build: NetworkBuilder, x: Any, sizes: tuple[int, int, int], ratios: tuple[float, ...]) -> Any:
    """Three fully connected layers; `sizes` is (input, hidden, classes), `ratios` is the dropout before each."""
    from deep5.networks.edit.builder import he_normal

    flat, hidden, classes = sizes
    x = dropped(build, build.op("Flatten", x, axis=1), ratios[0])
    x = build.op("Relu", linear(build, x, "fc1", (hidden, flat), he_normal))
    x = build.op("Relu", linear(build, dropped(build, x, ratios[1]), "fc2", (hidden, hidden), he_normal))
    return linear(build, dropped(build, x, ratios[2]), "fc3", (classes, hidden), hundredth)


def _check_image(what: str, image: int, least: int) -> None:
    if image < least:
        raise UsageError(f"got image = {image} for {what}; allowed: at least {least}, so that its layers leave a pixel")
