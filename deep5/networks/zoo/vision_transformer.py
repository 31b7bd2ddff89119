"""A transformer encoder that classifies images by their patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deep5.core.errors import UsageError
from deep5.networks.zoo.attention import Blocks, fiftieth
from deep5.networks.zoo.parts import check_arguments, convolution, dropped, finished, label_of, linear

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["vit"]


def vit(
    *,
    image: int = 224,
    patch: int = 16,
    channels: int = 3,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    classes: int = 1000,
    dropout: float = 0.0,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A vision transformer; its default sizes are those of ViT-B/16.

    Every patch of the image becomes a token by one linear map, a class token comes first, and learned positions are
    added. The blocks are those of `transformer`. The last layer classifies the class token.

    Args:
        image: Height and width of the images.
        patch: Height and width of a patch; it divides `image`.
        channels: Channels of the images.
        width: Features per token.
        heads: Attention heads; they divide the width.
        layers: Blocks.
        classes: Number of classes.
        dropout: Dropout probability for the embeddings, the attention weights and every residual.
        loss: As for `lenet`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: normal with standard deviation 0.02, biases and class token zero, layer
            normalization the identity.

    Returns:
        Inputs `input` (N, channels, image, image) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, a size that is not an integer of at least 1, a width that the heads do not
            divide, images that patches do not divide, or a dropout outside [0, 1).

    References:
        Dosovitskiy et al., An image is worth 16 x 16 words, ICLR 2021, arXiv:2010.11929, section 3.1, equations 1 to 4,
        and table 1.

    >>> import deep5 as d5
    >>> network = d5.networks.vit(image=8, patch=2, channels=1, width=16, heads=2, layers=1, classes=10)
    >>> {name: network.parameter_specs[name].shape for name in ("patches.weight", "class_token", "position")}
    {'patches.weight': (16, 1, 2, 2), 'class_token': (1, 1, 16), 'position': (17, 16)}
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder, zeros

    sizes = {"image": image, "patch": patch, "channels": channels}
    check_arguments(dtype, loss, dropout, **sizes, width=width, heads=heads, layers=layers, classes=classes)
    if image % patch:
        raise UsageError(
            f"patches of {patch} pixels do not divide an image of {image}; allowed: a divisor of the image's size"
        )
    build = NetworkBuilder("vit", dtype=dtype, seed=seed)
    count = (image // patch) ** 2
    blocks = Blocks(
        build,
        length=count + 1,
        width=width,
        heads=heads,
        dropout=dropout,
        causal=False,
        gelu="operator",
        residual=fiftieth,
    )
    x, label = build.input("input", ("N", channels, image, image)), label_of(build, loss, classes)
    weight = build.parameter("patches.weight", (width, channels, patch, patch), fiftieth)
    x = convolution(build, x, weight, build.parameter("patches.bias", (width,), zeros), stride=patch)
    tokens = build.op("Reshape", x, blocks.ints("tokens", 0, width, count))
    tokens = build.op("Transpose", tokens, perm=[0, 2, 1])
    samples = build.op("Shape", tokens, start=0, end=1)
    shape = build.op("Concat", samples, blocks.ints("token", 1, width), axis=0)
    first = build.op("Expand", build.parameter("class_token", (1, 1, width), zeros), shape)
    x = build.op("Add", build.op("Concat", first, tokens, axis=1), blocks.position(count + 1, None))
    x = blocks.layers(dropped(build, x, dropout), layers)
    x = build.op("Gather", x, build.constant("first", np.array(0)), axis=1)
    return finished(build, linear(build, x, "classifier", (classes, width), fiftieth), label, loss)
