"""The executor of OpenVINO: compiled models over the memory of the executor, gradients by an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx_ir as ir

from deep5.frameworks.openvino.model import Program
from deep5.networks.network import Network
from deep5.networks.shapes import infer_shapes
from deep5.tensors import Device
from deep5.training.gradient_executor import GradientExecutor, Run

if TYPE_CHECKING:
    from deep5.frameworks.openvino.framework import OpenVINO

__all__ = ["OpenVINOExecutor"]


class OpenVINOExecutor(GradientExecutor):
    """Runs a network in OpenVINO, on the host processor and in float32; made by `OpenVINO.executor`.

    Args:
        network: The network; it is not changed.
        framework: OpenVINO.
        device: The host processor.
        seed: Of noise alone.

    Raises:
        Unsupported: Nodes that it cannot run, each with its reason.
    """

    def __init__(self, network: Network, framework: OpenVINO, *, device: Device, seed: int = 0) -> None:
        self._framework = framework
        super().__init__(network, framework, device=device, seed=seed)

    def settings(self) -> dict[str, Any]:
        """Threads and precision as read back from the compiled model."""
        program = self._programs.get(("forward", False)) or self._forward(training=False)
        model = cast(Program, program.run).model
        return {
            "framework": self._framework.name,
            "version": self._framework.version(),
            "device": str(self.device),
            "threads": int(model.get_property("INFERENCE_NUM_THREADS")),
            "dtype": {"f32": "float32"}.get(
                name := model.get_property("INFERENCE_PRECISION_HINT").get_type_name(), name
            ),
            "tf32": False,
            "deterministic": True,
        }

    def _suited(self, network: Network) -> Network:
        return _without_unpooling(network)

    def _threads(self) -> int:
        return self._framework.threads

    def _compile(self, network: Network, announced: Sequence[str]) -> Run:
        return Program(network, self._values, announced, threads=self._framework.threads)


def _without_unpooling(network: Network) -> Network:
    """The network with each MaxUnpool as a scatter into zeros, which is the same where windows do not overlap."""
    if all(node.op_type != "MaxUnpool" for node in network.nodes):
        return network
    model = network.model.clone()
    for node in list(model.graph):
        if node.op_type == "MaxUnpool" and not node.domain and node.inputs[2] is not None:
            tape, old = ir.tape.Tape(), node.outputs[0]
            flat = tape.op("Constant", [], {"value": ir.tensor(np.array([-1], np.int64))})
            size = tape.op("ReduceProd", [node.inputs[2]], {"keepdims": 1})
            zeros = tape.op("ConstantOfShape", [size], {"value": ir.tensor(np.zeros(1, np.float32))})
            chosen, values = (tape.op("Reshape", [value, flat]) for value in (node.inputs[1], node.inputs[0]))
            filled = tape.op("ScatterElements", [zeros, chosen, values], {"axis": 0})
            result = tape.op("Reshape", [filled, node.inputs[2]])
            for value in (zeros, values, filled, result):
                value.type = old.type
            result.name, result.shape = old.name, old.shape
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], tape.nodes, [old], [result])
    infer_shapes(model, "the network with gradients")
    return Network(model)
