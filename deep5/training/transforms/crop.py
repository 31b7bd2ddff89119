"""`RandomCrop` and `CenterCrop`: crop a window of each image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.training.transforms import kernels
from deep5.training.transforms.draws import whole_numbers
from deep5.training.transforms.transform import RandomTransform, Transform, check_fill, extents, image

__all__ = ["CenterCrop", "RandomCrop"]


@dataclass(frozen=True)
class RandomCrop(RandomTransform):
    """Crops a window at a random position of the image, optionally padded.

    Every position is equally likely (to 2^-32 times the number of positions).

    Attributes:
        size: Height and width of the window; one number: both.
        padding: Pixels of padding on each side.
        fill: Value of the padding, in the samples' dtype.

    Raises:
        UsageError: `size` or `padding` is invalid.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2: size 32, padding 4 on CIFAR-10.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.arange(2 * 16, dtype=np.uint8).reshape(2, 1, 4, 4)}
    >>> d5.RandomCrop(3, padding=1)(images, np.array([7, 8]), epoch=0)["input"].shape
    (2, 1, 3, 3)
    """

    size: int | tuple[int, int]
    padding: int = field(default=0, kw_only=True)
    fill: float = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        extents(self.size, "RandomCrop")
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise UsageError(f"RandomCrop: got padding={brief(self.padding)}; allowed: an integer of at least 0")

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Images of the window's size; see `Transform.specs`."""
        size = extents(self.size, "RandomCrop")
        _check_fits("RandomCrop", size, spec, self.padding)
        check_fill("RandomCrop", self.fill, spec.dtype)
        return TensorSpec(shape=(spec.shape[0], *size), dtype=spec.dtype)

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The windows; see `Transform.__call__`."""
        height, width = extents(self.size, "RandomCrop")
        words = self.words(ids, epoch)
        top, left = (
            whole_numbers(word, extent + 2 * self.padding - kept + 1) - self.padding
            for word, extent, kept in zip(words, array.shape[2:], (height, width), strict=False)
        )
        return kernels.crop(array, top, left, height=height, width=width, fill=self.fill)


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Crops the center of the image; if the margins differ by one, the smaller is at the top and left.

    Attributes:
        size: Height and width of the window; one number: both.

    Raises:
        UsageError: `size` is invalid.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.arange(25).reshape(1, 1, 5, 5)}
    >>> d5.CenterCrop(3)(images, None, epoch=0)["input"][0, 0, 0].tolist()
    [6, 7, 8]
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        extents(self.size, "CenterCrop")

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Images of the window's size; see `Transform.specs`."""
        size = extents(self.size, "CenterCrop")
        _check_fits("CenterCrop", size, spec, 0)
        return TensorSpec(shape=(spec.shape[0], *size), dtype=spec.dtype)

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The windows; see `Transform.__call__`."""
        height, width = extents(self.size, "CenterCrop")
        top, left = (array.shape[2] - height) // 2, (array.shape[3] - width) // 2
        return np.ascontiguousarray(array[:, :, top : top + height, left : left + width])


def _check_fits(what: str, size: tuple[int, int], spec: TensorSpec, padding: int) -> None:
    height, width = (extent + 2 * padding for extent in image(spec, what))
    if size[0] > height or size[1] > width:
        margin = f" with a margin of {padding}" if padding else ""
        raise UsageError(
            f"{what}: got size={size} for images of {spec.shape[1]} x {spec.shape[2]} pixels{margin}; allowed: at most "
            f"{height} x {width}"
        )
