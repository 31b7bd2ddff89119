"""`OpenVINOLayerClock`: layers timed by OpenVINO's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.layer_clock import Group, Pass
from deep5.core.tensors import Arrays, Device
from deep5.frameworks.openvino.executor import OpenVINOExecutor
from deep5.frameworks.openvino.model import Program
from deep5.networks.analysis.layer_clock import WARMUPS, Owners, without_gaps
from deep5.networks.network import Network
from deep5.training.engine_framework import EngineFramework

__all__ = ["OpenVINOLayerClock"]

_Means = Mapping[Group, float]


class OpenVINOLayerClock:
    """Times layers by the counters of compiled models. Implements `LayerClock`.

    A counter is the mean over all passes so far, in integer microseconds. So each pass after the warm-up gets the mean
    of all of them.

    Args:
        network: The network; it is not changed.
        framework: OpenVINO.
        device: The host CPU.
        seed: The seed of noise only.

    Raises:
        Unsupported: As for `OpenVINOExecutor`.
    """

    def __init__(self, network: Network, framework: EngineFramework, *, device: Device, seed: int = 0) -> None:
        self._network = network
        self._executor = OpenVINOExecutor(network, framework, device=device, seed=seed, counts=True)
        self._kernels: dict[str, dict[str, Group | None]] = {}
        self._forward: list[_Means] = []
        self._steps: list[_Means] = []

    def inference(self, inputs: Arrays) -> None:
        """Run forward once."""
        self._executor.inference(inputs)
        self._forward.append(self._means("forward"))

    def inference_and_backprop(self, inputs: Arrays, loss: str) -> None:
        """Run forward and backward once."""
        self._executor.inference_and_backprop(inputs, loss)
        self._steps.append(self._means("gradients"))

    def passes(self) -> tuple[Sequence[Pass], Sequence[Pass]]:
        """The measured passes."""
        return _behind_warmup(self._forward), _behind_warmup(self._steps)

    def close(self) -> None:
        """Nothing to release."""

    def _means(self, kind: str) -> _Means:
        program = self._executor.program(kind)
        if kind not in self._kernels:
            self._kernels[kind] = _kernels(program, Owners(self._network, program.run))
        found: dict[Group, float] = {}
        for name, seconds in program.counted():
            if (group := self._kernels[kind].get(name)) is not None:
                found[group] = found.get(group, 0.0) + seconds
        return found


def _kernels(program: Program, owners: Owners) -> dict[str, Group | None]:
    """The layers of each kernel; kernels that OpenVINO adds belong to the kernel that reads their result."""
    operations = program.model.get_runtime_model().get_ordered_ops()
    names_of = [operation.get_friendly_name() for operation in operations]
    numbers = {name: number for number, name in enumerate(names_of)}
    # The name of a kernel for one of several outputs is the node's name followed by the output's.
    outputs = {f"{node.name}_{value.name}": str(node.name) for node in program.run.nodes for value in node.outputs}
    groups, readers = [], [list[int]() for _ in operations]
    for number, operation in enumerate(operations):
        names: Any = operation.get_rt_info()["originalLayersNames"].astype(str)
        groups.append(owners.group(owners.of(outputs.get(name, name)) for name in names.split(",")))
        for port in operation.inputs():
            readers[numbers[port.get_source_output().get_node().get_friendly_name()]].append(number)
    found: dict[str, Group | None] = {}
    for name, group in zip(names_of, without_gaps(groups, readers), strict=True):
        found[name] = found.get(name) or group  # several may share a name
    return found


def _behind_warmup(means: Sequence[_Means]) -> Sequence[Pass]:
    """Convert means over all passes so far to the mean of those after the warm-up, one entry per pass."""
    count = len(means) - WARMUPS
    if count <= 0:
        return means
    last, first = means[-1], means[WARMUPS - 1]
    found = {
        group: max(0.0, (seconds * len(means) - first.get(group, 0.0) * WARMUPS) / count)
        for group, seconds in last.items()
    }
    return [found] * len(means)
