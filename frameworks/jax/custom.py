"""A deep5 operator as a function of arrays that JAX can differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deep5.errors import ShapeError
from deep5.operators.operator import Operator

__all__ = ["native_operator"]


def native_operator(operator: Operator) -> Callable[..., Any]:
    """Wrap an operator as a function with a gradient of its own (`jax.custom_vjp`).

    Args:
        operator: Its methods get JAX arrays, which may be traced.

    Returns:
        A function of arrays; gives what `operator.forward` gives. Every floating-point input wants a gradient.
    """

    @jax.custom_vjp  # type: ignore[untyped-decorator]  # jax is not type-checked
    def apply(*inputs: Any) -> Any:
        return operator.forward(*inputs)

    def forward(*inputs: Any) -> tuple[Any, Any]:
        outputs = operator.forward(*inputs)
        return outputs, (inputs, outputs)

    def backward(kept: Any, output_grads: Any) -> tuple[Any, ...]:
        inputs, outputs = kept
        single = not isinstance(outputs, tuple)
        needs = tuple(jnp.issubdtype(value.dtype, jnp.inexact) for value in inputs)
        grads = tuple(
            operator.backward(
                (output_grads,) if single else output_grads, inputs, (outputs,) if single else outputs, needs
            )
        )
        if len(grads) != len(inputs):
            raise ShapeError(
                f"{type(operator).__name__}.backward returned {len(grads)} gradients; "
                f"allowed: one an input, {len(inputs)}"
            )
        return grads

    apply.defvjp(forward, backward)
    call: Callable[..., Any] = apply
    return call
