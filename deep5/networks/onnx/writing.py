"""Write a model as an ONNX file, weight by weight: memory never contains a second copy of all weights.

A protobuf message is a sequence of fields in any order. The bytes are what protobuf itself would write, except for the
order: first the graph without its initial values, then each initial value.

References:
    Protocol Buffers, Encoding: records, varints, length-delimited fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError, OutputError
from deep5.core.files import write_atomically
from deep5.networks.onnx.exported import state
from deep5.networks.onnx.initial_values import initial_value
from deep5.networks.onnx.weights import check_path

__all__ = ["LARGEST_BYTES", "model_proto", "save_model", "write_model"]

LARGEST_BYTES = 1 << 31
"""The size limit of protobuf, and so of an ONNX file, in bytes."""

_DELIMITED = 2  # the wire type of strings, bytes and messages
# Protobuf itself writes smaller values.
_STREAMED_BYTES = 1 << 16
_NOTHING = ir.Tensor(np.empty(0, np.uint8))


def model_proto(model: ir.Model) -> onnx.ModelProto:
    """The model with all weights inside, including those of external files.

    Raises:
        NetworkError: The model is larger than 2 GiB, or a weight cannot be read.
    """
    _check_size(model)
    copy = model.clone()
    state(copy)
    for name, value in copy.graph.initializers.items():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.Tensor(initial_value(model, name), name=name)
    return ir.to_proto(copy)


def save_model(model: ir.Model, path: str | Path) -> None:
    """Write a model as one ONNX file, atomically.

    Raises:
        UsageError: No path, or a file that does not end in `.onnx`.
        NetworkError: The model is larger than 2 GiB, or a weight cannot be read.
        OutputError: The file cannot be written.
    """
    check_path(path, "the network", ".onnx", "save_weights")
    try:
        write_atomically(path, lambda file: write_model(model, file))
    except OSError as error:
        raise OutputError(
            f"the network cannot be written to {path} ({error.strerror}); allowed: a writable file"
        ) from error


def write_model(model: ir.Model, file: BinaryIO) -> None:
    """Write a model into an open file, all weights inside.

    Beyond the model itself it needs memory for the largest weight only.

    Raises:
        NetworkError: The model is larger than 2 GiB, or a weight cannot be read.
    """
    _check_size(model)
    copy = model.clone()
    state(copy)
    held = [value for value in copy.graph.initializers.values() if value.const_value is not None]
    tensors = [_readable(model, value) for value in held]
    for value in held:
        value.const_value = _NOTHING
    proto = ir.to_proto(copy)
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    heads = [_head(str(value.name), tensor) for value, tensor in zip(held, tensors, strict=True)]
    number = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
    framed = [_framing(number, len(head) + raw) + head for head, raw in heads]
    size = len(graph) + sum(len(frame) + raw for frame, (_, raw) in zip(framed, heads, strict=True))
    file.write(proto.SerializeToString(deterministic=True))
    file.write(_framing(onnx.ModelProto.GRAPH_FIELD_NUMBER, size) + graph)
    for tensor, frame, (_, raw) in zip(tensors, framed, heads, strict=True):
        file.write(frame)
        if raw:
            tensor.tofile(file)


def _check_size(model: ir.Model) -> None:
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    if size >= LARGEST_BYTES:
        raise NetworkError(
            f"the weights take {size} bytes; allowed in one ONNX model: less than {LARGEST_BYTES}; remedy: "
            "network.save_weights(PATH)"
        )


def _readable(model: ir.Model, value: ir.Value) -> Any:
    """The value; `initial_value` reads an external one when it is written, and reports what is wrong with it."""
    tensor, name = value.const_value, str(value.name)
    if isinstance(tensor, ir.ExternalTensor):
        if tensor.nbytes < _STREAMED_BYTES:
            return ir.Tensor(initial_value(model, name))
        return ir.LazyTensor(lambda: ir.Tensor(initial_value(model, name)), tensor.dtype, tensor.shape)
    return tensor


def _head(name: str, tensor: Any) -> tuple[bytes, int]:
    """The bytes before the numbers of a value, and the size of these in bytes; all of a small value, and 0."""
    if tensor.nbytes < _STREAMED_BYTES or tensor.dtype is ir.DataType.STRING:
        small = ir.to_proto(tensor)
        small.name = name
        return small.SerializeToString(deterministic=True), 0
    proto = onnx.TensorProto(name=name, dims=tensor.shape.numpy(), data_type=int(tensor.dtype))
    raw = tensor.nbytes
    return proto.SerializeToString(deterministic=True) + _framing(onnx.TensorProto.RAW_DATA_FIELD_NUMBER, raw), raw


def _framing(field: int, size: int) -> bytes:
    """The bytes before a field of the given size."""
    return _varint(field << 3 | _DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
    """Seven bits per byte, lowest first; the eighth bit says that more bytes follow."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
