"""DenseNet: every layer of a block receives the outputs of all previous layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.core.errors import UsageError, brief
from deep5.networks.zoo.parts import (
    activated,
    check_arguments,
    convolved,
    finished,
    halved,
    hundredth,
    images,
    linear,
    pooled_flat,
)

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["densenet121"]


def densenet121(
    *,
    classes: int = 1000,
    growth: int = 32,
    image: int = 224,
    blocks: Sequence[int] = (6, 12, 24, 16),
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """DenseNet-121 for photographs: four dense blocks with bottlenecks, and transitions that halve the channels
    (DenseNet-BC).

    Args:
        classes: Number of classes.
        growth: Channels that each layer adds; the first convolution has twice as many, bottlenecks four times.
        image: Size of the square images; the first layers quarter it, three transitions halve it.
        blocks: Layers per block: (6, 12, 32, 32) is DenseNet-169, (6, 12, 48, 32) DenseNet-201.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: convolutions He-normal, batch normalization the identity, the last layer
            normal with standard deviation 0.01 and zero bias.

    Returns:
        Inputs `input` (N, 3, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, an image that the transitions
            reduce to no pixel, or `blocks` that are not a list of such integers.

    References:
        Huang et al., Densely connected convolutional networks, CVPR 2017, table 1 and section 3.

    >>> import deep5 as d5
    >>> network = d5.networks.densenet121(classes=10, growth=8, image=32, blocks=(2, 2, 2))
    >>> str(network.inputs["input"]), str(network.outputs["logits"])
    ('float32[N, 3, 32, 32]', 'float32[N, 10]')
    >>> d5.networks.analyse(network, batch=1).parameters
    22218
    """

    check_arguments(dtype, loss, classes=classes, growth=growth, image=image)
    if not isinstance(blocks, (list, tuple)) or not blocks:
        raise UsageError(f"got blocks = {brief(blocks)}; allowed: integers, such as (6, 12, 24, 16)")
    for count in blocks:
        check_arguments(dtype, loss, blocks=count)
    least = 4 * (1 << (len(blocks) - 1)) - 3
    if image < least:
        raise UsageError(f"got image = {image} for {len(blocks)} dense blocks; allowed: at least {least}")
    build, x, label = images(f"densenet{2 * sum(blocks) + len(blocks) + 1}", image, classes, loss, dtype, seed)

    into = 2 * growth
    x = halved(build, activated(build, convolved(build, x, "conv0", (into, 3, 7, 7), 2), "norm0", into))
    for block, count in enumerate(blocks, start=1):
        for layer in range(count):
            name = f"block{block}.layer{layer}"
            y = convolved(build, activated(build, x, f"{name}.norm1", into), f"{name}.conv1", (4 * growth, into, 1, 1))
            y = convolved(
                build, activated(build, y, f"{name}.norm2", 4 * growth), f"{name}.conv2", (growth, 4 * growth, 3, 3)
            )
            x, into = build.op("Concat", x, y, axis=1), into + growth
        if block < len(blocks):
            name = f"transition{block}"
            x = convolved(build, activated(build, x, f"{name}.norm", into), f"{name}.conv", (into // 2, into, 1, 1))
            x, into = build.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), into // 2
    x = pooled_flat(build, activated(build, x, "norm", into))
    return finished(build, linear(build, x, "fc", (classes, into), hundredth), label, loss)
