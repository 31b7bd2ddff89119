"""Replaces ScatterND with a reduction, which ONNX Runtime runs in parallel, by ScatterElements, which runs in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute

__all__ = ["combine_in_order", "combines", "racing"]

_OUTSIDE = np.iinfo(np.int64).max


def combines(node: ir.Node) -> bool:
    """Whether a node is a ScatterND with a reduction of updates at the same index.

    With two or more threads ONNX Runtime (1.31) loses some updates, in about five of a thousand calls; its
    `use_deterministic_compute` has no effect.
    """
    return node.op_type == "ScatterND" and not node.domain and attribute(node, "reduction", "none") != "none"


def racing(node: ir.Node) -> str | None:
    """Why a node would lose updates and cannot be rewritten; else None."""
    if not combines(node) or _depth(node) is not None:
        return None
    return (
        "ONNX Runtime combines the updates of a ScatterND in parallel, and loses some; allowed: indices of known "
        "last dimension, or a ScatterElements"
    )


def combine_in_order(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a node that `combines`: its targets become rows of a matrix, and each row of the updates goes to one."""
    depth = _depth(node)
    data, indices, updates = node.inputs
    assert depth is not None and data is not None and indices is not None  # noqa: S101, PT018 - checked by `racing`
    assert data.shape is not None  # noqa: S101 - as above
    tape, old = ir.tape.Tape(), node.outputs[0]
    shape = tape.op("Shape", [data])
    inner = tape.op("Shape", [data], {"start": depth})
    rank = len(data.shape) - depth + 1
    if depth > 1 or rank == 1:
        places = _numbered(tape, indices, tape.op("Shape", [data], {"start": 0, "end": depth}), depth)
    else:
        places = indices  # below 0 or out of range: handled by ScatterElements
    flat = tape.op("Concat", [_ints(tape, [-1]), inner], {"axis": 0})
    rows = [tape.op("Reshape", [value, flat]) for value in (data, updates)]
    places = tape.op("Reshape", [places, _ints(tape, [-1, *[1] * (rank - 1)])])
    places = tape.op("Expand", [places, tape.op("Shape", [rows[1]])])
    settings = {"axis": 0, "reduction": attribute(node, "reduction")}
    total = tape.op("Reshape", [tape.op("ScatterElements", [rows[0], places, rows[1]], settings), shape])
    total.name, total.type, total.shape = old.name, old.type, old.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, [old], [total])


def _depth(node: ir.Node) -> int | None:
    """The number of indexed axes, if it is known before the network runs."""
    data, indices = node.inputs[:2]
    if data is None or data.shape is None or indices is None or indices.shape is None or not len(indices.shape):
        return None
    depth = indices.shape[-1]
    return depth if isinstance(depth, int) and depth >= 1 else None


def _numbered(tape: ir.tape.Tape, indices: ir.Value, extents: ir.Value, depth: int) -> ir.Value:
    """Convert indices in several axes to row numbers; an index outside its axis becomes one outside all rows."""
    zero = _ints(tape, [0])
    counted = tape.op("Where", [tape.op("Less", [indices, zero]), tape.op("Add", [indices, extents]), indices])
    outside = tape.op("Or", [tape.op("Less", [counted, zero]), tape.op("GreaterOrEqual", [counted, extents])])
    number = wrong = None
    for axis in range(depth):
        along, bad = (tape.op("Gather", [value, _ints(tape, [axis])], {"axis": -1}) for value in (counted, outside))
        if number is None:
            number, wrong = along, bad
            continue
        extent = tape.op("Gather", [extents, _ints(tape, [axis])])
        number, wrong = tape.op("Add", [tape.op("Mul", [number, extent]), along]), tape.op("Or", [wrong, bad])
    value: ir.Value = tape.op("Where", [wrong, _ints(tape, [_OUTSIDE]), number])
    return value


def _ints(tape: ir.tape.Tape, numbers: Sequence[int]) -> Any:
    return tape.op("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})
