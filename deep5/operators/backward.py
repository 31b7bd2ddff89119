"""`Backward`: an operator's backward pass as an operator, for graph engines without automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.core.errors import ShapeError, Unsupported
from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec
from deep5.operators.contract import check_gradients, known, name_of, specs_of

__all__ = ["Backward"]


class Backward(Operator):
    """The gradients of another operator.

    Its inputs are the gradients of the floating-point outputs, then the inputs, then the outputs of the other operator;
    its outputs are the needed gradients of the inputs.

    Args:
        operator: The other operator.
        needs: Which of its inputs need a gradient.
        floating: Which of its outputs are floating-point.
    """

    def __init__(self, operator: Operator, needs: Sequence[bool], floating: Sequence[bool]) -> None:
        self.operator = operator
        self.needs, self.floating = tuple(map(bool, needs)), tuple(map(bool, floating))
        self.title = f"{name_of(operator)}.backward"

    def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The specifications of the other operator's inputs that need a gradient.

        Raises:
            ShapeError: The number of inputs is wrong, an output does not match these inputs, a gradient does not match
                its output, or no gradient is needed.
        """
        count = sum(self.floating) + len(self.needs) + len(self.floating)
        if len(inputs) != count:
            raise ShapeError(
                f"{self.title}: got {len(inputs)} inputs; allowed: {count}, the gradients by the floating-point "
                "outputs, then the inputs, then the outputs"
            )
        if not any(self.needs):
            raise ShapeError(f"{self.title}: no input needs a gradient; allowed: at least one")
        grads, given, outputs = self.split(inputs)
        # A compiled backward relies on these shapes. Symbolic ones are checked when the network runs.
        if all(map(known, inputs)):
            made = [spec for spec, floating in zip(outputs, self.floating, strict=True) if floating]
            self._same("the gradient by floating-point output", grads, made)
            self._same("output", outputs, specs_of(self.operator, given)[: len(outputs)])
        return tuple(spec for spec, needed in zip(given, self.needs, strict=True) if needed)

    def forward(self, *inputs: Array) -> tuple[Array, ...]:
        """The other operator's `backward`."""
        grads, given, outputs = self.split(inputs)
        left = iter(grads)
        by_output = tuple(next(left) if floating else None for floating in self.floating)
        gradients = self.operator.backward(by_output, given, outputs, self.needs)
        found = check_gradients(self.operator, gradients, given, self.needs)
        return tuple(gradient for gradient in found if gradient is not None)

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """Raise an error: there is no second derivative."""
        raise Unsupported(f"{self.title} has no second derivative")

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Output gradients, inputs and outputs of the other operator."""
        lead, count = sum(self.floating), len(self.needs)
        return inputs[:lead], inputs[lead : lead + count], inputs[lead + count :]

    def _same(self, what: str, got: Sequence[TensorSpec], expected: Sequence[TensorSpec]) -> None:
        for number, (spec, wanted) in enumerate(zip(got, expected, strict=True)):
            if str(spec) != str(wanted):
                raise ShapeError(f"{self.title}: {what} {number}: got {spec}, expected {wanted}")
