"""Matching of true boxes with anchors."""

from __future__ import annotations

import numpy as np

from deep5.training.detection.boxes import intersection_over_union

__all__ = ["matched"]

_LEAST = 0.5


def matched(anchors: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The true box of each anchor of an image.

    First each box gets the anchor with the largest intersection over union: the pair with the largest one of all is
    matched, then that of the rest, until each box that overlaps a free anchor has one. Then each other anchor gets the
    box that it overlaps most, if their intersection over union is at least 0.5.

    Args:
        anchors: Shape (A, 4).
        boxes: Shape (M, 4).

    Returns:
        int64, shape (A,): the index of a box, or -1 for background.

    References:
        Liu et al., SSD: Single shot multibox detector, ECCV 2016, section 2.2, "Matching strategy" (arXiv:1512.02325).

    >>> import numpy as np
    >>> anchors = np.array([[0, 0, 4, 4], [1, 0, 5, 4], [8, 8, 9, 9], [20, 20, 30, 30]])
    >>> matched(anchors, np.array([[0, 0, 4, 4], [8, 8, 14, 14]]))
    array([ 0,  0,  1, -1])
    """
    if not len(boxes):
        return np.full(len(anchors), -1, dtype=np.int64)
    overlap = intersection_over_union(boxes, anchors)
    found = np.where(overlap.max(axis=0) >= _LEAST, overlap.argmax(axis=0), -1)
    for _ in boxes:
        box, anchor = divmod(int(overlap.argmax()), len(anchors))
        if overlap[box, anchor] <= 0:
            break
        found[anchor] = box
        overlap[box] = overlap[:, anchor] = -1.0
    return found.astype(np.int64)
