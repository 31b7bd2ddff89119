"""Fixes to the body of ONNX's Attention for training: a float64 scale, and gradients if a query sees no key."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute

__all__ = ["mend_attention"]

_MASK, _LENGTHS = 3, 6


def mend_attention(node: ir.Node, function: ir.Function) -> None:
    """Change the body in place.

    The body computes the scale of a float64 attention as a root in float32. The weights of a query that sees no key are
    NaN until they are set to 0, so their gradient is NaN; it is not if the scores are set to 0 first. If every query
    sees some key, nothing is set to 0.

    Args:
        node: The attention, with known types.
        function: Its body.

    References:
        ONNX, Attention-25, its function body.
    """
    if node.outputs[0].dtype == ir.DataType.DOUBLE:
        _widen_scale(function)
    empty = next((each for each in function if each.op_type == "Where" and _softmax(each) is not None), None)
    if empty is None:
        return
    if _sees_all(node):
        ir.convenience.replace_all_uses_with(empty.outputs[0], empty.inputs[2])  # type: ignore[arg-type]  # it has three
    else:
        _empty_scores(function, empty)


def _widen_scale(function: ir.Function) -> None:
    casts = [each for each in function if each.op_type == "Cast" and each.attributes["to"].value == ir.DataType.DOUBLE]
    waiting = [maker for each in casts for maker in each.predecessors() if maker.op_type == "Sqrt"]
    seen: set[ir.Node] = set()
    while waiting:
        maker = waiting.pop()
        if maker in seen:
            continue
        seen.add(maker)
        waiting.extend(maker.predecessors())
        if maker.op_type == "Cast" and maker.attributes["to"].value == ir.DataType.FLOAT:
            maker.attributes["to"] = ir.AttrInt64("to", ir.DataType.DOUBLE)
        elif (
            maker.op_type == "Constant" and (value := maker.attributes["value"].as_tensor()).dtype == ir.DataType.FLOAT
        ):
            maker.attributes["value"] = ir.AttrTensor("value", ir.tensor(value.numpy().astype(np.float64)))


def _sees_all(node: ir.Node) -> bool:
    """Whether each query sees a key: causality by itself leaves each the first key, or the past keys."""
    inputs = (*node.inputs, *(None,) * (_LENGTHS + 1))
    windows = (attribute(node, name, -1) for name in ("left_window_size", "right_window_size"))
    return inputs[_MASK] is None and inputs[_LENGTHS] is None and all(size < 0 for size in windows)


def _softmax(where: ir.Node) -> ir.Node | None:
    """The softmax whose weights a Where selects if its condition is false."""
    maker = where.inputs[2].producer() if where.inputs[2] is not None else None
    while maker is not None and maker.op_type == "Cast":
        maker = maker.inputs[0].producer()  # type: ignore[union-attr]  # a Cast has an input
    return maker if maker is not None and maker.op_type == "Softmax" else None


def _empty_scores(function: ir.Function, where: ir.Node) -> None:
    """Set scores to 0, too, where weights are set to 0."""
    softmax, zeros = _softmax(where), where.inputs[1]
    like = None if zeros is None else zeros.producer()
    if softmax is None or like is None:
        return
    # The mask of queries without keys is computed after the softmax, from values before it.
    nodes = list(function)
    before, late, waiting = set(nodes[: nodes.index(softmax)]), set(), list(where.predecessors()[:1])
    while waiting:
        maker = waiting.pop()
        if maker not in before and maker not in late:
            late.add(maker)
            waiting.extend(maker.predecessors())
    moved = [each for each in nodes if each in late]
    function.remove(moved)
    scores = softmax.inputs[0]
    zero = ir.node("CastLike", [like.inputs[0], scores], name="NoScore")
    kept = ir.node("Where", [where.inputs[0], zero.outputs[0], scores], name="SeenScores")
    for each in (zero, kept):
        each.outputs[0].name = str(each.name)
    function.insert_before(softmax, [*moved, zero, kept])
    softmax.replace_input_with(0, kept.outputs[0])
