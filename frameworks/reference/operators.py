"""The nodes that the reference runs: the table of operators, collected from the other modules."""

from __future__ import annotations

import onnx_ir as ir

from deep5.core.framework import Support
from deep5.frameworks.reference import (
    operators_classical,
    operators_control,
    operators_images,
    operators_layers,
    operators_learning,
    operators_math,
    operators_noise,
    operators_order,
    operators_quantized,
    operators_ranks,
    operators_recurrent,
    operators_shape,
    operators_signal,
    operators_text,
    operators_windows,
)
from deep5.frameworks.reference.operators_custom import custom_operator, supports_custom
from deep5.frameworks.reference.short import in_float32, is_short
from deep5.frameworks.reference.table import Operator
from deep5.networks.custom import is_custom
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.contributed_types import CONTRIBUTED
from deep5.networks.over_ranks import RANKS
from deep5.networks.strings import elsewhere

__all__ = ["OPERATORS", "operator_for", "supports"]

_MODULES = (
    operators_control,
    operators_images,
    operators_layers,
    operators_math,
    operators_noise,
    operators_order,
    operators_quantized,
    operators_recurrent,
    operators_shape,
    operators_signal,
    operators_text,
    operators_windows,
)
_ALL = {name: operator for module in _MODULES for name, operator in module.OPERATORS.items()}
OPERATORS: dict[str, Operator] = dict(sorted(_ALL.items()))
# Operators of other domains than ONNX's; statistics over ranks are deep5's.
_LEARNING = operators_learning.OPERATORS
_OTHERS = {
    **_LEARNING,
    "ai.onnx.ml": {**_LEARNING["ai.onnx.ml"], **operators_classical.OPERATORS},
    RANKS: operators_ranks.OPERATORS,
}


def supports(node: ir.Node) -> Support:
    """Whether the reference can run a node, with the reason if not."""
    if is_custom(node):
        return supports_custom(node)
    operator = _table(node).get(node.op_type)
    if operator is None:
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        own = f"d5.register_operator({node.op_type!r}, domain={node.domain!r})"
        own = elsewhere(node) if node.domain == CONTRIBUTED else own
        return Support(
            False,
            f"the reference has no kernel for {kind}; allowed: those in docs/reference/onnx_operators.md; remedy: "
            f"{own if node.domain else 'another back-end'}",
        )
    reason = None if operator.refusal is None else operator.refusal(node)
    if reason is not None:
        return Support(False, reason)
    for graph in subgraphs(node).values():
        for inner in graph:
            if not (answer := supports(inner)).yes:
                return Support(False, f"{inner.name or inner.op_type} ({inner.op_type}) inside it: {answer.reason}")
    return Support(True)


def operator_for(node: ir.Node) -> Operator:
    """The operator entry of a supported node."""
    if is_custom(node):
        return custom_operator(node)
    operator = _table(node)[node.op_type]
    return in_float32(operator) if is_short(node) and not operator.exact else operator


def _table(node: ir.Node) -> dict[str, Operator]:
    return OPERATORS if node.domain in ("", "ai.onnx") else _OTHERS.get(node.domain, {})
