"""`OpenVINOOperatorExecutor`: one operator in models of OpenVINO."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from deep5.core.operator import Operator
from deep5.core.tensors import Device
from deep5.frameworks.openvino.model import Program
from deep5.frameworks.openvino.rewrite import without_unpooling
from deep5.networks.network import Network
from deep5.training.engine_framework import EngineFramework
from deep5.training.gradient_executor import Run
from deep5.training.operator_executor import EngineOperatorExecutor

__all__ = ["OpenVINOOperatorExecutor"]


class OpenVINOOperatorExecutor(EngineOperatorExecutor):
    """An operator in OpenVINO; created by `OpenVINO.operator_executor`.

    Args:
        operator: An ONNX operator, or a Python operator that can be traced to ONNX operators.
        framework: OpenVINO.
        device: The host CPU.
    """

    def __init__(self, operator: Operator, framework: EngineFramework, *, device: Device) -> None:
        super().__init__(operator, framework, device=device)
        self._openvino = framework
        self._last: Program | None = None

    def settings(self) -> dict[str, Any]:
        """Threads, as read back from the last compiled model."""
        # Before the first run: the setting for future models.
        threads = self._openvino.threads if self._last is None else self._last.threads
        return {
            "framework": self._openvino.name,
            "version": self._openvino.version(),
            "device": str(self.device),
            "threads": threads,
            "tf32": False,
            "deterministic": True,
        }

    @override
    def suited(self, network: Network) -> Network:
        return without_unpooling(network)

    @override
    def compile(self, network: Network) -> Run:
        self._last = Program(network, {}, (), threads=self._openvino.threads)
        return self._last
