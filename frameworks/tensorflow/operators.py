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

__all__ = ["OPERATORS", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "FLOAT", "DOUBLE")
}
# Named, so that nobody takes the imports away: they fill the table.
_FILLED_BY = (operators_layers, operators_loss, operators_math, operators_shape, operators_windows)
_FLOATING = {"AveragePool", "Conv", "Gemm", "MaxPool", "ReduceMean"}


def supports(node: ir.Node) -> Support:
    """Whether this node can run, and if not, why."""
    if node.domain not in ("", "ai.onnx"):
        return Support(False, f"the domain {node.domain!r} is not ONNX's own")
    if node.op_type not in OPERATORS:
        return Support(False, "the TensorFlow back-end has no such operator")
    reason = _check_dtypes(node)
    if reason is None and node.op_type in CHECKS:
        reason = CHECKS[node.op_type](node)
    return Support(reason is None, reason or "")


def _check_dtypes(node: ir.Node) -> str | None:
    """Element types that TensorFlow computes with; the others it can at most store."""
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.dtype is None or value.shape is None:
            return f"the value {value.name!r} has no shape or element type; shape inference did not reach it"
        if value.dtype not in _DTYPES:
            return f"the element type {value.dtype.name} of {value.name!r}"
    first = node.inputs[0] if node.inputs else None
    if node.op_type in _FLOATING and first is not None and first.dtype is not None and first.dtype.is_integer():
        return f"whole numbers ({first.dtype.name})"
    return None
