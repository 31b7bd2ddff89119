"""What logits say of labels: ranks of the true classes, and the confusion matrix, counted batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.core.tensors import to_numpy

__all__ = ["class_rows", "confusion", "recalls", "top_k_hits"]


def class_rows(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a batch as rows, native values read.

    Args:
        logits: Floating-point, shape (*samples, classes).
        labels: Whole numbers, shape (*samples).

    Returns:
        float32 or float64 of shape (rows, classes), and int64 of shape (rows,).

    Raises:
        ShapeError: The two do not belong to each other.
    """
    scores, classes = to_numpy(logits), to_numpy(labels)
    if scores.ndim < 1 or scores.shape[:-1] != classes.shape or classes.dtype.kind not in "iu":
        raise ShapeError(
            f"got logits of shape {scores.shape} and labels of shape {classes.shape}, {classes.dtype}; allowed: whole "
            "numbers as labels, of the shape of the logits without its last axis, that of the classes"
        )
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float32)
    return scores.reshape(-1, scores.shape[-1]), classes.reshape(-1).astype(np.int64)


def top_k_hits(scores: np.ndarray, labels: np.ndarray, k: int) -> int:
    """Rows whose true class is among the k with the largest scores.

    Of equal scores the one of the lower class is the larger, so that `k=1` is what `argmax` predicts. A row with NaN
    predicts nothing; a label that is no class is never hit.

    Args:
        scores: As `class_rows` gives them.
        labels: As `class_rows` gives them.
        k: At least 1.

    >>> top_k_hits(np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]]), np.array([2, 1]), 1)
    0
    >>> top_k_hits(np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]]), np.array([2, 1]), 2)
    2
    """
    known = (labels >= 0) & (labels < scores.shape[1]) & ~np.isnan(scores).any(axis=1)
    scores, labels = scores[known], labels[known]
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, None]))
    return int(np.count_nonzero(before.sum(axis=1) < k))


def confusion(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How often each true class was predicted as each class.

    Args:
        scores: As `class_rows` gives them.
        labels: As `class_rows` gives them; rows whose label is no class are left out.

    Returns:
        int64 of shape (classes, classes + 1): true classes down, predicted ones across; the last column is of rows with
        NaN, which predict nothing.

    >>> confusion(np.array([[2.0, 1.0], [2.0, 1.0], [np.nan, 1.0]]), np.array([0, 1, 1])).tolist()
    [[1, 0, 0], [1, 0, 1]]
    """
    classes = scores.shape[1]
    predicted = np.where(np.isnan(scores).any(axis=1), classes, scores.argmax(axis=1))
    known = (labels >= 0) & (labels < classes)
    cells = labels[known] * (classes + 1) + predicted[known]
    return np.bincount(cells, minlength=classes * (classes + 1)).reshape(classes, classes + 1).astype(np.int64)


def recalls(matrix: np.ndarray) -> np.ndarray:
    """Share in percent of each class' samples that were predicted right; NaN for a class that has none.

    Args:
        matrix: As `confusion` gives it.
    """
    totals = matrix.sum(axis=1)
    right = np.diagonal(matrix)
    return np.where(totals > 0, 100.0 * right / np.maximum(totals, 1), np.nan)
