"""Which nodes the reference runs: the table of operators, put together from the modules beside this one."""

from __future__ import annotations

import onnx_ir as ir

from deep5.backend import Support
from deep5.frameworks.reference import operators_layers, operators_math, operators_shape
from deep5.frameworks.reference.table import Operator

__all__ = ["OPERATORS", "supports"]

OPERATORS: dict[str, Operator] = dict(
    sorted({**operators_layers.OPERATORS, **operators_math.OPERATORS, **operators_shape.OPERATORS}.items())
)
_OTHER_FLOATS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def supports(node: ir.Node) -> Support:
    """Whether the reference can run a node, and if not, why."""
    operator = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if operator is None:
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Support(False, f"the reference has no kernel for {kind}; allowed: {', '.join(OPERATORS)}")
    for value in node.outputs:
        if value.dtype in _OTHER_FLOATS:
            return Support(False, f"got element type {value.dtype.name}; allowed: FLOAT, DOUBLE and integers")
    reason = operator.refusal(node)
    return Support(True) if reason is None else Support(False, reason)
