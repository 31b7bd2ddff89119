"""Expansion of what a back-end does not have: ONNX functions, recurrent layers, operators written in Python."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.core.errors import Unsupported
from deep5.core.framework import Support
from deep5.core.operator import Operator
from deep5.networks.attention_body import mend_attention
from deep5.networks.constants import constant_tensor, constant_value, role
from deep5.networks.custom import operator_of
from deep5.networks.network import Network
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.folding import fold_constants, lift_constants
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.tracing import expand_operator
from deep5.networks.transforms.control_flow import CONTROL, written_out
from deep5.networks.transforms.unrolling import RECURRENT, unrolled
from deep5.operators.backward import Backward
from deep5.operators.cpp import CppOperator

__all__ = ["lowered"]


def lowered(network: Network, supports: Callable[[ir.Node], Support]) -> Network:
    """The network with every node that a back-end does not support written in other operators, where that can be.

    Args:
        network: The network; it is not changed.
        supports: Says of a node whether the back-end runs it.

    Returns:
        A network with the same inputs, outputs, parameters, buffers and their names, with inferred shapes; the network
        itself where there is nothing to expand. A node stays that is neither an ONNX function, nor a recurrent layer,
        nor a registered operator in Python: the executor refuses it. Weights are not read.

    Raises:
        Unsupported: Registered operators in Python that cannot be written in ONNX operators, each with the reason.
        OperatorError: One that breaks its contract.

    References:
        ONNX, Open Neural Network Exchange Specification, section Functions; operator schemas with a function body.
    """
    if all(map(supports, network.nodes)):
        return network
    model = network.model.clone()
    held = [model.graph.initializers[name] for name in network.parameter_specs]
    changed = False
    while _expand(model, supports):
        changed = True
        # Shapes tell which body the next function has, and make most of a body a constant.
        infer_shapes(model, f"network {model.graph.name!r}, expanded,")
        fold_constants(model, f"network {model.graph.name!r}, expanded,")
        passes.RemoveUnusedNodesPass()(model)
    if not changed:
        return network
    lift_constants(model)
    _keep(model.graph, held)
    return Network(model)


def _keep(graph: ir.Graph, parameters: list[ir.Value]) -> None:
    """Have parameters that no node reads any more stay: their gradient is zero, as of a branch that is never taken."""
    read = {value for node in graph.all_nodes() for value in node.inputs}  # `uses` counts nodes that are in no graph
    for value in parameters:
        if value not in read:
            name = str(value.name)
            graph.initializers[name] = value
            node = ir.node("Identity", [value], name=f"{name}/not_taken")
            node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = node.name, value.shape, value.type
            graph.append(node)


def _expand(model: ir.Model, supports: Callable[[ir.Node], Support]) -> bool:
    """Expand each unsupported node once."""
    refused: list[str] = []
    changed = _expand_in(model, model.graph, supports, refused)
    if refused:
        raise Unsupported("operators that are neither run nor written in ONNX operators:\n  " + "\n  ".join(refused))
    called = ", ".join(dict.fromkeys(function.name for function in model.functions.values()))
    try:
        passes.InlinePass()(model)
    except RuntimeError as error:  # onnx-ir's, of what graphs inside a body take from around them
        raise Unsupported(
            f"onnx-ir's inliner cannot copy the body of {called}; allowed: bodies whose nested graphs it can copy; "
            "remedy: a back-end that runs the operator itself, or the model in simpler operators"
        ) from error
    model.functions.clear()  # the pass forgets those that were called in nested graphs alone
    return changed


def _expand_in(model: ir.Model, graph: ir.Graph, supports: Callable[[ir.Node], Support], refused: list[str]) -> bool:
    """Expand the unsupported nodes of a graph; what is inside a node comes first, and may be all that it lacks."""
    changed = False
    for node in list(graph):
        answer = supports(node)
        if answer:
            continue
        if node.op_type == "If" and written_out(node):  # of the branch that is never taken there is nothing to do
            changed = True
            continue
        inner = [_expand_in(model, each, supports, refused) for each in subgraphs(node).values()]
        changed |= any(inner) or _expand_node(model, graph, node, answer.reason, refused)
    return changed


def _expand_node(model: ir.Model, graph: ir.Graph, node: ir.Node, reason: str, refused: list[str]) -> bool:
    """Write one node in other operators, or make it the call of a function; whether that can be."""
    for index, value in enumerate(node.outputs):
        value.name = value.name or f"{node.name}/unused_{index}"  # the expansion computes it before it is dropped
    if node.op_type in CONTROL and node.domain == "":
        return written_out(node)
    if node.op_type in RECURRENT and node.domain == "":
        _fix_settings(graph, node)
        return unrolled(graph, node)
    if (operator := _python(node)) is not None:
        try:
            expand_operator(graph, node, operator)
        except Unsupported as error:
            refused.append(f"{node.name} ({node.domain}.{node.op_type}): {reason}; nor in ONNX: {error}")
            return False
        return True
    function = _body(node, model.graph.opset_imports.get(node.domain))
    if function is None:
        return False
    _fix_settings(graph, node)
    # An overload of its own: the body depends on the node's attributes and types.
    node.overload = function.overload = f"{len(model.functions)}"
    function.opset_imports.update(model.graph.opset_imports)
    model.functions[function.identifier()] = function
    return True


def _python(node: ir.Node) -> Operator | None:
    """The operator in Python that stands behind a node, or whose backward pass does; else None."""
    operator = operator_of(node)
    inner = operator.operator if isinstance(operator, Backward) else operator
    return None if isinstance(inner, CppOperator) else operator


def _body(node: ir.Node, opset: int | None) -> ir.Function | None:
    """What an ONNX function computes, for this node; None where the operator is no function."""
    if opset is None or not onnx.defs.has(node.op_type, opset, node.domain):
        return None
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes[name] = ir.from_proto(attribute.default_value)
    versions = [version for version in schema.function_opset_versions if version <= opset]
    if versions:
        data = schema.get_function_with_opset_version(max(versions))
    else:
        versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
        if not versions:
            return None
        types = [_type(value).SerializeToString() for value in node.inputs]
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions), ir.to_proto(node).SerializeToString(), types
        )
    if not data:
        return None  # the body needs a type or a shape that is not known
    proto = onnx.FunctionProto.FromString(data)
    # A graph among the attributes is written into the body, or there is none.
    for name in [name for name, own in node.attributes.items() if own.type == ir.AttributeType.GRAPH]:
        if name in proto.attribute:
            proto.attribute.remove(name)
        node.attributes.pop(name)
    del proto.output[len(node.outputs) :]  # a body computes what the node asks for
    function: ir.Function = ir.from_proto(proto)
    # A normalisation's body computes mean and variance in float32: too little for a float64 network.
    widened = (
        "stash_type" in schema.attributes and len(node.outputs) == 1 and node.outputs[0].dtype == ir.DataType.DOUBLE
    )
    if node.op_type == "Attention":
        mend_attention(node, function)
    for inner in function:
        if widened and inner.op_type == "Cast" and inner.attributes["to"].value == ir.DataType.FLOAT:
            inner.attributes["to"] = ir.AttrInt64("to", ir.DataType.DOUBLE)
        inner.name = f"{node.name}/{inner.name or inner.op_type}"
        for value in inner.outputs:
            if value.name:
                value.name = f"{node.name}/{value.name}"
    return function


def _type(value: ir.Value | None) -> onnx.TypeProto:
    return onnx.TypeProto() if value is None or value.type is None else ir.to_proto(value).type


def _fix_settings(graph: ir.Graph, node: ir.Node) -> None:
    """Make Constant nodes of what only sets how a node works: in its body the same number would be a parameter."""
    made: dict[ir.Value, ir.Value] = {}
    for position, value in enumerate(node.inputs):
        if value is None or role(node, position) != "setting" or not value.is_initializer():
            continue
        if value not in made and constant_value(value) is not None:
            constant = ir.node("Constant", [], {"value": constant_tensor(value)}, name=f"{node.name}/{value.name}")
            made[value] = constant.outputs[0]
            made[value].name, made[value].type, made[value].shape = constant.name, value.type, value.shape
            graph.insert_before(node, constant)
        if value in made:
            node.replace_input_with(position, made[value])
