"""`ONNXRuntimeLayerClock`: layers timed by ONNX Runtime's own profiler."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from deep5.core.errors import Unsupported
from deep5.core.layer_clock import Group, Pass
from deep5.core.tensors import Arrays, Device
from deep5.frameworks.onnxruntime.executor import ONNXRuntimeExecutor
from deep5.frameworks.onnxruntime.kernels import kernel_groups
from deep5.frameworks.onnxruntime.numerics import NumericsFramework
from deep5.frameworks.onnxruntime.program import Program
from deep5.networks.analysis.layer_clock import Owners
from deep5.networks.network import Network

__all__ = ["ONNXRuntimeLayerClock"]

_SUFFIX = "_kernel_time"


class ONNXRuntimeLayerClock:
    """Times layers with the sessions' profiler, in integer microseconds. Implements `LayerClock`.

    Profiles and optimized graphs, which define what a kernel computes, are in a temporary folder until `close`.

    Args:
        network: The network; it is not changed.
        framework: ONNX Runtime.
        device: The host processor.
        seed: The seed of noise only.

    Raises:
        Unsupported: As for `ONNXRuntimeExecutor`; or another device, where the profiler would time kernel launches.
    """

    def __init__(self, network: Network, framework: NumericsFramework, *, device: Device, seed: int = 0) -> None:
        if device != Device():
            raise Unsupported(
                f"onnxruntime's profiler times the launch of a kernel, not the kernel, on the device {device}; "
                "allowed: cpu; remedy: 'pytorch' there"
            )
        self._network = network
        self._folder = TemporaryDirectory(prefix="deep5-profile-")
        try:
            self._executor = ONNXRuntimeExecutor(
                network, framework, device=device, seed=seed, profiles=Path(self._folder.name)
            )
        except BaseException:
            self._folder.cleanup()
            raise
        self._forward: list[Pass] = []
        self._steps: list[Pass] = []

    def inference(self, inputs: Arrays) -> None:
        """Run forward once."""
        self._executor.inference(inputs)

    def inference_and_backprop(self, inputs: Arrays, loss: str) -> None:
        """Run forward and backward once."""
        self._collect("forward")  # the first training program ends the inference programs
        self._executor.inference_and_backprop(inputs, loss)

    def passes(self) -> tuple[Sequence[Pass], Sequence[Pass]]:
        """The measured passes."""
        self._collect("forward")
        self._collect("gradients")
        return self._forward, self._steps

    def close(self) -> None:
        """Remove the files."""
        self._collect("forward")
        self._collect("gradients")
        self._executor.discard_programs()
        self._folder.cleanup()

    def _collect(self, kind: str) -> None:
        for program in self._executor.profiled(kind):
            passes = _passes(program, self._network)
            (self._forward if kind == "forward" else self._steps).extend(passes)


def _passes(program: Program, network: Network) -> Iterator[Pass]:
    """The passes in the profile of a session; this ends profiling."""
    if program.profile is None:
        return
    profile = Path(program.session.end_profiling())
    owners = Owners(network, program.profile.run)
    kernels = kernel_groups(program.profile.model, program.profile.run, owners)
    named = {kernel.name: group for kernel, group in kernels if kernel.name}
    events: list[Any] = []
    for event in json.loads(profile.read_text()):
        if event["cat"] == "Node" and event["name"].endswith(_SUFFIX):
            events.append(event)
        elif event["name"] == "model_run":
            yield _pass(events, kernels, named, owners)
            events = []


def _pass(
    events: list[Any],
    kernels: list[tuple[onnx.NodeProto, Group | None]],
    named: dict[str, Group | None],
    owners: Owners,
) -> Pass:
    operators = [event["args"]["op_name"] for event in events]
    if operators == [kernel.op_type for kernel, _ in kernels]:
        groups = [group for _, group in kernels]
    else:  # another order, or loop bodies in between
        names = [event["name"].removesuffix(_SUFFIX) for event in events]
        groups = [named.get(name) or owners.group([owners.of(name)]) for name in names]
    found: dict[Group, float] = {}
    for event, group in zip(events, groups, strict=True):
        if group is not None:
            found[group] = found.get(group, 0.0) + event["dur"] / 1e6
    return found
