"""`OpenVINO`: the entry point of the back-end. Instances import openvino."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Unsupported
from deep5.core.executors import GraphExecutor, OperatorExecutor
from deep5.core.framework import Support
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Device
from deep5.core.tensors import device as read_device
from deep5.training.engine_framework import EngineFramework

if TYPE_CHECKING:
    from deep5.core.layer_clock import LayerClock
    from deep5.core.operator import Operator
    from deep5.networks.network import Network

__all__ = ["OpenVINO", "from_model"]


class OpenVINO(EngineFramework):
    """OpenVINO, which does not support training itself: a proof that any engine that reads ONNX can train."""

    name = "openvino"
    requires = ("openvino",)

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        # Imported here, so a missing openvino is reported first.
        from deep5.frameworks.openvino.library import openvino

        self._openvino = openvino

    def version(self) -> str:
        """The version of openvino."""
        return str(self._openvino.__version__)

    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        """A network on OpenVINO; see `Framework.executor`."""
        from deep5.frameworks.openvino.executor import OpenVINOExecutor
        from deep5.networks.arguments import as_network

        executor = OpenVINOExecutor(as_network(network), self, device=_place(device), seed=seed)
        self._executors.add(executor)
        return executor.with_feeding(partial(self.executor, device=device, seed=seed))

    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        """One operator on OpenVINO; see `Framework.operator_executor`."""
        from deep5.frameworks.openvino.operator_executor import OpenVINOOperatorExecutor

        executor = OpenVINOOperatorExecutor(operator, self, device=_place(device))
        self._executors.add(executor)
        return executor

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """OpenVINO's own counters; see `Framework.layer_clock`."""
        from deep5.frameworks.openvino.layer_clock import OpenVINOLayerClock
        from deep5.networks.arguments import as_network

        return OpenVINOLayerClock(as_network(network), self, device=_place(device), seed=seed)

    def supports(self, node: Any) -> Support:
        """Whether OpenVINO can run the node by itself, in its own dtype."""
        from deep5.frameworks.openvino.model import supports

        return supports(node)


def _place(device: str | Device) -> Device:
    place = read_device(device)
    if place != Device():
        raise Unsupported(f"openvino does not run on device {str(place)!r}; allowed: cpu")
    return place


def from_model(network: Network, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
    """The executor of a network on OpenVINO, under the name in the tutorial's recipes."""
    return OpenVINO().executor(network, device=device, seed=seed)
