"""`ONNXRuntime`: the entry point of the back-end. Instances import onnxruntime."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Unsupported
from deep5.core.executors import GraphExecutor, OperatorExecutor
from deep5.core.framework import Support
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Device
from deep5.core.tensors import device as read_device
from deep5.frameworks.onnxruntime.numerics import Numerics, NumericsFramework

if TYPE_CHECKING:
    from deep5.core.layer_clock import LayerClock
    from deep5.core.operator import Operator
    from deep5.networks.network import Network

__all__ = ["ONNXRuntime", "from_model"]


class ONNXRuntime(NumericsFramework):
    """ONNX Runtime: forward and backward are one ONNX graph in one session, the update is the compiled rule."""

    name = "onnxruntime"
    requires = ("onnxruntime",)

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        # Imported here, so a missing onnxruntime is reported first.
        import onnxruntime

        self._onnxruntime = onnxruntime

    def version(self) -> str:
        """The version of onnxruntime."""
        return str(self._onnxruntime.__version__)

    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        """A network on ONNX Runtime; see `Framework.executor`."""
        from deep5.frameworks.onnxruntime.executor import ONNXRuntimeExecutor
        from deep5.networks.arguments import as_network

        executor = ONNXRuntimeExecutor(as_network(network), self, device=self._place(device), seed=seed)
        self._executors.add(executor)
        return executor.with_feeding(partial(self.executor, device=device, seed=seed))

    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        """One operator on ONNX Runtime; see `Framework.operator_executor`."""
        from deep5.frameworks.onnxruntime.operator_executor import ONNXRuntimeOperatorExecutor

        executor = ONNXRuntimeOperatorExecutor(operator, self, device=self._place(device))
        self._executors.add(executor)
        return executor

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """ONNX Runtime's own profiler; see `Framework.layer_clock`."""
        from deep5.frameworks.onnxruntime.layer_clock import ONNXRuntimeLayerClock
        from deep5.networks.arguments import as_network

        return ONNXRuntimeLayerClock(as_network(network), self, device=self._place(device), seed=seed)

    def supports(self, node: Any) -> Support:
        """Whether ONNX Runtime can create a session of only the node."""
        from deep5.frameworks.onnxruntime.session import supports

        return supports(node)

    def _place(self, device: str | Device) -> Device:
        from deep5.frameworks.onnxruntime.session import providers

        place = read_device(device)
        if not providers(place):
            found = ", ".join(self._onnxruntime.get_available_providers())
            raise Unsupported(f"no device {place} for onnxruntime here; allowed: cpu (its providers: {found})")
        return place

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:
        type(self).numerics = Numerics(deterministic, tf32)
        for executor in list(self._executors):
            if executor.device.kind != "cpu":
                executor.discard_programs()


def from_model(network: Network, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
    """The executor of a network on ONNX Runtime, under the name in the tutorial's recipes."""
    return ONNXRuntime().executor(network, device=device, seed=seed)
