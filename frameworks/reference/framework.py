"""The reference back-end: deep5's own kernels on NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.errors import Unsupported
from deep5.core.executors import OperatorExecutor
from deep5.core.framework import Framework, Support
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Device
from deep5.core.tensors import device as read_device

if TYPE_CHECKING:
    from deep5.core.layer_clock import LayerClock
    from deep5.core.operator import Operator
    from deep5.frameworks.reference.executor import ReferenceExecutor

__all__ = ["Reference", "from_model"]


class Reference(Framework):
    """NumPy with deep5's kernels, on the host CPU; shorter floats are computed in float32, with each result rounded."""

    name = "reference"
    thread_variable = "OPENBLAS_NUM_THREADS"

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        self._limits: Any = None

    def version(self) -> str:
        """The version of NumPy."""
        return np.__version__

    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> ReferenceExecutor:
        """Create the executor of a network; see `Framework.executor`."""
        from deep5.frameworks.reference.executor import ReferenceExecutor
        from deep5.networks.arguments import as_network

        made = ReferenceExecutor(as_network(network), self, device=_place(device), seed=seed)
        return made.with_feeding(partial(self.executor, device=device, seed=seed))

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """Time stamps between the lines of the program; see `Framework.layer_clock`."""
        from deep5.frameworks.reference.executor import ReferenceExecutor
        from deep5.networks.arguments import as_network
        from deep5.networks.stamps import StampedClock, Stamps

        graph = as_network(network)
        stamps = Stamps(graph)
        return StampedClock(ReferenceExecutor(graph, self, device=_place(device), seed=seed, stamps=stamps), stamps)

    def supports(self, node: Any) -> Support:
        """Whether there is a kernel for a node, with the reason if not."""
        from deep5.frameworks.reference.operators import supports

        return supports(node)

    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The operator on NumPy arrays; returns one array, or a tuple of them."""
        from deep5.networks.onnx_operator import ONNXOperator
        from deep5.operators.cpp import CppOperator

        if isinstance(operator, CppOperator):
            forward: Callable[..., Any] = operator.forward  # its outputs always match its specs
            return forward
        if isinstance(operator, ONNXOperator):
            run: Callable[..., tuple[Any, ...]] = self.operator_executor(operator).inference
        else:
            from deep5.frameworks.reference.custom import on_arrays

            run = on_arrays(operator)

        def call(*inputs: Any) -> Any:
            outputs = run(*inputs)
            return outputs[0] if len(outputs) == 1 else outputs

        return call

    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        """One operator on NumPy; see `Framework.operator_executor`."""
        from deep5.frameworks.reference.operator_executor import operator_executor

        return operator_executor(operator, self, device=_place(device))

    def set_threads(self, threads: int) -> None:
        """Limit the threads of the BLAS library for the whole process, from now on.

        Raises:
            UsageError: See `Framework.set_threads`.
        """
        from threadpoolctl import threadpool_limits

        self._limits = threadpool_limits(limits=threads, user_api="blas")


def _place(device: str | Device) -> Device:
    place = read_device(device)
    if place != Device():
        raise Unsupported(f"the reference does not run on device {str(place)!r}; allowed: cpu")
    return place


def from_model(network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> ReferenceExecutor:
    """The executor of a network on the reference, under the name in the tutorial's recipes."""
    return Reference().executor(network, device=device, seed=seed)
