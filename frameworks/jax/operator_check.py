"""Which operators JAX runs, in networks and by themselves."""

from __future__ import annotations

from deep5.core.errors import Unsupported
from deep5.core.operator import Operator
from deep5.core.tensors import Device
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.kinds import behind, foreign

__all__ = ["check_operator"]


def check_operator(operator: Operator, device: Device | None = None) -> None:
    """Reject an operator that JAX does not run.

    Args:
        operator: An operator of any kind.
        device: The device to run on; None: the host.

    Raises:
        Unsupported: It belongs to another framework, or does not run on the device.
    """
    if reason := foreign(operator, "jax"):
        raise Unsupported(reason)
    if isinstance(own := behind(operator), CppOperator):
        if device is not None and device.kind != "cpu":
            raise Unsupported(
                f"{name_of(own)} is compiled, and deep5 does not support CUDA kernels in JAX; allowed: the host; "
                "remedy: device='cpu', or d5.framework('pytorch')"
            )
        own.text()
