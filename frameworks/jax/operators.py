"""Which nodes JAX runs: the table of operators, filled by the modules beside this one."""

from __future__ import annotations

import onnx_ir as ir

from deep5.backend import Support
from deep5.frameworks.jax import operators_layers, operators_math, operators_shape
from deep5.frameworks.jax.table import CHECKS, OPERATORS

__all__ = ["OPERATORS", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE")
}
# Named, so that nobody takes the imports away: they fill the table.
_FILLED_BY = (operators_layers, operators_math, operators_shape)


def supports(node: ir.Node) -> Support:
    """Whether this node can run, and if not, why."""
    if node.domain not in ("", "ai.onnx"):
        return Support(False, f"the domain {node.domain!r} is not ONNX's own")
    if node.op_type not in OPERATORS:
        return Support(False, "the JAX back-end has no such operator")
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.dtype is None or value.shape is None:
            return Support(False, f"the value {value.name!r} has no shape or element type; inference did not reach it")
        if value.dtype not in _DTYPES:
            return Support(False, f"the element type {value.dtype.name} of {value.name!r}")
    reason = CHECKS[node.op_type](node) if node.op_type in CHECKS else None
    return Support(reason is None, reason or "")
