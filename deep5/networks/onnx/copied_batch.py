"""Targets of Reshape that copy the size of the batch instead of computing it, so that inferred shapes keep its name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from deep5.networks.onnx.protos import nested_nodes

__all__ = ["with_copied_batch"]

# More numbers are no target of a Reshape.
_MOST = 64


def with_copied_batch(proto: Any) -> Any:
    """The model with `[0, ...]` for each target `[-1, ...]` of a Reshape whose -1 is the size of the batch.

    A converter writes the -1. ONNX's inference gives it a new name, and the mask of a dropout after it would have a
    dimension that no input has.

    Args:
        proto: An `onnx.ModelProto` whose inputs have named or known dimensions; it is changed.

    Returns:
        `proto`.
    """
    import onnx

    replaced = set()
    # A target that is changed names the dimensions that later ones read.
    while found := list(_copying(proto)):
        for node, target in found:
            name = f"{node.output[0]}/target"
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, *target[1:]], np.int64), name))
            replaced.add(node.input[1])
            node.input[1] = name
    read = {name for node in nested_nodes(proto.graph.node) for name in node.input}
    for value in [value for value in proto.graph.initializer if value.name in replaced - read]:
        proto.graph.initializer.remove(value)
    return proto


def _copying(proto: Any) -> Iterator[tuple[Any, list[int]]]:
    """The nodes to change, with their targets."""
    import onnx

    if not any(node.op_type == "Reshape" for node in proto.graph.node):
        return
    inferred = onnx.shape_inference.infer_shapes(_light(proto), data_prop=True).graph
    shapes = {
        value.name: [each.dim_param if each.HasField("dim_param") else each.dim_value for each in dims]
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
        if (dims := value.type.tensor_type.shape.dim)
    }
    targets = {
        value.name: onnx.numpy_helper.to_array(value).tolist() for value in proto.graph.initializer if _is_target(value)
    }
    for node in proto.graph.node:
        if node.op_type != "Reshape" or any(
            attribute.name == "allowzero" and attribute.i for attribute in node.attribute
        ):
            continue
        shape, target = shapes.get(node.input[0], []), targets.get(node.input[1], [])
        if target[:1] != [-1] or not shape or not isinstance(shape[0], str):
            continue
        rest = [*shape[1:], *target[1:]]
        known = all(isinstance(extent, int) and extent > 0 for extent in rest)
        if known and math.prod(shape[1:]) == math.prod(target[1:]):
            yield node, target


def _is_target(value: Any) -> bool:
    import onnx

    return bool(value.data_type == onnx.TensorProto.INT64 and len(value.dims) == 1 and value.dims[0] <= _MOST)


def _light(proto: Any) -> Any:
    """The model whose weights are inputs: they define no shape, and ONNX copies what it infers from."""
    import onnx

    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    light.graph.name = proto.graph.name
    light.graph.node.extend(proto.graph.node)
    light.graph.input.extend(proto.graph.input)
    light.graph.output.extend(proto.graph.output)
    given = {value.name for value in proto.graph.input}
    for value in proto.graph.initializer:
        if _is_target(value) or not value.dims:
            light.graph.initializer.append(value)
        elif value.name not in given:
            light.graph.input.append(onnx.helper.make_tensor_value_info(value.name, value.data_type, list(value.dims)))
    return light
