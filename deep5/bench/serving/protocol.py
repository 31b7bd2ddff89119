"""Requests and responses of KServe's protocol, version 2: JSON tensors, and the extension for binary ones.

References:
    KServe, Open Inference Protocol (V2), REST (github.com/kserve/open-inference-protocol).
    NVIDIA, Triton Inference Server, "Binary Tensor Data Extension" (docs/protocol/extension_binary_data.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.tensors import TensorSpec, numpy_dtype

__all__ = [
    "HEADER", "Inference", "RequestError", "decode_request", "decode_response", "encode_request", "encode_response",
    "tensor_document",
]  # fmt: skip

HEADER = "Inference-Header-Content-Length"
"""The HTTP header with the length of the JSON before binary tensors."""

_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16",
}  # fmt: skip
# Dimensions of a tensor, and levels of lists in JSON.
_MOST_DIMENSIONS = 32


class RequestError(UsageError):
    """A request that is not one of the protocol, or does not fit the model: HTTP status 400."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A request for inference.

    Attributes:
        rows: By sample, the arrays by input.
        id: The client's name of the request, or None.
        binary: By output, whether it is sent as bytes; in the order in which outputs are returned.
    """

    rows: tuple[Mapping[str, np.ndarray], ...]
    id: str | None
    binary: Mapping[str, bool]


def tensor_document(name: str, spec: TensorSpec) -> dict[str, Any]:
    """A tensor in a model's metadata; free dimensions, the batch among them, are -1.

    Args:
        name: Name of the input or output.
        spec: Shape and dtype of one sample, without the batch.

    >>> tensor_document("input", TensorSpec(shape=(1, 28, "W")))
    {'name': 'input', 'datatype': 'FP32', 'shape': [-1, 1, 28, -1]}
    """
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": name, "datatype": _type_of(name, spec), "shape": [-1, *shape]}


def _type_of(name: str, spec: TensorSpec) -> str:
    if spec.dtype not in _TYPES:
        raise UsageError(f"{name!r} is {spec}, which the protocol has no type for; allowed: {', '.join(_TYPES)}")
    return _TYPES[spec.dtype]


def decode_request(
    body: bytes, header_length: str | None, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> Inference:
    """Read a request for inference.

    Args:
        body: The body.
        header_length: The value of `HEADER`, or None: all of the body is JSON.
        inputs: By name, shape and dtype of one sample.
        outputs: Likewise, of its answer.

    Raises:
        RequestError: It is not a request of the protocol, or does not fit the model.

    >>> body = b'{"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}]}'
    >>> found = decode_request(body, None, {"x": TensorSpec(shape=(3,))}, {"y": TensorSpec(shape=(1,))})
    >>> [row["x"].tolist() for row in found.rows], found.binary
    ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], {'y': False})
    """
    document, rest = _split(body, header_length)
    arrays: dict[str, np.ndarray] = {}
    for tensor in _listed(document, "inputs"):
        name, array, rest = _read_tensor(tensor, inputs, rest)
        if name in arrays:
            raise RequestError(f"the input {name!r} is there twice; allowed: each input once")
        arrays[name] = array
    if rest:
        raise RequestError(f"{len(rest)} bytes follow the last tensor; allowed: the bytes of binary_data_size")
    missing = [name for name in inputs if name not in arrays]
    if missing:
        raise RequestError(f"the input {missing[0]!r} is missing; allowed: {', '.join(inputs)}, each once")
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1 or not counts.pop():
        sizes = {name: len(array) for name, array in arrays.items()}
        raise RequestError(f"the first dimensions of the inputs are {sizes}; allowed: one batch size, at least 1")
    count = len(next(iter(arrays.values())))
    identifier = document.get("id")
    return Inference(
        rows=tuple({name: array[place] for name, array in arrays.items()} for place in range(count)),
        id=identifier if isinstance(identifier, str) else None,
        binary=_requested(document, outputs),
    )


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a body, and what follows it."""
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit()) or int(header_length[:18]) > len(body):
            raise RequestError(f"{HEADER} is {header_length!r:.40}; allowed: 0 to {len(body)}, the length of the body")
        length = int(header_length)
    try:
        document = json.loads(body[:length].decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the body is no JSON: {str(error)[:200]}; allowed: a request of KServe's protocol"
        ) from error
    if not isinstance(document, dict):
        raise RequestError(f"the body is {brief(document)}; allowed: an object with 'inputs'")
    return document, memoryview(body)[length:]


