"""`Pass`: a C++ operator on the tensors' memory, in one direction; `Compiled`: with its backward passes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from deep5.core.errors import ShapeError, Unsupported
from deep5.core.memo import remember
from deep5.frameworks.pytorch.operator_python import described, tensor_spec
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.kernel import Kernel
from deep5.operators.plan import Plan

__all__ = ["PASSES", "Compiled", "Pass"]


Outputs = tuple[Any, ...]


class _Made(NamedTuple):
    """The program of an operator for inputs of known shapes."""

    plan: Plan
    outputs: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    place: torch.device
    on_host: bool


class Pass:
    """A compiled operator in one direction.

    Args:
        operator: A `CppOperator`, or the `Backward` of one.
        owner: The object that must be alive for its backward pass to run.
        dispatched: Runs it on tensors without memory, including those of torch's tracing.

    Attributes:
        number: Its number in the graphs that torch traces.
        owner: A weak reference.
    """

    def __init__(self, operator: CppOperator | Backward, owner: Compiled, dispatched: Way) -> None:
        self.operator, self.owner, self.number = operator, weakref.ref(owner), next(_NUMBERS)
        self._dispatched = dispatched
        self._made: dict[Any, _Made] = {}
        PASSES[self.number] = self

    def __call__(self, inputs: Sequence[Any]) -> Outputs:
        """The outputs, for tensors whose gradients are not requested.

        Raises:
            ShapeError: The operator does not accept such inputs.
            OperatorError: It does not compile, or failed.
            Unsupported: There is no source for the device.
        """
        try:
            plan, wanted, place, on_host = self._made[
                tuple([(value.__class__, value.shape, value.dtype, value.device) for value in inputs])
            ]
        except (KeyError, AttributeError, TypeError):  # new, not a tensor, symbolic
            if any(isinstance(value, torch.Tensor) and _dispatches(type(value)) for value in inputs):
                return self._dispatched(self, inputs)
            plan, wanted, place, on_host = self._make(inputs)
        given, laid = inputs, plan
        try:
            for value in inputs:
                if not value.is_contiguous() or value.is_neg():
                    given, laid = _as_they_lie(plan, inputs)
                    break
            addresses = [value.data_ptr() for value in given]
        except RuntimeError as error:
            raise ShapeError(
                f"{name_of(self.operator)}: an input has no storage ({error}); allowed: dense tensors"
            ) from error
        if on_host:
            outputs = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in wanted]
        else:
            outputs = [
                torch.empty_strided(shape, strides, dtype=dtype, device=place) for shape, strides, dtype in wanted
            ]
        addresses += [value.data_ptr() for value in outputs]
        if on_host:
            try:
                laid.on_addresses(tuple(addresses))
            except ShapeError:  # memory without the alignment of its element type; nothing has run
                given = [value.clone(memory_format=torch.contiguous_format) for value in given]
                plan.on_addresses(tuple([value.data_ptr() for value in (*given, *outputs)]))
        else:
            with torch.cuda.device(place):
                laid.on_addresses(tuple(addresses), torch.cuda.current_stream().cuda_stream)
        return tuple(outputs)

    def kernel(self, dtypes: Sequence[str], place: torch.device) -> Kernel:
        """The kernel for inputs of these element types; it also raises the errors of `CppOperator.kernel`.

        Raises:
            Unsupported: There is no `backward`, or the device is another one.
        """
        if place.type not in ("cpu", "cuda"):
            raise Unsupported(
                f"{name_of(self.operator)}: got tensors on {place.type}; allowed: cpu, and cuda for operators with a "
                "CUDA source"
            )
        if isinstance(self.operator, CppOperator):
            return self.operator.kernel(dtypes, device=place.type)
        of: Any = self.operator.operator
        if not of.differentiable:
            raise Unsupported(
                f"{name_of(of)} has no backward in C++, so nothing can be trained through it; remedy: write one, or "
                "request no gradient with respect to its inputs"
            )
        kernel: Kernel = of.kernel(self.operator.split(dtypes)[1], needs=self.operator.needs, device=place.type)
        return kernel

    def place(self, inputs: Sequence[Any]) -> torch.device:
        """The device of the inputs.

        Raises:
            ShapeError: The inputs are on several devices.
        """
        places = {value.device for value in inputs}
        if len(places) > 1:
            raise ShapeError(
                f"{name_of(self.operator)}: got inputs on {', '.join(sorted(map(str, places)))}; allowed: one device"
            )
        return next(iter(places), torch.device("cpu"))

    def _make(self, inputs: Sequence[Any]) -> _Made:
        described(self.operator, inputs)  # rejects arguments that are not tensors, or a wrong number of them
        place = self.place(inputs)
        specs = [tensor_spec(value) for value in inputs]
        plan = self.kernel([spec.dtype for spec in specs], place).plan(specs)
        outputs = []
        for spec in plan.outputs:
            shape = tuple(map(int, spec.shape))
            # With strides given, torch.empty_strided parses fewer arguments than torch.empty, which saves half a
            # microsecond per output.
            strides = torch.empty(shape, device="meta").stride()
            outputs.append((shape, strides, getattr(torch, spec.dtype)))
        key = tuple([(value.__class__, value.shape, value.dtype, value.device) for value in inputs])
        return remember(self._made, key, _Made(plan, outputs, place, place.type == "cpu"))


class Compiled:
    """A compiled operator with its backward passes.

    Args:
        operator: A `CppOperator`, or the `Backward` of one, which has no backward pass.
        dispatched: As for `Pass`.

    Attributes:
        operator: As given.
        forward: The forward pass.
    """

    def __init__(self, operator: CppOperator | Backward, dispatched: Way) -> None:
        self.operator, self.forward, self._dispatched = operator, Pass(operator, self, dispatched), dispatched
        self._backward: dict[Any, Pass] = {}

    def differentiate(
        self, output_grads: Sequence[Any], saved: Sequence[Any], needs: tuple[bool, ...], way: Way
    ) -> Outputs:
        """The gradients with respect to the inputs.

        Args:
            output_grads: The gradients of all outputs.
            saved: The inputs, then the outputs.
            needs: Which inputs need a gradient.
            way: Runs the backward pass.
        """
        floating = tuple([value.is_floating_point() for value in saved[len(needs) :]])
        grads = [gradient for gradient, real in zip(output_grads, floating, strict=True) if real]
        given = (*grads, *saved)
        run = self.backward(needs, floating)
        if torch.is_grad_enabled():  # the caller may differentiate the gradients
            with torch.no_grad():
                made = way(run, given)
            made = _Once.apply(name_of(self.operator), made, *given)
        else:
            made = way(run, given)
        found = iter(made)
        return tuple([next(found) if needed else None for needed in needs])

    def backward(self, needs: tuple[bool, ...], floating: tuple[bool, ...]) -> Pass:
        """The backward pass.

        Args:
            needs: Which inputs need a gradient.
            floating: Which outputs are floating-point.

        Raises:
            Unsupported: The operator is itself a backward pass.
        """
        found = self._backward.get((needs, floating))
        if found is None:
            if isinstance(self.operator, Backward):
                raise Unsupported(f"{name_of(self.operator)} has no second derivative; allowed: a first derivative")
            found = self._backward[needs, floating] = Pass(
                Backward(self.operator, needs, floating), self, self._dispatched
            )
        return found


Way = Callable[[Pass, Sequence[Any]], Outputs]


class _Once(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """Passes gradients through and rejects differentiating them with respect to the tensors they were computed from."""

    @staticmethod
    def forward(ctx: Any, name: str, gradients: Outputs, *given: Any) -> Outputs:
        ctx.name = name
        return gradients

    @staticmethod
    def backward(ctx: Any, *output_grads: Any) -> Outputs:
        raise Unsupported(
            f"{ctx.name} in C++ has no second derivative; remedy: an operator in Python, which may have one"
        )


def _as_they_lie(plan: Plan, inputs: Sequence[Any]) -> tuple[list[Any], Plan]:
    """The inputs, copied only if the kernel does not accept strided ones, and the plan for their strides."""
    # torch's lazy negation is part of the value but not yet in memory.
    given = [
        value.resolve_neg() if strided else value.resolve_neg().contiguous()
        for value, strided in zip(inputs, plan.kernel.strided, strict=True)
    ]
    strides = tuple([None if value.is_contiguous() else value.stride() for value in given])
    return given, plan.of_strides(strides) if any(strides) else plan


def _dispatches(kind: type) -> bool:
    """Whether tensors of this class have no memory, such as those of torch's tracing."""
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


_NUMBERS = itertools.count()
PASSES: weakref.WeakValueDictionary[int, Pass] = weakref.WeakValueDictionary()
"""The passes by their numbers in graphs; keeps nothing alive."""
