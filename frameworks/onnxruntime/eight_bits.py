"""Products of uint8 and int8, which ONNX Runtime computes wrongly on x86 processors without VNNI."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx_ir as ir

from deep5.networks.draft import Draft

__all__ = ["CONTRIBUTED_BITS", "EIGHT_BITS", "multiplies_signed", "saturates"]

# The positions of the weights and their zero point, by operator; the data are the first input.
_STANDARD = {"MatMulInteger": (1, 3), "QLinearConv": (3, 5), "QLinearMatMul": (3, 5)}
_CONTRIBUTED = {"DynamicQuantizeMatMul": (1, 3), "MatMulIntegerToFloat": (1, 5), "QAttention": (1, 7), "QGemm": (3, 5)}
_WEIGHTS = _STANDARD | _CONTRIBUTED


@functools.cache
def saturates() -> bool:
    """Whether two products of uint8 and int8 are summed in 16 bits on this processor.

    ONNX Runtime documents it for x86 processors with AVX2 or AVX-512 and without VNNI ("Quantize ONNX models", U8S8).
    """
    import onnxruntime

    kinds = (("a", onnx.TensorProto.UINT8, [1, 16]), ("b", onnx.TensorProto.INT8, [16, 16]))
    values = [onnx.helper.make_tensor_value_info(*kind) for kind in (*kinds, ("y", onnx.TensorProto.INT32, [1, 16]))]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "product", values[:2], values[2:]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 10)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b = np.full((1, 16), 255, np.uint8), np.full((16, 16), 127, np.int8)
    (y,) = session.run(None, {"a": a, "b": b})
    return not bool((y == 16 * 255 * 127).all())


def _mixed(node: ir.Node) -> bool:
    """Whether the data are uint8, or become uint8 in the kernel, and the weights are int8."""
    x, w = node.inputs[0], node.inputs[_WEIGHTS[node.op_type][0]]
    signed = w is not None and w.dtype == ir.DataType.INT8
    return signed and x is not None and x.dtype in (ir.DataType.UINT8, ir.DataType.FLOAT)


def _wrong(node: ir.Node) -> bool:
    return _mixed(node) and saturates()


def _unsigned_weights(draft: Draft, node: ir.Node) -> None:
    """The weights and their zero point, 128 more: their difference stays, and products of two uint8 are exact."""
    at, zero = _WEIGHTS[node.op_type]
    inputs = [*node.inputs, *[None] * (zero + 1 - len(node.inputs))]
    moved = draft.constant(128, ir.DataType.INT32)

    def unsigned(value: ir.Value) -> ir.Value:
        return draft.cast(draft.op("Add", draft.cast(value, ir.DataType.INT32), moved), ir.DataType.UINT8)

    point = inputs[zero]
    inputs[at] = unsigned(inputs[at])  # type: ignore[arg-type]  # `_mixed` has seen it
    inputs[zero] = draft.constant(128, ir.DataType.UINT8) if point is None else unsigned(draft.setting(point))
    draft.replace(*draft.same(inputs))


def multiplies_signed(node: ir.Node) -> bool:
    """Fusing a DequantizeLinear of int8 weights with a product multiplies uint8 by int8."""
    x = node.inputs[0]
    return x is not None and x.dtype == ir.DataType.INT8 and saturates()


EIGHT_BITS, CONTRIBUTED_BITS = (
    {name: [(_wrong, _unsigned_weights)] for name in names} for names in (_STANDARD, _CONTRIBUTED)
)
