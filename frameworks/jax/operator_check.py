"""Which operators JAX runs, whatever they are called from."""

from __future__ import annotations

from deep5.core.errors import Unsupported
from deep5.core.tensors import Device
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.operator import Operator

__all__ = ["check_operator", "is_compiled"]


def check_operator(operator: Operator, device: Device | None = None) -> None:
    """Refuse an operator that JAX does not run.

    Args:
        operator: Of any kind.
        device: Where it is to run; None: on the host.

    Raises:
        Unsupported: It is another framework's, or does not run on the device.
    """
    own = operator.operator if isinstance(operator, Backward) else operator
    if isinstance(own, NativeOperator) and own.framework.partition(":")[0] != "jax":
        raise Unsupported(
            f"{name_of(own)} is a function of {own.framework}, which runs on that framework alone; remedy: "
            f"d5.framework({own.framework!r})"
        )
    if isinstance(own, NativeOperator) and own is not operator:
        raise Unsupported(f"{name_of(own)} is differentiated by JAX itself; there is no backward pass of its own")
    if isinstance(own, CppOperator):
        if device is not None and device.kind != "cpu":
            raise Unsupported(
                f"{name_of(own)} is compiled, and deep5 hands CUDA kernels to no JAX; allowed: the host; remedy: "
                "device='cpu', or d5.framework('pytorch')"
            )
        own.text()


def is_compiled(operator: Operator) -> bool:
    """Whether it is compiled code, forward or backward."""
    return isinstance(operator.operator if isinstance(operator, Backward) else operator, CppOperator)
