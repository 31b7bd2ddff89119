"""Sequences that a loop fills row by row, and that are then concatenated: as the rows that a Loop stacks itself.

torch.onnx writes `embedding_bag` so. Some back-ends have no sequences, and stacked rows have a gradient.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.shapes import infer_shapes

__all__ = ["stack_rows"]

_UNCHANGED = ("Cast", "Identity", "Neg", "Sqrt")
_BROADCAST = ("Add", "Div", "Mul", "Sub")


def stack_rows(model: ir.Model, what: str) -> None:
    """Replace ConcatFromSequence of what a Loop inserts into an empty sequence by the rows that the Loop stacks.

    Args:
        model: The model, with inferred shapes; changed in place. Rows that may differ in size stay a sequence.
        what: Its name in messages.
    """
    found = [node for node in model.graph if node.op_type == "ConcatFromSequence" and not node.domain]
    if any([_stacked(node) for node in found]):  # noqa: C419 - all of them
        infer_shapes(model, what)


def _stacked(joined: ir.Node) -> bool:
    sequence, graph = joined.inputs[0], joined.graph
    loop = None if sequence is None else sequence.producer()
    if sequence is None or loop is None or not isinstance(graph, ir.Graph) or loop.graph is not graph:
        return False
    if loop.op_type != "Loop" or loop.domain or sequence.is_graph_output() or len(sequence.uses()) != 1:
        return False
    body, state = loop.attributes["body"].as_graph(), sequence.index() or 0
    if state >= len(body.inputs) - 2 or not _is_empty(loop.inputs[2 + state]):
        return False
    row = _inserted(body, state)
    if row is None or row.dtype is None or attribute(joined, "axis") != 0:
        return False
    fresh = bool(attribute(joined, "new_axis", 0))
    if not fresh and _first_extent(row) is None:
        return False
    rows = _without_state(graph, loop, body, state, row)
    made = [ir.node("Identity", [rows])] if fresh else _joined(rows)
    end, old = made[-1].outputs[0], joined.outputs[0]
    end.type = ir.TensorType(row.dtype)
    ir.convenience.replace_nodes_and_values(graph, joined, [joined], made, [old], [end])
    return True


def _joined(rows: ir.Value) -> list[ir.Node]:
    """The nodes that join the first two axes of an array."""
    rest = ir.node("Shape", [rows], {"start": 2})
    all_rows = ir.node("Constant", [], {"value": ir.tensor(np.array([-1], np.int64))})
    target = ir.node("Concat", [all_rows.outputs[0], rest.outputs[0]], {"axis": 0})
    return [rest, all_rows, target, ir.node("Reshape", [rows, target.outputs[0]])]


def _first_extent(value: ir.Value | None) -> int | None:
    """The first dimension of a value, which is the same in each iteration; None if that is not known."""
    if value is None:
        return None
    if value.shape is not None and len(value.shape):
        return value.shape[0] if isinstance(value.shape[0], int) else None
    maker = value.producer()
    if maker is None or maker.domain:
        return None
    if maker.op_type == "If":
        branches = (maker.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
        found = {_first_extent(branch.outputs[value.index() or 0]) for branch in branches}
        return found.pop() if len(found) == 1 else None
    if _keeps_rank(maker):
        axes = constant_value(maker.inputs[1]) if len(maker.inputs) > 1 else None
        return 1 if axes is not None and 0 in axes else None
    if maker.op_type in _UNCHANGED:
        return _first_extent(maker.inputs[0])
    if maker.op_type in _BROADCAST:
        return _broadcast(*maker.inputs)
    return None


def _broadcast(x: ir.Value | None, y: ir.Value | None) -> int | None:
    """The first dimension of what two values are broadcast to: that of the value with more dimensions."""
    ranks = _rank(x), _rank(y)
    if ranks[0] is None or ranks[1] is None:
        return None
    if ranks[0] != ranks[1]:
        return _first_extent(x if ranks[0] > ranks[1] else y)
    found = {_first_extent(x), _first_extent(y)}
    return found.pop() if len(found) == 1 else None


def _rank(value: ir.Value | None) -> int | None:
    """The number of dimensions of a value, as far as it is known."""
    if value is None or value.shape is not None:
        return None if value is None or value.shape is None else len(value.shape)
    maker = value.producer()
    same = maker is not None and not maker.domain and (maker.op_type in _UNCHANGED or _keeps_rank(maker))
    return _rank(maker.inputs[0]) if same and maker is not None else None


def _keeps_rank(node: ir.Node) -> bool:
    return node.op_type.startswith("Reduce") and bool(attribute(node, "keepdims", 1))


def _is_empty(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    return maker is not None and maker.op_type == "SequenceEmpty" and not maker.domain


def _inserted(body: ir.Graph, state: int) -> ir.Value | None:
    """The tensor that each iteration appends to a sequence, if it does nothing else with it."""
    made, given = body.outputs[1 + state], body.inputs[2 + state]
    insert = made.producer()
    if insert is None or insert.op_type != "SequenceInsert" or insert.graph is not body or made.uses():
        return None
    if insert.inputs[0] is not given or len(given.uses()) != 1 or given.is_graph_output():
        return None
    if len(insert.inputs) > 2 and insert.inputs[2] is not None:
        return None
    return insert.inputs[1] if body.outputs.count(made) == 1 else None


def _without_state(graph: ir.Graph, loop: ir.Node, body: ir.Graph, state: int, row: ir.Value) -> ir.Value:
    """Replace a Loop by one without a sequence, which stacks the row of each iteration; returns the rows."""
    insert = body.outputs[1 + state].producer()
    passed = ir.node("Identity", [row])  # a row may be an input of the body, or stacked already
    passed.outputs[0].name, passed.outputs[0].type = f"{row.name}/row", row.type
    passed.outputs[0].shape = row.shape
    body.append(passed)
    outputs = [*body.outputs[: 1 + state], *body.outputs[2 + state :], passed.outputs[0]]
    body.outputs.clear()
    body.outputs.extend(outputs)
    if insert is not None:
        body.remove(insert, safe=True)
    del body.inputs[2 + state]
    inputs = [*loop.inputs[: 2 + state], *loop.inputs[3 + state :]]
    if inputs[1] is None:  # a node does not end with an omitted input
        begin = ir.node("Constant", [], {"value": ir.tensor(np.array(True))})
        begin.outputs[0].type, begin.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        graph.insert_before(loop, begin)
        inputs[1] = begin.outputs[0]
    kept = [*loop.outputs[:state], *loop.outputs[state + 1 :]]
    made = ir.node("Loop", inputs, {"body": body}, num_outputs=len(kept) + 1, name=loop.name)
    rows = made.outputs[-1]
    rows.name, rows.type = f"{loop.outputs[state].name}/rows", row.type
    for old, new in zip(kept, made.outputs, strict=False):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    graph.insert_before(loop, made)
    for old, new in zip(kept, made.outputs, strict=False):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    (reader,) = loop.outputs[state].uses()
    reader.node.replace_input_with(reader.idx, None)
    graph.remove(loop, safe=True)
    return rows
