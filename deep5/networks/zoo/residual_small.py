"""Residual networks for small images: the CIFAR family, ResNet-18 with a small stem, and wide ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import (
    activated,
    check_arguments,
    conv_bn,
    convolved,
    dropped,
    finished,
    images,
    linear,
    pooled_flat,
)
from deep5.networks.zoo.residual import basic_stages

if TYPE_CHECKING:
    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["resnet", "resnet18_small", "wide_resnet"]


def resnet(
    *, depth: int = 44, classes: int = 10, loss: str = "cross_entropy", dtype: str = "float32", seed: int = 0
) -> Network:
    """The residual network for 32 x 32 color images: 6n + 2 layers, shortcuts without parameters.

    Args:
        depth: 6n + 2: 8, 14, 20, 32, 44, 56, 110.
        classes: Number of classes.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights (He-normal).

    Returns:
        Inputs `input` (N, 3, 32, 32) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: A depth that is not 6n + 2, an unknown loss or dtype, or `classes` that is not an integer of at
            least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2 (option A shortcuts: every
        second pixel, missing channels are zero).

    >>> import deep5 as d5
    >>> for depth in (8, 20):
    ...     network = d5.networks.resnet(depth=depth)
    ...     print(depth, str(network.inputs["input"]), sum(spec.size for spec in network.parameter_specs.values()))
    8 float32[N, 3, 32, 32] 75290
    20 float32[N, 3, 32, 32] 269722
    """
    from deep5.networks.edit.builder import glorot_uniform

    check_arguments(dtype, loss, depth=depth, classes=classes)
    if depth < 8 or (depth - 2) % 6:
        raise UsageError(f"a resnet of depth {depth!r} does not exist; allowed: 6n + 2, such as 8, 20, 44, 110")
    build, x, label = images(f"resnet{depth}", 32, classes, loss, dtype, seed)
    x = build.op("Relu", conv_bn(build, x, "conv0", (16, 3, 3, 3)))
    into = 16
    for stage, out in enumerate((16, 32, 64), start=1):
        for block in range((depth - 2) // 6):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = build.op("Relu", conv_bn(build, x, f"{name}.conv1", (out, into, 3, 3), stride))
            y = conv_bn(build, y, f"{name}.conv2", (out, out, 3, 3))
            if stride == 2:
                x = _option_a(build, x, name, out - into)
            x, into = build.op("Relu", build.op("Add", y, x)), out
    return finished(build, linear(build, pooled_flat(build, x), "fc", (classes, 64), glorot_uniform), label, loss)


def resnet18_small(
    *,
    classes: int = 10,
    width: int = 64,
    image: int = 32,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """ResNet-18 for small color images: four stages of two basic blocks, projection shortcuts.

    The first layer is a 3 x 3 convolution with stride 1, without pooling, because otherwise 32 x 32 images would shrink
    to single pixels.

    Args:
        classes: Number of classes.
        width: Channels of the first stage; each further one has twice as many.
        image: Size of the square images; three stages halve it.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: convolutions He-normal, batch normalization the identity, the last layer
            Glorot-uniform with zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is not an integer of at least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, table 1 (18 layers), option B shortcuts;
        initial weights: He et al., ICCV 2015, equation 10.

    >>> import deep5 as d5
    >>> network = d5.networks.resnet18_small(width=8)
    >>> str(network.inputs["input"]), network.parameter_specs["conv0.weight"].shape
    ('float32[N, 3, 32, 32]', (8, 3, 3, 3))
    >>> analysis = d5.networks.analyse(network, batch=1)
    >>> [layer.outputs[0].shape for layer in analysis.layers if layer.op_type == "GlobalAveragePool"]
    [(1, 64, 1, 1)]
    """
    from deep5.networks.edit.builder import glorot_uniform

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    build, x, label = images("resnet18_small", image, classes, loss, dtype, seed)
    x = build.op("Relu", conv_bn(build, x, "conv0", (width, 3, 3, 3)))
    x, into = basic_stages(build, x, (2, 2, 2, 2), width)
    return finished(build, linear(build, pooled_flat(build, x), "fc", (classes, into), glorot_uniform), label, loss)


def wide_resnet(
    *,
    depth: int = 28,
    widen: int = 10,
    classes: int = 10,
    width: int = 16,
    image: int = 32,
    dropout: float = 0.0,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """Wide residual network for small color images: 6n + 4 layers, normalization and ReLU before each convolution.

    Args:
        depth: 6n + 4: 10, 16, 22, 28, 40.
        widen: Factor by which the three stages are wider than 16, 32 and 64 channels.
        classes: Number of classes.
        width: Channels of the first convolution, 16 in the paper; the stages scale proportionally.
        image: Size of the square images; two stages halve it.
        dropout: Dropout probability between the two convolutions of a block.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: convolutions He-normal, batch normalization the identity, the last layer
            Glorot-uniform with zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: A depth that is not 6n + 4, an unknown loss or dtype, a size that is not an integer of at least 1,
            or a dropout outside [0, 1).

    References:
        Zagoruyko and Komodakis, Wide residual networks, BMVC 2016, table 1 and figure 1d; order of the layers: He et
        al., Identity mappings in deep residual networks, ECCV 2016, figure 4e.

    >>> import deep5 as d5
    >>> network = d5.networks.wide_resnet(depth=10, widen=2)
    >>> str(network.inputs["input"]), str(network.outputs["logits"])
    ('float32[N, 3, 32, 32]', 'float32[N, 10]')
    >>> sum(spec.size for spec in network.parameter_specs.values())
    303706
    """
    from deep5.networks.edit.builder import glorot_uniform

    check_arguments(dtype, loss, dropout, depth=depth, widen=widen, classes=classes, width=width, image=image)
    if depth < 10 or (depth - 4) % 6:
        raise UsageError(f"a wide resnet of depth {depth} does not exist; allowed: 6n + 4, such as 10, 16, 28, 40")
    build, x, label = images(f"wide_resnet{depth}_{widen}", image, classes, loss, dtype, seed)

    x, into = convolved(build, x, "conv0", (width, 3, 3, 3)), width
    for stage in range(1, 4):
        out = (width << (stage - 1)) * widen
        for block in range((depth - 4) // 6):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            before = activated(build, x, f"{name}.norm1", into)
            y = convolved(build, before, f"{name}.conv1", (out, into, 3, 3), stride)
            y = dropped(build, activated(build, y, f"{name}.norm2", out), dropout)
            y = convolved(build, y, f"{name}.conv2", (out, out, 3, 3))
            if into != out or stride != 1:
                x = convolved(build, before, f"{name}.shortcut", (out, into, 1, 1), stride)
            x, into = build.op("Add", y, x), out
    x = pooled_flat(build, activated(build, x, "norm", into))
    return finished(build, linear(build, x, "fc", (classes, into), glorot_uniform), label, loss)


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