def _no_number(text: str) -> None:
    """Python reads NaN, Infinity and -Infinity, which JSON does not have."""
    raise ValueError(f"{text} is no number of JSON; remedy: binary data")


def _listed(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise RequestError(f"{key!r} is {brief(found)}; allowed: a list of tensors, each an object")
    return found


def _read_tensor(
    tensor: Mapping[str, Any], specs: Mapping[str, TensorSpec], rest: memoryview
) -> tuple[str, np.ndarray, memoryview]:
    """An input, and the bytes after its own."""
    name, shape = tensor.get("name"), tensor.get("shape")
    if not isinstance(name, str) or name not in specs:
        near = suggestion(name, specs) if isinstance(name, str) else ""
        raise RequestError(f"unknown input {brief(name)}; allowed: {', '.join(specs)}{near}")
    spec = specs[name]
    if tensor.get("datatype") != _type_of(name, spec):
        raise RequestError(
            f"input {name!r} has the datatype {brief(tensor.get('datatype'))}; allowed: {_type_of(name, spec)!r}"
        )
    if (
        not isinstance(shape, list)
        or not 0 < len(shape) <= _MOST_DIMENSIONS
        or any(type(size) is not int or not 0 <= size < 1 << 40 for size in shape)
    ):
        raise RequestError(f"input {name!r} has the shape {brief(shape)}; allowed: a list of integers, the batch first")
    if (fault := spec.mismatch(tuple(shape[1:]), spec.dtype)) is not None:
        raise RequestError(f"input {name!r}, without its batch: {fault}")
    parameters = tensor.get("parameters")
    length = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if length is None:
        return name, _from_lists(name, tensor.get("data"), spec, shape), rest
    dtype, count = numpy_dtype(spec.dtype), math.prod(shape)
    if length != count * dtype.itemsize or length > len(rest):
        raise RequestError(
            f"input {name!r} of the shape {shape} has binary_data_size {brief(length)}, and the body has {len(rest)} "
            f"bytes left; allowed: {count * dtype.itemsize}"
        )
    raw = np.frombuffer(rest[:length], np.uint8)
    # A byte other than 0 and 1 is no bool to NumPy.
    array = (raw != 0 if spec.dtype == "bool" else raw.view(dtype)).reshape(shape)
    return name, array, rest[length:]


def _from_lists(name: str, data: Any, spec: TensorSpec, shape: Sequence[int]) -> np.ndarray:
    """A tensor of nested or flat lists of numbers."""
    if spec.dtype == "bfloat16":
        raise RequestError(f"input {name!r} has the datatype BF16 in JSON; allowed: as binary data")
    if not isinstance(data, list):
        raise RequestError(f"input {name!r} has the data {brief(data)}; allowed: a list, or binary_data_size")
    flat: list[Any] = data
    for _ in range(_MOST_DIMENSIONS):
        if not any(isinstance(entry, list) for entry in flat):
            break
        if not all(isinstance(entry, list) for entry in flat):
            raise RequestError(f"input {name!r} has lists and numbers side by side; allowed: one or the other")
        flat = [entry for entries in flat for entry in entries]
    kinds = {"b": bool, "i": int, "u": int}.get(np.dtype(spec.dtype).kind)
    allowed = (int, float) if kinds is None else (kinds,)
    odd = [entry for entry in flat if type(entry) not in allowed][:1]
    if odd or len(flat) != math.prod(shape):
        among = f", {brief(odd[0])} among them" if odd else ""
        raise RequestError(
            f"input {name!r} has {len(flat)} elements{among}; allowed: {math.prod(shape)} of {spec.dtype}, by its "
            f"shape {list(shape)}"
        )
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, dtype=spec.dtype).reshape(shape)
    except OverflowError as error:
        raise RequestError(f"input {name!r} has a number out of range of {spec.dtype}: {error}") from error


