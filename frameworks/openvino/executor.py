"""The executor of OpenVINO: compiled models on the executor's memory, gradients by an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from typing_extensions import override

from deep5.core.tensors import Device
from deep5.frameworks.openvino.model import Program
from deep5.frameworks.openvino.rewrite import without_unpooling
from deep5.networks.network import Network
from deep5.training.engine_framework import EngineFramework
from deep5.training.gradient_executor import GradientExecutor, Run

__all__ = ["OpenVINOExecutor"]


class OpenVINOExecutor(GradientExecutor):
    """Runs a network in OpenVINO, on the host CPU and in float32; created by `OpenVINO.executor`.

    Args:
        network: The network; it is not changed.
        framework: OpenVINO.
        device: The host CPU.
        seed: The seed of noise only.
        counts: Whether programs measure the time of their kernels.

    Raises:
        Unsupported: Some nodes cannot run; the message gives the reason for each.
    """

    def __init__(
        self, network: Network, framework: EngineFramework, *, device: Device, seed: int = 0, counts: bool = False
    ) -> None:
        self._framework, self._counts = framework, counts
        super().__init__(network, framework, device=device, seed=seed)

    def settings(self) -> dict[str, Any]:
        """Threads and precision as read back from the compiled model."""
        program = self._programs.get(("forward", False)) or self._forward(training=False)
        run = cast(Program, program.run)
        return {
            "framework": self._framework.name,
            "version": self._framework.version(),
            "device": str(self.device),
            "threads": run.threads,
            "dtype": {"f32": "float32"}.get(
                name := run.model.get_property("INFERENCE_PRECISION_HINT").get_type_name(), name
            ),
            "tf32": False,
            "deterministic": True,
        }

    @override
    def suited(self, network: Network) -> Network:
        return without_unpooling(network)

    def _threads(self) -> int:
        return self._framework.threads

    @override
    def compile(self, network: Network, announced: Sequence[str]) -> Run:
        threads = self._framework.threads
        return Program(network, self._values, announced, threads=threads, counts=self._counts)

    def program(self, kind: str) -> Program:
        """A program that has run: `"forward"` or `"gradients"`."""
        return cast(Program, next(program.run for key, program in self._programs.items() if key[0] == kind))
