"""Gradients of cumulative sums and products, and of operators that sort along an axis."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, operands
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _cumulated(b: Backward, node: ir.Node, op_type: str, value: ir.Value | None, *, back: bool = False) -> ir.Value:
    """The cumulative sum or product of a value in the node's direction, or in the opposite one."""
    exclusive, reverse = bool(attribute(node, "exclusive", 0)), bool(attribute(node, "reverse", 0))
    return b.op(op_type, value, node.inputs[1], exclusive=int(exclusive), reverse=int(reverse != back))


def _cum_sum(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y[j] = sum of x[i], i up to j: dx[i] = sum of dy[j], j from i on.

    References:
        ONNX, CumSum-14.
    """
    return [_cumulated(b, node, "CumSum", grads[0], back=True), None]


def _cum_prod(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y[j] = product of x[i], i up to j: dx[i] = (sum of dy[j] y[j], j from i on) / x[i] before the first zero.

    At the first zero, the products are computed with a one in its place; after it, no element changes a product.

    References:
        ONNX, CumProd-26.
    """
    (x, axis), (y,) = operands(node, 2), node.outputs
    zero, one = b.like(0.0, x), b.like(1.0, x)
    gone = b.op("Equal", x, zero)
    # Number of zeros up to and including each element, regardless of the node's `exclusive`.
    count = b.op("CumSum", b.op("Cast", gone, to=x.dtype), axis, reverse=attribute(node, "reverse", 0))
    first = b.op("And", gone, b.op("Equal", count, one))
    other = _cumulated(b, node, "CumProd", b.op("Where", first, one, x))
    before = _cumulated(b, node, "CumSum", b.op("Mul", grads[0], y), back=True)
    there = _cumulated(b, node, "CumSum", b.op("Mul", grads[0], other), back=True)
    dx = b.op("Div", before, b.op("Where", gone, one, x))
    return [b.op("Where", first, there, b.op("Where", b.op("Greater", count, zero), zero, dx)), None]


def _top_k(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = the k largest or smallest elements of x along an axis: dx adds dy to the selected elements.

    References:
        ONNX, TopK-11.
    """
    (x, _), indices = operands(node, 2), node.outputs[1]
    axis = attribute(node, "axis", -1)
    return [b.op("ScatterElements", b.zeros(x), indices, grads[0], axis=axis, reduction="add"), None]


RULES: dict[str, Rule] = {"CumProd": _cum_prod, "CumSum": _cum_sum, "TopK": _top_k}
