"""deep5's operators as functions of arrays that JAX can trace and differentiate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax

from deep5.core.errors import Unsupported
from deep5.core.framework import Framework
from deep5.core.operator import Operator
from deep5.frameworks.jax.operator_check import check_operator
from deep5.frameworks.jax.operator_cpp import cpp_operator
from deep5.frameworks.jax.operator_onnx import onnx_operator
from deep5.frameworks.jax.operator_python import native_arrays, python_operator
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.contract import Expectations, check_outputs, name_of, several
from deep5.operators.kinds import is_compiled
from deep5.operators.native import NativeOperator

__all__ = ["native_operator", "on_arrays", "types"]

Outputs = tuple[Any, ...]
_WIDE = ("float64", "int64", "uint64", "complex128")
# Occurs in JAX's error when `jax.jvp`, or a function built on it, meets a reverse-mode gradient.
_FORWARD_MODE = "forward-mode"


def native_operator(operator: Operator, framework: Framework) -> Callable[..., Any]:
    """An operator as a function of arrays.

    Args:
        operator: An operator of any kind.
        framework: The back-end, which determines which operators can run.

    Returns:
        A function that returns one array, or a tuple of several. It also takes NumPy arrays, which it copies.

    Raises:
        Unsupported: The operator belongs to another framework.
    """
    outputs_of = on_arrays(operator, framework)

    def custom(*inputs: Any) -> Any:
        outputs = outputs_of(*inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    return custom


def on_arrays(operator: Operator, framework: Framework) -> Callable[..., Outputs]:
    """Same as `native_operator`, but always returns a tuple."""
    check_operator(operator)
    run = _route(operator, framework)

    def outputs_of(*inputs: Any) -> Outputs:
        try:
            return run(*native_arrays(operator, inputs))
        except TypeError as error:
            if _FORWARD_MODE not in str(error):
                raise
            raise Unsupported(
                f"{name_of(operator)} has its own backward, so JAX differentiates it only in reverse mode; allowed: "
                "jax.grad, jax.vjp, jax.jacrev; remedy: jax.jacrev(jax.grad(f)) in place of jax.hessian(f)"
            ) from error

    return outputs_of


def types(operator: Operator, inputs: Sequence[Any]) -> AbstractContextManager[Any]:
    """The context in which an operator is traced or runs: 64-bit types stay 64-bit.

    A native JAX function keeps the process's own setting, unless an input is 64-bit.
    """
    if not isinstance(operator, NativeOperator) or any(value.dtype.name in _WIDE for value in inputs):
        wide: AbstractContextManager[Any] = jax.enable_x64(True)
        return wide
    return nullcontext()


def _route(operator: Operator, framework: Framework) -> Callable[..., Outputs]:
    if isinstance(operator, ONNXOperator):
        return onnx_operator(operator, framework, partial(on_arrays, framework=framework))
    if isinstance(operator, NativeOperator):
        return _native(operator)
    if is_compiled(operator):
        return cpp_operator(operator)
    return python_operator(operator)


def _native(operator: NativeOperator) -> Callable[..., Outputs]:
    """A native JAX function."""
    expectations = Expectations(operator) if operator.says_specs else None

    def outputs_of(*inputs: Any) -> Outputs:
        with types(operator, inputs):
            outputs = several(operator.forward(*inputs))
        if expectations is not None:
            check_outputs(operator, outputs, expectations(inputs))
        return outputs

    return outputs_of
