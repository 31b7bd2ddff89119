"""`Program`: a network compiled by OpenVINO with shared parameters; and whether OpenVINO can run a node."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, Unsupported
from deep5.core.framework import Support
from deep5.core.tensors import aligned_empty, numpy_dtype
from deep5.core.time_limit import current_limit
from deep5.frameworks.openvino.attributes import misread
from deep5.frameworks.openvino.contributed import differs
from deep5.frameworks.openvino.custom import extension, failure, supports_custom, with_kernels
from deep5.frameworks.openvino.guards import guarded, unguarded
from deep5.frameworks.openvino.integers import LARGEST, reason
from deep5.frameworks.openvino.library import openvino
from deep5.frameworks.openvino.loops import unsafe_loop, without_negative_counts
from deep5.frameworks.openvino.shapes import check_shapes, explanation
from deep5.frameworks.openvino.substitutes import substitute, substituted
from deep5.networks.custom import is_custom
from deep5.networks.diagnostics.failures import allowed_for
from deep5.networks.engine import answered, engine_model, node_model
from deep5.networks.network import Network
from deep5.networks.nodes import nested, subgraphs
from deep5.networks.onnx.contributed_types import CONTRIBUTED
from deep5.networks.strings import elsewhere
from deep5.networks.transforms.mixed_precision import AS_FLOAT32
from deep5.training.buffer_pool import Lender, Lent
from deep5.training.gradient_executor import Notify

__all__ = ["Program", "supports"]

# Dtypes that OpenVINO silently computes in float32.
_OTHER_FLOATS = {ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
# Integer dtypes that may exceed exact comparisons.
_LONG = (np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.int32), np.dtype(np.uint32))
# The number of shape combinations to cache; a sequence network may see many.
_FITTING = 256
_ANSWERS: dict[Hashable, Support] = {}
_NUMBERS = itertools.count()
_LOADING = threading.RLock()


class Program:
    """A runnable network; a `Run` of `GradientExecutor`.

    Parameters and buffers are inputs whose tensors share the executor's memory. Outputs of static shape are written to
    lent memory (`Lender`); others and gradients are copied. The single request serves one call at a time: concurrent
    threads wait for each other.

    Args:
        network: The network.
        values: The live parameters and buffers.
        announced: Names of the last outputs, the gradients.
        threads: The number of threads per operator.
        counts: Whether to measure the time of the kernels.

    Raises:
        Unsupported: OpenVINO cannot run the network.

    Attributes:
        model: The `openvino.CompiledModel`.
        threads: The number of threads per operator, as read back from it.
        run: The compiled network.
    """

    def __init__(
        self,
        network: Network,
        values: Mapping[str, np.ndarray],
        announced: Sequence[str],
        *,
        threads: int,
        counts: bool = False,
    ) -> None:
        self._name = network.model.graph.name or ""
        self._options = {
            # The default may be bfloat16 instead of float32.
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            # No stream for one thread, which is then the caller's. With a one-thread stream OpenVINO swallows
            # exceptions and returns the outputs of an earlier call. The failed task stays first in the stream's queue,
            # so later models on the same stream run it instead of their own task, or crash once it is gone.
            "NUM_STREAMS": int(threads > 1),
            # Pinned threads keep other frameworks off their cores.
            "ENABLE_CPU_PINNING": False,
            "PERF_COUNT": counts,
        }
        for name, spec in network.inputs.items():
            if 0 in spec.shape:  # it may end the process while it compiles
                raise Unsupported(
                    f"openvino cannot run the network {self._name!r}: input {name!r} has no elements; allowed: sizes "
                    "of 1 and more; remedy: framework 'onnxruntime' or 'reference'"
                )
        suited = without_negative_counts(substituted(network))
        model, self._guards = guarded(suited)
        # Keeps the kernels of compiled operators alive as long as the model that calls them. Programs may share a
        # kernel and run concurrently: the number identifies a program's failures.
        self._number = next(_NUMBERS)
        suited, self._kernels = with_kernels(Network(model) if self._guards else suited, self._number)
        engine, self.run = engine_model(suited), suited
        try:
            self._source = (_extended() if self._kernels else _core()).read_model(engine)
            self.model = self._compiled()
        except Exception as error:  # OpenVINO raises RuntimeError and private classes
            if (reported := failure(self._kernels, self._number)) is not None:
                raise reported from error
            raise Unsupported(f"openvino cannot run the network {self._name!r}: {_unread(error)}") from error
        self._inputs, self._count = tuple(network.inputs), len(network.outputs)
        self._first = self._count - len(announced)
        # Outputs that no node computes; OpenVINO does not write them to given memory.
        held = {*self._inputs, *network.parameter_specs, *network.buffer_specs}
        self._passed = {number: name for number, name in enumerate(network.outputs) if name in held}
        specs = network.inputs.values()
        self._static = all(isinstance(extent, int) for spec in specs for extent in spec.shape)
        self._long = [number for number, spec in enumerate(specs) if np.dtype(numpy_dtype(spec.dtype)) in _LONG]
        # The compiled model does not have inputs that no node reads.
        known = {name for port in self.model.inputs for name in port.names}
        self._read = [(name, number) for number, name in enumerate(self._inputs) if name in known]
        self._values = {name: values[name] for name in (*network.parameter_specs, *network.buffer_specs)}
        self._fitting: set[tuple[tuple[int, ...], ...]] = set()
        self._loops = any(node.op_type == "Loop" for node in network.model.graph.all_nodes())
        self._lock = threading.Lock()
        self._begin()

    def __call__(
        self, inputs: Sequence[np.ndarray], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        """Run once; see `Run`.

        Raises:
            NetworkError: A node does not accept the shapes; an operator failed (with OpenVINO's message); an index or
                label is out of range; or an integer exceeds OpenVINO's exact comparisons.
            OperatorError: A compiled operator failed; with its own message.
            ShapeError: The `specs` of a compiled operator rejected shapes; with its own message.
            Unsupported: A time limit is in force, and the network has a Loop.
        """
        for number in self._long:
            value = inputs[number]
            if value.size and (value.max() > LARGEST or value.min() < -LARGEST):
                large = value[(value > LARGEST) | (value < -LARGEST)][0]
                raise NetworkError(
                    f"input {self._inputs[number]!r} holds {large}; allowed: ±2^24, up to which "
                    "openvino represents every integer"
                )
        if self._loops and current_limit() is not None:
            raise Unsupported(
                f"openvino cannot run the network {self._name!r} within a time limit: it cannot be stopped in a Loop; "
                "allowed: networks without a Loop, or no time limit; remedy: framework 'onnxruntime' or 'pytorch'"
            )
        with self._lock:
            # Keep these steps few: after a large matrix product the caches are cold, and each step takes ten times as
            # long.
            outputs = None
            if self._static and self._lent is not None:
                for value, bound in zip(inputs, self._bound, strict=True):
                    if value is not bound or not value.flags.carray:
                        break
                else:
                    outputs = self._lent.lend()
            if outputs is None:
                self._check_shapes(tuple([value.shape for value in inputs]))
            try:
                if outputs is None:
                    outputs = self._bind(inputs)
                self._request.infer(share_outputs=True)  # otherwise it makes copies, as is done below
            except Exception as error:  # as above
                # A failed model fails again on any input, and so do its new requests.
                self.model = self._compiled()
                self._begin()
                if (reported := failure(self._kernels, self._number)) is not None:
                    raise reported from error
                why = explanation(error)
                raise NetworkError(
                    f"openvino failed in the network {self._name!r}: {why.rstrip('.')}; {allowed_for(why)}"
                ) from error
            if self._kernels and (reported := failure(self._kernels, self._number)) is not None:
                raise reported
            for number, guard in enumerate(self._guards, self._count):
                if self._read_output(number) > 0:
                    raise NetworkError(
                        f"openvino cannot run the network {self._name!r} on these inputs: {guard.message}"
                    )
            gradients = self._gradients(into)
            for number in sorted((*self._unknown, *self._passed)):
                name = self._passed.get(number)
                found = self._read_output(number) if name is None else self._values.get(name)
                outputs.insert(number, np.array(inputs[self._inputs.index(name)] if found is None else found))
        # The notified function may call the executor, which writes to the request's memory or releases it.
        if notify is not None:
            for number, array in enumerate(gradients):
                notify(number, array)
        return outputs, gradients

    def counted(self) -> Iterator[tuple[str, float]]:
        """Kernels by name, with mean seconds over all calls so far, if `counts` is set."""
        for kernel in self._request.get_profiling_info():
            if kernel.status.name == "EXECUTED":
                yield kernel.node_name, kernel.real_time.total_seconds()

    def _gradients(self, into: Sequence[np.ndarray] | None) -> Sequence[np.ndarray]:
        if self._first == self._count:
            return ()
        values = [self._read_output(number) for number in range(self._first, self._count)]
        if into is None or any(old.shape != new.shape for old, new in zip(into, values, strict=True)):
            into = [aligned_empty(value.shape, value.dtype) for value in values]
        for array, value in zip(into, values, strict=True):
            array[...] = value
        return into

    def _compiled(self) -> Any:
        model = _core().compile_model(self._source, "CPU", self._options)
        if self._options["NUM_STREAMS"] and model.get_property("INFERENCE_NUM_THREADS") == 1:
            self._options["NUM_STREAMS"] = 0  # there are fewer cores than threads
            model = _core().compile_model(self._source, "CPU", self._options)
        self.threads = model.get_property("INFERENCE_NUM_THREADS") or 1  # it counts the threads of streams
        return model

    def _check_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        if shapes in self._fitting:
            return
        for name, shape in zip(self._inputs, shapes, strict=True):
            if 0 in shape:  # OpenVINO would crash in this call or a later one
                raise NetworkError(f"openvino failed in the network {self._name!r}: input {name!r} has no elements")
        try:
            check_shapes(self._source, self._name, {name: shapes[number] for name, number in self._read})
        except NetworkError as error:
            if (reported := failure(self._kernels, self._number)) is not None:
                raise reported from error
            raise
        if len(self._fitting) >= _FITTING:
            self._fitting.clear()
        self._fitting.add(shapes)

    def _begin(self) -> None:
        self._request = self.model.create_infer_request()
        self._shared: dict[str, np.ndarray] = {}
        for name, value in self._values.items():
            self._share(name, value)
        ports = self.model.outputs[: self._first]
        fixed = [port.partial_shape.is_static and 0 not in port.shape for port in ports]
        # Outputs whose shape is only known after they are computed.
        self._unknown = [number for number, known in enumerate(fixed) if not known and number not in self._passed]
        self._known = [number for number, known in enumerate(fixed) if known and number not in self._passed]
        tensors = [self._request.get_output_tensor(number) for number in self._known]
        self._lender: Lender[Any] = Lender([(tuple(value.shape), value.data.dtype) for value in tensors], _on_memory)
        self._lent: Lent[Any] | None = None
        self._bound: list[np.ndarray | None] = [None] * len(self._inputs)

    def _bind(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Bind the changed inputs; returns the outputs of known shape."""
        old, before = self._bound, self._lent
        self._bound, self._lent = [None] * len(inputs), None  # in case this fails or is interrupted
        bound: list[np.ndarray | None] = list(inputs)
        for name, number in self._read:
            value = inputs[number]
            if not value.flags.carray:
                bound[number] = None
                self._share(name, np.array(value, order="C"))
            elif value is not old[number] or not self._static:  # its shape may have changed
                self._share(name, value)
        lent, outputs = self._lender.lend()
        if lent is not before:
            for number, tensor in zip(self._known, lent.bound, strict=True):
                self._request.set_output_tensor(number, tensor)
        self._bound, self._lent = bound, lent
        return outputs

    def _read_output(self, number: int) -> np.ndarray:
        """The output, in the request's memory."""
        # One by one: `output_tensors` recreates all of them, which takes a hundred times as long.
        value: np.ndarray = self._request.get_output_tensor(number).data
        return value

    def _share(self, name: str, array: np.ndarray) -> None:
        self._shared[name] = array  # and keep it alive
        # By port: an output may have the same name.
        self._request.set_tensor(self.model.input(name), _on_memory(array))


def _on_memory(array: np.ndarray) -> Any:
    """A tensor on the memory of an array; it does not keep the array alive."""
    return openvino.Tensor(array, shared_memory=True)


def supports(node: ir.Node) -> Support:
    """Whether OpenVINO can run a node, tested by reading only the node, once per kind of node.

    The node is not compiled: by itself, with unknown sizes, a convolution of two inputs would be rejected.
    """
    if is_custom(node):
        return supports_custom(node)
    if (refused := _wrong(node)) is not None:
        return Support(False, _with_remedy(refused, node))
    for inner in nested(node):
        if (refused := _wrong(inner) or unguarded(inner)) is not None:
            return Support(
                False, f"{inner.name or inner.op_type} ({inner.op_type}) in it: {_with_remedy(refused, inner)}"
            )
    if substitute(node) is not None:
        return Support(True)
    return answered(_ANSWERS, node, _tried)


def _unread(error: Exception) -> str:
    """What OpenVINO reports of a model that it does not read or compile, with what is allowed."""
    return (
        f"{explanation(error).rstrip('.')}; allowed: inputs and attributes that OpenVINO reads; remedy: framework "
        "'onnxruntime' or 'reference'"
    )


def _with_remedy(refused: str, node: ir.Node) -> str:
    """The reason, with the back-ends that compute what OpenVINO does not, unless it has another remedy."""
    if "; allowed: " not in refused or "; remedy: " in refused:
        return refused
    return f"{refused}; remedy: {elsewhere(node)}"


def _wrong(node: ir.Node) -> str | None:
    """Why a node would give other values than ONNX's; else None."""
    if node.domain == "ai.onnx.ml":
        return "OpenVINO has no operators of the domain 'ai.onnx.ml'; allowed: ONNX's own, and registered ones"
    if node.domain == CONTRIBUTED and (refused := differs(node)) is not None:
        return refused
    if substitute(node) is None and (refused := misread(node)) is not None:
        return refused
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype in _OTHER_FLOATS:
            return (
                f"OpenVINO computes {value.dtype.name} in float32; allowed: FLOAT, and no other float; remedy: "
                f"{AS_FLOAT32}"
            )
    if node.op_type == "Loop" and not node.domain and (refused := unsafe_loop(node)) is not None:
        return refused
    if node.op_type == "If" and _of_several_ranks(node):
        return (
            "the branches differ in rank, or their ranks are not known; allowed: branches of one known rank; remedy: "
            "framework 'onnxruntime', 'pytorch' or 'reference', or an input of fixed size, which decides the branch"
        )
    return reason(node)


def _of_several_ranks(node: ir.Node) -> bool:
    made = zip(*(graph.outputs for graph in subgraphs(node).values()), strict=True)
    ranks = [{None if value.shape is None else len(value.shape) for value in values} for values in made]
    return any(len(each) > 1 or None in each for each in ranks)


def _tried(node: ir.Node) -> Support:
    model = node_model(node)
    if model is None:
        return Support(False, f"an input of {node.op_type} has no known element type; remedy: infer shapes first")
    try:
        _core().read_model(model)
    except Exception as error:  # OpenVINO raises RuntimeError and private classes
        if node.domain == CONTRIBUTED:
            refused = f"OpenVINO does not convert the operator {node.op_type} of the domain 'com.microsoft'"
            return Support(False, f"{refused}; allowed: ONNX's own operators; remedy: {elsewhere(node)}")
        return Support(False, _unread(error))
    return Support(True)


def _core() -> Any:
    with _LOADING:  # one for all threads
        return _made()


@cache
def _made() -> Any:
    return openvino.Core()


def _extended() -> Any:
    """The core, after registering compiled operators."""
    with _LOADING:
        return _taught()


@cache
def _taught() -> Any:
    core = _core()
    core.add_extension(extension()._name)
    return core
