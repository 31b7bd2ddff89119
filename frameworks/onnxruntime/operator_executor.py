"""`ONNXRuntimeOperatorExecutor`: one operator in sessions of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import onnxruntime
from typing_extensions import override

from deep5.core.operator import Operator
from deep5.core.tensors import Device
from deep5.frameworks.onnxruntime.numerics import NumericsFramework
from deep5.frameworks.onnxruntime.program import Program
from deep5.frameworks.onnxruntime.rewrite import rewritten
from deep5.networks.network import Network
from deep5.training.gradient_executor import Run
from deep5.training.operator_executor import EngineOperatorExecutor

__all__ = ["ONNXRuntimeOperatorExecutor"]


class ONNXRuntimeOperatorExecutor(EngineOperatorExecutor):
    """An operator in ONNX Runtime; created by `ONNXRuntime.operator_executor`.

    Args:
        operator: A C++ operator, an ONNX operator, or a Python operator that can be traced to ONNX operators.
        framework: ONNX Runtime.
        device: A device that it supports.
    """

    def __init__(self, operator: Operator, framework: NumericsFramework, *, device: Device) -> None:
        super().__init__(operator, framework, device=device)
        self._runtime = framework
        self._last: Program | None = None

    def settings(self) -> dict[str, Any]:
        """Threads, provider, TF32 and determinism, as read back from the last session."""
        reported = {"framework": self._runtime.name, "version": onnxruntime.__version__, "device": str(self.device)}
        if self._last is None:  # nothing has run: the settings for future sessions
            return {**reported, "threads": self._runtime.threads, **self._runtime.numerics._asdict()}
        session = self._last.session
        options, provider = session.get_session_options(), session.get_providers()[0]
        return {
            **reported,
            "provider": provider,
            "threads": options.intra_op_num_threads,
            "tf32": session.get_provider_options()[provider].get("use_tf32") == "1",
            "deterministic": options.use_deterministic_compute,
        }

    @override
    def suited(self, network: Network) -> Network:
        return rewritten(network)

    @override
    def compile(self, network: Network) -> Run:
        self._last = Program(
            network,
            {},
            (),
            threads=self._runtime.threads,
            device=self.device,
            numerics=self._runtime.numerics,
        )
        return self._last
