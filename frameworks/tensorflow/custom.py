"""A deep5 operator as a function of tensors that TensorFlow can differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from deep5.errors import ShapeError
from deep5.operators.operator import Operator

__all__ = ["native_operator"]


def native_operator(operator: Operator) -> Callable[..., Any]:
    """Wrap an operator as a function with a gradient of its own.

    Args:
        operator: Its methods get tensors; every floating-point input counts as one that needs a gradient, because
            TensorFlow does not say which are wanted.

    Returns:
        A function of tensors, for eager calls and for `tf.function`; gives what `operator.forward` gives.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
    def call(*inputs: Any) -> Any:
        outputs = operator.forward(*inputs)
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        needs = tuple(value.dtype.is_floating for value in inputs)

        def gradient(*output_grads: Any) -> Any:
            grads = tuple(operator.backward(output_grads, inputs, several, needs))
            if len(grads) != len(inputs):
                raise ShapeError(
                    f"{type(operator).__name__}.backward returned {len(grads)} gradients; "
                    f"allowed: one an input, {len(inputs)}"
                )
            return grads

        return outputs, gradient

    return lambda *inputs: call(*(tf.convert_to_tensor(value) for value in inputs))
