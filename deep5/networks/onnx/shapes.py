"""Infer the shapes and dtypes of all values of a graph without reading a weight."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from deep5.core.errors import OperatorError, ShapeError
from deep5.networks.custom import standing_in
from deep5.networks.diagnostics.refusals import check_by_onnx, explained
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.bounds import followable
from deep5.networks.onnx.ranks import required_ranks

__all__ = ["SMALL_BYTES", "infer_shapes"]

# Larger initial values never define a shape: ONNX's own checks, inference and conversions do not see them.
SMALL_BYTES = 1024


def infer_shapes(model: ir.Model, what: str) -> bool:
    """Check a model, set the shape and dtype of every value, and set the operator versions of nested graphs.

    Weights are not drawn, read or copied: ONNX's own checks see each as an input of its shape.

    Args:
        model: The model; changed in place.
        what: Its name in messages.

    Returns:
        Whether the values of integers were propagated, as far as ONNX does; not if the model then contradicts itself.

    Raises:
        NetworkError: The graph is not valid ONNX.
    """
    propagated = _infer_once(model, what)
    required: set[ir.Value] = set()
    while found := required_ranks(model) - required:
        required |= found
        propagated = _infer_once(model, what) and propagated
    return propagated


def _infer_once(model: ir.Model, what: str) -> bool:
    proto = _without_weights(model)
    with standing_in(proto):
        try:
            proto, propagated = _inferred(proto)
            check_by_onnx(proto)
        except (OperatorError, ShapeError):
            raise
        except Exception as error:  # onnx raises its own private classes
            raise explained(proto, what, error) from error
    inferred = ir.from_proto(proto).graph
    known = ir.convenience.create_value_mapping(inferred)
    for name, value in ir.convenience.create_value_mapping(model.graph).items():
        same = known.get(name)
        if same is not None and not value.is_initializer():
            value.shape, value.type = same.shape, same.type
    # Values in different branches may share a name; the mapping contains only the first.
    for mine, theirs in zip(model.graph.all_nodes(), inferred.all_nodes(), strict=True):
        own, found = list(mine.outputs), list(theirs.outputs)
        for graph, other in zip(subgraphs(mine).values(), subgraphs(theirs).values(), strict=True):
            graph.opset_imports.update(model.graph.opset_imports)  # a file stores it only for the whole model
            own.extend(graph.inputs)
            found.extend(other.inputs)
        for value, same in zip(own, found, strict=True):
            if value.type is None:
                value.shape, value.type = same.shape, same.type
    return propagated


def _inferred(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    plain = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    if not followable(plain):
        return plain, True
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True), True
    except onnx.shape_inference.InferenceError:
        # Value propagation mistakes tables of integers for shapes, and then rejects them; or a declared shape is stale.
        return plain, False


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    graph = model.graph
    inputs, initial = list(graph.inputs), list(graph.initializers.values())
    weights = [value for value in initial if not _small(value)]
    for value in weights:
        del graph.initializers[str(value.name)]
    try:
        graph.inputs.extend(value for value in weights if value not in inputs)
        return ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        graph.initializers.update((str(value.name), value) for value in initial)


def _small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or isinstance(tensor, (ir.LazyTensor, ir.ExternalTensor)):
        return False
    return tensor.dtype == ir.DataType.STRING or tensor.nbytes <= SMALL_BYTES
