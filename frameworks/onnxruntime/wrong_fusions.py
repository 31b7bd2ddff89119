"""ONNX Runtime's optimizations that are wrong (version 1.31), and the nodes at which they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from deep5.frameworks.onnxruntime.eight_bits import multiplies_signed
from deep5.frameworks.onnxruntime.wrong_norms import (
    broadcasts_a_norm,
    embeds_more,
    is_odd_deviation,
    is_skipped_norm,
    made_by,
    rank,
)
from deep5.networks.constants import constant_tensor
from deep5.networks.onnx.attributes import attribute

__all__ = ["EMPTY", "WRONG"]

_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_WITH_OUTPUT_DTYPE = 21
# Products of a few scales within these bounds are neither zero nor infinite in float32.
_LEAST_SCALE, _LARGEST_SCALE = 1e-6, 1e6


def _readers(node: ir.Node, *op_types: str) -> Iterator[ir.Node]:
    """The nodes of these operators that read an output of a node."""
    for value in node.outputs:
        for reader in value.consumers():
            if reader.op_type in op_types:
                yield reader


def _number(value: ir.Value | None) -> float | None:
    """The value of a constant of one element, parameters included; else None."""
    tensor = None if value is None else constant_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().reshape(()))


def _wider(value: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether a value may have a higher rank than another."""
    own, others = rank(value), rank(other)
    return own is None or (own > 0 and (others is None or own > others))


def _inverts(node: ir.Node) -> bool:
    """1 / x * y becomes y / x, which differs for integers, and if the 1 has more axes than x."""
    if all(False for _ in _readers(node, "Mul")):
        return False
    return node.outputs[0].dtype not in _FLOATS or _wider(*node.inputs[:2])


def _clipped(node: ir.Node) -> bool:
    """A Clip after a Relu takes over its lower bound, which fails for float64 and for an upper bound below 0."""
    for reader in _readers(node, "Clip"):
        high = reader.inputs[2] if len(reader.inputs) > 2 else None
        largest = np.inf if high is None else _number(high)
        if node.outputs[0].dtype != ir.DataType.FLOAT or largest is None or not largest >= 0:
            return True
    return False


def _padded(node: ir.Node) -> bool:
    """A Pad becomes the pool's own padding, which is no zero, and may be larger than the kernel."""
    pad = made_by(node.inputs[0], "Pad", "Cast")
    return pad is not None and (pad.op_type == "Pad" or made_by(pad.inputs[0], "Pad") is not None)


def _moved_norm(node: ir.Node) -> bool:
    """A Reshape or Transpose between a MatMul and a BatchNormalization moves other values to the channels."""
    moved = made_by(node.inputs[0], "Reshape", "Transpose")
    return moved is not None and made_by(moved.inputs[0], "MatMul") is not None


def _turned(node: ir.Node) -> bool:
    """A Transpose around a Gemm whose result is also an output of the graph is removed all the same."""
    before = any((maker := made_by(v, "Transpose")) and maker.outputs[0].is_graph_output() for v in node.inputs)
    return before or (node.outputs[0].is_graph_output() and any(True for _ in _readers(node, "Transpose")))


def _scaled(node: ir.Node) -> bool:
    """A factor around a MatMul becomes an attribute in float32: rounded, and wrong where it is 0 or infinite."""
    near = [maker for value in node.inputs if (maker := made_by(value, "Mul", "Div")) is not None]
    near += _readers(node, "Mul", "Div")
    if near and node.outputs[0].dtype == ir.DataType.DOUBLE:
        return True
    factors = [factor for scale in near for value in scale.inputs if (factor := _number(value)) is not None]
    return not all(_LEAST_SCALE <= abs(factor) <= _LARGEST_SCALE for factor in factors)


def _is_without_terms(node: ir.Node) -> bool:
    """A product of no terms and a sum become a Gemm between Reshapes that fail."""
    return any(value is not None and value.shape is not None and 0 in value.shape.dims for value in node.inputs)


def _scales_a_conv(node: ir.Node) -> bool:
    """A factor after a Conv moves into its weights, which is wrong where it is infinite, and rounds where it is 0."""
    for value, other in (node.inputs, node.inputs[::-1]):
        tensor = None if other is None or made_by(value, "Conv") is None else constant_tensor(other)
        if tensor is not None and tensor.dtype in _FLOATS:
            factors = np.abs(tensor.numpy().astype(np.float64))
            if not ((factors >= _LEAST_SCALE) & (factors <= _LARGEST_SCALE)).all():
                return True
    return False


def _ranged(node: ir.Node) -> bool:
    """A Gather at a Range becomes a Slice, for which a place below 0 counts from the end."""
    first, step = _number(node.inputs[0]), _number(node.inputs[2])
    known = first is not None and step is not None and first >= 0 and step > 0
    return not known and any(reader.inputs[1] is node.outputs[0] for reader in _readers(node, "Gather"))


