"""Infer the shapes and dtypes of all values of a graph without reading a weight."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from deep5.core.errors import OperatorError, ShapeError
from deep5.networks.custom import standing_in
from deep5.networks.diagnostics.refusals import check_by_onnx, explained
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.bounds import followable
from deep5.networks.onnx.light import light_proto
from deep5.networks.onnx.protos import nested_nodes
from deep5.networks.onnx.ranks import required_ranks
from deep5.networks.onnx.state_ranks import set_state_ranks

__all__ = ["SMALL_BYTES", "infer_shapes"]

# Larger initial values never define a shape: ONNX's own checks, inference and conversions do not see them.
SMALL_BYTES = 1024

_Type = tuple[ir.Shape | None, ir.TypeProtocol | None]


def infer_shapes(model: ir.Model, what: str, proto: onnx.ModelProto | None = None) -> bool:
    """Check a model, set the shape and dtype of every value, and set the operator versions of nested graphs.

    Weights are not drawn, read or copied: ONNX's own checks see each as an input of its shape.

    Args:
        model: The model; changed in place.
        what: Its name in messages.
        proto: The same model, with its weights as inputs, if the caller has it: it need not be written again. It is
            changed.

    Returns:
        Whether the values of integers were propagated, as far as ONNX does, and each declared shape was compared with
        the inferred one; not if the model then contradicts itself, or has an operator that ONNX does not know.

    Raises:
        NetworkError: The graph is not valid ONNX.
    """
    propagated = _infer_once(model, what, _without_weights(model) if proto is None else proto)
    required: set[ir.Value] = set()
    while found := required_ranks(model) - required:
        required |= found
        propagated = _infer_once(model, what, _without_weights(model)) and propagated
    return set_state_ranks(model, lambda: _infer_once(model, what, _without_weights(model))) and propagated


def _infer_once(model: ir.Model, what: str, proto: onnx.ModelProto) -> bool:
    with standing_in(proto):
        try:
            proto, propagated = _inferred(proto)
            check_by_onnx(proto)
        except (OperatorError, ShapeError):
            raise
        except Exception as error:  # onnx raises its own private classes
            raise explained(proto, what, error) from error
    _take_types(model.graph, proto.graph, {})
    return propagated


def _take_types(graph: ir.Graph, inferred: onnx.GraphProto, read: dict[bytes, _Type]) -> None:
    """Give the values of a graph and its nested graphs their inferred types.

    Args:
        graph: The graph; changed in place.
        inferred: The same graph with inferred types.
        read: Types that were read, by their bytes: thousands of values have the same few.
    """
    known = {value.name: value.type for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    for value in graph.inputs:
        _take_type(value, known, read)
    for node, other in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            _take_type(value, known, read)
        if bodies := subgraphs(node):
            inside = {entry.name: entry.g for entry in other.attribute}
            for name, body in bodies.items():
                body.opset_imports.update(graph.opset_imports)  # a file stores it only for the whole model
                _take_types(body, inside[name], read)


def _take_type(value: ir.Value, known: Mapping[str, onnx.TypeProto], read: dict[bytes, _Type]) -> None:
    if (proto := known.get(value.name or "")) is None:
        return
    content = proto.SerializeToString()
    if content not in read:
        # What onnx-ir reads is frozen, so that values may share it.
        shape = ir.serde.deserialize_type_proto_for_shape(proto)
        read[content] = shape, ir.serde.deserialize_type_proto_for_type(proto)
    value.shape, value.type = read[content]


def _inferred(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    # Where ONNX does not know an operator, it reports nothing, and keeps declared shapes that contradict inferred ones.
    named = {(node.domain, node.op_type) for node in nested_nodes(proto.graph.node) if node.domain}
    strict = all(onnx.defs.has(operator, domain) for domain, operator in named)
    plain = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    if not followable(plain):
        return plain, strict
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True), strict
    except onnx.shape_inference.InferenceError:
        # Value propagation mistakes tables of integers for shapes, and then rejects them; or a declared shape is stale.
        return plain, False


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    inputs, light = list(model.graph.inputs), list[ir.Value]()
    known = set(inputs)
    for value in model.graph.initializers.values():
        if _small(value):
            light.append(value)
        elif value not in known:
            inputs.append(value)
    return light_proto(model, inputs, light)


def _small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or isinstance(tensor, (ir.LazyTensor, ir.ExternalTensor)):
        return False
    return tensor.dtype == ir.DataType.STRING or tensor.nbytes <= SMALL_BYTES
