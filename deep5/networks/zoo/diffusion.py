"""A network that predicts the noise in an image, for diffusion models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import check_arguments, linear, loss_of

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["denoiser"]


def denoiser(
    *,
    image: int = 8,
    channels: int = 1,
    width: int = 256,
    layers: int = 3,
    steps: int = 100,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """Fully connected residual blocks that predict the noise in small images, given the step of the diffusion.

    The step becomes sines and cosines of `width` frequencies, and two layers map them to features that each block adds
    to its hidden layer: h + W silu(V norm(h) + U features).

    Args:
        image: Height and width of the images.
        channels: Channels of the images.
        width: Features of the blocks, an even number.
        layers: Blocks.
        steps: Steps of the diffusion, as of the transform `AddNoise`.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal, biases zero; the last layer of each block, and of the network,
            zero, so that the first prediction is zero.

    Returns:
        Inputs `input` (N, channels, image, image), `time` (N,) int64 and `noise`, of the shape of the images; outputs
        `predicted_noise`, of the same shape, and the scalar `loss`, the mean squared error over all elements.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or an odd width.

    References:
        Ho, Jain and Abbeel, Denoising diffusion probabilistic models, NeurIPS 2020, arXiv:2006.11239, equation 14;
        Vaswani et al., Attention is all you need, NeurIPS 2017, section 3.5, for the features of the step.

    >>> import deep5 as d5
    >>> network = d5.networks.denoiser(image=8, width=16, layers=1, steps=10)
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'float32[N, 1, 8, 8]', 'time': 'int64[N]', 'noise': 'float32[N, 1, 8, 8]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'predicted_noise': 'float32[N, 1, 8, 8]', 'loss': 'float32[]'}
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder, he_normal, ones, zeros

    check_arguments(dtype, "mse", image=image, channels=channels, width=width, layers=layers, steps=steps)
    if width % 2:
        raise UsageError(f"got width = {width} for a denoiser; allowed: an even number, of sines and cosines")
    build = NetworkBuilder("denoiser", dtype=dtype, seed=seed)
    x, time = build.input("input", ("N", channels, image, image)), build.input("time", ("N",), "int64")
    noise = build.input("noise", ("N", channels, image, image))
    features = build.op("Gather", build.op("Constant", value=_waves(steps, width, build)), time, axis=0)
    features = _silu(build, linear(build, features, "time", (width, width), he_normal))
    pixels = channels * image**2
    h = linear(build, build.op("Flatten", x, axis=1), "in", (width, pixels), he_normal)

    def normalised(value: Any, name: str) -> Any:
        scale, bias = build.parameter(f"{name}.scale", (width,), ones), build.parameter(f"{name}.bias", (width,), zeros)
        return build.op("LayerNormalization", value, scale, bias, axis=-1, epsilon=1e-5)

    for layer in range(layers):
        name = f"block{layer}"
        hidden = linear(build, normalised(h, f"{name}.norm"), f"{name}.in", (width, width), he_normal)
        hidden = build.op("Add", hidden, linear(build, features, f"{name}.time", (width, width), he_normal))
        h = build.op("Add", h, linear(build, _silu(build, hidden), f"{name}.out", (width, width), zeros))
    flat = linear(build, normalised(h, "norm"), "out", (pixels, width), zeros)
    predicted = build.op("Reshape", flat, build.constant("shape", np.array([0, channels, image, image])))
    return build.network({"predicted_noise": predicted, "loss": loss_of(build, predicted, noise, "mse")})


def _silu(build: NetworkBuilder, x: Any) -> Any:
    """x sigmoid(x)."""
    return build.op("Mul", x, build.op("Sigmoid", x))


def _waves(steps: int, width: int, build: NetworkBuilder) -> Any:
    """A row of sines and cosines for each step, not trained; shape (steps, width)."""
    import numpy as np
    import onnx_ir as ir

    frequencies = np.exp(-math.log(10_000) * np.arange(width // 2) / (width // 2))
    # As of a diffusion of 1000 steps, for which the frequencies were chosen.
    angles: np.ndarray = (np.arange(steps) * (1000 / steps))[:, None] * frequencies
    return ir.tensor(np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(build.dtype))
