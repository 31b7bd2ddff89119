"""Activations, each in few passes over memory; dtypes are preserved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = [
    "celu",
    "clip",
    "elu",
    "erf",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log_softmax",
    "relu",
    "sigmoid",
    "softmax",
    "softplus",
]


def relu(x: Array, out: Array | None = None) -> Array:
    """max(x, 0); NaN stays NaN."""
    y: Array = np.maximum(x, x.dtype.type(0), out=out)
    return y


def leaky_relu(x: Array, *, alpha: float) -> Array:
    """x where x >= 0, else alpha x."""
    y = np.asarray(x * x.dtype.type(alpha))
    np.copyto(y, x, where=x >= 0)
    return y


def elu(x: Array, *, alpha: float) -> Array:
    """x where x > 0, else alpha (exp(x) - 1)."""
    y = np.asarray(np.expm1(np.minimum(x, x.dtype.type(0))))
    y *= x.dtype.type(alpha)
    np.copyto(y, x, where=x > 0)
    return y


def celu(x: Array, *, alpha: float) -> Array:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)), without overflow."""
    y = np.asarray(np.expm1(np.minimum(x, x.dtype.type(0)) / x.dtype.type(alpha)))
    y *= x.dtype.type(alpha)
    np.copyto(y, x, where=x > 0)
    return y


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    y: Array = np.logaddexp(x, x.dtype.type(0))
    return y


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), as (1 + tanh(x / 2)) / 2, without overflow."""
    y: Array = np.tanh(x * x.dtype.type(0.5))
    y *= y.dtype.type(0.5)
    y += y.dtype.type(0.5)
    return y


def hard_sigmoid(x: Array, *, alpha: float, beta: float) -> Array:
    """max(0, min(1, alpha x + beta))."""
    y = x * x.dtype.type(alpha) + x.dtype.type(beta)
    return clip(y, x.dtype.type(0), x.dtype.type(1))


def hard_swish(x: Array) -> Array:
    """x max(0, min(1, x / 6 + 1/2))."""
    y: Array = x * hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5)
    return y


def clip(x: Array, low: Any = None, high: Any = None) -> Array:
    """min(max(x, low), high), with optional bounds; if low > high, the result is high."""
    y: Array = x.copy(order="K") if low is None else np.maximum(x, low)
    return y if high is None else np.asarray(np.minimum(y, high))


def erf(x: Array) -> Array:
    """The error function."""
    from scipy.special import erf as error_function

    y: Array = error_function(x)
    return y


def gelu(x: Array, *, approximate: str) -> Array:
    """x P(x), P the normal distribution: exact, or by tanh.

    References:
        Hendrycks and Gimpel, Gaussian error linear units, arXiv:1606.08415, section 2.
    """
    kind = x.dtype.type
    if approximate == "tanh":
        y: Array = x * x * kind(math.sqrt(2.0 / math.pi) * 0.044715) + kind(math.sqrt(2.0 / math.pi))
        y = np.tanh(y * x)
    else:
        y = erf(x * kind(math.sqrt(0.5)))
    y += kind(1)
    y *= x
    y *= kind(0.5)
    return y


def softmax(x: Array, *, axis: int) -> Array:
    """exp(x - max) / sum(exp(x - max)) along an axis."""
    if not x.size:  # there is no largest element
        return x.copy()
    y: Array = np.exp(x - x.max(axis=axis, keepdims=True))
    y /= y.sum(axis=axis, keepdims=True)
    return y


def log_softmax(x: Array, *, axis: int) -> Array:
    """x - max - log(sum(exp(x - max))) along an axis."""
    if not x.size:  # there is no largest element
        return x.copy()
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y
