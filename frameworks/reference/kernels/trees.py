"""Ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.activation import sigmoid, softmax
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["MEMBER", "Trees", "reached", "tree_ensemble"]

_COMPARE: tuple[Callable[[Any, Any], Any], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
MEMBER = len(_COMPARE)
"""The mode of a node that tests set membership of the feature."""


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Nodes and leaves of all trees, each as flat arrays.

    Attributes:
        roots: The first node of each tree.
        features: The feature index of each node.
        modes: The comparison of each node: 0 <=, 1 <, 2 >=, 3 >, 4 ==, 5 !=, 6 set membership.
        splits: The value to compare with.
        members: The sets of nodes with mode 6.
        next_node: The next node or leaf if the comparison is false, and if it is true, (2, nodes).
        ends: Whether the next one is a leaf.
        missing: Whether NaN follows the true branch.
        targets: The result index of each leaf.
        weights: The value of each leaf.
        results: The number of results.
    """

    roots: Array
    features: Array
    modes: Array
    splits: Array
    members: dict[int, Array]
    next_node: Array
    ends: Array
    missing: Array
    targets: Array
    weights: Array
    results: int


def tree_ensemble(x: Array, *, trees: Trees, aggregate: int, transform: int) -> Array:
    """ai.onnx.ml TreeEnsemble: the aggregated values of the leaves that each row of features reaches.

    Args:
        x: (rows, features).
        trees: The trees.
        aggregate: 0 average over trees, 1 sum, 2 minimum, 3 maximum.
        transform: 0 none, 1 softmax, 2 logistic function, 3 softmax of nonzero values.

    Returns:
        (rows, results), the dtype of x.
    """
    rows = len(x)
    leaves = reached(x, trees)
    weights, targets = trees.weights[leaves].astype(x.dtype, copy=False), trees.targets[leaves]
    place = (np.repeat(np.arange(rows), leaves.shape[1]), targets.reshape(-1))
    if aggregate < 2:
        y = np.zeros((rows, trees.results), x.dtype)
        np.add.at(y, place, weights.reshape(-1))
        if aggregate == 0:
            y /= x.dtype.type(len(trees.roots))
    else:
        ufunc, edge = ((np.minimum, np.inf), (np.maximum, -np.inf))[aggregate - 2]
        y = np.full((rows, trees.results), edge, x.dtype)
        ufunc.at(y, place, weights.reshape(-1))
        y[np.isinf(y) & (y == edge)] = 0
    if transform == 1:
        return softmax(y, axis=1)
    if transform == 2:
        return sigmoid(y)
    if transform == 3:
        return np.where(y == 0, 0, softmax(np.where(y == 0, -np.inf, y), axis=1)).astype(x.dtype)
    return y


def reached(x: Array, trees: Trees) -> Array:
    """The leaf that every row reaches in every tree; all descend together, one level at a time."""
    at = np.tile(trees.roots, (len(x), 1))
    done = np.zeros(at.shape, bool)
    row = np.arange(len(x))[:, None]
    while not done.all():
        node = np.where(done, 0, at)
        value = x[row, trees.features[node]]
        mode, holds = trees.modes[node], np.zeros(at.shape, bool)
        for number, compare in enumerate(_COMPARE):
            chosen = mode == number
            if chosen.any():
                holds[chosen] = compare(value[chosen], trees.splits[node[chosen]])
        for number, members in trees.members.items():
            chosen = node == number
            holds[chosen] = np.isin(value[chosen], members)
        holds |= np.isnan(value) & trees.missing[node]
        side = holds.astype(np.int64)
        at = np.where(done, at, trees.next_node[side, node])
        done |= trees.ends[side, node]
    return at
