"""Which operators torch runs, for all callers."""

from __future__ import annotations

from deep5.core.errors import Unsupported
from deep5.core.operator import Operator
from deep5.operators.cpp import CppOperator
from deep5.operators.kinds import behind, foreign

__all__ = ["check_operator"]


def check_operator(operator: Operator, device: str = "cpu") -> None:
    """Reject an operator that torch does not run on a kind of device.

    Raises:
        Unsupported: It belongs to another framework, or has no source for the device.
    """
    if reason := foreign(operator, "pytorch"):
        raise Unsupported(reason)
    if isinstance(own := behind(operator), CppOperator):
        own.text(device)
