"""Element types of ONNX Runtime's own operators, domain com.microsoft, of which ONNX knows nothing.

References:
    ONNX Runtime, docs/ContribOperators.md: of its quantization tool and its transformer optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

__all__ = ["CONTRIBUTED", "contributed_type"]

CONTRIBUTED = "com.microsoft"

_FLOAT: int = onnx.TensorProto.FLOAT
_UINT8: int = onnx.TensorProto.UINT8
# Operators with a quantized output, and the position of its zero point, whose element type it has.
_ZERO_POINTS = {
    "QLinearAdd": 7,
    "QLinearAveragePool": 4,
    "QLinearConcat": 1,
    "QLinearConv": 7,
    "QLinearGlobalAveragePool": 4,
    "QLinearLeakyRelu": 4,
    "QLinearMul": 7,
    "QLinearReduceMean": 4,
    "QLinearSigmoid": 4,
    "QLinearSoftmax": 4,
    "QLinearWhere": 8,
    "QuantizeLinear": 2,
}
# Operators whose outputs have the element type of one of their inputs, with its position.
_SAME = {
    "Attention": 0,
    "BiasGelu": 0,
    "DequantizeLinear": 1,
    "DynamicQuantizeLSTM": 0,
    "DynamicQuantizeMatMul": 0,
    "FastGelu": 0,
    "FusedConv": 0,
    "FusedGemm": 0,
    "FusedMatMul": 0,
    "Gelu": 0,
    "MatMulIntegerToFloat": 2,
    "MatMulNBits": 0,
    "MultiHeadAttention": 0,
    "QAttention": 3,
    "QuickGelu": 0,
    "RotaryEmbedding": 0,
    "SkipLayerNormalization": 0,
    "SkipSimplifiedLayerNormalization": 0,
}


def contributed_type(node: onnx.NodeProto, kinds: Mapping[str, int]) -> int | None:
    """The element type of the first output; None if it is not known.

    Args:
        node: A node of the domain.
        kinds: The known element types by name.
    """
    if node.op_type == "QGemm":  # floats, unless the output has a zero point
        zero = node.input[8] if len(node.input) > 8 else ""
        return kinds.get(zero) if zero else _FLOAT
    position = _ZERO_POINTS.get(node.op_type)
    if position is not None:
        zero = node.input[position] if len(node.input) > position else ""
        return kinds.get(zero) if zero else _UINT8
    if node.op_type in _SAME:
        source = node.input[_SAME[node.op_type]] if len(node.input) > _SAME[node.op_type] else ""
        return kinds.get(source, _FLOAT)
    return None
