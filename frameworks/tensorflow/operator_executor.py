"""`TensorFlowOperator`: one operator on TensorFlow, traced once for every combination of shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported
from deep5.core.executors import OperatorExecutor
from deep5.core.framework import Framework
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Device, is_bfloat16, to_numpy
from deep5.frameworks.tensorflow.compiled import failure
from deep5.frameworks.tensorflow.custom import route
from deep5.frameworks.tensorflow.functions import placed
from deep5.frameworks.tensorflow.placement import without_kernel
from deep5.frameworks.tensorflow.settings import read_settings
from deep5.frameworks.tensorflow.straight_line import straight_line
from deep5.frameworks.tensorflow.traced import cause
from deep5.operators.arguments import check_native, wanted_gradients
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator

__all__ = ["TensorFlowOperator"]


class TensorFlowOperator(OperatorExecutor):
    """One operator on TensorFlow; created by `TensorFlow.operator_executor`. Implements `OperatorExecutor`.

    Forward, and forward with backward, are one function each, traced for every combination of shapes and dtypes; static
    properties are checked during the trace. A function of few operations then runs as direct calls of these operations
    (`straight_line`).

    Args:
        operator: An operator of any kind.
        framework: The back-end, whose mode determines whether XLA compiles the traced functions.
        device: The device to run on.

    Raises:
        Unsupported: TensorFlow cannot run it; the message gives the reason.
    """

    def __init__(self, operator: Operator, framework: Framework, *, device: Device) -> None:
        self.operator, self.device = operator, device
        self._xla, self._place, self._name = framework.mode == "xla", placed(device), name_of(operator)
        self._route = route(operator, framework, device=self._place)
        self._forward: dict[Any, Any] = {}
        self._both: dict[Any, Any] = {}

    def arrays(self, *values: Array) -> tuple[Array, ...]:
        """The values as tensors on the device, copied; see `OperatorExecutor.arrays`."""
        return tuple([self._array(number, value) for number, value in enumerate(values)])

    @override
    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        try:
            function = self._forward[tuple([(value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):
            function = self._traced_forward(inputs)
        return tuple(self._called(function, inputs))

    @override
    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        wanted = None if needs is None else tuple(map(bool, needs))
        given = tuple([gradient for gradient in output_grads if gradient is not None])
        missing = tuple([gradient is None for gradient in output_grads])
        try:
            key = tuple([(value.shape, value.dtype) for value in (*inputs, *given)]), len(inputs), missing, wanted
            function = self._both[key]
        except (KeyError, AttributeError, TypeError):
            function = self._traced_both(inputs, output_grads, missing, wanted)
        outputs, gradients = self._called(function, (*inputs, *given))
        return tuple(outputs), tuple(gradients)

    def graph(self, *inputs: Array) -> Any:
        """The traced `tf.Graph` of the forward pass for these input shapes."""
        return self._traced_forward(inputs).graph

    def synchronize(self) -> None:
        """Wait for the device."""
        tf.test.experimental.sync_devices()

    @override
    def settings(self) -> dict[str, Any]:
        return read_settings(self.device, xla=self._xla)

    def _array(self, number: int, value: Any) -> Any:
        try:
            if isinstance(value, (tf.Tensor, tf.Variable)):
                given: Any = value
            else:
                given = value if isinstance(value, np.ndarray) else to_numpy(value)
                if given.dtype.kind not in "biuf" and not is_bfloat16(given):
                    raise TypeError(f"of {given.dtype}, which are no numbers")
                if not given.dtype.isnative:
                    given = given.astype(given.dtype.newbyteorder("="))
            with tf.device(self._place):
                return tf.identity(given) if isinstance(given, (tf.Tensor, tf.Variable)) else tf.constant(given)
        except (Unsupported, TypeError, ValueError) as error:
            raise ShapeError(
                f"{self._name}: value {number}: got {type(value).__name__} that tensorflow cannot take ({error})"
            ) from error

    def _traced_forward(self, inputs: Sequence[Any]) -> Any:
        self._check(inputs, "input")
        self._build(inputs)
        function = self._traced(self._route.forward, inputs)
        remember(self._forward, tuple([(value.shape, value.dtype) for value in inputs]), self._fastest(function))
        return function

    def _traced_both(
        self, inputs: Sequence[Any], output_grads: Sequence[Any], missing: tuple[bool, ...], needs: Any
    ) -> Any:
        self._check(inputs, "input")
        given = [gradient for gradient in output_grads if gradient is not None]
        self._check(given, "output gradient")
        wanted = wanted_gradients(self._name, inputs, needs)
        if isinstance(self.operator, CppOperator) and not self.operator.differentiable:
            raise Unsupported(f"{self._name} has no backward in C++; remedy: write one, or request no gradient")
        outputs = self._traced_forward(inputs).structured_outputs
        self._check_gradients(outputs, output_grads)

        def body(*tensors: Any) -> Any:
            left = iter(tensors[len(inputs) :])
            grads = [None if gone else next(left) for gone in missing]
            return self._route.with_gradients(tensors[: len(inputs)], grads, wanted)

        function = self._traced(body, [*inputs, *given])
        key = tuple([(value.shape, value.dtype) for value in (*inputs, *given)]), len(inputs), missing, needs
        remember(self._both, key, self._fastest(function))
        return function

    def _fastest(self, function: Any) -> Any:
        """A traced function, or the same as direct calls of its few operations."""
        line = None if self._xla else straight_line(function, self._place)
        if line is None:
            return function
        line.graph = function.graph  # type: ignore[attr-defined]  # keeps compiled operators alive
        return line

    def _check(self, values: Sequence[Any], what: str) -> None:
        check_native(self._name, what, values, tf.Tensor, "a tensor")

    def _check_gradients(self, outputs: Sequence[Any], output_grads: Sequence[Any]) -> None:
        if len(output_grads) != len(outputs):
            raise ShapeError(
                f"{self._name}: got {len(output_grads)} output gradients; allowed: one per output, {len(outputs)}"
            )
        for number, (value, gradient) in enumerate(zip(outputs, output_grads, strict=True)):
            if not value.dtype.is_floating:
                continue
            if gradient is None:
                raise ShapeError(f"{self._name}: output gradient {number} is None; allowed: a tensor like the output")
            if gradient.dtype != value.dtype or not gradient.shape.is_compatible_with(value.shape):
                raise ShapeError(
                    f"{self._name}: output gradient {number}: got {gradient.dtype.name}{gradient.shape}, expected "
                    f"{value.dtype.name}{value.shape}"
                )

    def _traced(self, body: Callable[..., Any], values: Sequence[Any]) -> Any:
        def placed_body(*tensors: Any) -> Any:
            with tf.device(self._place):
                return body(*tensors)

        function = tf.function(
            placed_body,
            input_signature=[tf.TensorSpec(value.shape, value.dtype) for value in values],
            autograph=False,
            jit_compile=True if self._xla else None,
        )
        try:
            return function.get_concrete_function()
        except Deep5Error:
            raise
        except Exception as error:  # the operator's code may raise anything
            raise OperatorError(f"{self._name} failed on tensorflow: {type(error).__name__}: {cause(error)}") from error

    def _build(self, values: Sequence[Any]) -> None:
        """Let a Keras layer create its weights, which it cannot do during tracing."""
        if isinstance(self.operator, NativeOperator) and not getattr(self.operator.function, "built", True):
            try:
                with tf.device(self._place):
                    self.operator.forward(*values)
            except Exception as error:  # same as above
                raise OperatorError(f"{self._name} failed on tensorflow: {type(error).__name__}: {error}") from error

    def _called(self, function: Any, tensors: Sequence[Any]) -> Any:
        try:
            return function(*tensors)
        except TypeError:
            self._check(tensors, "input")
            raise
        except tf.errors.OpError as error:
            if (said := failure(error)) is not None:
                raise said from error
            if "GPU" in self._place and not self._xla and (lacking := without_kernel(function.graph)):
                raise Unsupported(
                    f"tensorflow has no kernel for {self._place} of {', '.join(lacking)}; remedy: device='cpu'"
                ) from error
            raise OperatorError(f"{self._name} failed on tensorflow: {cause(error)}") from error
