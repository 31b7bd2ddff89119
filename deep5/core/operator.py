"""`Operator`: one operation, forward and backward, written once for every framework."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from deep5.core.deep500 import PAGE, stated_form
from deep5.core.errors import OperatorError
from deep5.core.tensors import Array, TensorSpec

__all__ = ["Operator"]

# The parameters of `backward` in Deep500, after `self`.
_FORMER = ("grads", "fwd_inputs", "fwd_outputs")


class Operator(ABC):
    """An operation with any number of inputs and outputs, written with the functions of `deep5.array_namespace`.

    >>> class Square(Operator):
    ...     def specs(self, x): return (x,)
    ...     def forward(self, x): return x * x
    ...     def backward(self, output_grads, inputs, outputs, needs): return (2 * inputs[0] * output_grads[0],)
    >>> import numpy as np
    >>> Square().forward(np.array([3.0]))
    array([9.])
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a backward pass in the form of Deep500.

        Raises:
            OperatorError: `backward` takes the parameters of Deep500's method.
        """
        super().__init_subclass__(**options)
        own = vars(cls).get("backward")
        if inspect.isfunction(own) and (got := stated_form(own, _FORMER)) is not None:
            raise OperatorError(
                f"{cls.__qualname__}.backward{got} is Deep500's form; allowed: backward(self, output_grads, inputs, "
                f"outputs, needs), which returns one gradient per input; remedy: {PAGE}, which has an operator in both "
                "forms"
            )

    @abstractmethod
    def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Shapes and dtypes of the outputs, from those of the inputs.

        In a network a dimension may be symbolic; it supports +, -, *, // and %.

        Args:
            inputs: Specifications of the inputs.

        Returns:
            One `TensorSpec` per output.

        Raises:
            ShapeError: The operator does not accept these inputs.
        """

    @abstractmethod
    def forward(self, *inputs: Array) -> Array | tuple[Array, ...]:
        """Compute the outputs.

        Args:
            inputs: Arrays of one library; they must not be changed.

        Returns:
            One array, or a tuple of them.
        """

    @abstractmethod
    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """Gradients with respect to the inputs.

        Args:
            output_grads: The gradient of each output, of the output's shape and dtype; None for outputs that are not
                floating-point.
            inputs: As `forward` got them.
            outputs: As `forward` returned them.
            needs: Which inputs need a gradient.

        Returns:
            One gradient per input, of the input's shape and dtype; None where `needs` is false, as it is for inputs
            that are not floating-point.
        """
