"""Classification scores of logits and labels: ranks of the true classes, and the confusion matrix, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, UsageError
from deep5.core.tensors import to_numpy

__all__ = ["class_hits", "class_rows", "confusion", "negative_log_likelihood", "recalls", "top_k_hits"]

# Elements that are computed in float64 at a time.
_BLOCK = 1 << 20


def class_rows(logits: Any, labels: Any, ignored: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a batch as rows, converted from native arrays.

    Args:
        logits: Floating-point, shape (*samples, classes).
        labels: Integers, shape (*samples).
        ignored: A label without a row, as returned by `deep5.networks.labels.ignored_label`; None: all have one.

    Returns:
        float32 or float64 of shape (rows, classes), and int64 of shape (rows,).

    Raises:
        ShapeError: Their shapes or types do not match.
    """
    scores, classes = to_numpy(logits), to_numpy(labels)
    if scores.ndim < 1 or scores.shape[:-1] != classes.shape or classes.dtype.kind not in "iu":
        raise ShapeError(
            f"got logits of shape {scores.shape} and labels of shape {classes.shape}, {classes.dtype}; allowed: "
            "integers as labels, of the shape of the logits without its last axis, that of the classes"
        )
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float32)
    if ignored is not None:
        kept = classes != ignored
        return scores[kept], classes[kept].astype(np.int64)
    return scores.reshape(-1, scores.shape[-1]), classes.reshape(-1).astype(np.int64)


def class_hits(logits: np.ndarray, labels: np.ndarray, ignored: int | None, finite: bool) -> np.ndarray:
    """For each label that is not ignored, whether its class has the largest logit; empty if labels are not classes.

    Args:
        logits: Shape (*samples, classes).
        labels: Shape (*samples).
        ignored: As for `class_rows`.
        finite: Whether no logit is NaN, which need not be checked then.

    >>> class_hits(np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]]), np.array([0, 1, -1]), -1, True).tolist()
    [True, False]
    """
    if labels.dtype.kind not in "iu" or labels.shape != logits.shape[:-1]:
        return np.empty(0, dtype=bool)
    hits: np.ndarray = logits.argmax(axis=-1) == labels
    # argmax treats NaN as the largest value, and the index of the first NaN is not a prediction.
    if not finite:
        hits &= ~np.isnan(logits).any(axis=-1)
    return hits if ignored is None else hits[labels != ignored]


def top_k_hits(scores: np.ndarray, labels: np.ndarray, k: int) -> int:
    """Rows whose true class is among the k with the largest scores.

    Ties rank the lower class first, so that `k=1` agrees with `argmax`. A row with NaN predicts nothing; a label
    outside the classes is never a hit.

    Args:
        scores: As returned by `class_rows`.
        labels: As returned by `class_rows`.
        k: At least 1.

    Raises:
        ShapeError: The scores are no rows of classes, or there is not one label for each.

    >>> top_k_hits(np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]]), np.array([2, 1]), 1)
    0
    >>> top_k_hits(np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]]), np.array([2, 1]), 2)
    2
    """
    _check_rows(scores, labels)
    known = (labels >= 0) & (labels < scores.shape[1]) & ~np.isnan(scores).any(axis=1)
    scores, labels = scores[known], labels[known]
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, None]))
    return int(np.count_nonzero(before.sum(axis=1) < k))


def confusion(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How often each true class was predicted as each class.

    Args:
        scores: As returned by `class_rows`.
        labels: As returned by `class_rows`; rows with a label outside the classes are ignored.

    Returns:
        int64 of shape (classes, classes + 1): true classes in rows, predicted ones in columns; the last column counts
        rows with NaN, which predict nothing.

    Raises:
        ShapeError: As `top_k_hits`.

    >>> confusion(np.array([[2.0, 1.0], [2.0, 1.0], [np.nan, 1.0]]), np.array([0, 1, 1])).tolist()
    [[1, 0, 0], [1, 0, 1]]
    """
    _check_rows(scores, labels)
    classes = scores.shape[1]
    predicted = np.where(np.isnan(scores).any(axis=1), classes, scores.argmax(axis=1))
    known = (labels >= 0) & (labels < classes)
    cells = labels[known] * (classes + 1) + predicted[known]
    return np.bincount(cells, minlength=classes * (classes + 1)).reshape(classes, classes + 1).astype(np.int64)


def negative_log_likelihood(scores: np.ndarray, labels: np.ndarray) -> float:
    """Sum over the rows of -ln of the softmax of the true class, in nats, computed in float64.

    Args:
        scores: As returned by `class_rows`.
        labels: As returned by `class_rows`.

    Returns:
        The sum; NaN if a row has NaN or an infinite logit that is not negative.

    Raises:
        ShapeError: As `top_k_hits`.
        UsageError: A label is not a class.

    >>> round(negative_log_likelihood(np.array([[0.0, np.log(3)], [1.0, 1.0]]), np.array([1, 0])), 6)  # ln 4/3 + ln 2
    0.980829
    """
    _check_rows(scores, labels)
    outside = labels[(labels < 0) | (labels >= scores.shape[1])]
    if outside.size:
        raise UsageError(
            f"got the label {outside[0]} for logits of {scores.shape[1]} classes; allowed: 0 to "
            f"{scores.shape[1] - 1}; remedy: a network whose loss in the graph ignores that label"
        )
    total, rows = 0.0, max(1, _BLOCK // scores.shape[1])
    for begin in range(0, len(scores), rows):
        block = scores[begin : begin + rows].astype(np.float64)
        with np.errstate(invalid="ignore"):  # an infinity minus itself is NaN, which is the result
            block -= block.max(axis=1, keepdims=True)
        own = np.take_along_axis(block, labels[begin : begin + rows, None], axis=1)
        total += float(np.log(np.exp(block).sum(axis=1)).sum() - own.sum())
    return total


def _check_rows(scores: np.ndarray, labels: np.ndarray) -> None:
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise ShapeError(
            f"got scores of shape {scores.shape} and labels of shape {labels.shape}; allowed: (rows, classes) and "
            "(rows,); remedy: class_rows(scores, labels)"
        )


def recalls(matrix: np.ndarray) -> np.ndarray:
    """Recall in percent for each class; NaN for a class without samples.

    Args:
        matrix: As returned by `confusion`.
    """
    totals = matrix.sum(axis=1)
    right = np.diagonal(matrix)
    return np.where(totals > 0, 100.0 * right / np.maximum(totals, 1), np.nan)
