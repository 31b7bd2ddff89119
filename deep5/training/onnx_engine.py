"""`ONNXEngine`: a back-end of two methods, for an engine that runs ONNX models forward; deep5 derives the rest."""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deep5.core.errors import NetworkError, Unsupported, UsageError, brief
from deep5.core.executors import GraphExecutor, OperatorExecutor
from deep5.core.framework import Support
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Device, to_numpy
from deep5.core.tensors import device as read_device
from deep5.networks.arguments import as_network
from deep5.networks.custom import is_custom
from deep5.networks.diagnostics.failures import failed, is_own, reported_by
from deep5.networks.engine import answered, engine_model, node_model
from deep5.networks.network import Network
from deep5.training.engine_framework import EngineFramework
from deep5.training.gradient_executor import GradientExecutor, Notify, Run
from deep5.training.operator_executor import EngineOperatorExecutor

if TYPE_CHECKING:
    from deep5.core.operator import Operator

__all__ = ["CompiledModel", "ONNXEngine"]

CompiledModel = Callable[[dict[str, np.ndarray]], Sequence[Any]]
"""A compiled model: from the arrays of all inputs by name to the outputs, in the order of the model."""

# References to an array that only its list holds: the list, the loop's variable, the argument of `getrefcount`.
_ONLY_HERE = 3


