"""Expand operators that a back-end does not support: ONNX functions, recurrent layers, Python operators."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.core.errors import NetworkError, Unsupported
from deep5.core.framework import Support
from deep5.core.operator import Operator
from deep5.networks.attention_body import mend_attention
from deep5.networks.constants import constant_tensor, constant_value, role
from deep5.networks.custom import operator_of
from deep5.networks.network import Network
from deep5.networks.nodes import captures, subgraphs
from deep5.networks.onnx.folding import fold_constants, lift_constants
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.tracing import expand_operator
from deep5.networks.transforms.control_flow import CONTROL, written_out
from deep5.networks.transforms.unrolling import RECURRENT, unrolled
from deep5.operators.backward import Backward
from deep5.operators.cpp import CppOperator

__all__ = ["lowered"]


def lowered(network: Network, supports: Callable[[ir.Node], Support]) -> Network:
    """The network with every unsupported node expanded into other operators, as far as possible.

    Args:
        network: The network; it is not changed.
        supports: Returns whether the back-end runs a node.

    Returns:
        A network with the same inputs, outputs, parameters, buffers and their names, with inferred shapes; the network
        itself if there is nothing to expand. A node remains if it is neither an ONNX function, nor a recurrent layer,
        nor a registered Python operator: the executor rejects it. Weights are not read.

    Raises:
        Unsupported: Registered Python operators that cannot be expressed in ONNX operators, each with the reason; or an
            operator whose function body ONNX rejects for this node.
        OperatorError: An operator that violates its contract.

    References:
        ONNX, Open Neural Network Exchange Specification, section Functions; operator schemas with a function body.
    """
    if all(supports(node).yes for node in network.nodes):
        return network
    model = network.model.clone()
    held = [model.graph.initializers[name] for name in network.parameter_specs]
    changed = False
    while _expand(model, supports):
        changed = True
        # The next function's body depends on the shapes, which also make most of a body constant.
        try:
            infer_shapes(model, f"network {model.graph.name!r}, expanded,")
            fold_constants(model, f"network {model.graph.name!r}, expanded,")
        except NetworkError as error:  # as of AffineGrid of a computed size: the ranks within its body's loops differ
            raise Unsupported(
                f"an operator that this back-end does not run has no valid form in other operators: {error}; remedy: "
                "another back-end, or constant shapes and settings"
            ) from error
        passes.RemoveUnusedNodesPass()(model)
    if not changed:
        return network
    lift_constants(model)
    _keep(model.graph, held)
    return Network(model)


def _keep(graph: ir.Graph, parameters: list[ir.Value]) -> None:
    """Keep parameters that no node reads any more: their gradient is zero, as for a branch that is never taken."""
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
    except RuntimeError as error:  # from onnx-ir, for values that graphs inside a body capture
        raise Unsupported(
            f"onnx-ir's inliner cannot copy the body of {called}; allowed: bodies whose nested graphs it can copy; "
            "remedy: a back-end that runs the operator itself, or the model in simpler operators"
        ) from error
    model.functions.clear()  # the pass keeps functions that only nested graphs call
    return changed


def _expand_in(model: ir.Model, graph: ir.Graph, supports: Callable[[ir.Node], Support], refused: list[str]) -> bool:
    """Expand the unsupported nodes of a graph; nested graphs first, as they may be all that a node needs."""
    changed = False
    for node in list(graph):
        answer = supports(node)
        if answer.yes:
            continue
        if node.op_type == "If" and written_out(node):  # the branch that is never taken needs no expansion
            changed = True
            continue
        inner = [_expand_in(model, each, supports, refused) for each in subgraphs(node).values()]
        changed |= any(inner) or _expand_node(model, graph, node, answer.reason, refused)
    return changed


def _expand_node(model: ir.Model, graph: ir.Graph, node: ir.Node, reason: str, refused: list[str]) -> bool:
    """Expand one node into other operators, or turn it into a function call; returns whether that is possible."""
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
    # A unique overload: the body depends on the node's attributes and types.
    node.overload = function.overload = f"{len(model.functions)}"
    function.opset_imports.update(model.graph.opset_imports)
    model.functions[function.identifier()] = function
    return True


def _python(node: ir.Node) -> Operator | None:
    """The Python operator that implements a node or its backward pass; else None."""
    operator = operator_of(node)
    inner = operator.operator if isinstance(operator, Backward) else operator
    return None if isinstance(inner, CppOperator) else operator


def _body(node: ir.Node, opset: int | None) -> ir.Function | None:
    """The ONNX function body for this node; None if the operator is not a function."""
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
        return None  # the body needs a type or a shape that is unknown
    proto = onnx.FunctionProto.FromString(data)
    _pass_captured(node, proto)
    # A graph attribute is either inlined into the body or absent.
    for name in [name for name, own in node.attributes.items() if own.type == ir.AttributeType.GRAPH]:
        if name in proto.attribute:
            proto.attribute.remove(name)
        node.attributes.pop(name)
    del proto.output[len(node.outputs) :]  # a body computes only the node's outputs
    function: ir.Function = ir.from_proto(proto)
    # A normalization's body computes mean and variance in float32, which is too imprecise for a float64 network.
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


def _pass_captured(node: ir.Node, proto: onnx.FunctionProto) -> None:
    """Turn the outer values that a node's graphs read, such as trained parameters, into inputs of node and body.

    Raises:
        Unsupported: The body computes a value of the same name.
    """
    values = captures(node)
    own = {name for inner in proto.node for name in inner.output}.union(proto.input)
    if any(value.name in own for value in values):
        raise Unsupported(
            f"{node.name} ({node.op_type}): its graphs read a value that has the name of one in ONNX's function body; "
            "allowed: other names; remedy: rename the value"
        )
    if values:
        node.resize_inputs(len(proto.input) + len(values))
        for position, value in enumerate(values, len(proto.input)):
            node.replace_input_with(position, value)
            proto.input.append(str(value.name))


def _type(value: ir.Value | None) -> onnx.TypeProto:
    return onnx.TypeProto() if value is None or value.type is None else ir.to_proto(value).type


def _fix_settings(graph: ir.Graph, node: ir.Node) -> None:
    """Turn inputs that only configure a node into Constant nodes: in its body the same value would be a parameter."""
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
