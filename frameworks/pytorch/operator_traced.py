"""C++ operators while torch traces: `torch.ops.deep5.operator`, one for all of them.

In a graph an operator is a number, and the shapes and element types of its outputs are arguments: a graph that torch
caches in memory or on disk is valid for every operator that matches it, and the number selects the one to run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from deep5.core.errors import OperatorError
from deep5.frameworks.pytorch.operator_pass import PASSES, Compiled, Pass
from deep5.frameworks.pytorch.operator_python import described, tensor_spec
from deep5.operators.contract import name_of
from deep5.operators.plan import CODES, NAMES

__all__ = ["call", "traced"]

Outputs = tuple[Any, ...]

_LIBRARY = torch.library.Library("deep5", "FRAGMENT")
_LIBRARY.define(
    "operator(Tensor[] inputs, Tensor? token, int number, SymInt[] sizes, int[] ranks, int[] dtypes, bool keep) "
    "-> Tensor[]"
)


def traced(own: Compiled, inputs: Sequence[Any]) -> Outputs:
    """The outputs while torch traces, differentiable if gradients are requested."""
    described(own.operator, inputs)
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        outputs: Outputs = _Traced.apply(own, *inputs)
        return outputs
    return call(own.forward, inputs)


def call(run: Pass, inputs: Sequence[Any], token: Any = None, *, keep: bool = False) -> Outputs:
    """Call the operator through torch's dispatcher.

    Args:
        run: The pass.
        inputs: Any tensors for torch's tracing; dimensions may be symbolic.
        token: Keeps the pass alive until it has run; see `keep`.
        keep: Whether to append a token that keeps the pass alive to the outputs.

    It raises the errors of `Pass`.
    """
    kernel = run.kernel([tensor_spec(value).dtype for value in inputs], run.place(inputs))
    specs = described(run.operator, inputs)
    written = kernel.dtypes[kernel.inputs :]
    if tuple(spec.dtype for spec in specs) != tuple(written):
        raise OperatorError(
            f"{name_of(run.operator)}: its specs says outputs of {', '.join(spec.dtype for spec in specs)}, the C++ "
            f"class writes {', '.join(written)}"
        )
    sizes = [extent for spec in specs for extent in spec.shape]
    ranks, dtypes = [len(spec.shape) for spec in specs], [CODES[spec.dtype] for spec in specs]
    return tuple(torch.ops.deep5.operator.default(list(inputs), token, run.number, sizes, ranks, dtypes, keep))


def _run(
    inputs: list[Any],
    token: Any,
    number: int,
    sizes: Sequence[int],
    ranks: Sequence[int],
    dtypes: Sequence[int],
    keep: bool,
) -> list[Any]:
    run = PASSES.get(number)
    if run is None:
        raise OperatorError(
            "the operator of this graph was freed; remedy: keep the result of framework.operator(…) with the graph"
        )
    outputs = run(inputs)
    return [*outputs, _token(run)] if keep else list(outputs)


def _fake(
    inputs: list[Any],
    token: Any,
    number: int,
    sizes: Sequence[Any],
    ranks: Sequence[int],
    dtypes: Sequence[int],
    keep: bool,
) -> list[Any]:
    left = iter(sizes)
    place = inputs[0].device if inputs else torch.device("cpu")
    outputs = [
        torch.empty([next(left) for _ in range(rank)], dtype=getattr(torch, NAMES[code]), device=place)
        for rank, code in zip(ranks, dtypes, strict=True)
    ]
    return [*outputs, torch.empty(1, dtype=torch.uint8)] if keep else outputs


_LIBRARY.impl("operator", _run, "CompositeExplicitAutograd")
torch.library.register_fake("deep5::operator", _fake, lib=_LIBRARY)


class _Token(ctypes.c_uint8 * 1):  # type: ignore[misc]  # ctypes creates the class
    """Memory of a tensor that keeps an operator alive as long as torch keeps the memory."""

    owner: Any


def _token(run: Pass) -> Any:
    buffer = _Token()
    buffer.owner = run.owner()
    return torch.frombuffer(buffer, dtype=torch.uint8)


class _Traced(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """The traced version of the autograd function; the tensors saved for the backward pass also hold the operator."""

    @staticmethod
    def forward(ctx: Any, own: Compiled, *inputs: Any) -> Outputs:
        *outputs, token = call(own.forward, inputs, keep=True)
        ctx.own = own
        ctx.save_for_backward(token, *inputs, *outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *output_grads: Any) -> Outputs:
        token, *saved = ctx.saved_tensors

        def way(run: Pass, given: Sequence[Any]) -> Outputs:
            return call(run, given, token)

        return None, *ctx.own.differentiate(output_grads, saved, ctx.needs_input_grad[1:], way)
