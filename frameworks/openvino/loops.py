"""Loops that OpenVINO (2026.4) does not end, or whose results it leaves unwritten."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.network import Network

__all__ = ["unsafe_loop", "without_negative_counts"]

_REMEDY = "remedy: framework 'onnxruntime', 'pytorch' or 'reference'"


def unsafe_loop(node: ir.Node) -> str | None:
    """Why a Loop could run without end, end the process or give memory that nothing wrote; else None."""
    number, begins = node.inputs[0], node.inputs[1]
    if number is None:
        return (
            "got no number of iterations, and OpenVINO cannot be stopped in a loop without end; allowed: a number; "
            f"{_REMEDY}"
        )
    count = constant_value(number)
    if count is not None and int(count.reshape(-1)[0]) < 1:
        return (
            f"got {int(count.reshape(-1)[0])} iterations, for which OpenVINO may crash; allowed: 1 and more; {_REMEDY}"
        )
    goes = None if begins is None else constant_value(begins)
    if goes is not None and not goes.any():
        return (
            "got a condition that is false from the beginning, and OpenVINO leaves the results unwritten; allowed: "
            f"true, or a computed one; {_REMEDY}"
        )
    stacks = len(node.outputs) > len(node.inputs) - 2
    if stacks and count is not None and begins is not None and goes is None:
        return (
            "got a computed condition and a constant number of iterations, for which OpenVINO gives rows without an "
            f"iteration; allowed: a constant condition, or a computed number; {_REMEDY}"
        )
    return None


def without_negative_counts(network: Network) -> Network:
    """The network with no negative number of iterations: OpenVINO takes one for a loop without end.

    Args:
        network: The network; it is not changed.
    """
    loops = [node.op_type == "Loop" and _may_be_negative(node) for node in network.model.graph.all_nodes()]
    if not any(loops):
        return network
    model = network.model.clone()
    for node, chosen in zip(list(model.graph.all_nodes()), loops, strict=True):
        if not chosen:
            continue
        tape, number = ir.tape.Tape(), node.inputs[0]
        assert number is not None and number.dtype is not None  # noqa: S101, PT018 - checked before
        zero = tape.op("Constant", [], {"value": ir.tensor([0], dtype=number.dtype)})
        least = tape.op("Max", [number, zero])
        kept = tape.op("Reshape", [least, tape.op("Shape", [number])])
        kept.type, kept.shape = number.type, number.shape
        assert node.graph is not None  # noqa: S101 - it is in one
        node.graph.insert_before(node, tape.nodes)
        node.replace_input_with(0, kept)
    return Network(model)


def _may_be_negative(node: ir.Node) -> bool:
    return node.inputs[0] is not None and constant_value(node.inputs[0]) is None
