"""Operators of ONNX's standard set on JAX: the generated function of a network of one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.framework import Framework
from deep5.frameworks.jax.emit import RunsOperator
from deep5.frameworks.jax.graph_program import GraphProgram
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.contract import spec_of

__all__ = ["onnx_operator"]


def onnx_operator(
    operator: ONNXOperator, framework: Framework, operators: RunsOperator
) -> Callable[..., tuple[Any, ...]]:
    """A function of arrays, generated for each combination of shapes when JAX traces it; JAX differentiates it.

    Args:
        operator: The operator.
        framework: The back-end, which determines which operators can run.
        operators: From a registered operator to the function that runs it on arrays.

    Returns:
        A function that returns a tuple. Its first call with given input shapes raises ShapeError or NetworkError if the
        operator does not accept them, and Unsupported if JAX cannot run it.
    """

    def run(*inputs: Any) -> tuple[Any, ...]:
        with jax.enable_x64(True):
            program = GraphProgram(operator.network([spec_of(value) for value in inputs]), framework, operators)
            if program.untraceable:
                raise Unsupported(
                    f"jax cannot trace this operator: {program.untraceable}; allowed: settings that are attributes; "
                    "remedy: a network, in which they are constants"
                )
            return tuple(program.evaluation.call((), (), (*inputs, *program.evaluation_key(StepInfo())))[0])

    made: Callable[..., tuple[Any, ...]] = jax.jit(run)
    return made
