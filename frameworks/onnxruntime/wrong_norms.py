"""The layer norms, written out or after a sum, that ONNX Runtime (1.31) fuses wrongly."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_tensor
from deep5.networks.onnx.attributes import attribute

__all__ = ["broadcasts_a_norm", "embeds_more", "is_odd_deviation", "is_skipped_norm", "made_by", "rank"]


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that computes a value, if it is one of these operators."""
    maker = None if value is None else value.producer()
    return maker if maker is not None and maker.op_type in op_types else None


def rank(value: ir.Value | None) -> int | None:
    """The number of axes of a value, if known."""
    return None if value is None or value.shape is None else len(value.shape)


def broadcasts_a_norm(node: ir.Node) -> bool:
    """Whether a node scales or shifts normalized values by something that is not of the shape of their last axes.

    The fused kernel rejects it when it runs. Of all axes, the fusion takes the values themselves for the scale.
    """
    if len(node.inputs) != 2:
        return False
    for value, other in (node.inputs, reversed(node.inputs)):
        if _is_normalized(value) and not _fits(other, value):
            return True
    return False


def is_odd_deviation(node: ir.Node) -> bool:
    """Whether a node adds to a mean what the fusions of layer norms read otherwise.

    They replace a number that is not in float32, or not the second input, by 1e-5, and ignore `keepdims` and more axes.
    """
    if not any(reader.op_type in ("Sqrt", "Pow") for reader in node.outputs[0].consumers()):
        return False
    mean = made_by(node.inputs[0], "ReduceMean")
    if mean is None:
        return made_by(node.inputs[1], "ReduceMean") is not None
    least = node.inputs[1]
    if least is None or least.dtype != ir.DataType.FLOAT or not attribute(mean, "keepdims", 1):
        return True
    return constant_tensor(least) is None or rank(least) not in (0, 1)


def is_skipped_norm(node: ir.Node) -> bool:
    """Whether a layer norm of a sum is not of its last axis only: the fused kernel assumes that."""
    axis, axes = attribute(node, "axis", -1), rank(node.inputs[0])
    return made_by(node.inputs[0], "Add") is not None and axis != -1 and (axes is None or axis % axes != axes - 1)


def embeds_more(node: ir.Node) -> bool:
    """Whether embeddings are summed for more than a layer norm of the last axis, whose fusion removes the sum."""
    total = made_by(node.inputs[0], "Add")
    if total is None or all(made_by(value, "Gather") is None for value in total.inputs):
        return False
    more = [value for value in node.outputs[1:] if value.is_graph_output() or value.uses()]
    value = total.outputs[0]
    return bool(more) or value.is_graph_output() or len(value.uses()) > 1 or is_skipped_norm(node)


def _is_normalized(value: ir.Value | None) -> bool:
    """Whether a value is divided by the root of a mean plus a number, and perhaps scaled."""
    maker = made_by(value, "Div", "Mul")
    if maker is None:
        return False
    if any(_is_deviation(each) for each in maker.inputs):
        return True
    return maker.op_type == "Mul" and any(
        inner is not None and any(_is_deviation(each) for each in inner.inputs)
        for inner in (made_by(each, "Div", "Mul") for each in maker.inputs)
    )


def _is_deviation(value: ir.Value | None) -> bool:
    """Whether a value is the root of a mean plus a number, or one over it."""
    maker = made_by(value, "Sqrt", "Pow", "Reciprocal", "Div", "Cast")
    while maker is not None and maker.op_type in ("Reciprocal", "Div", "Cast"):
        maker = made_by(maker.inputs[-1], "Sqrt", "Pow", "Cast")
    total = None if maker is None else made_by(maker.inputs[0], "Add")
    return total is not None and any(made_by(each, "ReduceMean") is not None for each in total.inputs)


def _fits(scale: ir.Value | None, value: ir.Value | None) -> bool:
    """Whether a scale has the known sizes of the last axes of a value, which has more."""
    if scale is None or value is None or scale.shape is None or value.shape is None or not scale.shape:
        return False
    last = list(value.shape)[-len(scale.shape) :]
    return len(value.shape) > len(scale.shape) and all(
        isinstance(extent, int) and extent == own for extent, own in zip(last, scale.shape, strict=True)
    )
