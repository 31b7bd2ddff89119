"""Windows with `auto_pad` SAME over images of unknown size: a node computes the padding from the size."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.window import Window

__all__ = ["explicit_padding"]


def explicit_padding(network: Network) -> Network:
    """The network with a Pad before each Conv and MaxPool whose padding only a run determines.

    Args:
        network: The network; it is not changed.

    Returns:
        An equivalent network; the network itself if no node changes. A MaxPool that also returns places, and an
        AveragePool, stay.

    References:
        ONNX operator specifications Conv-22, MaxPool-22 (auto_pad).
    """
    if not any(map(_changes, network.nodes)):
        return network
    model = network.model.clone()
    for node in list(model.graph):
        if _changes(node):
            _pad_before(model.graph, node)
    infer_shapes(model, f"network {model.graph.name!r}, padded,")
    return Network(model)


def _changes(node: ir.Node) -> bool:
    if node.op_type not in ("Conv", "MaxPool") or node.domain or len([each for each in node.outputs if each.name]) > 1:
        return False
    x, kernel = node.inputs[0], _kernel(node)
    if not attribute(node, "auto_pad", "NOTSET").startswith("SAME") or x is None or x.shape is None or kernel is None:
        return False
    return not all(isinstance(extent, int) for extent in x.shape[2:])


def _kernel(node: ir.Node) -> tuple[int, ...] | None:
    """The sizes of the kernel, if they are known."""
    if node.op_type == "MaxPool":
        return tuple(attribute(node, "kernel_shape"))
    weight = node.inputs[1]
    if weight is None or weight.shape is None:
        return None
    known = [extent for extent in weight.shape[2:] if isinstance(extent, int)]
    return tuple(known) if len(known) == len(weight.shape) - 2 else None


def _pad_before(graph: ir.Graph, node: ir.Node) -> None:
    x, kernel = node.inputs[0], _kernel(node)
    if x is None or x.dtype is None or kernel is None:
        return
    tape, window = ir.tape.Tape(), Window.of(node, len(kernel))

    def constant(*numbers: int) -> ir.Value:
        return tape.op("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        return tape.op(op_type, list(inputs))

    extents, strides, one = tape.op("Shape", [x], {"start": 2}), constant(*window.strides), constant(1)
    # ceil(size / stride) windows; the last one begins at `last`.
    last = op("Mul", op("Div", op("Sub", extents, one), strides), strides)
    total = op("Max", op("Sub", op("Add", last, constant(*window.spans(kernel))), extents), constant(0))
    half = op("Div", total, constant(2))
    rest = op("Sub", total, half)
    begins, ends = (half, rest) if window.auto_pad == "SAME_UPPER" else (rest, half)
    pads = tape.op("Concat", [constant(0, 0), begins, constant(0, 0), ends], {"axis": 0})
    inputs = [x, pads]
    if node.op_type == "MaxPool":
        lowest = np.array(-np.inf, x.dtype.numpy()) if x.dtype.is_floating_point() else np.iinfo(x.dtype.numpy()).min
        inputs.append(tape.op("Constant", [], {"value": ir.tensor(np.array(lowest, x.dtype.numpy()))}))
    padded = tape.op("Pad", inputs)
    for number, made in enumerate(tape.nodes):
        made.name = f"{node.name}/padding_{number}"
        made.outputs[0].name = f"{made.name}_0"
    graph.insert_before(node, tape.nodes)
    node.replace_input_with(0, padded)
    node.attributes["auto_pad"] = ir.AttrString("auto_pad", "VALID")
