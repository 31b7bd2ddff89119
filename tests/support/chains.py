"""Networks that are a chain of nodes, of any length."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def chain(count: int, *, size: int, opset: int = 20) -> onnx.ModelProto:
    """Pairs of MatMul and Tanh, each pair with its own square weight."""
    nodes, weights, last = [], [], "x"
    for number in range(count):
        weights.append(numpy_helper.from_array(np.full((size, size), 0.5, np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Tanh", [f"m{number}"], [f"t{number}"]))
        last = f"t{number}"
    nodes.append(helper.make_node("ReduceMean", [last], ["loss"], keepdims=0))
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", kind, ["N", size])],
        [helper.make_tensor_value_info("loss", kind, [])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
