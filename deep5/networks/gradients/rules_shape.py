"""Gradients of operators that move or repeat all elements."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands
from deep5.networks.gradients.window import attribute

__all__ = ["RULES"]


def _identity(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x: dx = dy.

    References:
        ONNX, Identity-19.
    """
    return [grads[0]]


def _cast(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x in another precision: dx = dy in the precision of x.

    References:
        ONNX, Cast-19.
    """
    (x,) = operands(node, 1)
    return [b.op("Cast", grads[0], to=x.dtype)]


def _reshape(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y holds the elements of x in their order (Reshape, Flatten, Squeeze, Unsqueeze): dx is dy in the shape of x.

    References:
        ONNX, Flatten-13, Reshape-19, Squeeze-13 and Unsqueeze-13.
    """
    dx = b.op("Reshape", grads[0], b.shape(*operands(node, 1)), allowzero=1)
    return [dx, *[None] * (len(node.inputs) - 1)]


def _transpose(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x with its axes permuted: dx is dy under the inverse permutation.

    References:
        ONNX, Transpose-13.
    """
    rank = len(extents(*operands(node, 1)))
    perm = list(attribute(node, "perm", range(rank - 1, -1, -1)))
    return [b.op("Transpose", grads[0], perm=[perm.index(axis) for axis in range(rank)])]


def _expand(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x broadcast to a shape: dx sums dy over the axes along which x was repeated.

    References:
        ONNX, Expand-13.
    """
    (x,) = operands(node, 1)
    return [b.unbroadcast(grads[0], extents(node.outputs[0]), x), None]


def _tile(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x repeated r times along each axis: dx sums dy over the repetitions.

    References:
        ONNX, Tile-13.
    """
    x, repeats = operands(node, 2)
    rank = len(extents(x))
    # (r1, x1, r2, x2, …): every axis of y splits into its repetitions and the axis of x.
    pairs = b.op("Concat", b.op("Unsqueeze", repeats, b.ints(1)), b.op("Unsqueeze", b.shape(x), b.ints(1)), axis=1)
    apart = b.op("Reshape", grads[0], b.op("Reshape", pairs, b.ints(-1)))
    return [b.op("ReduceSum", apart, b.ints(*range(0, 2 * rank, 2)), keepdims=0), None]


def _trilu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x on one side of a diagonal, 0 on the other: dx = dy there, 0 on the other.

    References:
        ONNX, Trilu-14.
    """
    rest = node.inputs[1:]
    return [b.op("Trilu", grads[0], *rest, upper=attribute(node, "upper", 1)), *[None] * len(rest)]


RULES: dict[str, Rule] = {
    "Cast": _cast,
    "Expand": _expand,
    "Flatten": _reshape,
    "Identity": _identity,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _reshape,
}
