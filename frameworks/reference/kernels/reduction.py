"""Reductions along axes; dtypes are preserved."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["mean", "reduce", "root_of_squares", "sum_of_squares"]


def reduce(x: Array, axes: Any = None, *, ufunc: np.ufunc, keepdims: bool, noop_with_empty_axes: bool) -> Array:
    """ONNX ReduceSum and similar operators over the given axes; without axes over all, unless `noop_with_empty_axes`.

    Args:
        x: Any shape.
        axes: Integers, or None.
        ufunc: Combines two elements, e.g. `numpy.add`.
        keepdims: Whether reduced axes stay, with size 1.
        noop_with_empty_axes: Whether an empty list of axes returns x unchanged.
    """
    over = None if axes is None else tuple(int(axis) for axis in axes)
    if not over:
        if noop_with_empty_axes:
            return x.copy(order="K")
        over = None
    # The extreme of no elements is the identity of the reduction.
    start = {"initial": _last(ufunc, x.dtype)} if not x.size and ufunc in (np.maximum, np.minimum) else {}
    result: Array = ufunc.reduce(x, axis=over, dtype=x.dtype, keepdims=keepdims, **start)
    return result


def _last(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """The identity of minimum or maximum: an infinity, or the end of an integer dtype's range."""
    least = ufunc is np.minimum
    if dtype.kind == "b":
        return least
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if least else np.iinfo(dtype).min
    return np.inf if least else -np.inf


def mean(x: Array, axes: Any = None, *, keepdims: bool, noop_with_empty_axes: bool) -> Array:
    """ONNX ReduceMean; arguments as in `reduce`."""
    total = reduce(x, axes, ufunc=np.add, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
    count = x.size // max(total.size, 1)
    return np.asarray(total / x.dtype.type(count)).astype(x.dtype, copy=False)


def sum_of_squares(x: Array, axes: Any = None, *, keepdims: bool, noop_with_empty_axes: bool) -> Array:
    """ONNX ReduceSumSquare; arguments as in `reduce`."""
    return reduce(x * x, axes, ufunc=np.add, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


def root_of_squares(x: Array, axes: Any = None, *, keepdims: bool, noop_with_empty_axes: bool) -> Array:
    """ONNX ReduceL2, the Euclidean norm; arguments as in `reduce`."""
    root: Array = np.sqrt(sum_of_squares(x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes))
    return root
