"""Reductions over axes that an input lists, and over the spatial axes of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Call, Composite
from deep5.networks.nodes import fixed, rank, ranked
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS", "check_space", "in_float", "reduced", "spatial"]

Reduction = Callable[..., Array]
"""Takes primitives, an array, its axes (at least one) and whether to keep them."""


def _total(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return xp.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _mean(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return xp.mean(x, axis=axes, keepdims=keep) if xp.is_floating(x.dtype) else _mean_of_integers(xp, x, axes, keep)


def _mean_of_integers(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    """The exact mean, rounded toward zero: the mean of the quotients by the count, plus that of the remainders.

    uint64 becomes int64 by a shift by 2^63, which the mean shares.
    """
    lowest, shifted = xp.asarray(-(1 << 63), dtype=xp.int64), x.dtype == xp.uint64
    wide = xp.bitwise_xor(xp.bits(x, xp.int64), lowest) if shifted else xp.astype(x, xp.int64)
    count = xp.clamp(xp.asarray(math.prod([x.shape[axis] for axis in axes]), dtype=xp.int64), 1)
    quotients = xp.floor_divide(wide, count)
    rest = _total(xp, wide - quotients * count, axes, keep)
    whole = xp.floor_divide(rest, count)
    mean = _total(xp, quotients, axes, keep) + whole
    if shifted:
        return xp.bits(xp.bitwise_xor(mean, lowest), x.dtype)
    up = xp.logical_and(mean < 0, rest > whole * count)
    return xp.astype(mean + xp.astype(up, xp.int64), x.dtype)


def _product(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return xp.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _extremum(name: str) -> Reduction:
    """The maximum or minimum; of no elements, the smallest or largest number of the type."""

    def reduce(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if x.dtype == xp.bool:
            return (xp.any if name == "max" else xp.all)(x, axis=axes, keepdims=keep)
        if any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
            infinite = (-xp.inf, xp.inf) if xp.is_floating(x.dtype) else xp.limits(x.dtype)
            shape = [1 if at in axes else extent for at, extent in enumerate(x.shape) if keep or at not in axes]
            return xp.blank(tuple(shape), x) + xp.asarray(infinite[name == "min"], dtype=x.dtype)
        return getattr(xp, name)(x, axis=axes, keepdims=keep)

    return reduce


def in_float(function: Reduction) -> Reduction:
    """A reduction that computes integers in float64, and rounds the result toward zero."""

    def reduce(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if xp.is_floating(x.dtype):
            return function(xp, x, axes, keep)
        return xp.astype(function(xp, xp.astype(x, xp.float64), axes, keep), x.dtype)

    return reduce


def _norm(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool, p: int = 2) -> Array:
    """The p-norm; its gradient is 0 where the norm is 0."""
    total = _total(xp, xp.square(x) if p == 2 else abs(x) ** p, axes, keep)
    some = total > 0
    root = xp.where(some, total, xp.ones_like(total))
    return xp.where(some, xp.sqrt(root) if p == 2 else root ** (1 / p), total)


def _log_sum(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return xp.log(_total(xp, x, axes, keep))


def _log_sum_exp(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return xp.logsumexp(x, axis=axes, keepdims=keep)


def _absolute(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return _total(xp, xp.abs(x), axes, keep)


def _squares(xp: Primitives, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return _total(xp, xp.square(x), axes, keep)


def reduced(function: Reduction) -> Callable[..., Array]:
    """ONNX's operator of a reduction: without axes, over all, or nothing, which is a reduction of single elements."""

    def reduce(
        xp: Primitives, x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        chosen = tuple(sorted({axis % x.ndim for axis in axes or (() if noop_with_empty_axes else range(x.ndim))}))
        if not chosen:
            return function(xp, xp.expand_dims(x, axis=0), (0,), False)
        return function(xp, x, chosen, bool(keepdims))

    return reduce


def _directly(name: str) -> Callable[[ir.Node], Call | None]:
    """The call of a reduction over known axes of a floating-point array without dimensions of size 0."""

    def find(node: ir.Node) -> Call | None:
        value, given = node.inputs[0], fixed(node, 1)
        if value is None or value.shape is None or value.dtype is None or not value.dtype.is_floating_point():
            return None
        if (given is None and len(node.inputs) > 1 and node.inputs[1] is not None) or 0 in value.shape:
            return None
        axes = range(rank(node)) if given is None or not given.size else given.tolist()
        if not axes or ((given is None or not given.size) and attribute(node, "noop_with_empty_axes", 0)):
            return None
        chosen = tuple(sorted({axis % rank(node) for axis in axes}))
        return Call(name, 1, (chosen, bool(attribute(node, "keepdims", 1))))

    return find


def _operator(function: Reduction, name: str = "") -> Composite:
    direct = _directly(name) if name else None
    return Composite(function=reduced(function), settings=(1,), layout="reduced", direct=direct)


def spatial(x: Array, channels: int) -> tuple[int, ...]:
    """The spatial axes of an image."""
    return tuple(range(2, x.ndim) if channels == 1 else range(1, x.ndim - 1))


def _global(function: Reduction, name: str) -> Composite:
    """A reduction over all spatial axes."""

    def reduce(xp: Primitives, x: Array, *, channels: int) -> Array:
        return function(xp, x, spatial(x, channels), True)

    def direct(node: ir.Node) -> Call | None:
        return Call(name, 1, (tuple(range(2, rank(node))), True))

    return Composite(function=reduce, check=check_space, layout="image", direct=direct)


def _global_norm(xp: Primitives, x: Array, *, p: int = 2, channels: int) -> Array:
    return _norm(xp, x, spatial(x, channels), True, p)


def check_space(node: ir.Node) -> str | None:
    """Why an operator of images cannot run."""
    return "no spatial axes" if ranked(node) and rank(node) <= 2 else None


_LARGEST, _SMALLEST = _extremum("max"), _extremum("min")
OPERATORS = {
    "GlobalAveragePool": _global(_mean, "mean"),
    "GlobalLpPool": Composite(function=_global_norm, check=check_space, layout="image"),
    "GlobalMaxPool": _global(_LARGEST, "max"),
    "ReduceL1": _operator(_absolute),
    "ReduceL2": _operator(in_float(_norm)),
    "ReduceLogSum": _operator(in_float(_log_sum)),
    "ReduceLogSumExp": _operator(in_float(_log_sum_exp)),
    "ReduceMax": _operator(_LARGEST, "max"),
    "ReduceMean": _operator(_mean, "mean"),
    "ReduceMin": _operator(_SMALLEST, "min"),
    "ReduceProd": _operator(_product),
    "ReduceSum": _operator(_total, "sum"),
    "ReduceSumSquare": _operator(_squares),
}
