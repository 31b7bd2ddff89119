"""Operators of every kind as functions of tensors that TensorFlow can differentiate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported
from deep5.core.framework import Framework
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec
from deep5.frameworks.tensorflow.array import TensorFlowArray, as_tensors
from deep5.frameworks.tensorflow.array_namespace import ARRAYS, as_arrays
from deep5.frameworks.tensorflow.compiled import Compiled, CompiledBackward, failure
from deep5.frameworks.tensorflow.contract import (
    Expected,
    checked_gradients,
    checked_outputs,
    described,
    tensors,
)
from deep5.frameworks.tensorflow.emit import compile_forward
from deep5.frameworks.tensorflow.operator_check import refusal
from deep5.networks.onnx_operator import ONNXOperator
from deep5.networks.run_modes import Forms
from deep5.operators.backward import Backward
from deep5.operators.contract import is_floating, name_of, several
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator

__all__ = ["Route", "native_operator", "route"]

Outputs = tuple[Any, ...]


class Route(Protocol):
    """An operator on tensors."""

    def __call__(self, *inputs: Any) -> Outputs:
        """The outputs, which TensorFlow can differentiate."""
        ...

    def forward(self, *inputs: Any) -> Outputs:
        """The outputs, for callers that do not differentiate them."""
        ...

    def with_gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any], needs: Sequence[bool]) -> Any:
        """The outputs, and one gradient per input, None where none is needed."""
        ...


def native_operator(operator: Operator, framework: Framework) -> Callable[..., Any]:
    """An operator as a function of tensors, for eager calls, `tf.function` and, in Python, XLA.

    Args:
        operator: An operator of any kind. Methods of a Python operator receive `TensorFlowArray`s, arrays of the
            standard; every floating-point input counts as needing a gradient, because TensorFlow does not report which
            are needed.
        framework: The back-end, whose mode determines whether XLA compiles the calling function.

    Returns:
        A function of tensors, or of values that TensorFlow converts to tensors; returns one tensor, or a tuple of
        several.

    Raises:
        Unsupported: TensorFlow cannot run it; the message gives the reason.
    """
    run = route(operator, framework)

    def call(*inputs: Any) -> Any:
        try:
            outputs = run(*tensors(operator, inputs))
        except Deep5Error as error:
            error.ag_pass_through = True  # type: ignore[attr-defined]  # AutoGraph would change its class
            raise
        except tf.errors.OpError as error:
            if (said := failure(error)) is not None:
                raise said from error
            raise
        return outputs[0] if len(outputs) == 1 else outputs

    # The operator must behave the same whether or not AutoGraph rewrote its caller.
    made: Callable[..., Any] = tf.autograph.experimental.do_not_convert(call)
    return made


def route(operator: Operator, framework: Framework, *, device: str = "/CPU:0") -> Route:
    """How TensorFlow runs an operator.

    Args:
        operator: An operator of any kind.
        framework: The back-end, whose mode determines whether XLA compiles the calling function.
        device: The device to run on, as TensorFlow names it.

    Raises:
        Unsupported: TensorFlow cannot run it; the message gives the reason.
    """
    if reason := refusal(operator, xla=framework.mode == "xla", on_host="GPU" not in device):
        raise Unsupported(reason)
    if isinstance(operator, CppOperator):
        return _Own(operator, Compiled(operator))
    if isinstance(operator, NativeOperator):
        return _Taped(_Function(operator))
    if isinstance(operator, ONNXOperator):
        run, forward = (_Standard(operator, framework, device=device, gradients=each) for each in (True, False))
        return _Taped(run, forward)
    if isinstance(operator, Backward):
        return _Taped(_backward(operator))
    return _Own(operator, _InPython(operator))


class _Own:
    """An operator with its own backward pass, which receives the actual needs."""

    def __init__(self, operator: Operator, run: _InPython | Compiled) -> None:
        self._operator, self._run = operator, run

    def __call__(self, *inputs: Any) -> Outputs:
        return self._run(*inputs)

    def forward(self, *inputs: Any) -> Outputs:
        return self._run.forward(*inputs)

    def with_gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any], needs: Sequence[bool]) -> Any:
        outputs = self._run.forward(*inputs)
        given = [
            gradient if is_floating(value.dtype.name) else None
            for gradient, value in zip(output_grads, outputs, strict=True)
        ]
        return outputs, self._run.backward(given, inputs, outputs, needs)


class _InPython:
    """A Python operator, whose methods receive arrays of the standard instead of tensors."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self._expected = operator, Expected(operator)

        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
        def differentiable(*inputs: Any) -> Any:
            outputs = self.forward(*inputs)
            needs = tuple(value.dtype.is_floating for value in inputs)

            def gradient(*output_grads: Any) -> Any:
                given = [
                    None
                    if not value.dtype.is_floating
                    else tf.zeros_like(value)
                    if gradient is None
                    else tf.convert_to_tensor(gradient)
                    for gradient, value in zip(output_grads, outputs, strict=True)
                ]
                try:
                    return self.backward(given, inputs, outputs, needs)
                except Deep5Error as error:
                    error.ag_pass_through = True  # type: ignore[attr-defined]  # as above
                    raise

            return outputs, gradient

        self._differentiable = differentiable

    def __call__(self, *inputs: Any) -> Outputs:
        if tf.executing_eagerly() and not could_possibly_record():
            return self.forward(*inputs)
        return tuple(self._differentiable(*inputs))

    def forward(self, *inputs: Any) -> Outputs:
        expected = self._expected(inputs)
        with _named(f"{name_of(self._operator)}.forward"):
            made = self._operator.forward(*(TensorFlowArray(value, ARRAYS) for value in inputs))
        return checked_outputs(self._operator, as_tensors(made), expected)

    def backward(
        self, output_grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        if not any(needs):
            return (None,) * len(inputs)
        grads, given, made = (tuple(map(as_arrays, values)) for values in (output_grads, inputs, outputs))
        with _named(f"{name_of(self._operator)}.backward"):
            gradients = self._operator.backward(grads, given, made, needs)
        return checked_gradients(self._operator, as_tensors(gradients), inputs, needs)


@contextmanager
def _named(method: str) -> Iterator[None]:
    """Add to an `Unsupported` error which method raised it."""
    try:
        yield
    except Unsupported as error:
        raise Unsupported(f"{method}: {error}") from error


class _Taped:
    """A function that TensorFlow differentiates automatically."""

    def __init__(self, run: Callable[..., Outputs], forward: Callable[..., Outputs] | None = None) -> None:
        self._run, self._forward = run, forward or run

    def __call__(self, *inputs: Any) -> Outputs:
        return self._run(*inputs)

    def forward(self, *inputs: Any) -> Outputs:
        return self._forward(*inputs)

    def with_gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any], needs: Sequence[bool]) -> Any:
        wanted = [value for value, needed in zip(inputs, needs, strict=True) if needed]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            outputs = self._run(*inputs)
        pairs = [
            (value, gradient)
            for value, gradient in zip(outputs, output_grads, strict=True)
            if value.dtype.is_floating and gradient is not None
        ]
        try:
            found = tape.gradient(
                [value for value, _ in pairs],
                wanted,
                output_gradients=[gradient for _, gradient in pairs],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        except LookupError as error:
            raise Unsupported(f"tensorflow has no gradient for this operator: {error}") from error
        # The gradient of a gather is a list of rows (IndexedSlices).
        left = iter([tf.convert_to_tensor(gradient) for gradient in found])
        return outputs, tuple(next(left) if needed else None for needed in needs)


class _Function:
    """A TensorFlow function or a Keras layer."""

    def __init__(self, operator: NativeOperator) -> None:
        self._operator = operator
        self._expected = Expected(operator) if operator.says_specs else None

    def __call__(self, *inputs: Any) -> Outputs:
        expected = None if self._expected is None else self._expected(inputs)
        made = several(self._operator.forward(*inputs))
        for number, value in enumerate(made):
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                raise OperatorError(
                    f"{name_of(self._operator)} returned {type(value).__name__} as output {number}; allowed: tensors"
                )
        return checked_outputs(self._operator, tuple(map(tf.convert_to_tensor, made)), expected)


class _Standard:
    """An ONNX operator, as a network of one node."""

    def __init__(self, operator: ONNXOperator, framework: Framework, *, device: str, gradients: bool) -> None:
        self._operator, self._framework, self._device, self._gradients = operator, framework, device, gradients
        self._programs: dict[tuple[str, ...], Callable[..., Outputs]] = {}

    def __call__(self, *inputs: Any) -> Outputs:
        specs = []
        for number, value in enumerate(inputs):
            spec = described(value)
            if spec is None:
                raise ShapeError(f"{name_of(self._operator)}: the rank of input {number} is not known; remedy: set it")
            # Two unknown dimensions need not be equal.
            shape = [each if isinstance(each, int) else f"D{number}_{axis}" for axis, each in enumerate(spec.shape)]
            specs.append(TensorSpec(shape=tuple(shape), dtype=spec.dtype))
        key = tuple(map(str, specs))
        if key not in self._programs:
            self._programs[key] = self._program(specs)
        return tuple(self._programs[key](*inputs))

    def _program(self, specs: Sequence[TensorSpec]) -> Callable[..., Outputs]:
        framework, device = self._framework, self._device
        return compile_forward(
            Forms(self._operator.network(specs), framework).evaluation,
            {},
            device=device,
            xla=framework.mode == "xla",
            gradients=self._gradients,
            route=lambda operator: route(operator, framework, device=device),
        ).call


def _backward(operator: Backward) -> Callable[..., Outputs]:
    """An operator's backward pass, which a network contains as a node."""
    if isinstance(operator.operator, CppOperator):
        return CompiledBackward(operator.operator, operator.needs, operator.floating)
    own = _InPython(operator.operator)

    def call(*inputs: Any) -> Outputs:
        grads, given, outputs = operator.split(inputs)
        left = iter(grads)
        by_output = [next(left) if floating else None for floating in operator.floating]
        found = own.backward(by_output, given, outputs, operator.needs)
        return tuple(gradient for gradient in found if gradient is not None)

    return call