def _requested(document: Mapping[str, Any], outputs: Mapping[str, TensorSpec]) -> dict[str, bool]:
    """Which outputs are returned, and whether as bytes."""
    parameters = document.get("parameters")
    general = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    if not document.get("outputs"):
        return dict.fromkeys(outputs, general)
    found: dict[str, bool] = {}
    for tensor in _listed(document, "outputs"):
        name, own = tensor.get("name"), tensor.get("parameters")
        if not isinstance(name, str) or name not in outputs:
            near = suggestion(name, outputs) if isinstance(name, str) else ""
            raise RequestError(f"unknown output {brief(name)}; allowed: {', '.join(outputs)}{near}")
        found[name] = own.get("binary_data", general) is True if isinstance(own, dict) else general
    return found


def encode_response(
    model: str, inference: Inference, answers: Sequence[Mapping[str, np.ndarray]], about: Mapping[str, Any]
) -> tuple[bytes, int | None]:
    """The body of a response, and the value of `HEADER` if it has binary tensors.

    Args:
        model: Name of the model.
        inference: The request.
        answers: By sample, the arrays by output.
        about: The response's parameters.

    Raises:
        UsageError: An output is NaN or infinite, and was requested in JSON, which has no such numbers.
    """
    tensors, data = [], []
    for name, binary in inference.binary.items():
        array = np.stack([answer[name] for answer in answers])
        spec = TensorSpec(shape=array.shape, dtype=array.dtype.name)
        tensor: dict[str, Any] = {"name": name, "datatype": _type_of(name, spec), "shape": list(array.shape)}
        if binary or spec.dtype == "bfloat16":
            data.append(np.ascontiguousarray(array).tobytes())
            tensor["parameters"] = {"binary_data_size": len(data[-1])}
        else:
            tensor["data"] = array.ravel().tolist()
        tensors.append(tensor)
    document = {"model_name": model, "model_version": "1", "outputs": tensors, "parameters": dict(about)}
    if inference.id is not None:
        document["id"] = inference.id
    try:
        text = json.dumps(document, allow_nan=False).encode()
    except ValueError as error:
        raise UsageError(
            "an output is NaN or infinite, and JSON has no such numbers; remedy: request binary outputs"
        ) from error
    return b"".join([text, *data]), len(text) if data else None


def encode_request(row: Mapping[str, np.ndarray]) -> tuple[bytes, int]:
    """The body of a request for one sample with binary tensors, and the value of `HEADER`.

    Args:
        row: Arrays by input, without the batch.

    >>> body, length = encode_request({"x": np.array([1.0, 2.0], np.float32)})
    >>> decode_request(body, str(length), {"x": TensorSpec(shape=(2,))}, {}).rows[0]["x"].tolist()
    [1.0, 2.0]
    """
    tensors, data = [], []
    for name, array in row.items():
        spec = TensorSpec(shape=array.shape, dtype=array.dtype.name)
        data.append(np.ascontiguousarray(array).tobytes())
        size = {"binary_data_size": len(data[-1])}
        tensors.append({"name": name, "datatype": _type_of(name, spec), "shape": [1, *array.shape], "parameters": size})
    text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    return b"".join([text, *data]), len(text)


def decode_response(body: bytes, header_length: str | None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a response by output, with the batch, and its parameters.

    Args:
        body: The body.
        header_length: The value of `HEADER`, or None.

    Raises:
        RequestError: It is not a response of the protocol.
    """
    document, rest = _split(body, header_length)
    names = {value: key for key, value in _TYPES.items()}
    arrays: dict[str, np.ndarray] = {}
    for tensor in _listed(document, "outputs"):
        name, shape, dtype = tensor.get("name"), tensor.get("shape"), names.get(str(tensor.get("datatype")))
        if not isinstance(name, str) or not isinstance(shape, list) or dtype is None:
            raise RequestError(f"the output {brief(tensor)} has no name, shape and datatype; allowed: all of them")
        spec = TensorSpec(shape=tuple(shape[1:]), dtype=dtype)
        _, arrays[name], rest = _read_tensor(tensor, {name: replace(spec)}, rest)
    parameters = document.get("parameters")
    return arrays, parameters if isinstance(parameters, dict) else {}
