"""What a file declares about its values: sizes of -1, unnamed sizes, and shapes that contradict what nodes compute.

Exporters write -1 where a size varies, and later tools change a graph without the shapes that it declares. Engines use
what the nodes compute, and so does deep5.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.networks.custom import standing_in
from deep5.networks.onnx.bounds import followable
from deep5.networks.onnx.element_types import type_name
from deep5.networks.onnx.protos import declared_values, graphs_of, without_shapes

__all__ = ["check_defaults", "drop_stale_shapes", "drop_unconfirmed_shapes", "mark_unknown_sizes"]

_UNKNOWN, _NO_NAME = -1, "?"


def mark_unknown_sizes(proto: onnx.ModelProto) -> None:
    """Turn declared sizes of -1, and those named "?", into unknown ones, and name every unknown size of an input.

    The names let inference find where an output has the same size: equal names mean equal sizes. Paddle's exporter
    names every unknown size "?", also where sizes differ.

    Args:
        proto: The model; changed in place.
    """
    for value in declared_values(proto):
        for shape in _shapes(value.type):
            for extent in shape.dim:
                if extent.HasField("dim_value") and extent.dim_value == _UNKNOWN:
                    extent.ClearField("dim_value")
                elif extent.dim_param == _NO_NAME:
                    extent.ClearField("dim_param")
    initial = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in initial or not value.type.HasField("tensor_type"):
            continue
        for axis, extent in enumerate(value.type.tensor_type.shape.dim):
            if not extent.HasField("dim_value") and not extent.dim_param:
                extent.dim_param = f"{value.name}:{axis}"


def check_defaults(what: str, proto: onnx.ModelProto) -> None:
    """Reject an input whose initial value has another element type or shape than the input is declared with.

    Args:
        what: Name of the model in messages.
        proto: The model.

    Raises:
        NetworkError: The input, both declarations, and the remedy.
    """
    inputs = {value.name: value.type for value in proto.graph.input if value.type.HasField("tensor_type")}
    for tensor in proto.graph.initializer:
        if (kind := inputs.get(tensor.name)) is None:
            continue
        given = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)).tensor_type
        own = kind.tensor_type
        if own.elem_type != given.elem_type or (own.HasField("shape") and _differ(own.shape, given.shape)):
            one, other = (f"{type_name(ir.DataType(each.elem_type))}{_shown(each.shape)}" for each in (own, given))
            raise NetworkError(
                f"{what}: the input {tensor.name!r} is declared as {one}, and its initial value is {other}; allowed: "
                "one element type, and sizes that fit; remedy: declare what the initial value is"
            )


def drop_stale_shapes(proto: onnx.ModelProto) -> list[str]:
    """Drop the declared shapes of outputs and intermediate values that differ from what the nodes compute.

    Args:
        proto: The model, without large weights; changed in place.

    Returns:
        One line per dropped shape: the value, what was declared, and what is computed. The line is empty for a shape
        that onnx itself infers, wrongly.
    """
    stale = [
        (value, computed)
        for value, computed in _beside(proto)
        if computed is not None and _differ(value.type.tensor_type.shape, computed)
    ]
    believed = _believed(proto) if stale else {}
    dropped = []
    for value, computed in stale:
        declared, own = value.type.tensor_type.shape, believed.get(value.name)
        said = f"{value.name!r} is declared as {_shown(declared)}, and computed as {_shown(computed)}"
        dropped.append(said if own is None or _differ(declared, own) else "")
        value.type.tensor_type.ClearField("shape")
    return dropped


def _believed(proto: onnx.ModelProto) -> dict[str, onnx.TensorShapeProto]:
    """What onnx infers without deep5's corrections."""
    try:
        inferred = onnx.shape_inference.infer_shapes(without_shapes(proto))
    except Exception:  # onnx raises its own private classes
        return {}
    return {
        value.name: value.type.tensor_type.shape
        for value in declared_values(inferred)
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }


def drop_unconfirmed_shapes(proto: onnx.ModelProto) -> list[str]:
    """Drop the declared shapes that do not follow from the inputs, if the model is consistent without them.

    Args:
        proto: The model, without large weights; changed in place if it is.

    Returns:
        One line per dropped shape: the value and what was declared.
    """
    bare = without_shapes(proto)
    try:
        with standing_in(bare):
            onnx.shape_inference.infer_shapes(bare, strict_mode=True)
    except Exception:  # onnx raises its own private classes; the caller reports what it raised first
        return []
    dropped = []
    for value, computed in _beside(proto):
        if computed is None or computed.SerializeToString() != value.type.tensor_type.shape.SerializeToString():
            dropped.append(f"{value.name!r} is declared as {_shown(value.type.tensor_type.shape)}")
            value.type.tensor_type.ClearField("shape")
    return dropped


def _beside(proto: onnx.ModelProto) -> list[tuple[onnx.ValueInfoProto, onnx.TensorShapeProto | None]]:
    """The declared arrays with a shape, each with the shape that follows from the inputs, or None."""
    known = without_shapes(proto)
    with standing_in(known):
        known = _inferred(known)
        if _declare_reshaped(known):
            known = _inferred(known)
    found = []
    for graph, other in zip(graphs_of(proto), graphs_of(known), strict=True):
        computed = {
            value.name: value.type.tensor_type.shape
            for value in (*other.value_info, *other.output)
            if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
        }
        for value in (*graph.value_info, *graph.output):
            if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
                found.append((value, computed.get(value.name)))
    return found


def _declare_reshaped(proto: onnx.ModelProto) -> bool:
    """Declare the ranks of results of Reshape, the numbers of target sizes, which ONNX infers from opset 14 on only.

    Args:
        proto: A model with inferred shapes; changed in place.

    Returns:
        Whether there is such a rank that was not inferred.
    """
    found = False
    for graph in graphs_of(proto):
        values = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
        shapes = {name: kind.shape for name, kind in values.items() if kind.HasField("shape")}
        lengths = {name: shape.dim[0].dim_value for name, shape in shapes.items() if len(shape.dim) == 1}
        for node in graph.node:
            if node.op_type != "Reshape" or len(node.input) < 2 or not (rank := lengths.get(node.input[1])):
                continue
            name = node.output[0]
            if name in values and name not in shapes:
                values[name].shape.dim.extend([onnx.TensorShapeProto.Dimension()] * rank)
                found = True
    return found


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what can be inferred; where a node is wrong, with what comes before it."""
    try:
        plain = onnx.shape_inference.infer_shapes(proto)
        return onnx.shape_inference.infer_shapes(proto, data_prop=True) if followable(plain) else plain
    except Exception:  # as above
        return proto


def _shapes(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto]:
    while (form := kind.WhichOneof("value")) in ("optional_type", "sequence_type"):
        kind = getattr(kind, form).elem_type
    if form in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, form).shape


def _differ(declared: onnx.TensorShapeProto, computed: onnx.TensorShapeProto) -> bool:
    return len(declared.dim) != len(computed.dim) or any(
        one.HasField("dim_value") and other.HasField("dim_value") and one.dim_value != other.dim_value
        for one, other in zip(declared.dim, computed.dim, strict=True)
    )


def _shown(shape: onnx.TensorShapeProto) -> str:
    sizes = [str(each.dim_value) if each.HasField("dim_value") else each.dim_param or "?" for each in shape.dim]
    return f"[{', '.join(sizes)}]"
