"""Nodes of compiled operators in the form that an engine receives: each names the kernel that runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from deep5.core.errors import Deep5Error, OperatorError
from deep5.core.operator import Operator
from deep5.networks.custom import operator_of
from deep5.networks.network import Network
from deep5.operators.backward import Backward
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.kernel import Kernel
from deep5.operators.plan import CODES

__all__ = ["DOMAIN", "failure", "refusal", "with_kernels"]

DOMAIN = "deep5.compiled"
"""The domain of these nodes."""

Describe = Callable[[Kernel, ir.Node], tuple[str, dict[str, Any]]]


def refusal(node: ir.Node, engine: str) -> str | None:
    """Why an engine cannot run a kernel for a node of a registered operator or of its backward pass; None if it can.

    Compiles nothing, except for a backward node of an operator that is not compiled yet: it must have a backward.

    Args:
        node: The node.
        engine: Name of the engine in messages.
    """
    try:
        operator = operator_of(node)
        forward = operator.operator if isinstance(operator, Backward) else operator
        if not isinstance(forward, CppOperator):
            return (
                f"{type(forward).__name__} is written in Python, and {engine} runs no Python; allowed: operators in "
                "C++, and those whose code can be expressed in ONNX operators"
            )
        forward.text()
        if isinstance(operator, Backward) and not forward.differentiable:
            return f"{name_of(forward)} has no backward in C++; remedy: write one"
    except Deep5Error as error:
        return str(error)
    for value in node.inputs:
        if value is None:
            return f"{name_of(forward)} leaves an input out; allowed: all of them"
        if value.dtype is None:
            return f"an input of {node.op_type} has no known element type; remedy: infer shapes first"
        if str(value.dtype.numpy()) not in CODES:
            return f"got an input of {value.dtype.name}; allowed: {', '.join(CODES)}"
    return None


def with_kernels(network: Network, describe: Describe) -> tuple[Network, dict[str, Kernel]]:
    """The network whose nodes of compiled operators name the kernels that run them.

    Args:
        network: The network; it is not changed.
        describe: Returns the operator and the attributes of the replacement node for a kernel.

    Returns:
        A network with the same inputs and outputs, and its kernels by node name, which must outlive everything that an
        engine creates from it; the network itself if it has no such nodes.

    Raises:
        OperatorError: An operator does not compile, or its functions do not match its `specs`.
    """
    operators = {number: made for number, node in enumerate(network.nodes) if (made := operator_of(node)) is not None}
    if not operators:
        return network, {}
    model = network.model.clone()
    graph = model.graph
    kernels: dict[str, Kernel] = {}
    nodes = list(graph)
    for number, operator in operators.items():
        node = nodes[number]
        if not node.name or node.name in kernels:
            node.name = f"{node.op_type}#{number}"  # error messages contain it
        kernel = kernels[node.name] = _kernel(operator, node)
        _replace(graph, node, kernel, *describe(kernel, node))
    graph.opset_imports[DOMAIN] = 1
    return Network(model), kernels


def failure(kernel: Kernel, said: str) -> Deep5Error:
    """The error of a kernel's operator.

    Args:
        kernel: The kernel.
        said: The message that it gave the engine.
    """
    # An error of `specs` keeps its type, such as ShapeError.
    if re.search("shapes of the outputs", said) and isinstance(kernel.failure, Deep5Error):
        return kernel.failure
    return OperatorError(f"{kernel.name} failed: {said}")


def _kernel(operator: Operator, node: ir.Node) -> Kernel:
    dtypes = tuple(str(value.dtype.numpy()) for value in node.inputs if value is not None and value.dtype is not None)
    if isinstance(operator, Backward):
        forward: Any = operator.operator
        made: Kernel = forward.kernel(operator.split(dtypes)[1], needs=operator.needs)
    else:
        made = operator.kernel(dtypes)  # type: ignore[attr-defined]  # a CppOperator: others were rejected before
    return made


def _replace(graph: ir.Graph, node: ir.Node, kernel: Kernel, op_type: str, attributes: Mapping[str, Any]) -> None:
    """Replace a node by a node for a kernel, with the same names."""
    dtypes = kernel.dtypes[kernel.inputs :]
    # A kernel writes all its outputs, including those that the node omits.
    made = ir.node(op_type, node.inputs, attributes, domain=DOMAIN, num_outputs=len(dtypes), name=node.name)
    for number, (value, dtype) in enumerate(zip(made.outputs, dtypes, strict=True)):
        old = node.outputs[number] if number < len(node.outputs) else None
        value.name = (old.name if old is not None else "") or f"{node.name}/unused_{number}"
        value.type, value.shape = ir.TensorType(ir.DataType(CODES[dtype])), None if old is None else old.shape
    old_outputs = node.outputs
    ir.convenience.replace_nodes_and_values(graph, node, [node], [made], old_outputs, made.outputs[: len(old_outputs)])
