"""`DrawLatent`: the random numbers from which a generator makes an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec, numpy_dtype, to_numpy
from deep5.training.generation.normal import normal_numbers
from deep5.training.transforms.transform import RandomTransform

__all__ = ["DrawLatent"]


@dataclass(frozen=True)
class DrawLatent(RandomTransform):
    """Adds a vector of normal numbers to each sample, for the generator of the network `gan`.

    The vector `latent` (size) is a function of (seed, epoch, sample): new in each epoch, and the same in a resumed run.

    Attributes:
        size: Numbers of a vector.

    Raises:
        UsageError: `size` is not an integer of at least 1, or the images are not floating-point.

    References:
        Goodfellow et al., Generative adversarial nets, NeurIPS 2014, algorithm 1.

    >>> import deep5 as d5
    >>> data = d5.datasets.digits(size=8, labels=False)
    >>> sampler = d5.OrderedSampler(data.train, 4, transforms=[d5.DrawLatent(16)])
    >>> {name: part.shape for name, part in next(sampler.batches(0))[1].items()}
    {'input': (4, 1, 8, 8), 'latent': (4, 16)}
    """

    size: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise UsageError(f"DrawLatent: got size={brief(self.size)}; allowed: an integer of at least 1")

    def __call__(self, inputs: Mapping[str, np.ndarray], ids: np.ndarray | None, epoch: int) -> dict[str, np.ndarray]:
        """The batch with the vectors.

        Args:
            inputs: Samples by name, batch dimension first.
            ids: Identities of the samples, int64, shape (batch,).
            epoch: Counted from 0.

        Raises:
            UsageError: The samples have no such part, it is not floating-point, or they have no identities.
        """
        self.specs({name: TensorSpec(shape=part.shape[1:], dtype=str(part.dtype)) for name, part in inputs.items()})
        drawn = normal_numbers(self, ids, epoch, (self.size,))
        return {**inputs, "latent": drawn.astype(inputs[self.part].dtype)}

    def specs(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """See `Transform.specs`."""
        found = super().specs(specs)
        return {**found, "latent": TensorSpec(shape=(self.size,), dtype=found[self.part].dtype)}

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """The unchanged spec; see `Transform.specs`."""
        if numpy_dtype(spec.dtype).kind != "f":
            raise UsageError(
                f"DrawLatent: samples are {spec}; allowed: floating-point numbers; remedy: a transform that converts "
                "them before"
            )
        return spec

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The unchanged images; see `Transform.apply`."""
        return array

    def generate(self, executor: Any, count: int, seed: int) -> np.ndarray:
        """Draw images by the generator.

        Args:
            executor: Runs a network with the inputs of these samples and the output `generated`.
            count: Number of images, computed as one batch.
            seed: Determines the vectors, drawn in float64 and rounded.

        Returns:
            float64, shape (count, …).

        Raises:
            UsageError: The network has other inputs or outputs, its images are not finite, or an argument is out of
                range.
        """
        if not is_whole(count) or count < 1:
            raise UsageError(f"DrawLatent.generate: count is {brief(count)}; allowed: an integer of at least 1")
        inputs, outputs = executor.network.inputs, executor.network.outputs
        if not {self.part, "latent"} <= inputs.keys() or "generated" not in outputs:
            raise UsageError(
                f"DrawLatent.generate: the network has the inputs {', '.join(inputs)} and the outputs "
                f"{', '.join(outputs)}; allowed: {self.part} and latent, and generated; remedy: the network gan"
            )
        dtype = numpy_dtype(inputs["latent"].dtype)
        feed = {
            self.part: np.zeros((count, *inputs[self.part].shape[1:]), dtype),
            "latent": generator(seed, "latent").standard_normal((count, self.size)).astype(dtype),
        }
        found: np.ndarray = to_numpy(executor.inference(feed)["generated"]).astype(np.float64)
        if not np.isfinite(found).all():
            raise UsageError(
                "DrawLatent.generate: the images are not finite: training has diverged; remedy: a smaller learning rate"
            )
        return found
