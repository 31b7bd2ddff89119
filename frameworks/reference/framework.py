"""The reference back-end: deep5's own kernels on NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.backend import Framework, Support
from deep5.errors import Unsupported
from deep5.tensors import Device
from deep5.tensors import device as read_device

if TYPE_CHECKING:
    from deep5.frameworks.reference.executor import ReferenceExecutor
    from deep5.networks.network import Network
    from deep5.operators.operator import Operator

__all__ = ["Reference"]


class Reference(Framework):
    """NumPy with deep5's own kernels, on the host processor, in float32 and float64."""

    name = "reference"
    thread_variable = "OPENBLAS_NUM_THREADS"

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        self._limits: Any = None

    def version(self) -> str:
        """The version of NumPy."""
        return np.__version__

    def executor(self, network: Network, *, device: str | Device = "cpu", seed: int = 0) -> ReferenceExecutor:
        """Make a network runnable; see `Framework.executor`."""
        from deep5.frameworks.reference.executor import ReferenceExecutor

        place = read_device(device)
        if place != Device():
            raise Unsupported(f"the reference does not run on device {str(place)!r}; allowed: cpu")
        return ReferenceExecutor(network, self, device=place, seed=seed)

    def supports(self, node: Any) -> Support:
        """Whether there is a kernel for a node, and if not, why."""
        from deep5.frameworks.reference.operators import supports

        return supports(node)

    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The operator's own `forward`: NumPy is what it is written in."""
        forward: Callable[..., Any] = operator.forward
        return forward

    def set_threads(self, threads: int) -> None:
        """Limit the threads of the BLAS library, from now on and for the whole process.

        Raises:
            UsageError: As for `Framework.set_threads`.
        """
        from threadpoolctl import threadpool_limits

        self._limits = threadpool_limits(limits=threads, user_api="blas")
