"""Which operators TensorFlow runs, whatever they are called from."""

from __future__ import annotations

from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.operator import Operator

__all__ = ["is_compiled", "refusal"]


def is_compiled(operator: Operator) -> bool:
    """Whether it is compiled code, forward or backward."""
    return isinstance(operator.operator if isinstance(operator, Backward) else operator, CppOperator)


def refusal(operator: Operator, *, xla: bool, on_host: bool) -> str:
    """Why TensorFlow does not run an operator; empty where it does."""
    name = name_of(operator)
    if isinstance(operator, NativeOperator) and operator.framework.partition(":")[0] != "tensorflow":
        return (
            f"{name} is a function of {operator.framework}; allowed on tensorflow: functions of its own; remedy: "
            f"d5.framework({operator.framework!r})"
        )
    if is_compiled(operator) and not on_host:
        return (
            f"{name} is compiled, and deep5 has no way for CUDA kernels into tensorflow; allowed: the host; remedy: "
            "device='cpu', or d5.framework('pytorch')"
        )
    if is_compiled(operator) and xla:
        return (
            f"{name} is compiled already, and XLA compiles no kernel that is; remedy: 'tensorflow' in place of "
            "'tensorflow:xla'"
        )
    return ""
