"""Gradients of operators that move or repeat all elements."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands
from deep5.networks.onnx.attributes import attribute

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
    apart = b.op("Reshape", grads[0], b.op("Reshape", pairs, b.ints(-1)), allowzero=1)
    return [b.op("ReduceSum", apart, b.ints(*range(0, 2 * rank, 2)), keepdims=0), None]


def _trilu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x on one side of a diagonal, 0 on the other: dx = dy there, 0 on the other.

    References:
        ONNX, Trilu-14.
    """
    rest = node.inputs[1:]
    return [b.op("Trilu", grads[0], *rest, upper=attribute(node, "upper", 1)), *[None] * len(rest)]


def _depth_to_space(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = blocks of channels laid out in space: dx gathers them again.

    References:
        ONNX, DepthToSpace-13: `mode` gives the order: the channels of a block are adjacent (CRD) or not (DCR).
    """
    (x,), size = operands(node, 1), attribute(node, "blocksize")
    batch, channels = b.op("Shape", x, end=1), b.op("Div", b.op("Shape", x, start=1, end=2), b.ints(size * size))
    rows, columns = b.op("Shape", x, start=2, end=3), b.op("Shape", x, start=3, end=4)
    apart = b.op("Concat", batch, channels, rows, b.ints(size), columns, b.ints(size), axis=0)
    order = [0, 3, 5, 1, 2, 4] if attribute(node, "mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    return [b.op("Reshape", b.op("Transpose", b.op("Reshape", grads[0], apart), perm=order), b.shape(x))]


def _space_to_depth(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = blocks of space laid out in channels: dx lays them out in space again.

    References:
        ONNX, SpaceToDepth-13.
    """
    mode = attribute(node, "mode", "DCR")
    return [b.op("DepthToSpace", grads[0], blocksize=attribute(node, "blocksize"), mode=mode)]


def _dropout(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x mask / (1 - ratio) in training, x otherwise: dx = the same for dy.

    References:
        ONNX, Dropout-13.
    """
    (x,), (_, ratio, training) = operands(node, 1), (*node.inputs, None, None)[:3]
    rest = [None] * (len(node.inputs) - 1)
    fixed = constant_value(training)
    if training is None or (fixed is not None and not fixed.all()):
        return [grads[0], *rest]
    kept = b.op("Where", b.output(node, 1, x.shape, ir.DataType.BOOL), grads[0], b.like(0.0, x))
    dropped = b.like(0.5, x) if ratio is None else ratio if ratio.dtype == x.dtype else b.op("Cast", ratio, to=x.dtype)
    scaled = b.op("Div", kept, b.op("Sub", b.like(1.0, x), dropped))
    return [scaled if fixed is not None else b.op("Where", training, scaled, grads[0]), *rest]


RULES: dict[str, Rule] = {
    "Cast": _cast,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _reshape,
    "Identity": _identity,
    "Reshape": _reshape,
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _reshape,
}
