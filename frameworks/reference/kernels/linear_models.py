"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from deep5.frameworks.reference.kernels.activation import sigmoid, softmax
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["Machine", "linear_classes", "linear_values", "support_classes", "support_values", "transformed"]

# Probabilities closer to 0 or 1 are not coupled; libsvm's constants.
_LEAST, _ROUNDS = 1e-7, 100


def transformed(scores: Array, transform: str) -> Array:
    """Scores of shape (rows, several) after the post-transformation: NONE, LOGISTIC, SOFTMAX or SOFTMAX_ZERO."""
    if transform == "LOGISTIC":
        return sigmoid(scores)
    if transform == "SOFTMAX":
        return softmax(scores, axis=1)
    if transform == "SOFTMAX_ZERO":
        used = np.where(scores == 0, -np.inf, scores)
        found: Array = np.where(scores == 0, 0, softmax(used, axis=1)).astype(scores.dtype)
        return found
    return scores


def linear_values(x: Array, *, weights: Array, bias: Array, transform: str) -> Array:
    """ai.onnx.ml LinearRegressor: (rows, features) to (rows, targets), float32."""
    return transformed(_rows(x).astype(np.float32) @ weights.T + bias, transform)


def linear_classes(x: Array, *, weights: Array, bias: Array, labels: Array, transform: str) -> tuple[Array, Array]:
    """ai.onnx.ml LinearClassifier: labels (rows), and scores (rows, labels), float32.

    One row of weights for two labels gives the score of the second.
    """
    scores = _rows(x).astype(np.float32) @ weights.T + bias
    if scores.shape[1] > 1 or len(labels) == 1:
        return labels[scores.argmax(axis=1)], transformed(scores, transform)
    both = np.hstack([-scores, scores]) if transform == "LOGISTIC" else np.hstack([1 - scores, scores])
    return labels[(scores[:, 0] > 0).astype(np.int64)], sigmoid(both) if transform == "LOGISTIC" else both


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A support vector machine.

    Attributes:
        kernel: LINEAR, POLY, RBF or SIGMOID.
        gamma: Factor of the product or the distance.
        offset: Added to the product.
        degree: Exponent of POLY.
        vectors: Support vectors, (vectors, features).
        coefficients: Of the vectors: (vectors), or of a classifier (classes - 1, vectors).
        rho: Added to each decision.
    """

    kernel: str
    gamma: float
    offset: float
    degree: float
    vectors: Array
    coefficients: Array
    rho: Array

    def similarity(self, x: Array) -> Array:
        """The kernel of each row with each support vector, (rows, vectors)."""
        if self.kernel == "RBF":
            squares = ((x[:, None, :] - self.vectors[None]) ** 2).sum(axis=2)
            return _float32(np.exp(-self.gamma * squares))
        product = x @ self.vectors.T
        if self.kernel == "POLY":
            return _float32((self.gamma * product + self.offset) ** self.degree)
        if self.kernel == "SIGMOID":
            return _float32(np.tanh(self.gamma * product + self.offset))
        return _float32(product)


def support_values(x: Array, *, machine: Machine, one_class: bool) -> Array:
    """ai.onnx.ml SVMRegressor: (rows, 1), float32; 1 or -1 if there is one class."""
    y = machine.similarity(_rows(x).astype(np.float32)) @ machine.coefficients + machine.rho[0]
    return _float32(np.where(y > 0, 1, -1) if one_class else y).reshape(-1, 1)


def support_classes(
    x: Array, *, machine: Machine, counts: Array, labels: Array, slopes: Array, shifts: Array
) -> tuple[Array, Array]:
    """ai.onnx.ml SVMClassifier with support vectors: labels (rows), and scores, float32.

    Args:
        x: (rows, features).
        machine: The support vectors, ordered by class.
        counts: The number of vectors of each class.
        labels: One per class.
        slopes: Of the probability of each pair of classes; empty: scores are decisions, not probabilities.
        shifts: As slopes.

    Returns:
        The label of most decisions, and probabilities (rows, classes), or the decisions of all pairs.

    References:
        Chang and Lin, LIBSVM, ACM TIST 2(3), 2011, section 8: pairwise coupling.
    """
    similar = machine.similarity(_rows(x).astype(np.float32))
    starts = np.concatenate([[0], np.cumsum(counts)])
    part = [slice(begin, end) for begin, end in itertools.pairwise(starts)]
    pairs = [(i, j) for i in range(len(counts)) for j in range(i + 1, len(counts))]
    votes, decisions = np.zeros((len(similar), len(counts)), np.float32), []
    for number, (i, j) in enumerate(pairs):
        first = similar[:, part[i]] @ machine.coefficients[j - 1, part[i]]
        second = similar[:, part[j]] @ machine.coefficients[i, part[j]]
        decision = machine.rho[number] + first + second
        decisions.append(decision)
        votes[:, i] += decision > 0
        votes[:, j] += decision <= 0
    scores = _float32(np.stack(decisions, axis=1))
    if not len(slopes):
        return labels[votes.argmax(axis=1)], scores
    likely = np.clip(sigmoid(-(scores * slopes + shifts)), _LEAST, 1 - _LEAST)
    table = np.zeros((len(scores), len(counts), len(counts)), np.float64)
    for number, (i, j) in enumerate(pairs):
        table[:, i, j], table[:, j, i] = likely[:, number], 1 - likely[:, number]
    found = _float32(np.stack([_coupled(each) for each in table])) if len(table) else table[:, 0].astype(np.float32)
    return labels[votes.argmax(axis=1)], found


def _coupled(pairwise: Array) -> Array:
    """The probability of each class from those of pairs; Wu, Lin and Weng, JMLR 5, 2004, algorithm 2."""
    classes = len(pairwise)
    form = -pairwise.T * pairwise
    form[np.diag_indices(classes)] = (pairwise**2).sum(axis=0)
    found = np.full(classes, 1 / classes)
    for _ in range(max(_ROUNDS, classes)):
        image = form @ found
        whole = found @ image
        if np.abs(image - whole).max() < 0.005 / classes:
            break
        for number in range(classes):
            change = (whole - image[number]) / form[number, number]
            found[number] += change
            whole = (whole + change * (change * form[number, number] + 2 * image[number])) / (1 + change) ** 2
            image = (image + change * form[number]) / (1 + change)
            found /= 1 + change
    return found


def _rows(x: Array) -> Array:
    return x.reshape(1, -1) if x.ndim == 1 else x


def _float32(values: Array) -> Array:
    found: Array = values.astype(np.float32)
    return found
