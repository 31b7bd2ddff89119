"""`AddNoise`: the forward process of a diffusion model as a transform, and the reverse process that draws images."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec, numpy_dtype, to_numpy
from deep5.training.generation.normal import normal_numbers
from deep5.training.transforms.draws import whole_numbers
from deep5.training.transforms.transform import RandomTransform

__all__ = ["AddNoise", "remaining_signal"]

_OFFSET = 0.008
_LARGEST_BETA = 0.999


@functools.lru_cache(maxsize=8)
def remaining_signal(steps: int) -> np.ndarray:
    """The share of the signal's variance that is left after each step, by the cosine schedule.

    Args:
        steps: Number of steps.

    Returns:
        float64, shape (steps,), decreasing; not to be modified.

    References:
        Nichol and Dhariwal, Improved denoising diffusion probabilistic models, ICML 2021, arXiv:2102.09672, equation
        17, with an offset of 0.008 and a largest beta of 0.999.

    >>> remaining_signal(4).round(3).tolist()
    [0.847, 0.494, 0.144, 0.0]
    """
    angles = (np.arange(steps + 1) / steps + _OFFSET) / (1 + _OFFSET) * (math.pi / 2)
    squares = np.cos(angles) ** 2
    found: np.ndarray = np.cumprod(1 - np.minimum(1 - squares[1:] / squares[:-1], _LARGEST_BETA))
    found.flags.writeable = False
    return found


@dataclass(frozen=True)
class AddNoise(RandomTransform):
    """Adds noise to images in the amount of a random step of a diffusion, and the step and the noise to the samples.

    Images x with values from 0 to 1 are scaled to y = 2 x - 1. Each gets a step t, uniform in 0 to `steps` - 1, and
    normal noise e of its shape: the part becomes sqrt(a_t) y + sqrt(1 - a_t) e with a = `remaining_signal(steps)`. Adds
    `time`, the step, int64 (), and `noise`, which the network `denoiser` learns to predict. Step and noise are a
    function of (seed, epoch, sample), so that a resumed run sees the same.

    Attributes:
        steps: Number of steps.

    Raises:
        UsageError: `steps` is not an integer of at least 2, or the samples are not floating-point.

    References:
        Ho, Jain and Abbeel, Denoising diffusion probabilistic models, NeurIPS 2020, arXiv:2006.11239, equation 4 and
        algorithm 1.

    >>> import deep5 as d5
    >>> data = d5.datasets.digits(size=8, labels=False)
    >>> sampler = d5.OrderedSampler(data.train, 4, transforms=[d5.AddNoise(100)])
    >>> ids, batch = next(sampler.batches(0))
    >>> {name: (part.shape, str(part.dtype)) for name, part in batch.items()}
    {'input': ((4, 1, 8, 8), 'float32'), 'time': ((4,), 'int64'), 'noise': ((4, 1, 8, 8), 'float32')}
    """

    steps: int = 100

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 2:
            raise UsageError(f"AddNoise: got steps={brief(self.steps)}; allowed: an integer of at least 2")

    def __call__(self, inputs: Mapping[str, np.ndarray], ids: np.ndarray | None, epoch: int) -> dict[str, np.ndarray]:
        """The batch with noise; see `AddNoise`.

        Args:
            inputs: Samples by name, batch dimension first.
            ids: Identities of the samples, int64, shape (batch,).
            epoch: Counted from 0.

        Raises:
            UsageError: The samples have no such part, it is not floating-point, or they have no identities.
        """
        self.specs({name: TensorSpec(shape=part.shape[1:], dtype=str(part.dtype)) for name, part in inputs.items()})
        x = inputs[self.part]
        time = whole_numbers(self.words(ids, epoch)[0], self.steps)
        noise = normal_numbers(self, ids, epoch, x.shape[1:], first=1)
        left = remaining_signal(self.steps)[time].reshape(-1, *[1] * (x.ndim - 1))
        noisy = np.sqrt(left) * (2 * x.astype(np.float64) - 1) + np.sqrt(1 - left) * noise
        return {**inputs, self.part: noisy.astype(x.dtype), "time": time, "noise": noise.astype(x.dtype)}

    def specs(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """See `Transform.specs`."""
        found = super().specs(specs)
        return {**found, "time": TensorSpec(shape=(), dtype="int64"), "noise": found[self.part]}

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """The unchanged spec; see `Transform.specs`."""
        if numpy_dtype(spec.dtype).kind != "f":
            raise UsageError(
                f"AddNoise: samples are {spec}; allowed: floating-point numbers from 0 to 1; remedy: a transform that "
                "converts them before"
            )
        return spec

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The noisy images; see `Transform.apply`."""
        return self({self.part: array}, ids, epoch)[self.part]

    def generate(self, executor: Any, count: int, seed: int) -> np.ndarray:
        """Draw images: begin with noise, and let the network remove it step by step.

        At each step, the predicted image is clipped to the range of the images, and the variance of the added noise is
        that of the forward process given the image (the paper's lower bound).

        Args:
            executor: Runs a network with the inputs of these samples and the output `predicted_noise`.
            count: Number of images, computed as one batch.
            seed: Determines the images; all noise is drawn in float64 and rounded.

        Returns:
            float64, shape (count, …), from 0 to 1.

        Raises:
            UsageError: The network has other inputs or outputs or other steps, its output is not finite, or an argument
                is out of range.

        References:
            Ho, Jain and Abbeel, 2020, algorithm 2 and equations 7, 11 and 15.
        """
        spec = executor.network.inputs.get(self.part)
        if spec is None or "predicted_noise" not in executor.network.outputs or "time" not in executor.network.inputs:
            raise UsageError(
                f"AddNoise.generate: the network has the inputs {', '.join(executor.network.inputs)} and the outputs "
                f"{', '.join(executor.network.outputs)}; allowed: {self.part}, time and noise, and predicted_noise; "
                "remedy: the network denoiser"
            )
        if not is_whole(count) or count < 1:
            raise UsageError(f"AddNoise.generate: count is {brief(count)}; allowed: an integer of at least 1")
        from deep5.networks.tables import table_inputs  # it loads onnx

        known = next((each.rows for each in table_inputs(executor.network) if each.name == "time"), self.steps)
        if known != self.steps:
            raise UsageError(
                f"AddNoise.generate: the network has {known} steps, and AddNoise {self.steps}; allowed: equal numbers"
            )
        left, dtype, shape = remaining_signal(self.steps), numpy_dtype(spec.dtype), (count, *spec.shape[1:])
        feed = {"noise": np.zeros(shape, dtype)}
        x = generator(seed, "diffusion", self.steps).standard_normal(shape)
        for step in range(self.steps - 1, -1, -1):
            feed |= {self.part: x.astype(dtype), "time": np.full(count, step)}
            predicted = to_numpy(executor.inference(feed)["predicted_noise"]).astype(np.float64)
            if not np.isfinite(predicted).all():
                raise UsageError(
                    "AddNoise.generate: the predicted noise is not finite: training has diverged; remedy: a smaller "
                    "learning rate"
                )
            image = np.clip((x - math.sqrt(1 - left[step]) * predicted) / math.sqrt(left[step]), -1, 1)
            if step == 0:
                break
            beta, rest = 1 - left[step] / left[step - 1], 1 - left[step]
            x = math.sqrt(left[step - 1]) * beta / rest * image
            x = x + math.sqrt(1 - beta) * (1 - left[step - 1]) / rest * feed[self.part].astype(np.float64)
            deviation = math.sqrt(beta * (1 - left[step - 1]) / rest)
            x += deviation * generator(seed, "diffusion", step).standard_normal(shape)
        found: np.ndarray = (image + 1) / 2
        return found
