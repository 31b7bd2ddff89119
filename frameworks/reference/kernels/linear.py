"""Sums of products: Einsum, determinants, and products of integers."""

from __future__ import annotations

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.convolution import convolution
from deep5.frameworks.reference.kernels.memory import Array, Scratch
from deep5.frameworks.reference.window import Window

__all__ = ["along_rows", "determinant", "einsum", "integer_convolution", "integer_product"]


def einsum(*values: Array, equation: str) -> Array:
    """ONNX Einsum: the sum over indices that are not in the result.

    Raises:
        ShapeError: The equation is invalid, or does not fit the shapes.
    """
    try:
        total: Array = np.asarray(np.einsum(equation, *values, optimize=len(values) > 1))
    except (ValueError, KeyError, IndexError) as error:
        shapes = ", ".join(str(value.shape) for value in values)
        raise ShapeError(f"Einsum: got {equation!r} for shapes {shapes} ({error})") from error
    return total.astype(values[0].dtype, copy=False)


def determinant(x: Array) -> Array:
    """ONNX Det: the determinants of the matrices in the last two axes.

    Raises:
        ShapeError: They are not square.
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"Det: got shape {x.shape}; allowed: square matrices in the last two axes")
    return np.asarray(np.linalg.det(x), dtype=x.dtype)


def along_rows(value: Array) -> Array:
    """One value per row as a column, which broadcasts to a matrix; other shapes are unchanged."""
    return value[:, None] if value.ndim == 1 and value.size > 1 else value


def integer_product(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """ONNX MatMulInteger: (a - a_zero) (b - b_zero), in int32.

    Computed in float64 by BLAS, which is exact for sums of 2^37 such products.

    Args:
        a: (…, M, K), 8-bit integers.
        b: (…, K, N), like a.
        a_zero: The zero point of a: a number, one per row (M,), or (…, M, 1).
        b_zero: The zero point of b: a number, one per column (N,), or (…, 1, N).
    """
    left, right = a.astype(np.float64), b.astype(np.float64)
    if a_zero is not None:
        left -= along_rows(a_zero)
    if b_zero is not None:
        right -= b_zero
    return np.asarray(left @ right).astype(np.int64).astype(np.int32)


def integer_convolution(
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    *,
    window: Window,
    group: int,
    scratch: Scratch,
) -> Array:
    """ONNX ConvInteger: the convolution of x - x_zero with w - w_zero, in int32; padding counts as zero.

    Args:
        x: (N, C, *space), 8-bit integers.
        w: (M, C / group, *kernel), like x.
        x_zero: The zero point of x, a number.
        w_zero: The zero point of w: a number, or one per output channel, (M,).
        window: Strides, dilations and padding.
        group: Number of channel groups.
        scratch: The buffer for the columns.
    """
    left, right = x.astype(np.float64), w.astype(np.float64)
    if x_zero is not None:
        left -= x_zero.reshape(())
    if w_zero is not None:
        right -= w_zero.reshape(-1, *[1] * (w.ndim - 1))
    y = convolution(left, right, window=window, group=group, scratch=scratch)
    return y.astype(np.int64).astype(np.int32)
