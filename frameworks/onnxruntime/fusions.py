"""The optimizations that a session leaves out: wrong ones, and those that cannot find what they look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from deep5.networks.network import Network

__all__ = ["NEEDED", "left_out"]

_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})
_NORMS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "ReduceMean"})
_GELU = frozenset({"Erf", "Gelu", "Tanh", "FastGelu"})
_CONV = frozenset({"Conv", "FusedConv"})
_IMAGES = _CONV | {
    *("AveragePool", "ConvInteger", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "QLinearConv"),
    *("QLinearAveragePool", "QLinearConvTranspose", "QLinearGlobalAveragePool", "NhwcConv", "NhwcFusedConv"),
}

NEEDED: Mapping[str, Sequence[frozenset[str]]] = {
    "AttentionFusion": [frozenset({"Softmax"})],
    "BiasDropoutFusion": [frozenset({"Dropout"})],
    "BiasGeluFusion": [_GELU],
    "BiasSoftmaxFusion": [frozenset({"Softmax"})],
    "ConvAddActivationFusion": [_CONV | {"NhwcFusedConv", "QLinearConv"}],
    "DoubleQDQPairsRemover": [_QUANTIZED],
    "DynamicQuantizeMatMulFusion": [frozenset({"DynamicQuantizeLinear", "MatMulInteger", "MatMulIntegerToFloat"})],
    "EmbedLayerNormFusion": [frozenset({"Gather"})],
    "EnsureUniqueDQForNodeUnit": [_QUANTIZED],
    "FastGeluFusion": [frozenset({"Tanh"}), frozenset({"Add"})],
    "FreeDimensionOverrideTransformer": [frozenset()],
    "GatherSliceToSplitFusion": [frozenset({"Gather", "Slice"})],
    "GatherToSliceFusion": [frozenset({"Gather"})],
    "GeluFusionL1": [frozenset({"Erf"})],
    "GeluFusionL2": [frozenset({"Erf"})],
    "GroupQueryAttentionFusion": [frozenset({"GroupQueryAttention"})],
    "LayerNormFusionL1": [frozenset({"ReduceMean"}), frozenset({"Sqrt", "Pow"})],
    "LayerNormFusionL2": [frozenset({"ReduceMean"}), frozenset({"Sqrt", "Pow"})],
    "MatMulAddFusion": [frozenset({"MatMul"}), frozenset({"Add"})],
    "MatMulIntegerToFloatFusion": [frozenset({"MatMulInteger"})],
    "MatMulScaleFusion": [frozenset({"MatMul"})],
    "MatmulTransposeFusion": [frozenset({"MatMul"}), frozenset({"Transpose"})],
    "NchwcTransformer": [_IMAGES],
    "NhwcTransformer": [_IMAGES],
    "QDQFinalCleanupTransformer": [_QUANTIZED],
    "QDQPropagationTransformer": [_QUANTIZED],
    "QDQS8ToU8Transformer": [_QUANTIZED],
    "QDQSelectorActionTransformer": [_QUANTIZED],
    "QuickGeluFusion": [frozenset({"Sigmoid"})],
    "ReshapeFusion": [frozenset({"Reshape"})],
    "SimplifiedLayerNormFusion": [frozenset({"ReduceMean"}), frozenset({"Sqrt", "Pow"})],
    "SkipLayerNormFusion": [_NORMS],
    "TransposeOptimizer": [frozenset({"Transpose"})],
    "WeightBiasQuantization": [_QUANTIZED],
}
"""For each of ONNX Runtime's optimizations, sets of operators: without one of every set, it finds nothing to do.

To walk over a graph takes ONNX Runtime time that grows with the square of the number of nodes that wait for others, so
each optimization that is left out counts: half a second of eleven thousand nodes.
"""
_LAYER_NORM = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")


def left_out(network: Network) -> list[str]:
    """The names of the optimizations that a session of a network leaves out, sorted.

    - Those that find nothing to do in it.
    - `MatMulScaleFusion` if it has a matrix product in float64: it moves a factor of an operand into an attribute of
      the product, which rounds the factor to float32.
    - `Pad_Fusion` if a Pad is before a MaxPool: it makes zeros around the image a window without these places.
    - The fusions of layer normalization if a scale or a bias has another shape than the normalized axes: the fused
      kernel rejects it when it runs.
    """
    nodes = list(network.model.graph.all_nodes())
    found = {node.op_type for node in nodes}
    names = {name for name, sets in NEEDED.items() if not all(found & each for each in sets)}
    if any(node.op_type == "MatMul" and node.outputs[0].dtype == ir.DataType.DOUBLE for node in nodes):
        names.add("MatMulScaleFusion")
    if any(node.op_type == "MaxPool" and _made_by(node.inputs[0], "Pad") is not None for node in nodes):
        names.add("Pad_Fusion")
    if not names.issuperset(_LAYER_NORM) and any(map(_broadcasts_a_norm, nodes)):
        names.update(_LAYER_NORM)
    return sorted(names)


def _made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that computes a value, if it is one of these operators."""
    maker = None if value is None else value.producer()
    return maker if maker is not None and maker.op_type in op_types else None


def _broadcasts_a_norm(node: ir.Node) -> bool:
    """Whether a node scales or shifts normalized values by something that is not of the shape of their last axes."""
    if node.op_type not in ("Mul", "Add") or len(node.inputs) != 2:
        return False
    for value, other in (node.inputs, reversed(node.inputs)):
        if _is_normalized(value) and not _fits(other, value):
            return True
    return False


def _is_normalized(value: ir.Value | None) -> bool:
    """Whether a value is divided by the root of a mean plus a number, and perhaps scaled."""
    maker = _made_by(value, "Div", "Mul")
    if maker is None:
        return False
    if any(_is_deviation(each) for each in maker.inputs):
        return True
    return maker.op_type == "Mul" and any(
        inner is not None and any(_is_deviation(each) for each in inner.inputs)
        for inner in (_made_by(each, "Div", "Mul") for each in maker.inputs)
    )


def _is_deviation(value: ir.Value | None) -> bool:
    """Whether a value is the root of a mean plus a number, or one over it."""
    maker = _made_by(value, "Sqrt", "Pow", "Reciprocal", "Div", "Cast")
    while maker is not None and maker.op_type in ("Reciprocal", "Div", "Cast"):
        maker = _made_by(maker.inputs[-1], "Sqrt", "Pow", "Cast")
    total = None if maker is None else _made_by(maker.inputs[0], "Add")
    return total is not None and any(_made_by(each, "ReduceMean") is not None for each in total.inputs)


def _fits(scale: ir.Value | None, value: ir.Value | None) -> bool:
    """Whether a scale has the known sizes of the last axes of a value."""
    if scale is None or value is None or scale.shape is None or value.shape is None or not scale.shape:
        return False
    last = list(value.shape)[-len(scale.shape) :]
    return len(last) == len(scale.shape) and all(
        isinstance(extent, int) and extent == own for extent, own in zip(last, scale.shape, strict=True)
    )
