"""A generator and a discriminator in one network, for adversarial training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import check_arguments, stacked_linear

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["gan"]

_SLOPE = 0.2


def gan(
    *,
    image: int = 8,
    channels: int = 1,
    latent: int = 16,
    hidden: Sequence[int] = (128, 128),
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """Fully connected layers that make images of random vectors, and others that separate them from real ones.

    The generator has ReLU and ends in a sigmoid, the discriminator has leaky ReLU with a slope of 0.2, and its layers
    run twice, on the real images x and on the generated ones g, both scaled to -1 to 1. With its scores d, the losses
    are the means of softplus(-d(x)) + softplus(d(g)) for the discriminator and of softplus(-d(g)) for the generator,
    which is the one without saturation. The optimizer `Alternating` trains both in turn.

    Args:
        image: Height and width of the images.
        channels: Channels of the images.
        latent: Numbers of a vector, as of the transform `DrawLatent`.
        hidden: Sizes of the generator's hidden layers; the discriminator has them in reverse order.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal, biases zero.

    Returns:
        Inputs `input` (N, channels, image, image), real images from 0 to 1, and `latent` (N, latent); outputs
        `generated`, of the shape of the images, and the scalars `loss`, of the discriminator, and `generator_loss`.

    Raises:
        UsageError: An unknown dtype, or a size that is not an integer of at least 1.

    References:
        Goodfellow et al., Generative adversarial nets, NeurIPS 2014, equation 1 and section 3; leaky ReLU: Radford,
        Metz and Chintala, arXiv:1511.06434, section 3.

    >>> import deep5 as d5
    >>> network = d5.networks.gan(image=8, latent=4, hidden=(32,))
    >>> {name: str(spec) for name, spec in {**network.inputs, **network.outputs}.items() if name != "generated"}
    {'input': 'float32[N, 1, 8, 8]', 'latent': 'float32[N, 4]', 'loss': 'float32[]', 'generator_loss': 'float32[]'}
    >>> {name: spec.shape for name, spec in network.parameter_specs.items() if name.endswith("weight")}
    {'generator.0.weight': (32, 4), 'generator.1.weight': (64, 32), 'discriminator.0.weight': (32, 64), \
'discriminator.1.weight': (1, 32)}
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder, he_normal, zeros

    if not isinstance(hidden, Sequence):
        raise UsageError(f"got hidden = {hidden!r:.60}; allowed: a sequence of sizes, such as (128, 128)")
    named = {f"hidden[{index}]": size for index, size in enumerate(hidden)}
    check_arguments(dtype, "mse", image=image, channels=channels, latent=latent, **named)
    build = NetworkBuilder("gan", dtype=dtype, seed=seed)
    real, z = build.input("input", ("N", channels, image, image)), build.input("latent", ("N", latent))
    pixels = channels * image**2
    flat = build.op("Sigmoid", stacked_linear(build, z, "generator.", (latent, *hidden, pixels)))
    sizes = (pixels, *reversed(hidden), 1)
    layers = [
        (
            build.parameter(f"discriminator.{index}.weight", (out, into), he_normal),
            build.parameter(f"discriminator.{index}.bias", (out,), zeros),
        )
        for index, (into, out) in enumerate(itertools.pairwise(sizes))
    ]

    def score(x: Any) -> Any:
        x = build.op("Sub", build.op("Mul", x, build.scalar(2.0)), build.scalar(1.0))
        for index, (weight, bias) in enumerate(layers):
            x = build.op("LeakyRelu", x, alpha=_SLOPE) if index else x
            x = build.op("Gemm", x, weight, bias, transB=1)
        return x

    def surprise(logits: Any) -> Any:
        return build.op("ReduceMean", build.op("Softplus", logits), keepdims=0)

    truth, guess = score(build.op("Flatten", real, axis=1)), score(flat)
    wrong = build.op("Add", surprise(build.op("Neg", truth)), surprise(guess))
    fooled = surprise(build.op("Neg", guess))
    generated = build.op("Reshape", flat, build.constant("shape", np.array([0, channels, image, image])))
    return build.network({"generated": generated, "loss": wrong, "generator_loss": fooled})
