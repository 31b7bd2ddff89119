"""`Flip`: mirror images at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.training.transforms import kernels
from deep5.training.transforms.transform import RandomTransform, image

__all__ = ["Flip"]


@dataclass(frozen=True)
class Flip(RandomTransform):
    """Mirrors each image left to right with the same probability.

    Attributes:
        p: The probability, exact to 2^-32.

    Raises:
        UsageError: `p` is outside [0, 1].

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.array([[[[1, 2, 3]]]])}
    >>> d5.Flip(1.0)(images, np.array([0]), epoch=0)["input"].tolist()
    [[[[3, 2, 1]]]]
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float)) or not 0 <= self.p <= 1:
            raise UsageError(f"Flip: got p={brief(self.p)}; allowed: a number from 0 to 1")

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """The unchanged spec; see `Transform.specs`."""
        image(spec, "Flip")
        return spec

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The images, some of them mirrored; see `Transform.__call__`."""
        # Compared as integers: every word is below 2^32, so p = 1 always flips.
        return kernels.flip(array, self.words(ids, epoch)[0].astype(np.uint64) < round(self.p * 2**32))
