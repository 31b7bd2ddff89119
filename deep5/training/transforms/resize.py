"""`Resize` and `RandomResizedCrop`: resize images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.transforms.draws import uniform, whole_numbers
from deep5.training.transforms.resample import resample
from deep5.training.transforms.transform import RandomTransform, Transform, extents, image

__all__ = ["RandomResizedCrop", "Resize"]

_METHODS = ("bilinear", "nearest")
_TRIALS = 10


@dataclass(frozen=True)
class Resize(Transform):
    """Resizes images.

    Pixels are squares, and the corners of the two images coincide. `"bilinear"` weights pixels by a triangle. With
    `antialias` the triangle is as wide as the pixels of the smaller image, so every pixel contributes when images
    shrink; without it, two pixels per direction contribute. `"nearest"` takes the pixel under the new pixel's center.
    Bytes are rounded half to even.

    Attributes:
        size: Height and width; one number: the shorter side, with the longer one in proportion, rounded down.
        method: `"bilinear"` or `"nearest"`.
        antialias: See above; ignored for `"nearest"`.

    Raises:
        UsageError: `size` or `method` is invalid.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.array([[[[0.0, 4.0, 8.0, 12.0]]]])}
    >>> d5.Resize((1, 2))(images, None, epoch=0)["input"].round(3).tolist()
    [[[[2.857, 9.143]]]]
    >>> d5.Resize((1, 2), antialias=False)(images, None, epoch=0)["input"].tolist()
    [[[[2.0, 10.0]]]]
    """

    size: int | tuple[int, int]
    method: str = field(default="bilinear", kw_only=True)
    antialias: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        extents(self.size, "Resize")
        _check_method("Resize", self.method)

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Images of the new size; see `Transform.specs`."""
        _check_pixels("Resize", spec)
        return TensorSpec(shape=(spec.shape[0], *self._extents(*image(spec, "Resize"))), dtype=spec.dtype)

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The resized images; see `Transform.__call__`."""
        size = self._extents(array.shape[2], array.shape[3])
        return resample(array, size, method=self.method, antialias=self.antialias)

    def _extents(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.size, int):
            return extents(self.size, "Resize")
        shorter = min(height, width)
        return self.size * height // shorter, self.size * width // shorter


@dataclass(frozen=True)
class RandomResizedCrop(RandomTransform):
    """Crops a window of random area, aspect ratio and position, and resizes it: the usual augmentation for ImageNet.

    The area is drawn uniformly as a fraction of the image's, the ratio of width to height log-uniformly, and the
    position uniformly. A window that does not fit is drawn again, up to ten times; after that, the largest centered
    window with a ratio within the bounds is used.

    Attributes:
        size: Height and width of the result; one number: both.
        scale: Smallest and largest fraction of the area.
        ratio: Smallest and largest width / height.
        method: As in `Resize`.
        antialias: As in `Resize`.

    Raises:
        UsageError: `size`, a bound or `method` is invalid.

    References:
        Szegedy et al., Going deeper with convolutions, CVPR 2015, section 6.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.zeros((2, 3, 40, 60), np.uint8)}
    >>> d5.RandomResizedCrop(24)(images, np.array([0, 1]), epoch=0)["input"].shape
    (2, 3, 24, 24)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)
    method: str = field(default="bilinear", kw_only=True)
    antialias: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        extents(self.size, "RandomResizedCrop")
        _check_method("RandomResizedCrop", self.method)
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            bounds = getattr(self, name)
            numbers = isinstance(bounds, (list, tuple)) and all(isinstance(item, (int, float)) for item in bounds)
            if not numbers or len(bounds) != 2 or not 0 < bounds[0] <= bounds[1] <= most or bounds[1] == math.inf:
                limit = " and at most 1" if most == 1 else ""
                raise UsageError(
                    f"RandomResizedCrop: got {name}={brief(bounds)}; allowed: two numbers above 0{limit}, the smaller "
                    "one first"
                )

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Images of the new size; see `Transform.specs`."""
        image(spec, "RandomResizedCrop")
        _check_pixels("RandomResizedCrop", spec)
        return TensorSpec(shape=(spec.shape[0], *extents(self.size, "RandomResizedCrop")), dtype=spec.dtype)

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The resized windows; see `Transform.__call__`."""
        size = extents(self.size, "RandomResizedCrop")
        windows = self.windows(ids, epoch, array.shape[2], array.shape[3])
        out = np.empty((*array.shape[:2], *size), array.dtype)
        # Each window has its own size; the work per image far exceeds the cost of the loop.
        for place, (top, left, height, width) in enumerate(windows.tolist()):
            window = array[place, :, top : top + height, left : left + width]
            out[place] = resample(window, size, method=self.method, antialias=self.antialias)
        return out

    def windows(self, ids: np.ndarray | None, epoch: int, height: int, width: int) -> np.ndarray:
        """Top, left, height and width of each sample's window, int64, shape (batch, 4).

        Args:
            ids: Identities of the samples, int64, shape (batch,).
            epoch: Counted from 0.
            height: Height of the images in pixels.
            width: Width of the images in pixels.
        """
        low, high = (math.log(bound) for bound in self.ratio)
        chosen = np.empty((0, 4), np.int64)
        open_ = np.empty(0, bool)
        for trial in range(_TRIALS):
            words = self.words(ids, epoch, trial)
            share, shape = uniform(words[0]), uniform(words[1])
            area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
            ratio = np.exp(low + shape * (high - low))
            rows, columns = (np.rint(np.sqrt(size)).astype(np.int64) for size in (area / ratio, area * ratio))
            if trial == 0:
                chosen = np.tile(self._middle(height, width), (len(rows), 1))
                open_ = np.ones(len(rows), bool)
            fits = open_ & (rows >= 1) & (rows <= height) & (columns >= 1) & (columns <= width)
            # Positions of windows that do not fit are drawn but not used.
            top = whole_numbers(words[2], np.maximum(height - rows + 1, 1))
            left = whole_numbers(words[3], np.maximum(width - columns + 1, 1))
            chosen[fits] = np.stack([top, left, rows, columns], axis=1)[fits]
            open_ &= ~fits
            if not open_.any():
                break
        return chosen

    def _middle(self, height: int, width: int) -> np.ndarray:
        low, high = self.ratio
        if width / height < low:
            rows, columns = max(1, min(height, round(width / low))), width
        elif width / height > high:
            rows, columns = height, max(1, min(width, round(height * high)))
        else:
            rows, columns = height, width
        return np.array([(height - rows) // 2, (width - columns) // 2, rows, columns])


def _check_method(what: str, method: object) -> None:
    if method not in _METHODS:
        raise UsageError(f"{what}: got method={brief(method)}; allowed: {', '.join(_METHODS)}")


def _check_pixels(what: str, spec: TensorSpec) -> None:
    if spec.dtype != "uint8" and numpy_dtype(spec.dtype).kind != "f":
        raise UsageError(f"{what}: samples are {spec}; allowed: uint8 or floating pixels")
