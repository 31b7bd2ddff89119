"""Which nodes TensorFlow runs: the table of operators, filled by the modules beside this one."""

from __future__ import annotations

import onnx_ir as ir

from deep5.backend import Support
from deep5.frameworks.tensorflow import (
    operators_layers,
    operators_loss,
    operators_math,
    operators_shape,
    operators_windows,
)
from deep5.frameworks.tensorflow.table import CHECKS, OPERATORS
from deep5.networks.nodes import supported

__all__ = ["OPERATORS", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE")
}
# Named, so that nobody takes the imports away: they fill the table.
_FILLED_BY = (operators_layers, operators_loss, operators_math, operators_shape, operators_windows)
_FLOATING = {"AveragePool", "Conv", "Gemm", "MaxPool", "ReduceMean"}


def supports(node: ir.Node) -> Support:
    """Whether this node can run, and if not, why."""
    return supported(node, "TensorFlow", OPERATORS, CHECKS, _DTYPES, _FLOATING)
