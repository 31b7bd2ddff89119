"""A network that reconstructs its input from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import check_arguments, loss_of, stacked_linear

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["autoencoder"]


def autoencoder(
    *,
    image: int = 28,
    channels: int = 1,
    hidden: Sequence[int] = (1000, 500, 250),
    bottleneck: int = 30,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """Fully connected layers that encode an image in a few numbers, and others that decode them.

    The decoder has the sizes of the encoder in reverse order. Code and reconstruction are linear, hidden layers have
    ReLU. The default sizes are those of the paper for handwritten digits, whose hidden layers have the logistic
    function.

    Args:
        image: Height and width of the images.
        channels: Channels of the images.
        hidden: Sizes of the encoder's hidden layers.
        bottleneck: Numbers of a code.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal, biases zero.

    Returns:
        Input `input` (N, channels, image, image), and no label; outputs `reconstruction`, of the same shape, and the
        scalar `loss`, the mean squared error over all elements.

    Raises:
        UsageError: An unknown dtype, or a size that is not an integer of at least 1.

    References:
        Hinton and Salakhutdinov, Reducing the dimensionality of data with neural networks, Science 313, 2006.

    >>> import deep5 as d5
    >>> network = d5.networks.autoencoder(image=8, hidden=(32,), bottleneck=4)
    >>> {name: str(spec) for name, spec in {**network.inputs, **network.outputs}.items()}
    {'input': 'float32[N, 1, 8, 8]', 'reconstruction': 'float32[N, 1, 8, 8]', 'loss': 'float32[]'}
    >>> [spec.shape for name, spec in network.parameter_specs.items() if name.endswith("weight")]
    [(32, 64), (4, 32), (32, 4), (64, 32)]
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder

    if not isinstance(hidden, Sequence):
        raise UsageError(f"got hidden = {hidden!r:.60}; allowed: a sequence of sizes, such as (64, 32)")
    named = {f"hidden[{index}]": size for index, size in enumerate(hidden)}
    check_arguments(dtype, "mse", image=image, channels=channels, bottleneck=bottleneck, **named)
    build = NetworkBuilder("autoencoder", dtype=dtype, seed=seed)
    x = build.input("input", ("N", channels, image, image))
    pixels = channels * image**2
    code = stacked_linear(build, build.op("Flatten", x, axis=1), "encoder", (pixels, *hidden, bottleneck))
    flat = stacked_linear(build, code, "decoder", (bottleneck, *reversed(hidden), pixels))
    shape = build.constant("shape", np.array([0, channels, image, image]))
    reconstruction = build.op("Reshape", flat, shape)
    return build.network({"reconstruction": reconstruction, "loss": loss_of(build, reconstruction, x, "mse")})
