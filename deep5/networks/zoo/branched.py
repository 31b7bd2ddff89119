"""Networks of inception modules: GoogLeNet, and a small one for small images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import (
    check_arguments,
    conv_relu,
    dropped,
    finished,
    halved,
    images,
    linear,
    loss_of,
    pooled_flat,
)

if TYPE_CHECKING:
    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["googlenet", "inception"]

# The paper's table 1: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after the pooling.
_MODULES = {
    "module3a": (64, 96, 128, 16, 32, 32),
    "module3b": (128, 128, 192, 32, 96, 64),
    "module4a": (192, 96, 208, 16, 48, 64),
    "module4b": (160, 112, 224, 24, 64, 64),
    "module4c": (128, 128, 256, 24, 64, 64),
    "module4d": (112, 144, 288, 32, 64, 64),
    "module4e": (256, 160, 320, 32, 128, 128),
    "module5a": (256, 160, 320, 32, 128, 128),
    "module5b": (384, 192, 384, 48, 128, 128),
}
_SMALL = ("module3a", "module3b", "module4a")
# Modules preceded by a max-pooling, and modules followed by an auxiliary classifier.
_HALVED = ("module4a", "module5a")
_AUXILIARY = {"module4a": "auxiliary1", "module4d": "auxiliary2"}
_AUXILIARY_SHARE = 0.3
_AUXILIARY_IMAGE = 65
"""The minimum image size for which the auxiliary classifiers, at one sixteenth, see 5 x 5 pixels."""


def googlenet(
    *,
    classes: int = 1000,
    width: int = 64,
    image: int = 224,
    auxiliary: bool = True,
    dropout: float = 0.4,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """GoogLeNet (Inception-v1) for photographs: nine inception modules and two auxiliary classifiers.

    Args:
        classes: Number of classes.
        width: Channels of the first convolution, 64 in the paper; all others scale proportionally, at least 1.
        image: Size of the square images; with auxiliary classifiers at least 65.
        auxiliary: Whether to add the two classifiers after modules 4a and 4d, whose losses are weighted by 0.3 each.
            The output `loss` includes them in evaluation, too; `logits` is that of the last classifier.
        dropout: Dropout probability before the last classifier; before an auxiliary one it is 0.7, or zero if this is
            zero.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights, which the paper does not specify: convolutions He-normal, as each feeds a
            ReLU, fully connected layers Glorot-uniform, biases zero.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, a dropout outside [0, 1), or
            an image too small for the auxiliary classifiers.

    References:
        Szegedy et al., Going deeper with convolutions, CVPR 2015, table 1, figures 2b and 3, section 5.

    >>> import deep5 as d5
    >>> with_losses = d5.networks.googlenet(classes=10, width=8, image=65)
    >>> without = d5.networks.googlenet(classes=10, width=8, image=65, auxiliary=False)
    >>> str(without.inputs["input"]), str(without.outputs["logits"])
    ('float32[N, 3, 65, 65]', 'float32[N, 10]')
    >>> sorted({name.partition(".")[0] for name in with_losses.parameter_specs.keys() - without.parameter_specs.keys()})
    ['auxiliary1', 'auxiliary2']
    """
    from deep5.networks.edit.builder import glorot_uniform

    check_arguments(dtype, loss, dropout=dropout, classes=classes, width=width, image=image)
    if auxiliary and image < _AUXILIARY_IMAGE:
        raise UsageError(
            f"got image = {image} with auxiliary classifiers; allowed: at least {_AUXILIARY_IMAGE}; remedy: "
            "auxiliary=False"
        )
    build, x, label = images("googlenet", image, classes, loss, dtype, seed)

    def scaled(channels: int) -> int:
        return max(1, channels * width // 64)

    x = halved(build, conv_relu(build, x, "conv1", (width, 3, 7, 7), stride=2))
    x = conv_relu(build, _local(build, x), "conv2.reduce", (width, width, 1, 1))
    x = halved(build, _local(build, conv_relu(build, x, "conv2", (scaled(192), width, 3, 3))))
    into, losses = scaled(192), []
    for name, row in _MODULES.items():
        x = halved(build, x) if name in _HALVED else x
        x, into = _module(build, x, name, into, [scaled(channels) for channels in row])
        if auxiliary and name in _AUXILIARY:
            extent = (-(-image // 16) - 5) // 3 + 1
            sizes = into, scaled(128), scaled(128) * extent**2, scaled(1024), classes
            scores = _auxiliary(build, x, _AUXILIARY[name], sizes, 0.7 if dropout else 0.0)
            losses.append(build.op("Mul", loss_of(build, scores, label, loss), build.scalar(_AUXILIARY_SHARE)))
    x = linear(build, dropped(build, pooled_flat(build, x), dropout), "fc", (classes, into), glorot_uniform)
    return finished(build, x, label, loss, losses)


def inception(
    *,
    classes: int = 10,
    width: int = 64,
    image: int = 32,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A small GoogLeNet for small color images: a stem, three inception modules, global average pooling.

    The stem's first convolution is 3 x 3 with stride 1 instead of 7 x 7 with stride 2 and pooling; the modules are the
    paper's 3a, 3b and 4a; there are no auxiliary classifiers, no local response normalization and no dropout.

    Args:
        classes: Number of classes.
        width: Channels of the first convolution, 64 in the paper; all others scale proportionally, at least 1.
        image: Size of the square images; two max-poolings halve it.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights, which the paper does not specify: convolutions He-normal, as each feeds a
            ReLU, the last layer Glorot-uniform, biases zero.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is not an integer of at least 1.

    References:
        Szegedy et al., Going deeper with convolutions, CVPR 2015, figure 2b and table 1.

    >>> import deep5 as d5
    >>> network = d5.networks.inception(width=8)
    >>> str(network.inputs["input"]), str(network.outputs["logits"])
    ('float32[N, 3, 32, 32]', 'float32[N, 10]')
    >>> sum(node.op_type == "Concat" for node in network.nodes)  # one per module
    3
    """
    from deep5.networks.edit.builder import glorot_uniform

    check_arguments(dtype, loss, classes=classes, width=width, image=image)
    build, x, label = images("inception", image, classes, loss, dtype, seed)

    def scaled(channels: int) -> int:
        return max(1, channels * width // 64)

    x = conv_relu(build, x, "conv1", (width, 3, 3, 3))
    x = conv_relu(build, x, "conv2.reduce", (width, width, 1, 1))
    x = halved(build, conv_relu(build, x, "conv2", (scaled(192), width, 3, 3)))
    into = scaled(192)
    for name in _SMALL:
        x = halved(build, x) if name in _HALVED else x
        x, into = _module(build, x, name, into, [scaled(channels) for channels in _MODULES[name]])
    return finished(build, linear(build, pooled_flat(build, x), "fc", (classes, into), glorot_uniform), label, loss)


def _module(build: NetworkBuilder, x: Any, name: str, into: int, row: list[int]) -> tuple[Any, int]:
    one, before_three, three, before_five, five, pooled = row
    three_reduced = conv_relu(build, x, f"{name}.three.reduce", (before_three, into, 1, 1))
    five_reduced = conv_relu(build, x, f"{name}.five.reduce", (before_five, into, 1, 1))
    largest = build.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    branches = [
        conv_relu(build, x, f"{name}.one", (one, into, 1, 1)),
        conv_relu(build, three_reduced, f"{name}.three", (three, before_three, 3, 3)),
        conv_relu(build, five_reduced, f"{name}.five", (five, before_five, 5, 5)),
        conv_relu(build, largest, f"{name}.pooled", (pooled, into, 1, 1)),
    ]
    return build.op("Concat", *branches, axis=1), one + three + five + pooled


def _local(build: NetworkBuilder, x: Any) -> Any:
    """Local response normalization with the constants of Krizhevsky et al., NeurIPS 2012, section 3.3."""
    return build.op("LRN", x, size=5, alpha=1e-4, beta=0.75, bias=1.0)


def _auxiliary(build: NetworkBuilder, x: Any, name: str, sizes: tuple[int, ...], dropout: float) -> Any:
    """The logits of a classifier on a module's output; sizes: channels, reduced, flat, hidden, classes."""
    from deep5.networks.edit.builder import glorot_uniform

    channels, reduced, flat, hidden, classes = sizes
    x = build.op("AveragePool", x, kernel_shape=[5, 5], strides=[3, 3])
    x = build.op("Flatten", conv_relu(build, x, f"{name}.conv", (reduced, channels, 1, 1)), axis=1)
    x = build.op("Relu", linear(build, x, f"{name}.fc1", (hidden, flat), glorot_uniform))
    return linear(build, dropped(build, x, dropout), f"{name}.fc2", (classes, hidden), glorot_uniform)
