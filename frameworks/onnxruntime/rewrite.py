"""Rewrites of operators in gradient graphs that ONNX Runtime does not have in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["rewritten"]


def rewritten(network: Network) -> Network:
    """The network with each float64 OneHot replaced by a float32 one and a cast.

    Args:
        network: A network with gradients; it is not changed.

    Returns:
        A network with the same inputs, outputs and bits; the network itself if nothing changes.
    """
    if all(_single_values(node) is None for node in network.nodes):
        return network
    model = network.model.clone()
    for node in list(model.graph):
        values = _single_values(node)
        if values is None:
            continue
        single = ir.node("Constant", [], {"value": ir.tensor(values)})
        inputs = [*node.inputs[:2], single.outputs[0]]
        hot = ir.node("OneHot", inputs, {"axis": attribute(node, "axis", -1)}, name=f"{node.name}_float32")
        cast = ir.node("Cast", hot.outputs, {"to": int(ir.DataType.DOUBLE)}, name=node.name)
        old, new = node.outputs[0], cast.outputs[0]
        for value, shape in ((single.outputs[0], ir.Shape([2])), (hot.outputs[0], old.shape)):
            value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), shape
        new.name, new.type, new.shape = old.name, old.type, old.shape
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], [single, hot, cast], [old], [new])
    return Network(model)


def _single_values(node: ir.Node) -> np.ndarray | None:
    """The two values of a float64 OneHot as float32, if exact; else None."""
    if node.op_type != "OneHot" or node.domain or node.outputs[0].dtype != ir.DataType.DOUBLE:
        return None
    values = constant_value(node.inputs[2])
    if values is None:
        return None
    single: np.ndarray = values.astype(np.float32)
    return single if np.array_equal(values, single) else None
