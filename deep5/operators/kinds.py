"""Kinds of operators: compiled code, or a framework's native function."""

from __future__ import annotations

from typing import TypeGuard

from deep5.core.operator import Operator
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator

__all__ = ["behind", "foreign", "is_compiled"]


def behind(operator: Operator) -> Operator:
    """The operator itself; for a `Backward`, the operator that it differentiates."""
    return operator.operator if isinstance(operator, Backward) else operator


def is_compiled(operator: Operator) -> TypeGuard[CppOperator | Backward]:
    """Whether an operator is compiled code, forward or backward."""
    return isinstance(behind(operator), CppOperator)


def foreign(operator: Operator, framework: str) -> str:
    """Why a framework cannot run an operator that is a native function.

    Args:
        operator: An operator of any kind.
        framework: Name of the framework without a mode.

    Returns:
        The reason; empty if the framework can run it, or if it is not a native function.
    """
    own = behind(operator)
    if not isinstance(own, NativeOperator):
        return ""
    if own.framework.partition(":")[0] != framework:
        return (
            f"{name_of(own)} is a function of {own.framework}, which runs only on that framework; allowed on "
            f"{framework}: its own functions; remedy: d5.framework({own.framework!r})"
        )
    if own is not operator:
        return f"{name_of(own)} is differentiated by {framework} itself; it has no backward pass"
    return ""
