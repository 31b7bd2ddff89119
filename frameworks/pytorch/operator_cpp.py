"""C++ operators on torch: kernels on the tensors' memory, with the operator's own backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from deep5.core.errors import Unsupported
from deep5.frameworks.pytorch.operator_graph import compilable
from deep5.frameworks.pytorch.operator_pass import Compiled, Pass
from deep5.frameworks.pytorch.operator_traced import call, traced
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator

__all__ = ["cpp_operator"]


Outputs = tuple[Any, ...]


def cpp_operator(operator: CppOperator | Backward) -> Callable[..., Outputs]:
    """A compiled operator, or its backward pass, on tensors.

    C-contiguous memory is used in place, and so is any input that the operator takes as `deep5::Strided`; other inputs
    are copied. Under `torch.compile`, and for any other tracing by torch, it is one torch operator; see
    `operator_traced`.

    Args:
        operator: A `CppOperator`, or the `Backward` of one.

    Returns:
        A function of tensors that returns a tuple of tensors, differentiable once.
    """
    own = Compiled(operator, call)
    forward, recording = own.forward, torch.is_grad_enabled
    modes, transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active

    def run(*inputs: Any) -> Outputs:
        if modes():
            return traced(own, inputs)
        if transforms():
            raise Unsupported(
                f"{name_of(operator)} in C++ does not run inside the transformations of torch.func; remedy: "
                "torch.autograd"
            )
        if recording():
            for value in inputs:
                # The pass rejects arguments that are not tensors.
                if getattr(value, "requires_grad", False):
                    outputs: Outputs = _apply(own, *inputs)
                    return outputs
        return forward(inputs)

    return compilable(run)


class _Function(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """One autograd function for all operators; the operator is the first argument."""

    @staticmethod
    def forward(ctx: Any, own: Compiled, *inputs: Any) -> Outputs:
        outputs = own.forward(inputs)
        ctx.own = own
        ctx.save_for_backward(*inputs, *outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *output_grads: Any) -> Outputs:
        return None, *ctx.own.differentiate(output_grads, ctx.saved_tensors, ctx.needs_input_grad[1:], _directly)


def _directly(run: Pass, given: Sequence[Any]) -> Outputs:
    return run(given)


# Function.apply looks for torch.func transformations first, which takes 1 us; a pass rejects their tensors anyway.
_apply = super(torch.autograd.Function, _Function).apply
