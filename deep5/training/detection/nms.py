"""Non-maximum suppression."""

from __future__ import annotations

import numpy as np

from deep5.training.detection.boxes import intersection_over_union

__all__ = ["suppressed"]


def suppressed(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, threshold: float) -> np.ndarray:
    """The boxes of one image that remain after greedy non-maximum suppression within each class.

    In the order of decreasing scores, each box that remains removes the later boxes of its class whose intersection
    over union with it is larger than the threshold.

    Args:
        boxes: Shape (K, 4): left, top, right, bottom.
        scores: Shape (K,), without NaN.
        classes: Integers, shape (K,).
        threshold: In [0, 1].

    Returns:
        int64: indices of the boxes that remain, by decreasing score; among equal scores the earlier box comes first.

    References:
        Liu et al., SSD: Single shot multibox detector, ECCV 2016, section 3 (arXiv:1512.02325).

    >>> import numpy as np
    >>> boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 5], [0, 0, 4, 5], [9, 9, 12, 12]])
    >>> suppressed(boxes, np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 1, 0, 1]), 0.5)
    array([0, 2, 3])
    """
    order = np.argsort(-np.asarray(scores), kind="stable")
    boxes, classes = np.asarray(boxes)[order], np.asarray(classes)[order]
    clash = (intersection_over_union(boxes, boxes) > threshold) & (classes[:, None] == classes)
    alive = np.ones(len(order), dtype=bool)
    for place in range(len(order)):
        if alive[place]:
            alive[place + 1 :] &= ~clash[place, place + 1 :]
    return order[alive].astype(np.int64)
