"""Which operators TensorFlow runs, in networks and by themselves."""

from __future__ import annotations

from deep5.core.operator import Operator
from deep5.operators.contract import name_of
from deep5.operators.kinds import foreign, is_compiled

__all__ = ["refusal"]


def refusal(operator: Operator, *, xla: bool, on_host: bool) -> str:
    """Why TensorFlow cannot run an operator; empty if it can."""
    name = name_of(operator)
    if reason := foreign(operator, "tensorflow"):
        return reason
    if is_compiled(operator) and not on_host:
        return (
            f"{name} is compiled, and deep5 does not support CUDA kernels in TensorFlow; allowed: the host; remedy: "
            "device='cpu', or d5.framework('pytorch')"
        )
    if is_compiled(operator) and xla:
        return (
            f"{name} is already compiled, and XLA does not compile such kernels; remedy: 'tensorflow' in place of "
            "'tensorflow:xla'"
        )
    return ""
