"""`TensorFlowLayerClock`: layers timed by TensorFlow's profiler, in the traced function."""

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

# The profiler's name for a kernel run: name of the operation, type.
_KERNEL = re.compile(r"([^:\s]+):(_?[A-Z]\w*)")
# These call functions, whose operations are counted themselves.
_CALLS = re.compile("(Stateful)?PartitionedCall|(Stateless)?(While|If|Case)")
# Kernels that run several layers at once; oneDNN does so on CPUs with AVX-512.
_FUSED = re.compile("_(MklNative|Mkl)?Fused")
# These only move data; a layer of this kind may run inside another layer's kernel.
_MOVES = ("Pad", "Reshape", "Transpose")
# Other operations are fused with these.
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_PICOSECONDS = 1e12


class TensorFlowLayerClock:
    """Times layers with the profiler of the process, which runs for one pass at a time. Implements `LayerClock`.

    Args:
        network: The network; it is not changed.
        framework: The back-end.
        device: The host CPU.
        seed: The seed of noise only.

    Raises:
        Unsupported: Same as for `TensorFlowExecutor`; or another device, whose kernels the profiler does not name after
            layers.
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
        """The measurements."""
        return self._forward, self._steps

    def close(self) -> None:
        """Does nothing: the clock holds no resources."""

    def _pass(self, kernels: list[tuple[str, str, float]], kind: str) -> Pass:
        traced = self._scopes.groups(self._executor.traced_graph(kind))
        found: dict[Group, float] = {}
        fused, computed = set[Group](), set[Group]()
        for name, operator, seconds in kernels:
            # A rewritten operation has a new name around that of a scope.
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
                "another profile of this process is running, and TensorFlow takes one at a time; remedy: stop it"
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
    """The times, with the time of each fused kernel assigned to all layers that it runs.

    Such a kernel has the name of its last layer. The others are the preceding layers without separate times, back to
    the product.
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
