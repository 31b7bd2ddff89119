"""A deep5 operator as a function of tensors that torch can differentiate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from deep5.core.errors import Unsupported
from deep5.core.operator import Operator
from deep5.frameworks.pytorch.operator_cpp import cpp_operator
from deep5.frameworks.pytorch.operator_python import described, python_operator
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.backward import Backward
from deep5.operators.contract import check_outputs, name_of, several
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator

__all__ = ["check_operator", "native_operator", "on_tensors"]


def native_operator(operator: Operator) -> Callable[..., Any]:
    """An operator as a function of tensors.

    Args:
        operator: Of any kind.

    Returns:
        A function that gives one tensor, or a tuple of several. A `NativeOperator` that says nothing of its outputs is
        its function itself.

    Raises:
        Unsupported: It is another framework's.
    """
    if isinstance(operator, NativeOperator) and not operator.says_specs:
        check_operator(operator)
        return functools.partial(operator.function, **operator.settings) if operator.settings else operator.function
    outputs_of = on_tensors(operator)

    def custom(*inputs: Any) -> Any:
        outputs = outputs_of(*inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    return custom


def on_tensors(operator: Operator) -> Callable[..., tuple[Any, ...]]:
    """As `native_operator`; gives a tuple in any case."""
    check_operator(operator)
    if isinstance(operator, ONNXOperator):
        # Which writes programs, and those call registered operators by what is here.
        from deep5.frameworks.pytorch.operator_onnx import onnx_operator

        return onnx_operator(operator)
    if isinstance(operator, NativeOperator):
        return _native(operator)
    if isinstance(operator, CppOperator):
        return cpp_operator(operator)
    if isinstance(operator, Backward) and isinstance(operator.operator, CppOperator):
        return cpp_operator(operator)
    return python_operator(operator)


def check_operator(operator: Operator, device: str = "cpu") -> None:
    """Refuse an operator that torch does not run on a kind of device.

    Raises:
        Unsupported: It is another framework's, or has no source for the device.
    """
    own = operator.operator if isinstance(operator, Backward) else operator
    if isinstance(own, NativeOperator) and own.framework.partition(":")[0] != "pytorch":
        raise Unsupported(
            f"{name_of(own)} is a function of {own.framework}, which runs on that framework alone; remedy: "
            f"d5.framework({own.framework!r})"
        )
    if isinstance(own, NativeOperator) and own is not operator:
        raise Unsupported(f"{name_of(own)} is differentiated by torch itself; there is no backward pass of its own")
    if isinstance(own, CppOperator):
        own.text(device)


def _native(operator: NativeOperator) -> Callable[..., tuple[Any, ...]]:
    function, settings, says = operator.function, operator.settings, operator.says_specs

    def custom(*inputs: Any) -> tuple[Any, ...]:
        outputs = several(function(*inputs, **settings))
        # The function's own code is what torch.compile traces, and it alone.
        if says and not torch.compiler.is_compiling():
            check_outputs(operator, outputs, described(operator, inputs))
        return outputs

    return custom
