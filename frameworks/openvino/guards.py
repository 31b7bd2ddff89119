"""Guards for indices and labels out of range, which OpenVINO silently misreads: they are clipped and reported."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.labels import LOSSES, open_losses
from deep5.networks.network import Network
from deep5.networks.nodes import inside
from deep5.networks.onnx.attributes import attribute

__all__ = ["Guard", "guarded", "unguarded"]

# Operators with indices along one axis, and with indices into several axes.
_ALONG, _ACROSS = ("Gather", "GatherElements", "ScatterElements"), ("GatherND", "ScatterND")


class Guard(NamedTuple):
    """The report of an index out of range.

    Attributes:
        output: Name of the output that is above 0 if an index is out of range.
        message: The message of the error.
    """

    output: str
    message: str


def guarded(network: Network) -> tuple[ir.Model, tuple[Guard, ...]]:
    """The model of a network with all indices clipped to their axes, and guards that report whether they were in range.

    Args:
        network: The network; it is not changed.

    Returns:
        The model, with one output per guard after the network's own; the network's model if no guard is needed because
        indices are known and labels are checked before the network runs.
    """
    losses = open_losses(network)
    chosen = {index for index, node in enumerate(network.nodes) if node in losses or _is_open(node)}
    if not chosen:
        return network.model, ()
    model, guards = network.model.clone(), []
    for number, node in enumerate(list(model.graph)):
        if number not in chosen:
            continue
        tape = ir.tape.Tape()
        indices, low, high, allowed = _range(tape, node)
        fits = tape.op("And", [tape.op("GreaterOrEqual", [indices, low]), tape.op("Less", [indices, high])])
        if (ignored := attribute(node, "ignore_index", None)) is not None:
            fits = tape.op("Or", [fits, tape.op("Equal", [indices, _constant(tape, ignored, indices)])])
            allowed += f", and {ignored} for none"
        kept = tape.op("Where", [fits, indices, _constant(tape, 0, indices)])
        wrong = tape.op("Cast", [tape.op("Not", [fits])], {"to": int(ir.DataType.INT32)})
        flag = tape.op("ReduceMax", [wrong], {"keepdims": 0})
        kept.type, kept.shape = indices.type, indices.shape
        flag.name, flag.type, flag.shape = f"outside:{number}", ir.TensorType(ir.DataType.INT32), ir.Shape([])
        model.graph.insert_before(node, tape.nodes)
        node.replace_input_with(1, kept)
        model.graph.outputs.append(flag)
        what = "a label that is no class" if node.op_type in LOSSES else "an index outside its axis"
        guards.append(Guard(flag.name, f"the node {node.name!r} ({node.op_type}) got {what}; allowed: {allowed}"))
    return model, tuple(guards)


def unguarded(node: ir.Node) -> str | None:
    """Why a node in a subgraph cannot run: indices out of range could not be reported."""
    if not _is_open(node) and (node.op_type not in LOSSES or node.domain):
        return None
    return (
        "an index outside its axis would be read wherever it leads; allowed: known indices, or the node outside of "
        "other nodes"
    )


def _is_open(node: ir.Node) -> bool:
    """Whether a node's indices are not known to be in range."""
    if node.domain or node.op_type not in (*_ALONG, *_ACROSS):
        return False
    return not (node.op_type == "Gather" and inside(node))


def _range(tape: ir.tape.Tape, node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, str]:
    """Indices of a node, the lowest allowed one, the exclusive upper bound, and both in words."""
    data, indices = node.inputs[:2]
    assert data is not None and data.shape is not None and indices is not None and indices.shape is not None  # noqa: S101, PT018
    if node.op_type in _ACROSS:
        first, count = attribute(node, "batch_dims", 0), indices.shape[-1]
        high = tape.op("Shape", [data], {"start": first, "end": first + int(count)})  # type: ignore[arg-type]
        return indices, tape.op("Neg", [high]), high, "places within the shape, also counted from the end"
    along = 1 if node.op_type in LOSSES else attribute(node, "axis", 0) % len(data.shape)
    extent = data.shape[along]
    if isinstance(extent, int):
        high, low, most = _constant(tape, extent, indices), _constant(tape, -extent, indices), str(extent - 1)
        least = str(-extent)
    else:
        shape = tape.op("Shape", [data], {"start": along, "end": along + 1})
        high = tape.op("Squeeze", [shape])
        if indices.dtype != ir.DataType.INT64:
            high = tape.op("Cast", [high], {"to": int(indices.dtype)})  # type: ignore[arg-type]
        low, least, most = tape.op("Neg", [high]), f"-{extent}", f"{extent} - 1"
    if node.op_type in LOSSES:
        low, least = _constant(tape, 0, indices), "0"
    return indices, low, high, f"{least} to {most}"


def _constant(tape: ir.tape.Tape, number: int, like: ir.Value) -> ir.Value:
    value: ir.Value = tape.op("Constant", [], {"value": ir.tensor(np.array(number, like.dtype.numpy()))})  # type: ignore[union-attr]
    return value
