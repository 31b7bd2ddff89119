"""Ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.activation import sigmoid, softmax
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["MEMBER", "Trees", "tree_ensemble"]

_COMPARE: tuple[Callable[[Any, Any], Any], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
MEMBER = len(_COMPARE)
"""The mode of a node that asks whether the feature is in a set."""


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Nodes and leaves of all trees; nodes are one axis, leaves another.

    Attributes:
        roots: The first node of each tree.
        features: Which feature a node looks at.
        modes: How it compares: 0 <=, 1 <, 2 >=, 3 >, 4 ==, 5 !=, 6 is a member.
        splits: What it compares with.
        members: By node with mode 6, its set.
        next_node: Where to go on where it does not hold, and where it does, (2, nodes): a node, or a leaf.
        ends: Whether that is a leaf.
        missing: Whether a NaN goes where it holds.
        targets: Which result a leaf counts for.
        weights: What a leaf counts.
        results: How many results there are.
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
    """ai.onnx.ml TreeEnsemble: what the leaves come to that a row of features ends in.

    Args:
        x: (rows, features).
        trees: The trees.
        aggregate: 0 average over trees, 1 sum, 2 least, 3 greatest.
        transform: 0 none, 1 softmax, 2 logistic function, 3 softmax of what is not zero.

    Returns:
        (rows, results), the dtype of x.
    """
    rows = len(x)
    leaves = _leaves(x, trees)
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


def _leaves(x: Array, trees: Trees) -> Array:
    """Which leaf every row ends in, in every tree: all of them go down a node at a time."""
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
