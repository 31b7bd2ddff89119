"""`Omitting`: an operator of which a node leaves optional inputs out, as an operator of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec
from deep5.operators.contract import name_of, specs_of

__all__ = ["Omitting"]


class Omitting(Operator):
    """Another operator with some inputs left out: `specs`, `forward` and `backward` get None in their places.

    Args:
        operator: The other operator.
        omitted: Positions of the inputs that are left out, in ascending order.
    """

    def __init__(self, operator: Operator, omitted: Sequence[int]) -> None:
        self.operator, self.omitted = operator, tuple(map(int, omitted))
        self.title = name_of(operator)

    def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The specifications of the other operator's outputs."""
        return specs_of(self.operator, self._filled(inputs, None))

    def forward(self, *inputs: Array) -> Array | tuple[Array, ...]:
        """The other operator's outputs."""
        return self.operator.forward(*self._filled(inputs, None))

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """The other operator's gradients by the inputs that are there."""
        found = self.operator.backward(output_grads, self._filled(inputs, None), outputs, self._filled(needs, False))
        return [gradient for position, gradient in enumerate(found) if position not in self.omitted]

    def _filled(self, values: Sequence[Any], missing: Any) -> list[Any]:
        """The values in the other operator's positions."""
        full = list(values)
        for position in self.omitted:
            full.insert(position, missing)
        return full
