"""ONNX operators on torch: the generated function of a one-node network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from deep5.core.errors import ShapeError, Unsupported
from deep5.core.framework import Framework
from deep5.core.memo import remember
from deep5.frameworks.pytorch.emit import compile_forward
from deep5.frameworks.pytorch.emitter import RunsOperator
from deep5.frameworks.pytorch.operator_python import tensor_spec
from deep5.networks.onnx_operator import ONNXOperator
from deep5.networks.run_modes import Forms

__all__ = ["onnx_operator", "onnx_program"]


Program = Callable[..., tuple[Any, ...]]


def onnx_operator(operator: ONNXOperator, framework: Framework, operators: RunsOperator) -> Program:
    """A function of tensors that looks up its program by their shapes and element types.

    Args:
        operator: The operator.
        framework: The back-end, which determines what can run.
        operators: Converts a registered operator to a function of tensors.
    """
    programs: dict[Any, Program] = {}

    def custom(*inputs: Any) -> tuple[Any, ...]:
        if torch.compiler.is_compiling():
            raise Unsupported(
                f"{operator.op_type} is made for each shape, which torch.compile cannot do while it traces; remedy: "
                "d5.framework('pytorch:compiled').operator_executor(…)"
            )
        try:
            program = programs[key := tuple([(value.shape, value.dtype, value.device) for value in inputs])]
        except KeyError:
            program = remember(programs, key, onnx_program(operator, framework, operators, inputs))
        except AttributeError:
            program = onnx_program(operator, framework, operators, inputs)  # rejects arguments that are not tensors
        return program(*inputs)

    return custom


def onnx_program(
    operator: ONNXOperator, framework: Framework, operators: RunsOperator, inputs: Sequence[Any]
) -> Program:
    """The generated function for inputs like these; further arguments as for `onnx_operator`.

    Raises:
        ShapeError: An input is not a tensor, or the operator does not accept it.
        NetworkError: As `ONNXOperator.network`.
        Unsupported: torch does not run it in this form; the message has the reason.
    """
    for number, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ShapeError(
                f"{operator.op_type}: got {type(value).__name__} as input {number}; allowed: a torch.Tensor; remedy: "
                "torch.as_tensor(array)"
            )
    network = Forms(operator.network([tensor_spec(value) for value in inputs]), framework).evaluation
    place = inputs[0].device if inputs else torch.device("cpu")
    return compile_forward(network, tuple(network.outputs), {}, place, operators).call
