"""`TracedExecutor`: the common base for everything that TensorFlow traces and differentiates, a network or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import tensorflow as tf
from typing_extensions import override

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, Device
from deep5.frameworks.tensorflow.functions import TracedNetwork
from deep5.frameworks.tensorflow.settings import read_settings
from deep5.frameworks.tensorflow.short import through_float32, xla_kernels
from deep5.frameworks.tensorflow.step import TensorFlowStep
from deep5.frameworks.tensorflow.variables import Live
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import StepOptions

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

    @property
    def graph(self) -> Any:
        """The traced `tf.Graph` of inference in evaluation."""
        return self._forward(training=False).graph

    @property
    def compilations(self) -> int:
        """Number of XLA compilations for inference and gradients: one per function and batch size; 0 without XLA."""
        return sum(function.compilations for function in self._functions.values())

    @override
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        self._recent = inputs, training, info
        if self._feeding is not None and self._feeding.is_fed(inputs):
            return self._feeding.inference(inputs, training, info)
        feed, extents = self._feed(inputs, empty=not training)
        if training and self._form.masks:
            feed += self._masks(extents, info)
        if training and self._ranks is not None:
            self._ranks.begin(info)
        function = self._functions.get(("forward", training)) or self._forward(training)
        return dict(zip(self._outputs, function(*feed), strict=True))

    @override
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
        if wrt is not None and wrt is not self._direct and (between := self._between(wrt)):
            return self._backprop_between(
                between,
                inputs,
                loss,
                info=info,
                wrt=wrt,
                accumulate=accumulate,
                loss_scale=loss_scale,
                on_gradient=on_gradient,
            )
        if type(loss) is not str:
            self._check_loss(loss)
        if wrt is not None and type(wrt) is not tuple:
            wrt = self._check_wrt(wrt)
        key = ("gradients", loss, wrt)
        try:
            function = self._functions.get(key)
        except TypeError:  # some item is not a name
            function = None
        if function is None:
            self._feed(inputs)  # report invalid inputs first
            self._check_loss(loss)
            names = self._check_wrt(wrt)
            function = self._functions[key] = self.traced_gradients(loss, names)
        scale = self.scale(loss, self._check_scale(loss, loss_scale))
        added = None if not accumulate else self.network.trained_specs if wrt is None else wrt
        return self.run_backprop(function, inputs, info, scale, added=added, on_gradient=on_gradient)

    def _addends(self) -> Arrays:
        return {} if self._gradients is None else self.gradients()

    def _set_gradients(self, values: Mapping[str, Any] | None) -> None:
        self._gradients, self._without = None, "the last call failed"
        if values is not None:
            self._gradients = {
                name: self.live[name].to_variable(value) if name in self.live else value
                for name, value in values.items()
            }

    def parameters(self) -> Arrays:
        """The live parameters: variables, or views of variables with another axis order; change them with `assign`."""
        return {name: self.live[name].native() for name in self.network.parameter_specs}

    def buffers(self) -> Arrays:
        """The live running statistics, as variables."""
        return {name: self.live[name].native() for name in self.network.buffer_specs}

    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> TensorFlowStep:
        return TensorFlowStep(self, rule, loss=loss, **options)

    def synchronize(self) -> None:
        """Wait for the device; on the host, calls finish before they return, unless TensorFlow is set otherwise."""
        tf.test.experimental.sync_devices()

    @override
    def settings(self) -> dict[str, Any]:
        variables = [live.variable for live in self.live.values()]
        return {
            **read_settings(self.device, xla=self._xla),
            "device": _place(variables[0].device) if variables else str(self.device),
            **self._dtype_settings(variables),
        }

    def _product_kernels(self, dtype: str) -> str:
        if self._xla:
            return xla_kernels(dtype, self.place)
        return "float32" if through_float32(dtype, self.place, xla=False) else dtype


def _place(name: str) -> str:
    """TensorFlow's name of a deep5 device."""
    kind, index = name.rpartition("device:")[2].split(":")
    return "cpu" if kind == "CPU" else f"cuda:{index}"
