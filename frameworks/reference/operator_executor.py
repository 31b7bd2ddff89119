"""One operator on NumPy: deep5 operators by their methods, ONNX operators by the reference's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from deep5.core.errors import Unsupported
from deep5.core.executors import OperatorExecutor
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Device
from deep5.frameworks.reference.custom import backward_on_arrays, on_arrays
from deep5.frameworks.reference.executor import compiled, settings_of
from deep5.frameworks.reference.kernels.memory import Scratch
from deep5.networks.network import Network
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.arguments import check_output_grads, wanted_gradients
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.plan import check_arrays
from deep5.training.gradient_executor import Run
from deep5.training.operator_executor import (
    EngineOperatorExecutor,
    host_arrays,
)

if TYPE_CHECKING:
    from deep5.core.framework import Framework

__all__ = ["operator_executor"]


def operator_executor(operator: Operator, framework: Framework, *, device: Device) -> OperatorExecutor:
    """The executor for an operator.

    Raises:
        Unsupported: The operator belongs to another framework.
    """
    if isinstance(operator, ONNXOperator):
        return _ByKernels(operator, framework, device=device)
    return _ByMethods(operator, device=device)


class _ByMethods(OperatorExecutor):
    """Runs the operator's `forward` and `backward`; implements `OperatorExecutor`."""

    def __init__(self, operator: Operator, *, device: Device) -> None:
        self.operator, self.device = operator, device
        self._forward = on_arrays(operator)

    @override
    def arrays(self, *values: Array) -> tuple[Array, ...]:
        return host_arrays(self.operator, values)

    @override
    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        return self._forward(*inputs)

    @override
    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        operator = self.operator
        if isinstance(operator, NativeOperator):
            raise Unsupported(f"{name_of(operator)} has no gradient: NumPy does not differentiate")
        if isinstance(operator, CppOperator) and not operator.differentiable:
            raise Unsupported(f"{name_of(operator)} has no backward in C++; remedy: write one, or request no gradient")
        name = name_of(operator)
        check_arrays(name, inputs)
        wanted = wanted_gradients(name, inputs, needs)
        outputs = self._forward(*inputs)
        given = check_output_grads(name, outputs, output_grads, np.ndarray)
        if not any(wanted):
            return outputs, (None,) * len(inputs)
        return outputs, backward_on_arrays(operator, given, inputs, outputs, wanted)

    def synchronize(self) -> None:
        """Return at once: NumPy has finished when a call returns."""

    @override
    def settings(self) -> dict[str, Any]:
        return settings_of(self.device)


class _ByKernels(EngineOperatorExecutor):
    """Runs the generated code of a one-node network."""

    def __init__(self, operator: Operator, framework: Framework, *, device: Device) -> None:
        super().__init__(operator, framework, device=device)
        self._scratch = Scratch()

    @override
    def settings(self) -> dict[str, Any]:
        return settings_of(self.device)

    @override
    def compile(self, network: Network) -> Run:
        return compiled(network, {}, self._scratch)
