"""Gradients of operators that write elements into a value at given indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES", "coordinates"]


class _Places(NamedTuple):
    """How a node writes to its indices, with any values and reduction, and how they are read."""

    put: Callable[[ir.Value | None, ir.Value | None, str], ir.Value]
    take: Callable[[ir.Value | None], ir.Value]


def _scatter(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x with u written at indices, or combined with the elements there by sum, product, max or min.

    none: dx = dy where nothing was written, du = dy at the indices. add: dx = dy, du = dy at the indices. mul: each
    factor receives dy times the product of the others. max, min: elements that equal y share dy equally.

    References:
        ONNX, ScatterElements-18 and ScatterND-18.
    """
    x, indices, u = operands(node, 3)
    reduction = attribute(node, "reduction", "none")
    if node.op_type == "ScatterND":
        at = _Places(
            lambda value, new, how: b.op("ScatterND", value, indices, new, reduction=how),
            lambda value: b.op("GatherND", value, indices),
        )
    else:
        axis = attribute(node, "axis", 0)
        at = _Places(
            lambda value, new, how: b.op("ScatterElements", value, indices, new, axis=axis, reduction=how),
            lambda value: b.op("GatherElements", value, indices, axis=axis),
        )
    if reduction == "mul":
        return _products(b, (x, u), at, grads)
    if reduction in ("max", "min"):
        return _extremes(b, (x, u), node.outputs[0], at, grads)
    if reduction not in ("none", "add"):
        raise refuse(node, f"got reduction={reduction!r}; allowed: none, add, mul, max, min")
    dx = du = None
    if b.wants(x):
        dx = grads[0] if reduction == "add" else at.put(grads[0], b.zeros(u), "none")
    if b.wants(u):
        du = at.take(grads[0])
    return [dx, None, du]


def _products(b: Backward, values: tuple[ir.Value, ir.Value], at: _Places, grads: Gradients) -> Gradients:
    """For each factor, dy times the product of the others, which is not y / factor if the factor is 0."""
    x, u = values
    zero, one = b.like(0.0, x), b.like(1.0, x)
    gone = [b.op("Equal", value, zero) for value in values]
    counts = [b.op("Cast", flag, to=x.dtype) for flag in gone]
    factors = [b.op("Where", flag, one, value) for flag, value in zip(gone, values, strict=True)]
    product, count = at.put(factors[0], factors[1], "mul"), at.put(counts[0], counts[1], "add")
    dx = b.op("Mul", grads[0], b.op("Where", b.op("Equal", count, counts[0]), b.op("Div", product, factors[0]), zero))
    du = None
    if b.wants(u):
        others = b.op("Div", at.take(product), factors[1])
        alone = b.op("Equal", at.take(count), counts[1])
        du = b.op("Mul", at.take(grads[0]), b.op("Where", alone, others, zero))
    return [dx, None, du]


def _extremes(b: Backward, values: tuple[ir.Value, ir.Value], y: ir.Value, at: _Places, grads: Gradients) -> Gradients:
    x, u = values
    chosen = [b.op("Cast", b.op("Equal", x, y), to=x.dtype), b.op("Cast", b.op("Equal", u, at.take(y)), to=x.dtype)]
    share = b.op("Div", grads[0], at.put(chosen[0], chosen[1], "add"))
    return [b.op("Mul", share, chosen[0]), None, b.op("Mul", at.take(share), chosen[1])]


def coordinates(b: Backward, indices: ir.Value, batch: int) -> ir.Value:
    """Indices of a GatherND with the batch coordinates prepended, so that there are no batch axes.

    Args:
        b: The backward pass.
        indices: (*batch, *places, depth).
        batch: Number of batch axes.
    """
    indices = indices if indices.dtype == ir.DataType.INT64 else b.op("Cast", indices, to=ir.DataType.INT64)
    rank, parts = len(extents(indices)), list[ir.Value]()
    column = b.op("Concat", b.op("Shape", indices, end=rank - 1), b.ints(1), axis=0)
    for axis in range(batch):
        extent = b.op("Squeeze", b.op("Shape", indices, start=axis, end=axis + 1))
        numbers = b.op("Range", b.integer(0), extent, b.integer(1))
        wide = b.op("Reshape", numbers, b.ints(*[1] * axis, -1, *[1] * (rank - axis - 1)))
        parts.append(b.op("Expand", wide, column))
    return b.op("Concat", *parts, indices, axis=rank - 1) if parts else indices


def _gather_nd(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = parts of x at coordinates: dx adds each part of dy to the position it was taken from.

    References:
        ONNX, GatherND-13.
    """
    x, indices = operands(node, 2)
    at = coordinates(b, indices, attribute(node, "batch_dims", 0))
    return [b.op("ScatterND", b.zeros(x), at, grads[0], reduction="add"), None]


def _tensor_scatter(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x with u written along an axis, from a start index per batch element: as for ScatterElements.

    Writing the indices of u's elements instead of u shows where each element goes.

    References:
        ONNX, TensorScatter-24.
    """
    x, u = operands(node, 2)
    attributes = {"axis": attribute(node, "axis", -2), "mode": attribute(node, "mode", "linear")}
    size = b.op("Size", u)
    numbers = b.op("Reshape", b.op("Range", b.integer(0), size, b.integer(1)), b.shape(u), allowzero=1)
    none = b.op("Expand", b.integer(-1), b.shape(x))
    number = b.op("TensorScatter", none, numbers, *node.inputs[2:], **attributes)
    kept = b.op("Less", number, b.integer(0))
    dx = b.op("Where", kept, grads[0], b.like(0.0, x))
    du = None
    if b.wants(u):
        # Positions that were not written add zero to the first element.
        place = b.op("Where", kept, b.integer(0), number)
        sent = b.op("Where", kept, b.like(0.0, x), grads[0])
        flat = b.op("Expand", b.like(0.0, u), b.op("Reshape", size, b.ints(1)))
        place, sent = b.op("Reshape", place, b.ints(-1)), b.op("Reshape", sent, b.ints(-1))
        total = b.op("ScatterElements", flat, place, sent, axis=0, reduction="add")
        du = b.op("Reshape", total, b.shape(u), allowzero=1)
    return [dx, du, *[None] * (len(node.inputs) - 2)]


RULES: dict[str, Rule] = {
    "GatherND": _gather_nd,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "TensorScatter": _tensor_scatter,
}