def _gated(node: ir.Node) -> bool:
    """x · Sigmoid(a · x) becomes one node, which has the shape of x even if `a` has more axes."""
    scale = made_by(node.inputs[0], "Mul")
    pairs = () if scale is None else (scale.inputs, scale.inputs[::-1])
    return any(factor is not None and constant_tensor(factor) is not None and _wider(factor, x) for factor, x in pairs)


def _target(node: ir.Node) -> bool:
    """A size that is not known to be copied becomes -1, which fails for an array without elements."""
    parts = made_by(node.inputs[1], "Concat")
    if parts is None:
        return False
    position = 0
    for part in parts.inputs:
        tensor = None if part is None else constant_tensor(part)
        if tensor is not None:
            position += tensor.size
            continue
        maker = made_by(part, "Unsqueeze", "Gather", "Reshape")
        gather = made_by(maker.inputs[0], "Gather") if maker is not None and maker.op_type != "Gather" else maker
        size = None if gather is None else made_by(gather.inputs[0], "Shape")
        if gather is None or size is None or _number(gather.inputs[1]) != position or size.attributes:
            return True
        position += 1
    return bool(attribute(node, "allowzero", 0))


def _adds_zero(node: ir.Node) -> bool:
    """-0.0 + 0.0 is 0.0, but the addition is removed."""
    if node.outputs[0].dtype not in _FLOATS:
        return False
    found = _number(node.inputs[1])
    if node.op_type == "Sub":
        return found == 0 and bool(np.signbit(found))
    return any(each == 0 and not np.signbit(each) for each in (found, _number(node.inputs[0])) if each is not None)


def _padded_axes(node: ir.Node) -> bool:
    """A Transpose that passes a Pad of some axes permutes its pads as if they were those of all axes."""
    return len(node.inputs) > 3 and node.inputs[3] is not None


def _rounds_again(node: ir.Node) -> bool:
    """Two roundings in a row become one of another step."""
    return made_by(node.inputs[0], "DequantizeLinear", "Identity") is not None


def _signed_of_21(node: ir.Node) -> bool:
    """Of signed numbers unsigned ones are made, but `output_dtype`, which opset 21 has, stays."""
    opset = node.graph.opset_imports.get("", _WITH_OUTPUT_DTYPE) if node.graph is not None else _WITH_OUTPUT_DTYPE
    return bool(node.outputs[0].dtype == ir.DataType.INT8 and opset >= _WITH_OUTPUT_DTYPE)


def _quantized_input(node: ir.Node) -> bool:
    """A float bias of a quantized convolution or product is rounded too."""
    return any(made_by(value, "DequantizeLinear") is not None for value in node.inputs)


_LAYER_NORM = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
_Rule = tuple[Callable[[ir.Node], bool], Sequence[str]]
_POOL: Sequence[_Rule] = [(_padded, ["Pad_Fusion"])]
_QUANTIZED: _Rule = (_quantized_input, ["WeightBiasQuantization"])

WRONG: Mapping[str, Sequence[_Rule]] = {
    "Add": [(broadcasts_a_norm, _LAYER_NORM), (is_odd_deviation, _LAYER_NORM), (_adds_zero, ["NoopElimination"])],
    "AveragePool": _POOL,
    "BatchNormalization": [(_moved_norm, ["MatMul_BatchNormalization_Fusion"])],
    "Conv": [_QUANTIZED],
    "ConvTranspose": [_QUANTIZED],
    "DequantizeLinear": [(multiplies_signed, ["QDQSelectorActionTransformer"])],
    "Div": [(_inverts, ["DivMulFusion"])],
    "Gemm": [(_turned, ["GemmTransposeFusion"]), _QUANTIZED],
    "LayerNormalization": [
        (is_skipped_norm, ["SkipLayerNormFusion", "BiasSkipLayerNormFusion"]),
        (embeds_more, ["EmbedLayerNormFusion"]),
    ],
    "MatMul": [(_scaled, ["MatMulScaleFusion"]), (_is_without_terms, ["MatMulAddFusion"])],
    "MaxPool": _POOL,
    "Mul": [(broadcasts_a_norm, _LAYER_NORM), (_scales_a_conv, ["ConvMulFusion"])],
    "Pad": [(_padded_axes, ["TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider"])],
    "QuantizeLinear": [
        (_rounds_again, ["DoubleQDQPairsRemover"]),
        (_signed_of_21, ["QDQS8ToU8Transformer"]),
    ],
    "Range": [(_ranged, ["GatherToSliceFusion"])],
    "Relu": [(_clipped, ["FuseReluClip"])],
    "Reshape": [(_target, ["ReshapeFusion"])],
    "Sigmoid": [(_gated, ["QuickGeluFusion"])],
    "Sub": [(_adds_zero, ["NoopElimination"])],
}
"""By operator: whether optimizations are wrong at a node, and their names."""

EMPTY = ("ConstantFolding", "MatMulAddFusion", "NchwcTransformer", "NoopElimination", "ReshapeFusion")
"""Optimizations that fail, or lose an axis, where an array has no elements."""
