"""Which nodes the reference runs: the table of operators, put together from the modules beside this one."""

from __future__ import annotations

import onnx_ir as ir

from deep5.backend import Support
from deep5.frameworks.reference import (
    operators_control,
    operators_layers,
    operators_math,
    operators_ranks,
    operators_shape,
)
from deep5.frameworks.reference.operators_custom import custom_operator, supports_custom
from deep5.frameworks.reference.short import in_float32, is_short
from deep5.frameworks.reference.table import Operator
from deep5.networks.custom import is_custom
from deep5.networks.gradients.batch_normalization import RANKS
from deep5.networks.nodes import subgraphs

__all__ = ["OPERATORS", "operator_for", "supports"]

OPERATORS: dict[str, Operator] = dict(
    sorted(
        {
            **operators_control.OPERATORS,
            **operators_layers.OPERATORS,
            **operators_math.OPERATORS,
            **operators_shape.OPERATORS,
        }.items()
    )
)


def supports(node: ir.Node) -> Support:
    """Whether the reference can run a node, and if not, why."""
    if is_custom(node):
        return supports_custom(node)
    if node.domain == RANKS:
        return Support(node.op_type in operators_ranks.OPERATORS)
    operator = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if operator is None:
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Support(False, f"the reference has no kernel for {kind}; allowed: {', '.join(OPERATORS)}")
    reason = operator.refusal(node)
    if reason is not None:
        return Support(False, reason)
    for graph in subgraphs(node).values():
        for inner in graph:
            if not (answer := supports(inner)):
                return Support(False, f"{inner.name or inner.op_type} ({inner.op_type}) inside it: {answer.reason}")
    return Support(True)


def operator_for(node: ir.Node) -> Operator:
    """How to run a node that is supported."""
    if is_custom(node):
        return custom_operator(node)
    table = operators_ranks.OPERATORS if node.domain == RANKS else OPERATORS
    return in_float32(table[node.op_type]) if is_short(node) else table[node.op_type]
