"""Gradients of reductions along axes."""

from __future__ import annotations

import math

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _axes(node: ir.Node) -> tuple[int, ...]:
    """The axes that a node reduces, ascending; empty if it reduces none. Those of an unknown rank are as the node says.

    Raises:
        Unsupported: The axes are computed at run time, or all axes of an unknown rank are reduced.
    """
    (x,), given = operands(node, 1), node.inputs[1] if len(node.inputs) > 1 else None
    known = constant_value(given)
    if given is not None and known is None:
        raise refuse(node, f"its axes {given.name!r} are computed; allowed: constant axes")
    if x.shape is None and known is not None and known.size and len({axis < 0 for axis in known.reshape(-1)}) == 1:
        return tuple(sorted(map(int, known.reshape(-1))))
    rank = len(extents(x))
    if known is None or known.size == 0:
        return () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in known.reshape(-1)))


def _kept(b: Backward, node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """A value of the result's shape, with size 1 along the reduced axes, so that it broadcasts against the input."""
    axes = _axes(node)
    return value if attribute(node, "keepdims", 1) or not axes else b.op("Unsqueeze", value, b.ints(*axes))


def _sent(node: ir.Node, dx: ir.Value) -> Gradients:
    return [dx, *[None] * (len(node.inputs) - 1)]


def _sum(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sum of x along axes: every element receives dy.

    References:
        ONNX, ReduceSum-13.
    """
    (x,) = operands(node, 1)
    return _sent(node, b.op("Expand", _kept(b, node, grads[0]), b.shape(x)))


def _mean(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = mean of m elements of x along axes: every element receives dy / m.

    References:
        ONNX, ReduceMean-18.
    """
    (x,), dy = operands(node, 1), grads[0]
    axes = _axes(node)
    fixed = [] if x.shape is None else [extent for axis in axes if isinstance(extent := extents(x)[axis], int)]
    if len(fixed) == len(axes):
        share = b.scaled(dy, 1.0 / math.prod(fixed), x)
    else:
        count = b.op("Div", b.op("Size", x), b.op("Size", node.outputs[0]))
        share = b.op("Div", dy, b.op("Cast", count, to=x.dtype))
    return _sent(node, b.op("Expand", _kept(b, node, share), b.shape(x)))


def _sum_square(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sum of x^2 along axes: dx = 2 x dy.

    References:
        ONNX, ReduceSumSquare-18.
    """
    (x,) = operands(node, 1)
    return _sent(node, b.op("Mul", x, _kept(b, node, b.scaled(grads[0], 2.0, x))))


def _l2(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sqrt(sum of x^2) along axes: dx = x dy / y, and 0 where y = 0.

    References:
        ONNX, ReduceL2-18.
    """
    (x,), (y,) = operands(node, 1), node.outputs
    zero = b.like(0.0, x)
    slope = b.op("Where", b.op("Equal", y, zero), zero, b.op("Div", grads[0], y))
    return _sent(node, b.op("Mul", x, _kept(b, node, slope)))


def _extreme(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max of x along axes, or min: elements that equal y share dy equally, as in PyTorch's amax and JAX's max.

    References:
        ONNX, ReduceMax-20 and ReduceMin-20.
    """
    (x,), (y,) = operands(node, 1), node.outputs
    chosen = b.op("Cast", b.op("Equal", x, _kept(b, node, y)), to=x.dtype)
    axes = _axes(node)
    total = b.op("ReduceSum", chosen, b.ints(*axes), keepdims=1, noop_with_empty_axes=1)
    return _sent(node, b.op("Mul", chosen, b.op("Div", _kept(b, node, grads[0]), total)))


def _product(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = product of x along axes: each element receives dy times the product of the others.

    That is y divided by the element if there is no zero, and otherwise 0 unless the element is the only zero.

    References:
        ONNX, ReduceProd-18.
    """
    (x,), axes = operands(node, 1), _axes(node)
    zero, one = b.like(0.0, x), b.like(1.0, x)
    gone = b.op("Equal", x, zero)
    mine = b.op("Cast", gone, to=x.dtype)
    factors = b.op("Where", gone, one, x)
    product = b.op("ReduceProd", factors, b.ints(*axes), keepdims=1, noop_with_empty_axes=1)
    zeros = b.op("ReduceSum", mine, b.ints(*axes), keepdims=1, noop_with_empty_axes=1)
    others = b.op("Where", b.op("Equal", zeros, mine), b.op("Div", product, factors), zero)
    return _sent(node, b.op("Mul", others, _kept(b, node, grads[0])))


def _l1(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sum of |x| along axes: dx = sign(x) dy.

    References:
        ONNX, ReduceL1-18.
    """
    (x,) = operands(node, 1)
    return _sent(node, b.op("Mul", b.op("Sign", x), _kept(b, node, grads[0])))


def _log_sum(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = log(sum of x) along axes: dx = dy / exp(y), with the sum itself instead of exp(y).

    References:
        ONNX, ReduceLogSum-18.
    """
    (x,) = operands(node, 1)
    total = b.op("ReduceSum", x, b.ints(*_axes(node)), keepdims=1, noop_with_empty_axes=1)
    return _sent(node, b.op("Expand", b.op("Div", _kept(b, node, grads[0]), total), b.shape(x)))


def _log_sum_exp(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = log(sum of exp(x)) along axes: dx = dy exp(x - y), which does not overflow; 0 where y is -infinity.

    References:
        ONNX, ReduceLogSumExp-18.
    """
    (x,), (y,) = operands(node, 1), node.outputs
    less = b.op("Sub", x, _kept(b, node, b.op("Where", b.op("IsInf", y), b.like(0.0, y), y)))
    return _sent(node, b.op("Mul", b.op("Exp", less), _kept(b, node, grads[0])))


RULES: dict[str, Rule] = {
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme,
    "ReduceMean": _mean,
    "ReduceMin": _extreme,
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": _sum_square,
}
