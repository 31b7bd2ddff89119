"""A deep5 operator as a function of tensors that torch can differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deep5.errors import ShapeError
from deep5.operators.operator import Operator

__all__ = ["native_operator"]


def native_operator(operator: Operator) -> Callable[..., Any]:
    """Wrap an operator as a `torch.autograd.Function`.

    Args:
        operator: Its methods get torch tensors.

    Returns:
        A function of tensors; gives what `operator.forward` gives.
    """

    class Function(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs = operator.forward(*inputs)
            ctx.single = not isinstance(outputs, tuple)
            ctx.save_for_backward(*inputs, *((outputs,) if ctx.single else outputs))
            ctx.inputs = len(inputs)
            return outputs

        @staticmethod
        def backward(ctx: Any, *output_grads: Any) -> Any:
            saved = ctx.saved_tensors
            inputs, outputs = saved[: ctx.inputs], saved[ctx.inputs :]
            grads = tuple(operator.backward(output_grads, inputs, outputs, ctx.needs_input_grad))
            if len(grads) != len(inputs):
                raise ShapeError(
                    f"{type(operator).__name__}.backward returned {len(grads)} gradients; "
                    f"allowed: one an input, {len(inputs)}"
                )
            return grads

    apply: Callable[..., Any] = Function.apply
    return apply
