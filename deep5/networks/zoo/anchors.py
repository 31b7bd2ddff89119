"""Anchors: the boxes relative to which the single-shot detector predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief

__all__ = ["SCALES", "STRIDES", "VARIANCES", "anchor_boxes", "anchors_per_cell"]

STRIDES = (4, 8)
"""Pixels per cell of the two feature maps, along both axes."""
SCALES = (0.2, 0.35, 0.5)
"""Sides of the square anchors as fractions of the image's: one for each feature map, and one that ends the series."""
VARIANCES = (0.1, 0.2)
"""Divisors of the offsets of centers and of the logarithms of sizes (Liu et al.'s published code)."""
_RATIOS = (1.0, 2.0, 0.5)


def anchors_per_cell() -> int:
    """Number of anchors of each cell of a feature map."""
    return len(_RATIOS) + 1


def anchor_boxes(image: int, scales: Sequence[float] = SCALES) -> np.ndarray:
    """The anchors of a square image.

    Every cell of a feature map has four anchors around its center: with scale s and ratios r of width to height of 1, 2
    and 1/2, of width s sqrt(r) and height s / sqrt(r); and a square of the geometric mean of s and the next scale.

    Args:
        image: Height and width of the image in pixels, a multiple of the largest stride.
        scales: As `SCALES`.

    Returns:
        float64, shape (anchors, 4): left, top, right and bottom in pixels, by feature map, row, column, anchor. They
        may be beyond the image's border.

    Raises:
        UsageError: The image's size is not a positive multiple of the largest stride, or the scales are not three
            increasing numbers in (0, 1].

    References:
        Liu et al., SSD: Single shot multibox detector, ECCV 2016, section 2.2 (arXiv:1512.02325).

    >>> boxes = anchor_boxes(64)
    >>> boxes.shape, boxes[0].round(2).tolist()  # (16 * 16 + 8 * 8) * 4; the first one's center is (2, 2)
    ((1280, 4), [-4.4, -4.4, 8.4, 8.4])
    """
    if isinstance(image, bool) or not isinstance(image, int) or image < 1 or image % STRIDES[-1]:
        raise UsageError(f"anchors of images of size {image!r:.60}; allowed: a positive multiple of {STRIDES[-1]}")
    check_scales(scales)
    levels = []
    for stride, scale, following in zip(STRIDES, scales[:-1], scales[1:], strict=True):
        sides = [(scale * math.sqrt(ratio), scale / math.sqrt(ratio)) for ratio in _RATIOS]
        sides.append((math.sqrt(scale * following),) * 2)
        half = image * np.array(sides) / 2
        places = (np.arange(image // stride) + 0.5) * stride
        rows, columns = np.meshgrid(places, places, indexing="ij")
        centers = np.stack([columns, rows], axis=-1).reshape(-1, 1, 2)
        levels.append(np.concatenate([centers - half, centers + half], axis=-1).reshape(-1, 4))
    return np.concatenate(levels)


def check_scales(scales: object) -> None:
    """Check the scales of the anchors.

    Raises:
        UsageError: They are not three increasing numbers in (0, 1].
    """
    known = isinstance(scales, (list, tuple)) and all(is_finite(scale) for scale in scales)
    if not known or len(scales) != len(STRIDES) + 1 or not 0 < scales[0] < scales[1] < scales[2] <= 1:  # type: ignore[index,arg-type]
        raise UsageError(f"anchors with scales {brief(scales)}; allowed: three increasing numbers in (0, 1]")
