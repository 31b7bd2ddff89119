"""Nodes of registered operators, and of their backward passes, on NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from deep5.core.errors import Deep5Error
from deep5.core.framework import Support
from deep5.frameworks.reference.custom import backward_on_arrays, on_arrays
from deep5.frameworks.reference.table import Call, Operator, Site
from deep5.networks.custom import operator_of
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator

__all__ = ["custom_operator", "supports_custom"]


def supports_custom(node: ir.Node) -> Support:
    """Whether an operator runs on NumPy: Python operators do, C++ operators with a host source do."""
    try:
        operator = operator_of(node)
        forward = operator.operator if isinstance(operator, Backward) else operator
        if isinstance(forward, CppOperator):
            forward.text()
            if isinstance(operator, Backward) and not forward.differentiable:
                return Support(False, f"{name_of(forward)} has no backward in C++; remedy: write one")
    except Deep5Error as error:
        return Support(False, str(error))
    if any(value is None for value in node.inputs):
        return Support(False, f"{node.op_type} leaves an input out; allowed: all of them")
    return Support(True)


def custom_operator(node: ir.Node) -> Operator:
    """The table's entry for a node.

    The results of a Python operator may share memory with its inputs, or with memory that it returns again: they must
    not be written to, nor the inputs while the results are in use. C++ operators write to new arrays.
    """
    operator = operator_of(node)
    assert operator is not None  # noqa: S101 - checked by the caller
    forward = operator.operator if isinstance(operator, Backward) else operator
    function = _backward(operator) if isinstance(operator, Backward) else on_arrays(operator)

    def make(site: Site) -> Call:
        if site.outputs == 1:
            return Call(lambda *values: function(*values)[0], site.given)
        return Call(lambda *values: function(*values)[: site.outputs], site.given)

    return Operator(make, keeps=not isinstance(forward, CppOperator))


def _backward(operator: Backward) -> Callable[..., tuple[Any, ...]]:
    def run(*values: Any) -> tuple[Any, ...]:
        grads, inputs, outputs = operator.split(values)
        left = iter(grads)
        by_output = [next(left) if floating else None for floating in operator.floating]
        found = backward_on_arrays(operator.operator, by_output, inputs, outputs, operator.needs)
        return tuple(gradient for gradient in found if gradient is not None)

    return run
