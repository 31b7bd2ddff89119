"""Write sparse initial values and constants as dense ones, which are all that back-ends have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from deep5.core.errors import NetworkError

__all__ = ["make_dense"]

# A few bytes must not exhaust memory.
_MOST_BYTES = 1 << 30


def make_dense(what: str, proto: onnx.ModelProto) -> None:
    """Replace sparse tensors by dense ones of the same values and names.

    Args:
        what: Name of the model in messages.
        proto: The model; changed in place.

    Raises:
        NetworkError: A sparse tensor that is external, contradicts its shape, or is too large as a dense one.
    """
    for nodes, graph in _bodies(proto):
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor"):
                    dense = _dense(what, node.output[0] if node.output else node.name, attribute.sparse_tensor)
                    attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
        if graph is not None and graph.sparse_initializer:
            tensors = [_dense(what, each.values.name, each) for each in graph.sparse_initializer]
            del graph.sparse_initializer[:]
            graph.initializer.extend(tensors)


def _bodies(proto: onnx.ModelProto) -> Iterator[tuple[Iterable[onnx.NodeProto], onnx.GraphProto | None]]:
    waiting: list[tuple[Iterable[onnx.NodeProto], onnx.GraphProto | None]] = [(proto.graph.node, proto.graph)]
    waiting += [(function.node, None) for function in proto.functions]
    while waiting:
        nodes, graph = waiting.pop()
        yield nodes, graph
        for node in nodes:
            for attribute in node.attribute:
                inner = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())]
                waiting += [(each.node, each) for each in inner]


def _dense(what: str, name: str, tensor: onnx.SparseTensorProto) -> onnx.TensorProto:
    shape, called = list(tensor.dims), f"{what}: the value {name!r}"
    if wrong := [size for size in shape if size < 0]:
        raise NetworkError(f"{called} has the dimension {wrong[0]}; allowed: at least 0")
    for part in (tensor.values, tensor.indices):
        if part.data_location == onnx.TensorProto.EXTERNAL:
            raise NetworkError(
                f"{called} is sparse and in an external file; allowed: in the model; remedy: store it dense"
            )
    try:
        onnx.checker.check_sparse_tensor(tensor)
        values, indices = (onnx.numpy_helper.to_array(part) for part in (tensor.values, tensor.indices))
    except Exception as error:  # onnx and NumPy raise any type
        raise NetworkError(f"{called} is sparse and not valid ONNX: {str(error).splitlines()[0]}") from error
    size = math.prod(shape) * max(values.itemsize, 1)
    if size > _MOST_BYTES:
        raise NetworkError(
            f"{called} of shape {shape} takes {size:.2g} bytes as a dense one; allowed: {_MOST_BYTES:.2g}; remedy: "
            "compute it in the network, with ScatterND"
        )
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
    array = np.zeros(math.prod(shape), values.dtype)
    array[places] = values
    return onnx.numpy_helper.from_array(array.reshape(shape), name)
