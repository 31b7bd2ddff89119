"""C++ operators on JAX: kernels that XLA calls on its own memory, with the operator's own backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from deep5.core.errors import Unsupported
from deep5.frameworks.jax.failures import named_failures
from deep5.frameworks.jax.ffi import call_kernel
from deep5.frameworks.jax.operator_python import differentiable
from deep5.operators.backward import Backward
from deep5.operators.contract import check_inputs, is_floating, name_of, spec_of
from deep5.operators.cpp import CppOperator

__all__ = ["cpp_operator"]

Outputs = tuple[Any, ...]


def cpp_operator(operator: CppOperator | Backward) -> Callable[..., Outputs]:
    """A compiled operator, or its backward pass, on JAX arrays.

    It is compiled once for each combination of shapes, and checks its inputs then; every later call goes from XLA
    directly to the kernel.

    Args:
        operator: A `CppOperator`, or its `Backward`.

    Returns:
        A function of arrays that returns a tuple of arrays, differentiable once, in reverse mode.
    """

    def forward(inputs: Sequence[Any]) -> Outputs:
        return _call(operator, inputs)

    def backward(
        output_grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], needs: Sequence[bool]
    ) -> Outputs:
        if isinstance(operator, Backward):
            raise Unsupported(f"{name_of(operator)} has no second derivative; allowed: a first derivative")
        if not operator.differentiable:
            raise Unsupported(
                f"{name_of(operator)} has no backward in C++, so nothing can be trained through it; remedy: write one, "
                "or request no gradient with respect to its inputs"
            )
        floating = [is_floating(value.dtype.name) for value in outputs]
        given = [gradient for gradient in output_grads if gradient is not None]
        # Calls `cpp_operator`, whose gradient rule rejects a second derivative with the reason.
        run = cpp_operator(Backward(operator, needs, floating))
        found = iter(run(*given, *inputs, *outputs))
        return tuple(next(found) if needed else None for needed in needs)

    run = jax.jit(differentiable(forward, backward), inline=True)

    def custom(*inputs: Any) -> Outputs:
        with named_failures():
            outputs: Outputs = run(*inputs)
        return outputs

    return custom


def _call(operator: CppOperator | Backward, inputs: Sequence[Any]) -> Outputs:
    check_inputs(operator, len(inputs))
    specs = [spec_of(value) for value in inputs]
    dtypes = [spec.dtype for spec in specs]
    if isinstance(operator, CppOperator):
        kernel = operator.kernel(dtypes)
    else:
        own: Any = operator.operator
        kernel = own.kernel(operator.split(dtypes)[1], needs=operator.needs)
    return call_kernel(kernel, inputs, kernel.plan(specs).outputs)
