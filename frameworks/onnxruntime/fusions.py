"""The optimizations that a session leaves out: wrong ones, and those that cannot find what they look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from deep5.frameworks.onnxruntime.wrong_fusions import EMPTY, WRONG

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
    "BiasSkipLayerNormFusion": [_NORMS],
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
    "GroupQueryAttentionPreNormFusion": [frozenset({"GroupQueryAttention"})],
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
    "SliceConcatToSpaceToDepthFusion": [frozenset({"Slice"}), frozenset({"Concat"})],
    "TransposeOptimizer": [frozenset({"Transpose"})],
    "WeightBiasQuantization": [_QUANTIZED],
    "WhereDummyDq": [_QUANTIZED],
}
"""For each of ONNX Runtime's optimizations, sets of operators: without one of every set, it finds nothing to do.

To walk over a graph takes ONNX Runtime time that grows with the square of the number of nodes that wait for others, so
each optimization that is left out counts: half a second of eleven thousand nodes.
"""


def left_out(model: ir.Model) -> list[str]:
    """The names of the optimizations that a session of a model leaves out, sorted.

    Those that find nothing to do in it, and those that are wrong at one of its nodes: `wrong_fusions.py` lists them.
    """
    nodes = list(model.graph.all_nodes())
    found = {node.op_type for node in nodes}
    names = {name for name, sets in NEEDED.items() if not all(found & each for each in sets)}
    for node in nodes:
        for is_wrong, wrong in () if node.domain else WRONG.get(node.op_type, ()):
            if not names.issuperset(wrong) and is_wrong(node):
                names.update(wrong)
    if not names.issuperset(EMPTY) and any(_is_empty(value) for node in nodes for value in node.outputs):
        names.update(EMPTY)
    return sorted(names)


def _is_empty(value: ir.Value) -> bool:
    """Whether a value is known to have no elements."""
    return value.shape is not None and 0 in value.shape.dims
