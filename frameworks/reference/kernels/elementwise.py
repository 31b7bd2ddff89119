"""Elementwise arithmetic and matrix products; dtypes are preserved."""

from __future__ import annotations

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["combine", "divide_integers", "gemm", "is_infinite", "mean", "modulo", "power", "where"]


def divide_integers(a: Array, b: Array) -> Array:
    """The quotient rounded towards zero, as in ONNX and C; NumPy rounds down."""
    quotient: Array = np.asarray(np.floor_divide(a, b))
    quotient += ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    return quotient


def gemm(
    a: Array, b: Array, c: Array | None = None, *, alpha: float, beta: float, trans_a: bool, trans_b: bool
) -> Array:
    """ONNX Gemm: alpha A' B' + beta C, where ' is an optional transpose; (M, K) and (K, N) -> (M, N), C broadcast."""
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


def modulo(a: Array, b: Array, *, truncated: bool) -> Array:
    """The remainder of a / b: with the sign of b, or with that of a if `truncated`, as in C."""
    rest: Array = (np.fmod if truncated else np.mod)(a, b)
    return rest


def power(x: Array, exponent: Array) -> Array:
    """x to the power of the exponent, in the dtype of x; squares and square roots use faster functions."""
    if np.ndim(exponent) == 0 and exponent == 2:
        return np.asarray(np.square(x))
    if np.ndim(exponent) == 0 and exponent == 0.5:
        return np.asarray(np.sqrt(x))
    y: Array = np.power(x, exponent)
    return y.astype(x.dtype, copy=False)


def combine(*values: Array, ufunc: np.ufunc) -> Array:
    """The values combined pairwise from the left, e.g. their sum."""
    if len(values) == 1:
        return values[0].copy(order="K")
    total: Array = np.asarray(ufunc(values[0], values[1]))
    for value in values[2:]:
        total = ufunc(total, value, out=total if total.shape == np.broadcast_shapes(total.shape, value.shape) else None)
    return total


def mean(*values: Array) -> Array:
    """ONNX Mean: the elementwise mean of the values."""
    total = combine(*values, ufunc=np.add)
    total /= total.dtype.type(len(values))
    return total


def is_infinite(x: Array, *, negative: bool, positive: bool) -> Array:
    """ONNX IsInf: where x is minus infinity, or infinity, or either."""
    if negative and positive:
        return np.asarray(np.isinf(x))
    return np.asarray(x == np.inf) if positive else np.asarray((x == -np.inf) & negative)
