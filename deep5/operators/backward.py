"""`Backward`: an operator's backward pass as an operator, for what has graphs and no automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.errors import Unsupported
from deep5.operators.contract import check_gradients, name_of
from deep5.operators.operator import Operator
from deep5.tensors import Array, TensorSpec

__all__ = ["Backward"]


class Backward(Operator):
    """The gradients of another operator.

    Its inputs are the gradients by the floating-point outputs, then the inputs, then the outputs of the other; its
    outputs the gradients by those inputs that are needed.

    Args:
        operator: The other.
        needs: Which of its inputs want a gradient.
        floating: Which of its outputs are floating-point numbers.
    """

    def __init__(self, operator: Operator, needs: Sequence[bool], floating: Sequence[bool]) -> None:
        self.operator = operator
        self.needs, self.floating = tuple(map(bool, needs)), tuple(map(bool, floating))
        self.title = f"{name_of(operator)}.backward"

    def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The inputs of the other that want a gradient, as they are."""
        _, given, _ = self.split(inputs)
        return tuple(spec for spec, needed in zip(given, self.needs, strict=True) if needed)

    def forward(self, *inputs: Array) -> tuple[Array, ...]:
        """The other's `backward`."""
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
        """There is no second derivative."""
        raise Unsupported(f"{self.title} has no gradient of its own")

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Gradients by the outputs, inputs and outputs of the other."""
        lead, count = sum(self.floating), len(self.needs)
        return inputs[:lead], inputs[lead : lead + count], inputs[lead + count :]
