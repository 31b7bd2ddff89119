"""Ensembles of decision trees as ai.onnx.ml wrote them before version 5: nodes, and leaves with several weights."""

from __future__ import annotations

import numpy as np

from deep5.frameworks.reference.kernels.activation import sigmoid
from deep5.frameworks.reference.kernels.linear_models import transformed
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.trees import Trees, reached

__all__ = ["forest_classes", "forest_values"]


def forest_values(x: Array, *, trees: Trees, weights: Array, base: Array, aggregate: str, transform: str) -> Array:
    """ai.onnx.ml TreeEnsembleRegressor: (rows, features) to (rows, targets), float32.

    Args:
        x: Features.
        trees: The trees.
        weights: The weights of each leaf, (leaves, targets); NaN where it has none.
        base: Added to each target; empty or (targets).
        aggregate: SUM, AVERAGE, MIN or MAX over the trees.
        transform: As in `transformed`.
    """
    held = weights[reached(_rows(x), trees)]
    absent = np.isnan(held)
    if aggregate in ("MIN", "MAX"):
        edge = np.inf if aggregate == "MIN" else -np.inf
        found = np.where(absent, edge, held).min(axis=1) if edge > 0 else np.where(absent, edge, held).max(axis=1)
        found = np.where(absent.all(axis=1), 0, found)
    else:
        found = np.where(absent, 0, held).sum(axis=1)
        found = found / held.shape[1] if aggregate == "AVERAGE" else found
    return transformed((found + base if len(base) else found).astype(np.float32), transform)


def forest_classes(
    x: Array, *, trees: Trees, weights: Array, base: Array, labels: Array, transform: str
) -> tuple[Array, Array]:
    """ai.onnx.ml TreeEnsembleClassifier: labels (rows), and scores (rows, labels), float32.

    Arguments are those of `forest_values`. The leaves of two classes weight one of them: the score of the other follows
    if it is the first, and is 0 otherwise.
    """
    scores = forest_values(x, trees=trees, weights=weights, base=base, aggregate="SUM", transform="NONE")
    if len(labels) != 2:
        return labels[scores.argmax(axis=1)], transformed(scores, transform)
    second = int(not np.isnan(weights[:, 1]).all())
    score, least = scores[:, second], 0.5 if np.nanmin(weights) >= 0 else 0.0
    chosen = labels[(score > least).astype(np.int64)]
    if second:
        return chosen, transformed(scores, transform)
    both = np.stack([-score, score], axis=1)
    if transform == "LOGISTIC":
        return chosen, sigmoid(both)
    return chosen, np.stack([1 - score, score], axis=1) if least else both


def _rows(x: Array) -> Array:
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return rows if rows.dtype.kind == "f" else rows.astype(np.float32)
