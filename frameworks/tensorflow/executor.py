"""`TensorFlowExecutor`: a network on TensorFlow, variables and traced functions over them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.backend import Framework, ParameterGroup, TrainStep
from deep5.errors import ShapeError, Unsupported
from deep5.events import StepInfo
from deep5.frameworks.tensorflow.emit import Program, compile_forward, preferred_orders
from deep5.frameworks.tensorflow.memory import shared
from deep5.frameworks.tensorflow.step import TensorFlowStep
from deep5.frameworks.tensorflow.threads import inter_threads, intra_threads
from deep5.frameworks.tensorflow.traced import Traced
from deep5.frameworks.tensorflow.variables import Live
from deep5.networks.executor import NetworkExecutor
from deep5.networks.forms import Forms
from deep5.networks.network import Network
from deep5.tensors import Array, Arrays, Device, to_numpy
from deep5.training.rule import UpdateRule

__all__ = ["TensorFlowExecutor"]

Values = dict[str, Any]
"""Tensors that lie as the variables do, by the names of parameters and buffers."""


class TensorFlowExecutor(NetworkExecutor):
    """A network on TensorFlow; made by `TensorFlow.executor`. Implements `GraphExecutor`.

    Args:
        network: The network; it is not changed.
        framework: The back-end, which says what can run.
        device: Where it runs.
        seed: Of noise alone.
        xla: Whether XLA compiles what is traced.

    Raises:
        Unsupported: Nodes that TensorFlow cannot run, each with its reason.

    Attributes:
        live: Parameters and buffers by name, as they lie in memory.
        place: The device as TensorFlow names it.
        waits: Whether a call has finished when it returns.
    """

    capabilities = frozenset({"float64", "whole_step"})

    def __init__(
        self, network: Network, framework: Framework, *, device: Device, seed: int = 0, xla: bool = False
    ) -> None:
        super().__init__(network, device=device, seed=seed)
        self._forms, self._xla = Forms(network, framework), xla
        self.place = "/CPU:0" if device.kind == "cpu" else f"/GPU:{device.index}"
        self.waits = device.kind == "cpu" and tf.config.experimental.get_synchronous_execution()
        self._outputs = tuple(network.outputs)
        self._orders = preferred_orders(network)
        with tf.device(self.place):
            self.live = {
                name: Live(
                    network.initial(name), self._orders[name], trainable=name in network.parameters, name=f"p{i}"
                )
                for i, name in enumerate(self._specs)
            }
        self._functions: dict[tuple[Any, ...], Traced] = {}
        self._scale: tuple[Any, Any] = (None, None)
        self._gradients: Values | None = None
        self._without = "nothing has run backward yet"
        self._step: weakref.ref[TensorFlowStep] | None = None

    @property
    def source(self) -> str:
        """The generated Python source of the forward pass in evaluation."""
        return self._evaluation.source

    @property
    def graph(self) -> Any:
        """The traced `tf.Graph` of inference in evaluation."""
        return self._forward(training=False).graph

    @property
    def compilations(self) -> int:
        """How often XLA has compiled for inference and gradients: once a function and batch size; 0 without XLA."""
        return sum(function.compilations for function in self._functions.values())

    @cached_property
    def _evaluation(self) -> Program:
        return self._program(self._forms.evaluation, gradients=False)

    @cached_property
    def _training(self) -> Program:
        network = self._forms.training.network
        if network is not self._forms.evaluation:
            network = self._forms.checked(network)
        elif not self._evaluation.forward_only:
            return self._evaluation
        return self._program(network, gradients=True)

    def _program(self, network: Network, *, gradients: bool) -> Program:
        return compile_forward(network, self._orders, device=self.place, xla=self._xla, gradients=gradients)

    def _dtype(self, name: str) -> Any:
        return tf.as_dtype(name)

    def _native(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            return value
        try:
            if isinstance(value, tf.Variable):
                return value.value()
            array = value if type(value) is np.ndarray else to_numpy(value)
            if array.dtype.kind not in "biufc":
                raise TypeError(f"of {array.dtype}, which are no numbers")
            return self.tensor(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
        except (Unsupported, TypeError, ValueError) as error:
            raise ShapeError(
                f"input {name!r}: got {type(value).__name__} that tensorflow cannot take ({error})"
            ) from error

    def _live(self, name: str) -> Any:
        return self.live[name].numpy()

    def _assign(self, name: str, value: np.ndarray) -> None:
        self.live[name].assign(value)

    def _averaged(self) -> Any:
        step = None if self._step is None else self._step()
        return super()._averaged() if step is None else step.averaged()

    def tensor(self, array: np.ndarray) -> Any:
        """A tensor where the network runs; it may share the array's memory where a call that returns has finished."""
        if self.waits and array.dtype.kind in "biuf" and array.size:
            return shared(array)
        with tf.device(self.place):
            return tf.constant(array)

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward; see `GraphExecutor.inference`."""
        feed, extents = self._feed(inputs)
        if training and self._forms.training.masks:
            feed += self._masks(extents, info)
        function = self._functions.get(("forward", training)) or self._forward(training)
        return dict(zip(self._outputs, function(*feed), strict=True))

    def inference_and_backprop(
        self,
        inputs: Arrays,
        loss: str = "loss",
        *,
        info: StepInfo | None = None,
        wrt: Sequence[str] | None = None,
        accumulate: bool = False,
        loss_scale: float = 1.0,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Run forward and backward as one function; see `GraphExecutor.inference_and_backprop`.

        Raises:
            ShapeError: A missing, unknown or misshapen input.
            UnknownName: No such loss, parameter or input.
            Unsupported: An operator without a gradient.
        """
        key = ("gradients", loss, None if wrt is None else tuple(wrt))
        function = self._functions.get(key)
        if function is None:
            self._feed(inputs)  # what is wrong with the inputs is said first
            self._check_loss(loss)
            names = self._check_wrt(wrt)
            function = self._functions[key] = self.traced_gradients(loss, names)
        scale = self.scale(loss, loss_scale)
        return self.run_backprop(function, inputs, info, scale, accumulate=accumulate, on_gradient=on_gradient)

    def run_backprop(
        self,
        function: Traced,
        inputs: Arrays,
        info: StepInfo | None,
        *further: Any,
        accumulate: bool = False,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Call a function of `traced_gradients` and keep what it gives.

        Args:
            function: The function.
            inputs: As for `inference`.
            info: As for `inference`.
            further: Its further arguments, tensors.
            accumulate: Add to the gradients of the call before.
            on_gradient: Called with each.

        Returns:
            The network's outputs.
        """
        feed, extents = self._feed(inputs)
        before, self._gradients = (self._gradients if accumulate else None), None  # none, should what follows fail
        self._without = "the last call failed"
        if self._forms.training.masks:
            feed += self._masks(extents, info)
        results, gradients = function(*feed, *further)
        if before is not None:
            gradients = {name: before[name] + value if name in before else value for name, value in gradients.items()}
        if on_gradient is not None:
            for name in reversed(gradients):
                on_gradient(name, self._in_onnx_order(name, gradients[name]))
        self._gradients = gradients if before is None else {**before, **gradients}
        return dict(zip(self._outputs, results, strict=True))

    def run_step(self, function: Traced, inputs: Arrays, info: StepInfo, *further: Any) -> Arrays:
        """Call a function of `traced_step`; arguments as for `run_backprop`."""
        feed, extents = self._feed(inputs)
        self._gradients, self._without = None, "a whole compiled step ran last"
        if self._forms.training.masks:
            feed += self._masks(extents, info)
        return dict(zip(self._outputs, function(*feed, *further), strict=True))

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`, in ONNX's order; see `GraphExecutor.gradients`.

        Raises:
            Unsupported: There are none: nothing ran backward, the call failed, or a whole compiled step ran last.
        """
        if self._gradients is None:
            raise Unsupported(f"there are no gradients: {self._without}; remedy: call inference_and_backprop first")
        return {name: self._in_onnx_order(name, value) for name, value in self._gradients.items()}

    def parameters(self) -> Arrays:
        """The live parameters: variables, or views of those that lie in another order; change them by `assign`."""
        return {name: self.live[name].native() for name in self.network.parameters}

    def buffers(self) -> Arrays:
        """The live running statistics, variables."""
        return {name: self.live[name].native() for name in self.network.buffers}

    def train_step(
        self,
        rule: UpdateRule,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
    ) -> TrainStep:
        """The whole training step as one function; see `GraphExecutor.train_step`.

        Raises:
            RuleError: The rule breaks its contract, all parameters are frozen, or a group sets an unknown
                hyperparameter or matches nothing.
        """
        self._check_loss(loss)
        step = TensorFlowStep(self, rule, loss=loss, groups=groups, modifier=modifier)
        self._step = weakref.ref(step)
        return step

    def synchronize(self) -> None:
        """Wait for the device; on the host a call that returns has finished, unless TensorFlow was told otherwise."""
        tf.test.experimental.sync_devices()

    def settings(self) -> dict[str, Any]:
        """Read back from TensorFlow; see `GraphExecutor.settings`."""
        specs = (*self.network.parameters.values(), *self.network.inputs.values())
        on_host = self.device.kind == "cpu"
        return {
            "framework": "tensorflow",
            "version": tf.__version__,
            "device": str(self.device),
            "threads": intra_threads(),
            "inter_threads": inter_threads(),
            "dtype": next((spec.dtype for spec in specs if spec.dtype.startswith("float")), "none"),
            "tf32": not on_host and bool(tf.config.experimental.tensor_float_32_execution_enabled()),
            "deterministic": on_host or _deterministic(),
            "xla": self._xla,
        }

    # What steps and optimizers are made of.

    def scale(self, loss: str, number: float = 1.0) -> Any:
        """What a loss is multiplied by, as a tensor; the one of the call before is kept."""
        if self._scale[0] != (loss, number):
            self._scale = (loss, number), self.tensor(np.array(number, self.network.outputs[loss].dtype))
        return self._scale[1]

    def values(self) -> Values:
        """The variables' values; to be called where something is traced, or eagerly."""
        return {name: live.variable.value() for name, live in self.live.items()}

    def traced_gradients(
        self, loss: str, names: Sequence[str], points: Callable[[Values, Any], Values] | None = None, width: int = 0
    ) -> Traced:
        """A function from inputs, masks, the scale of the loss and, where `points` is given, a float64 vector.

        Args:
            loss: Name of the scalar output to differentiate.
            names: Parameters and inputs to differentiate by.
            points: From the parameters and the vector to the points at which the gradients are taken.
            width: Of the vector.

        Returns:
            A function that gives the network's outputs and the gradients by name, as the variables lie.
        """

        def body(*tensors: Any) -> Any:
            feed, further = tensors[: len(signature)], tensors[len(signature) :]
            values = self.values()
            if points is not None:
                values |= points(values, further[1])
            return self._trained(loss, names, feed, values, further[0])

        signature = self._signature(training=True)
        further = [tf.TensorSpec((), self._dtype(self.network.outputs[loss].dtype))]
        further += [] if points is None else [tf.TensorSpec([width], tf.float64)]
        return self.traced(body, [*signature, *further])

    def traced_step(
        self,
        loss: str,
        names: Sequence[str],
        update: Callable[[Values, Values, Any], None],
        points: Callable[[Values, Any], Values] | None = None,
        *,
        width: int,
    ) -> Traced:
        """A function from inputs, masks and a float64 vector: forward, backward, update.

        Args:
            loss: Name of the scalar output to differentiate.
            names: Parameters to differentiate by.
            update: Assigns to the variables; gets the gradients, the values before the step, and the vector.
            points: From the parameters and the vector to the points at which the gradients are taken.
            width: Of the vector.

        Returns:
            A function that gives the network's outputs.
        """

        def body(*tensors: Any) -> Any:
            *feed, vector = tensors
            values = self.values()
            at = values if points is None else values | points(values, vector)
            results, gradients = self._trained(loss, names, feed, at)
            update(gradients, values, vector)
            return results

        return self.traced(body, [*self._signature(training=True), tf.TensorSpec([width], tf.float64)])

    def traced(self, body: Callable[..., Any], signature: Sequence[Any]) -> Traced:
        """A function that runs where, and as, the network does."""
        return Traced(body, signature, device=self.place, xla=self._xla)

    def _forward(self, training: bool) -> Traced:
        program = self._training if training else self._evaluation

        def body(*feed: Any) -> Any:
            return self._settled(self._run(program, feed, self.values()))

        key = ("forward", training and program is not self._evaluation)
        if key not in self._functions:
            self._functions[key] = self.traced(body, self._signature(training))
        # One function serves both where training makes no difference.
        function = self._functions["forward", training] = self._functions[key]
        return function

    def _trained(
        self, loss: str, names: Sequence[str], feed: Sequence[Any], values: Values, scale: Any = None
    ) -> tuple[tuple[Any, ...], Values]:
        """Outputs and gradients, while something is traced; new running statistics go into their buffers."""
        inputs = {name: feed[index] for index, (name, _) in enumerate(self._inputs)}
        targets = {name: values[name] if name in values else inputs[name] for name in names}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(targets.values()))
            results = self._run(self._training, feed, values)
        root = results[self._outputs.index(loss)]
        gradients = tape.gradient(
            root, targets, output_gradients=scale, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # The gradient of a gather lists rows; what is added to it or sent is a whole array.
        gradients = {name: tf.convert_to_tensor(value) for name, value in gradients.items()}
        return self._settled(results), gradients

    def _run(self, program: Program, feed: Sequence[Any], values: Values) -> tuple[Any, ...]:
        return program.call(*feed, *(values[name] for name in program.live))

    def _settled(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The network's own outputs; new running statistics go into their buffers."""
        if len(results) > len(self._outputs):
            for name, value in zip(self._forms.training.statistics, results[len(self._outputs) :], strict=True):
                self.live[name].variable.assign(value, read_value=False)
        return results[: len(self._outputs)]

    def _signature(self, training: bool) -> list[Any]:
        specs = [(spec.shape, spec.dtype) for spec in self.network.inputs.values()]
        if training:
            specs += [(mask.shape, mask.dtype) for mask in self._forms.training.masks]
        return [
            tf.TensorSpec([extent if isinstance(extent, int) else None for extent in shape], self._dtype(dtype))
            for shape, dtype in specs
        ]

    def _masks(self, extents: Mapping[str, int], info: StepInfo | None) -> list[Any]:
        return [self.tensor(mask) for mask in self._forms.training.draw(extents, self._info(info))]

    def _in_onnx_order(self, name: str, value: Any) -> Any:
        return self.live[name].to_onnx(value) if name in self.live else value


def _deterministic() -> bool:
    from tensorflow.python.framework.config import is_op_determinism_enabled

    return bool(is_op_determinism_enabled())
