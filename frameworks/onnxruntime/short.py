"""Whether float16 products run in float16: on most CPUs ONNX Runtime computes them in float32 instead."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from deep5.core.errors import Unsupported
from deep5.core.tensors import Device
from deep5.frameworks.onnxruntime.session import make_session
from deep5.networks.transforms.mixed_precision import AS_FLOAT32, PRODUCTS

__all__ = ["check_short"]

# Between two adjacent float16 values: rounded it is 1, and so is its square.
_BETWEEN = 1 + 2.0**-13


def check_short(nodes: Iterable[ir.Node], device: Device) -> None:
    """Reject float16 products that would be computed in float32 without their casts.

    If the processor has no float16 kernel, ONNX Runtime uses the float32 one and drops the casts around it: the values
    would be those of the network without casts.

    Args:
        nodes: The nodes of a network.
        device: The device to run on; GPUs have float16 kernels.

    Raises:
        Unsupported: There are such products; the message names each.
    """
    if device.kind != "cpu":
        return
    refused = [
        f"{node.name or node.op_type} ({node.op_type}): ONNX Runtime would compute it in float32 without a warning: "
        f"it has no kernel in float16 for this processor; allowed: float32; remedy: {AS_FLOAT32}"
        for node in nodes
        if not node.domain
        and node.op_type in PRODUCTS
        and node.outputs[0].dtype == ir.DataType.FLOAT16
        and not _rounds(node.op_type)
    ]
    if refused:
        raise Unsupported("onnxruntime cannot run this network:\n  " + "\n  ".join(refused))


@functools.cache
def _rounds(op_type: str) -> bool:
    """Whether a product of values cast to float16 uses the rounded values; tested by running one."""
    shape = [1, 1, 1, 1] if op_type.startswith("Conv") else [1, 1]
    nodes = [
        helper.make_node("Cast", ["x"], ["short"], to=onnx.TensorProto.FLOAT16),
        helper.make_node(op_type, ["short", "short"], ["product"]),
        helper.make_node("Cast", ["product"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    kind = onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name in "xy")
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(helper.make_graph(nodes, "probe", [x], [y]), opset_imports=opsets, ir_version=10)
    session = make_session(model.SerializeToString(), 1, Device())
    (found,) = session.run(None, {"x": np.full(shape, _BETWEEN, np.float32)})
    return bool(found.reshape(()) == 1.0)
