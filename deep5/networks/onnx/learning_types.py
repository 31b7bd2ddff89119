"""Types of outputs for which ONNX has no inference: of ai.onnx.ml (trees, linear models), and of ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

from deep5.networks.onnx.contributed_types import CONTRIBUTED, contributed_type
from deep5.networks.onnx.protos import graphs_inside

__all__ = ["DOMAIN", "declare_types"]

DOMAIN = "ai.onnx.ml"

_FLOAT, _WHOLE, _TEXT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.STRING
_Output = tuple[int, tuple[int | None, ...] | None]
"""Element type and shape; None for an unknown size, and for the shape of the input."""


def declare_types(proto: onnx.ModelProto) -> None:
    """Declare the outputs of these operators where the model does not.

    Args:
        proto: A temporary model, whose shapes will be inferred; changed in place.
    """
    waiting = [proto.graph]
    while waiting:
        graph = waiting.pop()
        for node in graph.node:
            waiting += graphs_inside(node)
        made = [node for node in graph.node if node.domain == DOMAIN and node.op_type in _OUTPUTS]
        if made:
            _declare(graph, made)
        if any(node.domain == CONTRIBUTED for node in graph.node):
            _declare_contributed(graph)


def _declare(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    known = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    for node in nodes:
        rows = _rows(known.get(node.input[0])) if node.input else None
        for name, (kind, shape) in zip(node.output, _OUTPUTS[node.op_type](_attributes(node)), strict=False):
            if not name:
                continue
            value = known.get(name)
            if value is None:
                value = known[name] = graph.value_info.add(name=name)
            own = value.type.tensor_type
            if value.type.WhichOneof("value") not in (None, "tensor_type"):
                continue
            own.elem_type = own.elem_type or kind
            if own.HasField("shape"):
                continue
            if shape is None:
                _same_shape_as(known.get(node.input[0]), own)
                continue
            own.shape.SetInParent()
            for axis, size in enumerate(shape):
                extent = own.shape.dim.add()
                if size is not None:
                    extent.dim_value = size
                elif axis == 0 and rows is not None:
                    extent.CopyFrom(rows)


def _declare_contributed(graph: onnx.GraphProto) -> None:
    """Declare the element types of ONNX Runtime's own operators; only it knows their shapes."""
    known = {value.name: value for value in (*graph.value_info, *graph.output)}
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *known.values())}
    kinds = {name: kind for name, kind in kinds.items() if kind}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            kinds.update((node.output[0], entry.t.data_type) for entry in node.attribute if entry.name == "value")
        if node.domain != CONTRIBUTED or not node.output or node.output[0] in kinds:
            continue
        if (kind := contributed_type(node, kinds)) is not None:
            name = node.output[0]
            kinds[name] = kind
            value = known.get(name)
            (graph.value_info.add(name=name) if value is None else value).type.tensor_type.elem_type = kind


def _same_shape_as(source: onnx.ValueInfoProto | None, own: onnx.TypeProto.Tensor) -> None:
    if source is not None and source.type.tensor_type.HasField("shape"):
        own.shape.CopyFrom(source.type.tensor_type.shape)


def _rows(value: onnx.ValueInfoProto | None) -> onnx.TensorShapeProto.Dimension | None:
    """The first size of the input, if it has two."""
    if value is None or len(value.type.tensor_type.shape.dim) != 2:
        return None
    rows: onnx.TensorShapeProto.Dimension = value.type.tensor_type.shape.dim[0]
    return rows


def _attributes(node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    return {entry.name: entry for entry in node.attribute}


def _values(count: str) -> Callable[[dict[str, onnx.AttributeProto]], Iterator[_Output]]:
    def outputs(given: dict[str, onnx.AttributeProto]) -> Iterator[_Output]:
        yield _FLOAT, (None, given[count].i if count in given else 1)

    return outputs


def _classes(given: dict[str, onnx.AttributeProto]) -> Iterator[_Output]:
    texts = "classlabels_strings" in given and len(given["classlabels_strings"].strings)
    yield (_TEXT if texts else _WHOLE), (None,)
    yield _FLOAT, (None, None)


def _same_shape(given: dict[str, onnx.AttributeProto]) -> Iterator[_Output]:
    yield _FLOAT, None


def _imputed(given: dict[str, onnx.AttributeProto]) -> Iterator[_Output]:
    yield (_FLOAT if "imputed_value_floats" in given else _WHOLE), None


_OUTPUTS: dict[str, Callable[[dict[str, onnx.AttributeProto]], Iterator[_Output]]] = {
    "FeatureVectorizer": lambda given: iter([(_FLOAT, (None, None))]),
    "Imputer": _imputed,
    "LinearClassifier": _classes,
    "LinearRegressor": _values("targets"),
    "Normalizer": _same_shape,
    "SVMClassifier": _classes,
    "SVMRegressor": lambda given: iter([(_FLOAT, (None, 1))]),
    "Scaler": _same_shape,
    "TreeEnsembleClassifier": _classes,
    "TreeEnsembleRegressor": _values("n_targets"),
}
