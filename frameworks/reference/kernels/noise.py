"""Random numbers: a function of a seed and a shape, the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import NetworkError, ShapeError
from deep5.core.seeds import generator
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["bernoulli", "multinomial", "normal", "normal_like", "uniform", "uniform_like"]


def uniform(*, shape: tuple[int, ...], seed: str, low: float, high: float, dtype: Any) -> Array:
    """ONNX RandomUniform: uniform in [low, high)."""
    return np.asarray(generator(0, "uniform", seed).uniform(low, high, shape)).astype(dtype)


def normal(*, shape: tuple[int, ...], seed: str, mean: float, scale: float, dtype: Any) -> Array:
    """ONNX RandomNormal: normally distributed with this mean and standard deviation."""
    return np.asarray(generator(0, "normal", seed).normal(mean, scale, shape)).astype(dtype)


def uniform_like(x: Array, *, seed: str, low: float, high: float, dtype: Any) -> Array:
    """ONNX RandomUniformLike: `uniform` in the shape of x."""
    return uniform(shape=x.shape, seed=seed, low=low, high=high, dtype=dtype or x.dtype)


def normal_like(x: Array, *, seed: str, mean: float, scale: float, dtype: Any) -> Array:
    """ONNX RandomNormalLike: `normal` in the shape of x."""
    return normal(shape=x.shape, seed=seed, mean=mean, scale=scale, dtype=dtype or x.dtype)


def bernoulli(x: Array, *, seed: str, dtype: Any) -> Array:
    """ONNX Bernoulli: 1 with probability x, else 0.

    Raises:
        NetworkError: A probability is outside [0, 1].
    """
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise NetworkError("Bernoulli: a probability is outside of its range; allowed: 0 to 1")
    return np.asarray(generator(0, "bernoulli", seed).uniform(size=x.shape) < x).astype(dtype or x.dtype)


def multinomial(x: Array, *, seed: str, count: int, dtype: Any) -> Array:
    """ONNX Multinomial: classes drawn with replacement.

    Args:
        x: Log probabilities of the classes, up to a common constant, (batch, classes).
        seed: The seed of the draws.
        count: The number of draws per row.
        dtype: The dtype of the result.

    Returns:
        (batch, count).

    Raises:
        ShapeError: The rank is not 2, or there is no class.
    """
    if x.ndim != 2 or not x.shape[1]:
        raise ShapeError(f"Multinomial: got shape {x.shape}; allowed: (batch, classes)")
    weights = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    below = np.cumsum(weights, axis=1)
    drawn = generator(0, "multinomial", seed).uniform(size=(x.shape[0], count)) * below[:, -1:]
    classes = [np.searchsorted(edges[:-1], numbers, side="right") for edges, numbers in zip(below, drawn, strict=True)]
    return np.array(classes, dtype).reshape(x.shape[0], count)
