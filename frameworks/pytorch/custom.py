"""deep5 operators as differentiable functions of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from deep5.core.framework import Framework
from deep5.core.operator import Operator
from deep5.frameworks.pytorch.operator_check import check_operator
from deep5.frameworks.pytorch.operator_cpp import cpp_operator
from deep5.frameworks.pytorch.operator_onnx import onnx_operator
from deep5.frameworks.pytorch.operator_python import described, python_operator
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.contract import check_outputs, several
from deep5.operators.kinds import is_compiled
from deep5.operators.native import NativeOperator

__all__ = ["native_operator", "on_tensors"]


def native_operator(operator: Operator, framework: Framework) -> Callable[..., Any]:
    """An operator as a function of tensors.

    Args:
        operator: Of any kind.
        framework: The back-end, which determines what can run.

    Returns:
        A function that returns one tensor, or a tuple of several. For a `NativeOperator` without output specs, it is
        the operator's function itself.

    Raises:
        Unsupported: The operator belongs to another framework.
    """
    if isinstance(operator, NativeOperator) and not operator.says_specs:
        check_operator(operator)
        return functools.partial(operator.function, **operator.settings) if operator.settings else operator.function
    outputs_of = on_tensors(operator, framework)

    def custom(*inputs: Any) -> Any:
        outputs = outputs_of(*inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    return custom


def on_tensors(operator: Operator, framework: Framework) -> Callable[..., tuple[Any, ...]]:
    """Like `native_operator`, but always returns a tuple."""
    check_operator(operator)
    if isinstance(operator, ONNXOperator):
        return onnx_operator(operator, framework, functools.partial(on_tensors, framework=framework))
    if isinstance(operator, NativeOperator):
        return _native(operator)
    if is_compiled(operator):
        return cpp_operator(operator)
    return python_operator(operator)


def _native(operator: NativeOperator) -> Callable[..., tuple[Any, ...]]:
    function, settings, says = operator.function, operator.settings, operator.says_specs

    def custom(*inputs: Any) -> tuple[Any, ...]:
        outputs = several(function(*inputs, **settings))
        # torch.compile traces only the function's own code.
        if says and not torch.compiler.is_compiling():
            check_outputs(operator, outputs, described(operator, inputs))
        return outputs

    return custom
