"""Residual networks for photographs, with basic blocks or bottlenecks, and projection shortcuts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError, brief
from deep5.networks.zoo.parts import (
    check_arguments,
    conv_bn,
    finished,
    halved,
    hundredth,
    images,
    linear,
    pooled_flat,
)

if TYPE_CHECKING:
    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["basic_stages", "resnet18", "resnet34", "resnet50"]


def resnet18(
    *,
    classes: int = 1000,
    width: int = 64,
    image: int = 224,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """ResNet-18 for photographs: four stages of two basic blocks, projection shortcuts.

    Args:
        classes: Number of classes.
        width: Channels of the first stage; each further one has twice as many.
        image: As for `resnet50`.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: As for `resnet50`.

    Returns:
        As `resnet50`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is not an integer of at least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, table 1 (18 layers), option B shortcuts.

    >>> import deep5 as d5
    >>> network = d5.networks.resnet18()
    >>> str(network.inputs["input"]), str(network.outputs["logits"])
    ('float32[N, 3, 224, 224]', 'float32[N, 1000]')
    >>> sum(spec.size for spec in network.parameter_specs.values())
    11689512
    """
    return _of_basic_blocks("resnet18", (2, 2, 2, 2), classes, width, image, loss, dtype, seed)


def resnet34(
    *,
    classes: int = 1000,
    width: int = 64,
    image: int = 224,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """ResNet-34 for photographs: four stages of 3, 4, 6 and 3 basic blocks, projection shortcuts.

    Args:
        classes: Number of classes.
        width: Channels of the first stage; each further one has twice as many.
        image: As for `resnet50`.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: As for `resnet50`.

    Returns:
        As `resnet50`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is not an integer of at least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, table 1 (34 layers), option B shortcuts.

    >>> import deep5 as d5
    >>> network = d5.networks.resnet34(classes=10, width=8, image=64)
    >>> str(network.inputs["input"]), sum(node.op_type == "Conv" for node in network.nodes)
    ('float32[N, 3, 64, 64]', 36)
    """
    return _of_basic_blocks("resnet34", (3, 4, 6, 3), classes, width, image, loss, dtype, seed)


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

    If a stage halves the image, the 3 x 3 convolution of its first block has the stride. The scale of each block's last
    batch normalization is initially zero, so that every block starts as the identity. Both follow the authors who
    trained it on ImageNet in an hour.

    Args:
        classes: Number of classes.
        width: Channels of the first stage's narrow convolutions; each further stage has twice as many, and wide
            convolutions have four times as many as narrow ones.
        image: Size of the square images; the first layers halve it twice, three stages once each.
        blocks: Bottlenecks per stage, four integers: (3, 4, 23, 3) is ResNet-101, (3, 8, 36, 3) ResNet-152.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: convolutions He-normal, the last layer normal with standard deviation 0.01
            and zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, or `blocks` that are not four
            such integers.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, table 1 (50 layers), option B shortcuts;
        position of the stride and initial weights: Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1
            hour, arXiv:1706.02677, section 5.1.

    >>> import deep5 as d5
    >>> network = d5.networks.resnet50()
    >>> sum(spec.size for spec in network.parameter_specs.values()), len(network.buffer_specs)
    (25557032, 106)
    >>> shorter = d5.networks.resnet50(classes=10, width=8, image=64, blocks=(1, 1, 1, 1))
    >>> str(shorter.inputs["input"]), str(shorter.outputs["logits"])
    ('float32[N, 3, 64, 64]', 'float32[N, 10]')
    """
    from deep5.networks.edit.builder import zeros

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    if not isinstance(blocks, (list, tuple)) or len(blocks) != 4:
        raise UsageError(f"got blocks = {brief(blocks)}; allowed: four integers, such as (3, 4, 6, 3)")
    for count in blocks:
        check_arguments(dtype, loss, blocks=count)
    build, x, label = images(f"resnet{2 + 3 * sum(blocks)}", image, classes, loss, dtype, seed)
    x, into = _stem(build, x, width), width
    for stage, count in enumerate(blocks, start=1):
        narrow = width << (stage - 1)
        wide = 4 * narrow
        for block in range(count):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = build.op("Relu", conv_bn(build, x, f"{name}.conv1", (narrow, into, 1, 1)))
            y = build.op("Relu", conv_bn(build, y, f"{name}.conv2", (narrow, narrow, 3, 3), stride))
            y = conv_bn(build, y, f"{name}.conv3", (wide, narrow, 1, 1), scale=zeros)
            if block == 0:
                x = conv_bn(build, x, f"{name}.shortcut", (wide, into, 1, 1), stride)
            x, into = build.op("Relu", build.op("Add", y, x)), wide
    return finished(build, linear(build, pooled_flat(build, x), "fc", (classes, into), hundredth), label, loss)


def basic_stages(build: NetworkBuilder, x: Any, blocks: Sequence[int], width: int) -> tuple[Any, int]:
    """Stages of basic blocks, each except the first halving the image; also returns the number of output channels.

    Args:
        build: Receives the layers.
        x: A value with `width` channels.
        blocks: Number of blocks per stage.
        width: Channels of the first stage; each further one has twice as many.
    """
    into = width
    for stage, count in enumerate(blocks, start=1):
        out = width << (stage - 1)
        for block in range(count):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = build.op("Relu", conv_bn(build, x, f"{name}.conv1", (out, into, 3, 3), stride))
            y = conv_bn(build, y, f"{name}.conv2", (out, out, 3, 3))
            if stride == 2:
                x = conv_bn(build, x, f"{name}.shortcut", (out, into, 1, 1), stride)
            x, into = build.op("Relu", build.op("Add", y, x)), out
    return x, into


def _of_basic_blocks(
    name: str, blocks: Sequence[int], classes: int, width: int, image: int, loss: str, dtype: str, seed: int
) -> Network:

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    build, x, label = images(name, image, classes, loss, dtype, seed)
    x, into = basic_stages(build, _stem(build, x, width), blocks, width)
    return finished(build, linear(build, pooled_flat(build, x), "fc", (classes, into), hundredth), label, loss)


def _stem(build: NetworkBuilder, x: Any, width: int) -> Any:
    """The first layers, which quarter an image."""
    return halved(build, build.op("Relu", conv_bn(build, x, "conv0", (width, 3, 7, 7), 2)))