class ONNXEngine(EngineFramework):
    """Base of back-ends for engines that run ONNX models forward, on the host; define `version` and `compile`.

    deep5 derives the rest. The backward pass is a part of the ONNX graph, the update is the compiled rule, operators
    that the engine lacks are expanded into others, and a node counts as supported if `compile` accepts a model of only
    that node. The parameters stay in deep5's memory: the engine receives them with each call.

    Args:
        mode: As for `Framework`.

    >>> import numpy as np
    >>> import onnx.reference
    >>> import deep5 as d5
    >>> class Evaluator(d5.ONNXEngine):
    ...     name, requires = "evaluator", ("onnx",)
    ...     def version(self): return onnx.__version__
    ...     def compile(self, model, *, threads):
    ...         evaluator = onnx.reference.ReferenceEvaluator(onnx.load_from_string(model))
    ...         return lambda inputs: evaluator.run(None, inputs)
    >>> executor = Evaluator().executor(d5.networks.mlp(features=4, hidden=8, classes=3), seed=0)
    >>> batch = {"input": np.ones((2, 4), np.float32), "label": np.array([0, 2])}
    >>> executor.inference(batch)["logits"].shape
    (2, 3)
    >>> step = executor.train_step(d5.SGD(0.1))  # deep5 derives the backward pass and the update
    >>> losses = [step(batch, d5.StepInfo(step=number, batch_size=2))["loss"] for number in range(3)]
    >>> bool(losses[0] > losses[1] > losses[2])
    True
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """`"float64"` if the engine computes float64 in float64."""

    _answers: ClassVar[dict[Hashable, Support]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._answers = {}

    @abstractmethod
    def compile(self, model: bytes, *, threads: int) -> CompiledModel:
        """Make a model runnable.

        Args:
            model: A serialized `onnx.ModelProto`. Its inputs are those of the network, and then its parameters.
            threads: Threads within an operator.

        Returns:
            A function that takes C-contiguous NumPy arrays by input name and returns the outputs in the model's order:
            NumPy arrays, or arrays that `to_numpy` reads. It must not write to its inputs, which are the live
            parameters and the caller's arrays; deep5 copies an output that is one of them, or that the engine keeps.
            It is called by one thread at a time.

        Raises:
            Exception: The engine cannot run the model; the message becomes the reason.
        """

    def supports(self, node: Any) -> Support:
        """Whether the engine compiles a model of only this node, tried once per kind of node."""
        if is_custom(node):
            return Support(False, f"{self.name} runs only ONNX's own operators")
        return answered(type(self)._answers, node, self._tried)

    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        """A network on the engine; see `Framework.executor`."""
        made = _EngineExecutor(as_network(network), self, device=self._place(device), seed=seed)
        self._executors.add(made)
        return made.with_feeding(partial(self.executor, device=device, seed=seed))

    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        """One operator on the engine; see `Framework.operator_executor`."""
        made = _OneOperator(operator, self, device=self._place(device))
        self._executors.add(made)
        return made

    def settings_on(self, device: Device) -> dict[str, Any]:
        """The settings that do not depend on a network; see `GraphExecutor.settings`.

        Args:
            device: The device of the executor.
        """
        about = {"framework": self.name, "version": self.version(), "device": str(device), "threads": self.threads}
        return {**about, "tf32": False, "deterministic": True}

    def _place(self, device: str | Device) -> Device:
        place = read_device(device)
        if place != Device():
            raise Unsupported(f"{self.name} does not run on device {str(place)!r}; allowed: cpu")
        return place

    def _tried(self, node: Any) -> Support:
        model = node_model(node)
        if model is None:
            return Support(False, f"an input of {node.op_type} has no known element type; remedy: infer shapes first")
        try:
            self.compile(model, threads=1)
        except Exception as error:  # of any class
            return Support(False, reported_by(error))
        return Support(True)


class _EngineExecutor(GradientExecutor):
    """A network on an `ONNXEngine`; created by its `executor`."""

    def __init__(self, network: Network, engine: ONNXEngine, *, device: Device, seed: int) -> None:
        self._engine, self.capabilities = engine, engine.capabilities
        super().__init__(network, engine, device=device, seed=seed)

    def settings(self) -> dict[str, Any]:
        """As `ONNXEngine.settings_on`, and the element types."""
        return {**self._engine.settings_on(self.device), **self._dtype_settings(list(self._values.values()))}

    def compile(self, network: Network, announced: Sequence[str]) -> Run:
        """A program of the engine; see `GradientExecutor.compile`."""
        return _Program(self._engine, network, self._values, len(announced))

    def _threads(self) -> int:
        return self._engine.threads


class _OneOperator(EngineOperatorExecutor):
    """An operator on an `ONNXEngine`; created by its `operator_executor`."""

    def __init__(self, operator: Operator, engine: ONNXEngine, *, device: Device) -> None:
        super().__init__(operator, engine, device=device)
        self._engine = engine

    def settings(self) -> dict[str, Any]:
        """As `ONNXEngine.settings_on`."""
        return self._engine.settings_on(self.device)

    def compile(self, network: Network) -> Run:
        """A program of the engine; see `EngineOperatorExecutor.compile`."""
        return _Program(self._engine, network, {}, 0)


class _Program:
    """A compiled model on the executor's memory; a `Run` of `GradientExecutor`.

    Args:
        engine: The back-end.
        network: The network.
        values: The live parameters and buffers.
        announced: The number of its last outputs that are gradients.

    Raises:
        Unsupported: The engine does not compile the network.
    """

    def __init__(self, engine: ONNXEngine, network: Network, values: Mapping[str, np.ndarray], announced: int) -> None:
        self._name, self._network = engine.name, str(network.model.graph.name)
        self._inputs, self._outputs = tuple(network.inputs), list(network.outputs.items())
        self._first = len(self._outputs) - announced
        self._live = {name: values[name] for name in (*network.parameter_specs, *network.buffer_specs)}
        self._one = threading.Lock()
        try:
            self._run = engine.compile(engine_model(network), threads=engine.threads)
        except Exception as error:  # of any class
            if is_own(error):
                raise
            raise Unsupported(
                f"{self._name} does not compile the network {self._network!r}: {reported_by(error)}; allowed: what the "
                "engine runs; remedy: framework 'reference', which runs every operator"
            ) from error
        if not callable(self._run):
            raise UsageError(
                f"compile of {type(engine).__name__} returns {brief(self._run)}; allowed: a function from the arrays "
                "by input name to the list of outputs"
            )

    def __call__(
        self, inputs: Sequence[Any], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        with self._one:
            arrays = [np.asarray(value, order="C") for value in inputs]
            found = self._results({**dict(zip(self._inputs, arrays, strict=True)), **self._live})
        gradients = found[self._first :]
        for index, value in enumerate(gradients if notify is not None else ()):
            notify(index, value)  # type: ignore[misc]  # it is not None here
        return found[: self._first], gradients

    def _results(self, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs as arrays that nothing else refers to, of the declared types."""
        try:
            found = list(self._run(given))
        except Exception as error:
            raise failed(error, self._name) from error
        del given
        if len(found) != len(self._outputs):
            names = ", ".join(name for name, _ in self._outputs)
            raise NetworkError(
                f"{self._name} returned {len(found)} outputs for the network {self._network!r}; allowed: "
                f"{len(self._outputs)}, in the order of the model: {names}"
            )
        for number, (name, spec) in enumerate(self._outputs):
            value = found[number]
            if not _is_free(value) or sys.getrefcount(value) > _ONLY_HERE:
                value = found[number] = np.array(to_numpy(value), order="C")
            if reason := spec.mismatch(value.shape, value.dtype.name):
                raise NetworkError(
                    f"{self._name} returned another array for the output {name!r} of the network {self._network!r}: "
                    f"{reason}; remedy: the element types and shapes of ONNX's definition of the operator"
                )
        return found


def _is_free(value: Any) -> bool:
    """Whether an array owns its memory, in the layout that deep5 writes to."""
    return type(value) is np.ndarray and value.flags.owndata and value.flags.carray
