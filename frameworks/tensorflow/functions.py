"""`TracedNetwork`: variables, and functions over them that TensorFlow traces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError, Unsupported
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, Device, is_bfloat16, to_numpy
from deep5.frameworks.tensorflow.emit import Program
from deep5.frameworks.tensorflow.memory import apart_from, shared
from deep5.frameworks.tensorflow.traced import Traced
from deep5.frameworks.tensorflow.variables import Live
from deep5.networks.run_modes import TrainingForm
from deep5.training.training_executor import TrainingExecutor

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["TracedNetwork", "Values", "placed"]

Values = dict[str, Any]
"""Tensors in the axis order of the variables, by the names of parameters and buffers."""


class TracedNetwork(TrainingExecutor):
    """The base of TensorFlow's executors, steps and optimizers: live values, and functions over them.

    Args:
        network: The network, or its description.
        live: Parameters and buffers by name, parameters first, on the device.
        device: The device to run on.
        seed: The seed of noise only.
        xla: Whether XLA compiles the traced functions.
        eager: Whether nothing is traced, and operators run one by one.

    Attributes:
        live: As given.
        place: The device as TensorFlow names it.
        waits: Whether calls finish before they return.
    """

    def __init__(
        self, network: Any, live: dict[str, Live], *, device: Device, seed: int, xla: bool, eager: bool = False
    ) -> None:
        super().__init__(network, device=device, seed=seed)
        self.live, self.place, self._xla, self._eager = live, placed(device), xla, eager
        self.waits = device.kind == "cpu" and tf.config.experimental.get_synchronous_execution()
        self._outputs = tuple(network.outputs)
        self._functions: dict[tuple[Any, ...], Traced] = {}
        self._scale: tuple[Any, Any] = (None, None)
        self._gradients: Values | None = None
        self._without = "nothing has run backward yet"
        # Exchanges batch normalization statistics during a pass; None: there are no other ranks.
        self._ranks: RankStatistics | None = None

    # Created on the first call that needs them.

    @property
    @abstractmethod
    def _evaluation(self) -> Program:
        """Outputs in evaluation: a pure function of the inputs and the live values."""

    @property
    @abstractmethod
    def _training(self) -> Program:
        """Outputs in training and new running statistics: a function of the inputs, the masks and the live values."""

    @property
    @abstractmethod
    def _form(self) -> TrainingForm:
        """The masks that `_training` takes, and the statistics that it returns."""

    def _dtype(self, name: str) -> Any:
        return tf.as_dtype(name)

    def _native(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            return value
        try:
            if isinstance(value, tf.Variable):
                return value.value()
            array = value if type(value) is np.ndarray else to_numpy(value)
            if array.dtype.kind not in "biufc" and not is_bfloat16(array):
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

    def tensor(self, array: np.ndarray) -> Any:
        """A tensor on the network's device; it may share the array's memory if calls finish before they return."""
        # Dtypes unknown to NumPy itself, such as float8_e5m2 of kind f, take another path.
        if self.waits and array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1 and array.size:
            return shared(array)
        with tf.device(self.place):
            return tf.constant(array)

    def scale(self, loss: str, number: float = 1.0) -> Any:
        """The factor of a loss, as a tensor; the tensor of the previous call is cached."""
        if self._scale[0] != (loss, number):
            self._scale = (loss, number), self.tensor(np.array(number, self.network.outputs[loss].dtype))
        return self._scale[1]

    def values(self) -> Values:
        """The variables' values; call this during tracing, or eagerly."""
        return {name: live.variable.value() for name, live in self.live.items()}

    def traced_gradients(
        self, loss: str, names: Sequence[str], points: Callable[[Values, Any], Values] | None = None, width: int = 0
    ) -> Traced:
        """A function of inputs, masks, the loss scale and, if `points` is given, a float64 vector.

        Args:
            loss: Name of the scalar output to differentiate.
            names: Parameters and inputs to differentiate with respect to.
            points: From the parameters and the vector to the points at which gradients are evaluated.
            width: Size of the vector.

        Returns:
            A function that returns the network's outputs and the gradients by name, in the variables' axis order.
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
        scale: Callable[[Any], Any] | None = None,
    ) -> Traced:
        """A function of inputs, masks and a float64 vector: forward, backward, update.

        Args:
            loss: Name of the scalar output to differentiate.
            names: Parameters to differentiate with respect to.
            update: Assigns to the variables; takes the gradients, the values before the step, and the vector.
            points: From the parameters and the vector to the points at which gradients are evaluated.
            width: Size of the vector.
            scale: From the vector to the factor of the loss before differentiation.

        Returns:
            A function that returns the network's outputs.
        """

        def body(*tensors: Any) -> Any:
            *feed, vector = tensors
            values = self.values()
            at = values if points is None else values | points(values, vector)
            factor = None if scale is None else scale(vector)
            results, gradients = self._trained(loss, names, feed, at, factor)
            update(gradients, values, vector)
            return results

        return self.traced(body, [*self._signature(training=True), tf.TensorSpec([width], tf.float64)])

    def traced(self, body: Callable[..., Any], signature: Sequence[Any]) -> Traced:
        """A function that runs on the network's device and in its mode."""
        # Ranks that are threads share TensorFlow's thread pool; ranks that wait for others could block all its threads.
        eager = self._eager or (self._ranks is not None and self._ranks.in_threads)
        return Traced(body, signature, device=self.place, xla=self._xla, eager=eager)

    def run_backprop(
        self,
        function: Traced,
        inputs: Arrays,
        info: StepInfo | None,
        *further: Any,
        added: Collection[str] | None = None,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Call a function of `traced_gradients` and keep its gradients.

        Args:
            function: The function.
            inputs: Same as for `inference`.
            info: Same as for `inference`.
            further: Its further arguments, tensors.
            added: Names whose gradients are added to those of the previous call, which are kept; None: nothing is
                added.
            on_gradient: Called with each gradient.

        Returns:
            The network's outputs.
        """
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        feed, extents = self._feed(inputs)
        before = {} if added is None or self._gradients is None else self._gradients
        self._gradients, self._without = None, "the last call failed"  # no gradients if the code below fails
        for position, (name, _) in enumerate(self._inputs if before else ()):
            if name in before and added is not None and name in added:
                self._check_sum(name, before[name].shape, feed[position].shape)
        if self._form.masks:
            feed += self._masks(extents, info)
        if self._ranks is not None:
            self._ranks.begin(info)
        results, gradients = function(*feed, *further)
        if before:
            gradients = {name: before[name] + value if name in before else value for name, value in gradients.items()}
        if on_gradient is not None:
            for name in reversed(gradients):
                on_gradient(name, self._in_onnx_order(name, gradients[name]))
        self._gradients = {**before, **gradients} if before else gradients
        return dict(zip(self._outputs, results, strict=True))

    def run_step(self, function: Traced, inputs: Arrays, info: StepInfo, *further: Any) -> Arrays:
        """Call a function of `traced_step`; same arguments as `run_backprop`."""
        feed, extents = self._feed(inputs)
        self._gradients, self._without = None, "a whole compiled step ran last"
        if self._form.masks:
            feed += self._masks(extents, info)
        if self._ranks is not None:
            self._ranks.begin(info)
        return dict(zip(self._outputs, function(*feed, *further), strict=True))

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`, in ONNX's order; see `GraphExecutor.gradients`.

        Raises:
            Unsupported: There are no gradients: no backward pass ran, the call failed, or the last call was a whole
                compiled step.
        """
        if self._gradients is None:
            self._refuse_gradients()
        return {name: self._in_onnx_order(name, value) for name, value in self._gradients.items()}

    def _forward(self, training: bool) -> Traced:
        program = self._training if training else self._evaluation

        def body(*feed: Any) -> Any:
            return self._settled(self._run(program, feed, self.values()), feed)

        key = ("forward", training and program is not self._evaluation)
        if key not in self._functions:
            self._functions[key] = self.traced(body, self._signature(training))
        # One function serves both modes if they are identical.
        function = self._functions["forward", training] = self._functions[key]
        return function

    def _trained(
        self, loss: str, names: Sequence[str], feed: Sequence[Any], values: Values, scale: Any = None
    ) -> tuple[tuple[Any, ...], Values]:
        """Outputs and gradients, during tracing; assigns new running statistics to their buffers."""
        inputs = {name: feed[index] for index, (name, _) in enumerate(self._inputs)}
        targets = {name: values[name] if name in values else inputs[name] for name in names}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(targets.values()))
            results = self._run(self._training, feed, values)
        root = results[self._outputs.index(loss)]
        gradients = tape.gradient(
            root, targets, output_gradients=scale, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # The gradient of a gather is a list of rows; adding or sending it requires a whole array.
        gradients = {name: tf.convert_to_tensor(value) for name, value in gradients.items()}
        return self._settled(results, feed), gradients

    def _run(self, program: Program, feed: Sequence[Any], values: Values) -> tuple[Any, ...]:
        return program.call(*feed, *(values[name] for name in program.live))

    def _settled(self, results: tuple[Any, ...], feed: Sequence[Any]) -> tuple[Any, ...]:
        """The network's outputs, none of them sharing an input's memory; assigns new running statistics to their
        buffers.

        Outputs come first: if a loss rejects a label, the statistics do not change.
        """
        outputs, statistics = results[: len(self._outputs)], results[len(self._outputs) :]
        if statistics:
            with tf.control_dependencies(outputs):
                for name, value in zip(self._form.statistics, statistics, strict=True):
                    self.live[name].variable.assign(value, read_value=False)
        # Fed tensors may be the caller's memory, which may change after the call; XLA returns its own memory.
        return apart_from(outputs, feed) if self.waits and not self._xla else outputs

    def _signature(self, training: bool) -> list[Any]:
        specs = [(spec.shape, spec.dtype) for spec in self.network.inputs.values()]
        if training:
            specs += [(mask.shape, mask.dtype) for mask in self._form.masks]
        return [
            tf.TensorSpec([extent if isinstance(extent, int) else None for extent in shape], self._dtype(dtype))
            for shape, dtype in specs
        ]

    def _in_onnx_order(self, name: str, value: Any) -> Any:
        return self.live[name].to_onnx(value) if name in self.live else value

    def _masks(self, extents: Mapping[str, int], info: StepInfo | None) -> list[Any]:
        return [self.tensor(mask) for mask in self._form.draw(extents, self._info(info))]


def placed(device: Device) -> str:
    """The device as TensorFlow names it."""
    return "/CPU:0" if device.kind == "cpu" else f"/GPU:{device.index}"
