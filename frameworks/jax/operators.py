"""Which nodes JAX runs: the table of operators, filled by the modules beside this one."""

from __future__ import annotations

import onnx_ir as ir

from deep5.backend import Support
from deep5.frameworks.jax import operators_layers, operators_math, operators_shape
from deep5.frameworks.jax.table import CHECKS, OPERATORS
from deep5.networks.nodes import supported

__all__ = ["OPERATORS", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE")
}
# Named, so that nobody takes the imports away: they fill the table.
_FILLED_BY = (operators_layers, operators_math, operators_shape)


def supports(node: ir.Node) -> Support:
    """Whether this node can run, and if not, why."""
    return supported(node, "JAX", OPERATORS, CHECKS, _DTYPES)
