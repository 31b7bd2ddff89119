"""Convolutions of bfloat16 that oneDNN, which PyTorch and TensorFlow call on the host, computes wrong."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute

__all__ = ["miscomputed"]


def miscomputed(node: ir.Node) -> bool:
    """Whether the result may have one column, with a stride above 1 along the rows.

    oneDNN 3.12 then computes most rows from wrong elements on processors with instructions for bfloat16 (measured with
    PyTorch 2.13 and TensorFlow 2.21).
    """
    strides, result = attribute(node, "strides", ()), node.outputs[0]
    if result.dtype != ir.DataType.BFLOAT16 or len(strides) < 2 or strides[-1] == 1:
        return False
    return result.shape is None or not isinstance(result.shape[-1], int) or result.shape[-1] == 1
