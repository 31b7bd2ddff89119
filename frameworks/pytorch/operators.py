"""Which nodes PyTorch runs: the table of operators, filled by the modules beside this one."""

from __future__ import annotations

import onnx_ir as ir

from deep5.backend import Support
from deep5.errors import Deep5Error
from deep5.frameworks.pytorch import operators_layers, operators_math, operators_shape
from deep5.frameworks.pytorch.table import CHECKS, OPERATORS
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.nodes import supported

__all__ = ["OPERATORS", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE")
}
# Named, so that nobody takes the imports away: they fill the table.
_FILLED_BY = (operators_layers, operators_math, operators_shape)
_FLOATING = {"AveragePool", "Conv", "Gemm", "MaxPool", "ReduceMean"}


def supports(node: ir.Node) -> Support:
    """Whether this node can run, and if not, why."""
    if is_custom(node):
        reason = _unfit(node)
        return Support(reason is None, reason or "")
    return supported(node, "PyTorch", OPERATORS, CHECKS, _DTYPES, _FLOATING)


def _unfit(node: ir.Node) -> str | None:
    """Why a node of a registered operator cannot run."""
    from deep5.frameworks.pytorch.custom import check_operator

    if None in node.inputs:
        return f"the input {node.inputs.index(None)} is left out; allowed: all inputs of a registered operator"
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype not in _DTYPES:
            return f"the element type {value.dtype.name} of {value.name!r}"
    try:
        if (operator := operator_of(node)) is not None:
            check_operator(operator)
    except Deep5Error as error:
        return str(error)
    return None
