"""Elementwise arithmetic, products of matrices and reductions; dtypes stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["batch_normalization", "divide_integers", "gemm", "reduce", "relu", "sigmoid", "softmax", "where"]


def relu(x: Array, out: Array | None = None) -> Array:
    """max(x, 0); a NaN stays one."""
    y: Array = np.maximum(x, x.dtype.type(0), out=out)
    return y


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), as (1 + tanh(x / 2)) / 2, which overflows nowhere."""
    y: Array = np.tanh(x * x.dtype.type(0.5))
    y *= y.dtype.type(0.5)
    y += y.dtype.type(0.5)
    return y


def softmax(x: Array, *, axis: int) -> Array:
    """exp(x - max) / sum(exp(x - max)) along an axis."""
    y: Array = np.exp(x - x.max(axis=axis, keepdims=True))
    y /= y.sum(axis=axis, keepdims=True)
    return y


def divide_integers(a: Array, b: Array) -> Array:
    """The quotient rounded towards zero, as ONNX and C do; NumPy's own rounds down."""
    quotient: Array = np.floor_divide(a, b)
    quotient += ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    return quotient


def gemm(
    a: Array, b: Array, c: Array | None = None, *, alpha: float, beta: float, trans_a: bool, trans_b: bool
) -> Array:
    """ONNX Gemm: alpha A' B' + beta C, where ' transposes if asked; (M, K) and (K, N) -> (M, N), C broadcast."""
    y: Array = np.matmul(a.T if trans_a else a, b.T if trans_b else b)
    if alpha != 1.0:
        y *= y.dtype.type(alpha)
    if c is not None:
        y += c if beta == 1.0 else c * y.dtype.type(beta)
    return y


def where(condition: Array, a: Array, b: Array) -> Array:
    """a where the condition holds, b elsewhere; the result keeps the memory order of the condition."""
    if condition.shape != np.broadcast_shapes(condition.shape, np.shape(a), np.shape(b)):
        chosen: Array = np.where(condition, a, b)
        return chosen
    result = np.empty_like(condition, dtype=a.dtype)
    result[...] = b
    np.copyto(result, a, where=condition)
    return result


def reduce(x: Array, axes: Any = None, *, ufunc: np.ufunc, keepdims: bool, noop_with_empty_axes: bool) -> Array:
    """ONNX ReduceSum and its family over the given axes; over all where there are none, unless that means nothing.

    Args:
        x: Any shape.
        axes: Integers, or None.
        ufunc: What combines two elements, such as `numpy.add`.
        keepdims: Whether reduced axes stay, with extent 1.
        noop_with_empty_axes: Whether no axes means x itself.
    """
    over = None if axes is None else tuple(int(axis) for axis in axes)
    if not over:
        if noop_with_empty_axes:
            return x.copy(order="K")
        over = None
    result: Array = ufunc.reduce(x, axis=over, dtype=x.dtype, keepdims=keepdims)
    return result


def batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float) -> Array:
    """Evaluation: scale (x - mean) / sqrt(variance + epsilon) + bias, a value a channel (axis 1).

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, algorithm 2.
    """
    slope = scale / np.sqrt(variance + variance.dtype.type(epsilon))
    wide = (-1, *[1] * (x.ndim - 2))
    y: Array = x * slope.reshape(wide).astype(x.dtype, copy=False)
    y += (bias - mean * slope).reshape(wide)
    return y
