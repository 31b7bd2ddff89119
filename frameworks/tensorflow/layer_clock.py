"""`TensorFlowLayerClock`: layers timed by TensorFlow's own profiler, in the traced function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.core.framework import Framework
from deep5.core.layer_clock import Group, Pass
from deep5.core.tensors import Arrays, Device
from deep5.frameworks.tensorflow.executor import TensorFlowExecutor
from deep5.frameworks.tensorflow.scopes import Scopes
from deep5.networks.network import Network

__all__ = ["TensorFlowLayerClock"]

# How the profiler calls the run of a kernel: name of the operation, type.
_KERNEL = re.compile(r"([^:\s]+):(_?[A-Z]\w*)")
# What calls functions, whose own operations are counted.
_CALLS = re.compile("(Stateful)?PartitionedCall|(Stateless)?(While|If|Case)")
# What runs several layers as one; on processors with AVX-512 oneDNN does.
_FUSED = re.compile("_(MklNative|Mkl)?Fused")
# What only moves numbers, as a layer may that runs within another's kernel.
_MOVES = ("Pad", "Reshape", "Transpose")
# What others are put together with.
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_PICOSECONDS = 1e12


class TensorFlowLayerClock:
    """Times layers by the profiler of the process, which runs for one pass at a time. Implements `LayerClock`.

    Args:
        network: The network; it is not changed.
        framework: The back-end.
        device: The host processor.
        seed: Of noise alone.

    Raises:
        Unsupported: As for `TensorFlowExecutor`; another device, whose kernels the profiler does not name after layers.
    """

    def __init__(self, network: Network, framework: Framework, *, device: Device, seed: int = 0) -> None:
        if device != Device():
            raise Unsupported(
                f"tensorflow's profiler names no layers on the device {device}; allowed: cpu; remedy: 'pytorch' there"
            )
        self._network, self._scopes = network, Scopes(network)
        self._executor = TensorFlowExecutor(network, framework, device=device, seed=seed, scopes=self._scopes)
        self._forward: list[Pass] = []
        self._steps: list[Pass] = []

    def inference(self, inputs: Arrays) -> None:
        """Run forward once."""
        kernels = _profiled(lambda: self._executor.inference(inputs))
        self._forward.append(self._pass(kernels, "forward"))

    def inference_and_backprop(self, inputs: Arrays, loss: str) -> None:
        """Run forward and backward once."""
        kernels = _profiled(lambda: self._executor.inference_and_backprop(inputs, loss))
        self._steps.append(self._pass(kernels, "gradients"))

    def passes(self) -> tuple[Sequence[Pass], Sequence[Pass]]:
        """What was measured."""
        return self._forward, self._steps

    def close(self) -> None:
        """Nothing is held."""

    def _pass(self, kernels: list[tuple[str, str, float]], kind: str) -> Pass:
        traced = self._scopes.groups(self._executor.traced_graph(kind))
        found: dict[Group, float] = {}
        fused, computed = set[Group](), set[Group]()
        for name, operator, seconds in kernels:
            # What was written anew has a name of its own around that of a scope.
            group = traced.get(name) or self._scopes.group(name)
            if group is not None:
                found[group] = found.get(group, 0.0) + seconds
                if _FUSED.match(operator):
                    fused.add(group)
                if operator not in _MOVES:
                    computed.add(group)
        return _with_producers(found, fused, computed, self._network)


def _profiled(run: Callable[[], object]) -> list[tuple[str, str, float]]:
    """The kernels that ran: name of the operation, type, seconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with TemporaryDirectory(prefix="deep5-profile-") as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        try:
            tf.profiler.experimental.start(folder, options)
        except tf.errors.AlreadyExistsError as error:
            raise Unsupported(
                "somebody else takes a profile of this process, and TensorFlow takes one at a time; remedy: end it"
            ) from error
        try:
            run()
        finally:
            tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        for path in Path(folder).rglob("*.xplane.pb"):
            space.ParseFromString(path.read_bytes())
    return list(_kernels(space.planes))


def _kernels(planes: object) -> Iterator[tuple[str, str, float]]:
    for plane in planes:  # type: ignore[attr-defined]  # of a protocol buffer
        names: Mapping[int, re.Match[str] | None] = {
            key: _KERNEL.fullmatch(each.name) for key, each in plane.event_metadata.items()
        }
        for line in plane.lines:
            for event in line.events:
                kernel = names.get(event.metadata_id)
                if kernel is not None and not _CALLS.fullmatch(kernel[2]):
                    yield kernel[1], kernel[2], event.duration_ps / _PICOSECONDS


def _with_producers(found: Mapping[Group, float], fused: set[Group], computed: set[Group], network: Network) -> Pass:
    """The times, where those of kernels that run several layers as one are those of all of them.

    Such a kernel has the name of its last layer. The others are those before it that compute nothing themselves, back
    to the product.
    """
    nodes = {str(node.name): node for node in network.nodes}
    joined: dict[Group, float] = {}
    for group, seconds in found.items():
        layers, node = list(group.layers), nodes[group.layers[0]]
        while group in fused and node.op_type not in _PRODUCTS:
            before = (value.producer() for value in node.inputs if value is not None)
            silent = (each for each in before if each and Group((str(each.name),), group.backward) not in computed)
            if (source := next(silent, None)) is None:
                break
            layers.insert(0, str(source.name))
            node = source
        key = group._replace(layers=tuple(layers))
        joined[key] = joined.get(key, 0.0) + seconds
    return joined
