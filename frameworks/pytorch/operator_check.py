"""Which operators torch runs, whatever they are called from."""

from __future__ import annotations

from deep5.core.errors import Unsupported
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.operator import Operator

__all__ = ["check_operator"]


def check_operator(operator: Operator, device: str = "cpu") -> None:
    """Refuse an operator that torch does not run on a kind of device.

    Raises:
        Unsupported: It is another framework's, or has no source for the device.
    """
    own = operator.operator if isinstance(operator, Backward) else operator
    if isinstance(own, NativeOperator) and own.framework.partition(":")[0] != "pytorch":
        raise Unsupported(
            f"{name_of(own)} is a function of {own.framework}, which runs on that framework alone; remedy: "
            f"d5.framework({own.framework!r})"
        )
    if isinstance(own, NativeOperator) and own is not operator:
        raise Unsupported(f"{name_of(own)} is differentiated by torch itself; there is no backward pass of its own")
    if isinstance(own, CppOperator):
        own.text(device)
