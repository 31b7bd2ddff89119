"""`Cutout`: mask a square of each image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.training.transforms import kernels
from deep5.training.transforms.draws import whole_numbers
from deep5.training.transforms.transform import RandomTransform, check_fill, image

__all__ = ["Cutout"]


@dataclass(frozen=True)
class Cutout(RandomTransform):
    """Sets a square at a random position to one value, in all channels. Every pixel is equally likely to be its center.
    The square is clipped at the border.

    Use it after `Normalise`, where 0 is the mean.

    Attributes:
        size: Side of the square in pixels; for an even size, the center is the first pixel after the middle.
        fill: The value, in the samples' dtype.

    Raises:
        UsageError: `size` is not an integer of at least 1, or the samples' dtype cannot hold `fill`.

    References:
        DeVries and Taylor, Improved regularization of convolutional neural networks with cutout, arXiv:1708.04552,
        2017, section 3: size 16 on CIFAR-10, 8 on CIFAR-100.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.ones((1, 1, 4, 4), np.float32)}
    >>> int(d5.Cutout(1)(images, np.array([0]), epoch=0)["input"].sum())
    15
    """

    size: int
    fill: float = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise UsageError(f"Cutout: got size={brief(self.size)}; allowed: an integer of at least 1")
        if isinstance(self.fill, bool) or not isinstance(self.fill, (int, float)):
            raise UsageError(f"Cutout: got fill={brief(self.fill)}; allowed: a number")

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """The unchanged spec; see `Transform.specs`."""
        image(spec, "Cutout")
        check_fill("Cutout", self.fill, spec.dtype)
        return spec

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The images, each with its square; see `Transform.__call__`."""
        top, left = (
            whole_numbers(word, extent) - self.size // 2
            for word, extent in zip(self.words(ids, epoch), array.shape[2:], strict=False)
        )
        return kernels.blot(array, top, left, side=self.size, fill=self.fill)
