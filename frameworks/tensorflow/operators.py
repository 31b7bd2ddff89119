"""Which nodes TensorFlow runs: the operator table, filled by the sibling modules."""

from __future__ import annotations

import onnx_ir as ir

from deep5.core.framework import Support
from deep5.frameworks.tensorflow import (
    operators_generate,
    operators_index,
    operators_layers,
    operators_math,
    operators_reduce,
    operators_sampling,
    operators_shape,
    operators_windows,
)
from deep5.frameworks.tensorflow.composites import register
from deep5.frameworks.tensorflow.operators_custom import supports_custom
from deep5.frameworks.tensorflow.table import CHECKS, OPERATORS, RANKLESS
from deep5.networks.custom import is_custom
from deep5.networks.kernels.operators import COMPOSITES
from deep5.networks.nodes import computed, of_shapes, subgraphs, supported

__all__ = ["OPERATORS", "of_data", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in (
        *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
        *("FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE"),
    )
}
# Listed to keep the imports, which fill the table.
_FILLED_BY = (
    operators_generate,
    operators_index,
    operators_layers,
    operators_math,
    operators_reduce,
    operators_sampling,
    operators_shape,
    operators_windows,
)
register()
_FLOATING = {"AveragePool", "Conv", "Gemm"}
# Inputs that configure an operator; XLA must know their values.
_SETTINGS = {
    "OneHot": (1,),
    "Pad": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
# The output shape of these depends on the values of a tensor.
_DATA_SHAPED = {"Compress", "NonMaxSuppression", "NonZero", "Range", "Unique"}


def supports(node: ir.Node) -> Support:
    """Whether the node can run, and if not, why."""
    answer = supported(
        node, "TensorFlow", OPERATORS, CHECKS, _DTYPES, _FLOATING, lambda inner: inner.op_type in RANKLESS
    )
    for graph in subgraphs(node).values() if answer else ():
        for inner in graph:
            if not (found := supports_custom(inner, xla=False) if is_custom(inner) else supports(inner)):
                return Support(False, f"{inner.name or inner.op_type} ({inner.op_type}) inside it: {found.reason}")
    return answer


def of_data(node: ir.Node) -> str | None:
    """Why a node cannot be compiled before the network runs; None if it can be."""
    if node.op_type in _DATA_SHAPED:
        return "a shape that depends on data"
    for position in _SETTINGS.get(node.op_type, ()):
        if position < len(node.inputs) and not of_shapes(node.inputs[position]):
            return computed(node, position)
    bounded = node.op_type in COMPOSITES and COMPOSITES[node.op_type].bounded and node.op_type != "Gather"
    return "an index outside its axis would give a number" if bounded else None
