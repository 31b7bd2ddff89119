"""Rewrites of operators in gradient graphs that OpenVINO does not have."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.network import Network
from deep5.networks.onnx.shapes import infer_shapes

__all__ = ["without_unpooling"]


def without_unpooling(network: Network) -> Network:
    """The network with each MaxUnpool replaced by a scatter into zeros, equivalent if windows do not overlap."""
    if all(node.op_type != "MaxUnpool" for node in network.nodes):
        return network
    model = network.model.clone()
    for node in list(model.graph):
        if node.op_type == "MaxUnpool" and not node.domain and node.inputs[2] is not None:
            tape, old = ir.tape.Tape(), node.outputs[0]
            flat = tape.op("Constant", [], {"value": ir.tensor(np.array([-1], np.int64))})
            size = tape.op("ReduceProd", [node.inputs[2]], {"keepdims": 1})
            zeros = tape.op("ConstantOfShape", [size], {"value": ir.tensor(np.zeros(1, np.float32))})
            chosen, values = (tape.op("Reshape", [value, flat]) for value in (node.inputs[1], node.inputs[0]))
            filled = tape.op("ScatterElements", [zeros, chosen, values], {"axis": 0})
            result = tape.op("Reshape", [filled, node.inputs[2]])
            for value in (zeros, values, filled, result):
                value.type = old.type
            result.name, result.shape = old.name, old.shape
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], tape.nodes, [old], [result])
    infer_shapes(model, "the network with gradients")
    return Network(model)
