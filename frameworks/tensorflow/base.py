"""`TracedExecutor`: what holds for everything that TensorFlow traces and differentiates, a network or a model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from deep5.core.arguments import check_callable
from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import ParameterGroup, TrainStep
from deep5.core.tensors import Array, Arrays, Device
from deep5.frameworks.tensorflow.functions import TracedNetwork, Values
from deep5.frameworks.tensorflow.settings import read_settings
from deep5.frameworks.tensorflow.short import through_float32, xla_kernels
from deep5.frameworks.tensorflow.step import TensorFlowStep
from deep5.frameworks.tensorflow.traced import Traced
from deep5.frameworks.tensorflow.variables import Live
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule

__all__ = ["TracedExecutor"]


class TracedExecutor(TracedNetwork):
    """Base of TensorFlow's executors; implements `GraphExecutor`. Arguments and attributes are `TracedNetwork`'s."""

    capabilities = frozenset({"float64", "whole_step"})

    def __init__(
        self,
        network: Any,
        live: dict[str, Live],
        *,
        device: Device,
        seed: int = 0,
        xla: bool = False,
        eager: bool = False,
    ) -> None:
        super().__init__(network, live, device=device, seed=seed, xla=xla, eager=eager)
        self._gradients: Values | None = None
        self._without = "nothing has run backward yet"
        self._step: weakref.ref[TensorFlowStep] | None = None

    @property
    def graph(self) -> Any:
        """The traced `tf.Graph` of inference in evaluation."""
        return self._forward(training=False).graph

    @property
    def compilations(self) -> int:
        """How often XLA has compiled for inference and gradients: once a function and batch size; 0 without XLA."""
        return sum(function.compilations for function in self._functions.values())

    def _averaged(self) -> Any:
        step = None if self._step is None else self._step()
        return super()._averaged() if step is None else step.averaged()

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward; see `GraphExecutor.inference`."""
        feed, extents = self._feed(inputs, empty=not training)
        if training and self._form.masks:
            feed += self._masks(extents, info)
        if training and self._ranks is not None:
            self._ranks.begin(info)
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
            ShapeError: A missing, unknown or misshapen input, or one of extent 0; a gradient to add to that has
                another shape.
            UnknownName: No such loss, parameter or input.
            Unsupported: An operator without a gradient.
            UsageError: Names that are none, a `loss_scale` that is no finite number, an `info` that is no `StepInfo`.
        """
        if type(loss) is not str:
            self._check_loss(loss)
        if wrt is not None and type(wrt) is not tuple:
            wrt = self._check_wrt(wrt)
        key = ("gradients", loss, wrt)
        try:
            function = self._functions.get(key)
        except TypeError:  # something in it is no name
            function = None
        if function is None:
            self._feed(inputs)  # what is wrong with the inputs is said first
            self._check_loss(loss)
            names = self._check_wrt(wrt)
            function = self._functions[key] = self.traced_gradients(loss, names)
        scale = self.scale(loss, self._check_scale(loss, loss_scale))
        added = None if not accumulate else self.network.trained_specs if wrt is None else wrt
        return self.run_backprop(function, inputs, info, scale, added=added, on_gradient=on_gradient)

    def run_backprop(
        self,
        function: Traced,
        inputs: Arrays,
        info: StepInfo | None,
        *further: Any,
        added: Collection[str] | None = None,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Call a function of `traced_gradients` and keep what it gives.

        Args:
            function: The function.
            inputs: As for `inference`.
            info: As for `inference`.
            further: Its further arguments, tensors.
            added: Whose gradients are added to those of the call before, which are kept; None: they are not.
            on_gradient: Called with each.

        Returns:
            The network's outputs.
        """
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        feed, extents = self._feed(inputs)
        before = {} if added is None or self._gradients is None else self._gradients
        self._gradients, self._without = None, "the last call failed"  # none, should what follows fail
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
        """Call a function of `traced_step`; arguments as for `run_backprop`."""
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
            Unsupported: There are none: nothing ran backward, the call failed, or a whole compiled step ran last.
        """
        if self._gradients is None:
            raise Unsupported(f"there are no gradients: {self._without}; remedy: call inference_and_backprop first")
        return {name: self._in_onnx_order(name, value) for name, value in self._gradients.items()}

    def parameters(self) -> Arrays:
        """The live parameters: variables, or views of those that lie in another order; change them by `assign`."""
        return {name: self.live[name].native() for name in self.network.parameter_specs}

    def buffers(self) -> Arrays:
        """The live running statistics, variables."""
        return {name: self.live[name].native() for name in self.network.buffer_specs}

    def train_step(
        self,
        rule: UpdateRule,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
        pipeline: GradientPipeline | None = None,
    ) -> TrainStep:
        """The whole training step as one function; see `GraphExecutor.train_step`.

        Raises:
            RuleError: The rule breaks its contract, all parameters are frozen, or a group sets an unknown
                hyperparameter or matches nothing.
        """
        self._check_loss(loss)
        step = TensorFlowStep(self, rule, loss=loss, groups=groups, modifier=modifier, pipeline=pipeline)
        self._step = weakref.ref(step)
        return step

    def synchronize(self) -> None:
        """Wait for the device; on the host a call that returns has finished, unless TensorFlow was told otherwise."""
        tf.test.experimental.sync_devices()

    def settings(self) -> dict[str, Any]:
        """Read back from TensorFlow; see `GraphExecutor.settings`."""
        variables = [live.variable for live in self.live.values()]
        return {
            **read_settings(self.device, xla=self._xla),
            "device": _place(variables[0].device) if variables else str(self.device),
            "dtype": self._float_dtype(variables),
            **self._compute_dtype(variables, self._kernels),
        }

    def _kernels(self, dtype: str) -> str:
        """The element type of the kernels that compute products of one."""
        if self._xla:
            return xla_kernels(dtype, self.place)
        return "float32" if through_float32(dtype, self.place, xla=False) else dtype

    def _in_onnx_order(self, name: str, value: Any) -> Any:
        return self.live[name].to_onnx(value) if name in self.live else value


def _place(name: str) -> str:
    """TensorFlow's name of a device as deep5 has it."""
    kind, index = name.rpartition("device:")[2].split(":")
    return "cpu" if kind == "CPU" else f"cuda:{index}"
