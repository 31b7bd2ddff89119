"""Boxes as arrays (…, 4) of left, top, right and bottom in pixels: overlap, and offsets from anchors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.networks.zoo.anchors import VARIANCES

__all__ = ["ROOM", "are_inside", "decoded", "encoded", "intersection_over_union"]

ROOM = 0.01 + 1e-9
"""How far a box may be outside its image: COCO rounds coordinates to hundredths of a pixel."""


def are_inside(boxes: np.ndarray, width: float, height: float) -> np.ndarray:
    """Whether each box has finite sides and an area, and is within its image, up to a hundredth of a pixel.

    Args:
        boxes: Shape (…, 4).
        width: Of the image.
        height: Likewise.

    Returns:
        bool, shape (…).

    >>> import numpy as np
    >>> are_inside(np.array([[0, 0, 64, 64], [60, 60, 65, 64], [5, 5, 5, 9]]), 64, 64)
    array([ True, False, False])
    """
    begin, end = boxes[..., :2], boxes[..., 2:]
    far = (end <= np.array([width, height]) + ROOM).all(axis=-1) & (begin >= -ROOM).all(axis=-1)
    found: np.ndarray = far & (end > begin).all(axis=-1) & np.isfinite(boxes).all(axis=-1)
    return found


def intersection_over_union(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Area of the intersection of two boxes divided by that of their union, for all pairs.

    Args:
        first: Boxes, shape (…, A, 4).
        second: Boxes, shape (…, B, 4).

    Returns:
        float64, shape (…, A, B), in [0, 1]; zero for boxes without an area.

    >>> import numpy as np
    >>> box = np.array([[0, 0, 4, 2]])
    >>> intersection_over_union(box, np.array([[0, 0, 4, 2], [2, 0, 6, 2], [4, 0, 6, 2]])).round(3)
    array([[1.   , 0.333, 0.   ]])
    """
    one = [np.ascontiguousarray(side, dtype=np.float64)[..., :, None] for side in np.moveaxis(first, -1, 0)]
    other = [np.ascontiguousarray(side, dtype=np.float64)[..., None, :] for side in np.moveaxis(second, -1, 0)]
    # One array for each side: arrays with a last axis of four take several times as long.
    width, height = (
        np.maximum(np.minimum(one[axis + 2], other[axis + 2]) - np.maximum(one[axis], other[axis]), 0)
        for axis in (0, 1)
    )
    common = width * height
    union = _areas(one) + _areas(other) - common
    # Without a union there is nothing in common.
    union[union <= 0] = 1
    shares: np.ndarray = np.divide(common, union, out=common)
    return shares


def _areas(sides: Sequence[np.ndarray]) -> np.ndarray:
    left, top, right, bottom = sides
    areas: np.ndarray = np.maximum(right - left, 0) * np.maximum(bottom - top, 0)
    return areas


def encoded(boxes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """The offsets of boxes from anchors.

    Args:
        boxes: Boxes of positive sizes, shape (…, A, 4).
        anchors: An anchor for each, shape (A, 4).

    Returns:
        float64, shape (…, A, 4): differences of the centers x and y in sizes of the anchor, divided by 0.1; logarithms
        of the ratios of widths and of heights, divided by 0.2.

    References:
        Liu et al., SSD: Single shot multibox detector, ECCV 2016, equation 2 (arXiv:1512.02325); the divisors are those
        of the authors' code.

    >>> import numpy as np
    >>> anchor = np.array([[0.0, 0.0, 10.0, 10.0]])
    >>> encoded(np.array([[1.0, 0.0, 11.0, 10.0]]), anchor).tolist()  # a tenth of the width to the right
    [[1.0, 0.0, 0.0, 0.0]]
    """
    center, size = _centers_and_sizes(boxes)
    places, extents = _centers_and_sizes(anchors)
    shift = (center - places) / extents / VARIANCES[0]
    return np.concatenate([shift, np.log(size / extents) / VARIANCES[1]], axis=-1)


def decoded(offsets: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """The boxes with these offsets from anchors: the inverse of `encoded`.

    Args:
        offsets: Shape (…, A, 4).
        anchors: Shape (A, 4).

    Returns:
        float64, shape (…, A, 4).

    >>> import numpy as np
    >>> decoded(np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([[0.0, 0.0, 10.0, 10.0]])).tolist()
    [[1.0, 0.0, 11.0, 10.0]]
    """
    offsets = np.asarray(offsets, dtype=np.float64)
    places, extents = _centers_and_sizes(anchors)
    center = places + offsets[..., :2] * VARIANCES[0] * extents
    half = extents * np.exp(offsets[..., 2:] * VARIANCES[1]) / 2
    return np.concatenate([center - half, center + half], axis=-1)


def _centers_and_sizes(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    boxes = np.asarray(boxes, dtype=np.float64)
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
