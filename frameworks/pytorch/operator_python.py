"""Python operators on torch: their array code runs on tensors, their backward is torch's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported, brief
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec, dtype_name
from deep5.frameworks.pytorch.operator_graph import compilable
from deep5.operators.contract import check_gradients, check_outputs, name_of, several, specs_of

__all__ = ["described", "python_operator", "tensor_spec"]

# torch's errors while tracing code that reads the values of a tensor.
_UNTRACEABLE = (
    GuardOnDataDependentSymNode,
    torch._subclasses.fake_tensor.DataDependentOutputException,
    torch._subclasses.fake_tensor.DynamicOutputShapeException,
    torch._subclasses.fake_tensor.UnsupportedFakeTensorException,
)

Outputs = tuple[Any, ...]


def python_operator(operator: Operator) -> Callable[..., Outputs]:
    """An operator whose methods receive tensors.

    Under `torch.compile` the methods run on tensors without values, and the calls in them become part of the graph,
    forward and backward; calls are then checked while torch traces, with symbolic dimensions.

    Args:
        operator: The operator.

    Returns:
        A function of tensors that returns a tuple of tensors, differentiable by torch to any order that the code of
        `backward` allows.
    """
    own = _Own(operator)

    def run(*inputs: Any) -> Outputs:
        try:
            if torch.is_grad_enabled():
                for value in inputs:
                    if value.requires_grad:
                        outputs: Outputs = _Function.apply(own, *inputs)
                        return outputs
        except AttributeError:
            own.refuse(inputs)
            raise
        return own.run(inputs)

    return compilable(run)


def tensor_spec(value: Any) -> TensorSpec:
    """Shape and element type of a tensor; while torch traces, a dimension may be one of torch's symbolic numbers."""
    return TensorSpec(shape=tuple(value.shape), dtype=dtype_name(value.dtype))


def described(operator: Operator, inputs: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """The specs that the operator declares for its outputs, for these inputs.

    Raises:
        ShapeError: An input is not a tensor, or the operator does not accept such inputs.
        OperatorError: `specs` failed, or did not return TensorSpecs.
    """
    for number, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ShapeError(
                f"{name_of(operator)}: got {type(value).__name__} as input {number}; allowed: a torch.Tensor; remedy: "
                "torch.as_tensor(array)"
            )
    return specs_of(operator, [tensor_spec(value) for value in inputs])


class _Own:
    """An operator with a cache of its output specs by input shapes."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._known: dict[Any, list[tuple[tuple[Any, ...], Any]]] = {}

    def run(self, inputs: Sequence[Any]) -> Outputs:
        try:
            expected = self._known[tuple([(value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):  # new, not a tensor, symbolic
            expected = self._expect(inputs)
        versions = [None if value.is_inference() else value._version for value in inputs]
        try:
            outputs = self.operator.forward(*inputs)
        except Exception as error:
            raise self._failed("forward", error) from error
        self._check_kept("forward", inputs, versions)
        if type(outputs) is not tuple:
            outputs = several(outputs)
        if len(outputs) != len(expected):
            self._refuse_outputs(inputs, outputs)
        for value, (shape, dtype) in zip(outputs, expected, strict=True):
            if not isinstance(value, torch.Tensor) or value.shape != shape or value.dtype is not dtype:
                self._refuse_outputs(inputs, outputs)
        return outputs

    def differentiate(
        self, output_grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], needs: Sequence[bool]
    ) -> Outputs:
        given = [
            gradient if value.is_floating_point() or value.is_complex() else None
            for gradient, value in zip(output_grads, outputs, strict=True)
        ]
        kept = (*inputs, *outputs)
        versions = [None if value.is_inference() else value._version for value in kept]
        try:
            gradients = self.operator.backward(given, inputs, outputs, needs)
        except Exception as error:
            raise self._failed("backward", error) from error
        self._check_kept("backward", kept, versions)
        return check_gradients(self.operator, gradients, inputs, needs)

    def _check_kept(self, method: str, values: Sequence[Any], versions: Sequence[int | None]) -> None:
        """Reject a method that modified its arguments; torch counts in-place changes of tensors."""
        for number, (value, before) in enumerate(zip(values, versions, strict=True)):
            if before is not None and value._version != before:
                raise OperatorError(
                    f"{name_of(self.operator)}.{method} changed its argument {number} in place; allowed: unchanged "
                    "arguments; remedy: x = x + 1, and not x += 1"
                )

    def refuse(self, inputs: Sequence[Any]) -> None:
        """Raise an error if an input is not a tensor."""
        described(self.operator, inputs)

    def _expect(self, inputs: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
        found = [(spec.shape, getattr(torch, spec.dtype, spec.dtype)) for spec in described(self.operator, inputs)]
        extents = [extent for value in inputs for extent in value.shape]
        if all(type(extent) is int for extent in extents):
            remember(self._known, tuple([(value.shape, value.dtype) for value in inputs]), found)
        return found

    def _refuse_outputs(self, inputs: Sequence[Any], outputs: Outputs) -> None:
        name, expected = name_of(self.operator), described(self.operator, inputs)
        if len(outputs) != len(expected):
            check_outputs(self.operator, outputs, expected)
        for number, (value, spec) in enumerate(zip(outputs, expected, strict=True)):
            if not isinstance(value, torch.Tensor):
                raise OperatorError(
                    f"{name}.forward returned {brief(value)} as output {number}; allowed: a torch.Tensor, {spec}, as "
                    "its inputs are; remedy: the functions of deep5.array_namespace(…)"
                )
            got = tensor_spec(value)
            if reason := spec.mismatch(got.shape, got.dtype):  # type: ignore[arg-type]  # numbers or symbolic numbers
                raise OperatorError(f"{name}.forward: output {number}: {reason}, as its specs says")
            if got.shape != tuple(spec.shape):
                raise OperatorError(f"{name}.forward: output {number}: got {got}, expected {spec}, as its specs says")

    def _failed(self, method: str, error: Exception) -> Exception:
        name = f"{name_of(self.operator)}.{method}"
        if isinstance(error, Deep5Error):
            return error
        if isinstance(error, _UNTRACEABLE):
            reported = str(error).strip().splitlines() or [""]
            return Unsupported(
                f"{name} cannot be traced by torch ({type(error).__name__}: {reported[0]}): what it computes must not "
                "depend on the values of its inputs; remedy: run it without compilation"
            )
        return OperatorError(f"{name} raised {type(error).__name__}: {error}")


class _Function(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """One autograd function for all operators; the operator is the first argument."""

    @staticmethod
    def forward(ctx: Any, own: _Own, *inputs: Any) -> Outputs:
        outputs = own.run(inputs)
        ctx.own, ctx.count = own, len(inputs)
        ctx.save_for_backward(*inputs, *outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *output_grads: Any) -> Outputs:
        saved, count = ctx.saved_tensors, ctx.count
        return None, *ctx.own.differentiate(output_grads, saved[:count], saved[count:], ctx.needs_input_grad[1:])
