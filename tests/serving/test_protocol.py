"""KServe's protocol, version 2: what is read, what is written, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deep5.bench.serving.protocol import (
    Inference,
    RequestError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    tensor_document,
)
from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec

TYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "bfloat16",
]  # fmt: skip
SPEC = {"x": TensorSpec(shape=(2, "W")), "n": TensorSpec(shape=(), dtype="int64")}
OUT = {"y": TensorSpec(shape=(3,)), "z": TensorSpec(shape=())}


def drawn(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits of a type, without NaN."""
    random = np.random.default_rng(3)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return random.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    return random.normal(size=shape).astype(kind)


@pytest.mark.parametrize("dtype", TYPES)
def test_binary_tensors_keep_their_bits(dtype: str) -> None:
    row = {"x": drawn(dtype, (2, 5))}
    body, length = encode_request(row)
    spec = {"x": TensorSpec(shape=(2, 5), dtype=dtype)}
    found = decode_request(body, str(length), spec, spec)
    assert len(found.rows) == 1
    assert found.rows[0]["x"].dtype.name == dtype
    assert found.rows[0]["x"].tobytes() == row["x"].tobytes()
    assert found.binary == {"x": True}
    answer, header = encode_response("m", found, found.rows, {"batch": 1})
    arrays, about = decode_response(answer, str(header))
    assert arrays["x"].shape == (1, 2, 5)
    assert arrays["x"].tobytes() == row["x"].tobytes()
    assert about == {"batch": 1}


@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if dtype != "bfloat16"])
def test_json_tensors_keep_their_bits(dtype: str) -> None:
    batch = drawn(dtype, (3, 2, 5))
    kind = tensor_document("x", TensorSpec(shape=(2, 5), dtype=dtype))["datatype"]
    spec = {"x": TensorSpec(shape=(2, 5), dtype=dtype)}
    for data in (batch.tolist(), batch.ravel().tolist()):
        document = {"id": "7", "inputs": [{"name": "x", "shape": [3, 2, 5], "datatype": kind, "data": data}]}
        found = decode_request(json.dumps(document).encode(), None, spec, spec)
        assert np.stack([row["x"] for row in found.rows]).tobytes() == batch.tobytes()
        answer, header = encode_response("m", found, found.rows, {})
        assert header is None
        assert decode_response(answer, None)[0]["x"].tobytes() == batch.tobytes()
        assert (json.loads(answer)["id"], json.loads(answer)["model_name"]) == ("7", "m")


def inputs(**changes: Any) -> dict[str, Any]:
    x = {"name": "x", "shape": [1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {"inputs": [x, {"name": "n", "shape": [1], "datatype": "INT64", "data": [5]}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the body is []; allowed: an object with 'inputs'"),
        ({}, "'inputs' is None; allowed: a list of tensors"),
        ({"inputs": [3]}, "'inputs' is [3]; allowed: a list of tensors"),
        (inputs(name="y"), "unknown input 'y'; allowed: x, n"),
        (inputs(name=["x"]), "unknown input ['x']; allowed: x, n"),
        (inputs(name="n", shape=[1], datatype="INT64", data=[5]), "the input 'n' is there twice"),
        ({"inputs": inputs()["inputs"][:1]}, "the input 'n' is missing; allowed: x, n"),
        (inputs(datatype="FP64"), "input 'x' has the datatype 'FP64'; allowed: 'FP32'"),
        (inputs(shape=[1, 2]), "input 'x', without its batch: got shape (2,), expected float32[2, W]"),
        (inputs(shape=[1, 3, 2]), "input 'x', without its batch: got shape (3, 2), expected float32[2, W]"),
        (inputs(shape="1"), "input 'x' has the shape '1'; allowed: a list of integers, the batch first"),
        (inputs(shape=[]), "has the shape []"),
        (inputs(shape=[1, 2, -2]), "has the shape [1, 2, -2]"),
        (inputs(shape=[1, 2, True]), "has the shape [1, 2, True]"),
        (inputs(shape=[1] * 40), "allowed: a list of integers, the batch first"),
        (inputs(shape=[0, 2, 2], data=[]), "allowed: one batch size, at least 1"),
        (inputs(shape=[2, 2, 2], data=[0] * 8), "the first dimensions of the inputs are {'x': 2, 'n': 1}"),
        (inputs(data=[1, 2, 3]), "input 'x' has 3 elements; allowed: 4 of float32, by its shape [1, 2, 2]"),
        (inputs(data=[1, 2, 3, "4"]), "input 'x' has 4 elements, '4' among them; allowed: 4 of float32"),
        (inputs(data=[1, 2, 3, None]), "has 4 elements"),
        (inputs(data=[1, 2, 3, True]), "True among them"),
        (inputs(data=[[1, 2], 3, 4]), "has lists and numbers side by side"),
        (inputs(data="1234"), "input 'x' has the data '1234'; allowed: a list, or binary_data_size"),
        (inputs(data=[1, 2, 3, 10**400]), "input 'x' has a number out of range of float32"),
        (inputs(data=None, parameters={"binary_data_size": 16}), "binary_data_size 16, and the body has 0 bytes left"),
        (inputs(data=None, parameters={"binary_data_size": 15}), "allowed: 16"),
        ({**inputs(), "outputs": [{"name": "q"}]}, "unknown output 'q'; allowed: y, z"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_is_refused(document: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(json.dumps(document).encode(), None, SPEC, OUT)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "header", "message"),
    [
        (b"\xff", None, "the body is no JSON"),
        (b"{", None, "the body is no JSON"),
        (b"[" * 100_000, None, "the body is no JSON"),
        (b'{"inputs": [{"data": [NaN]}]}', None, "the body is no JSON: NaN is no number of JSON; remedy: binary data"),
        (b"{}", "3", "is '3'; allowed: 0 to 2, the length of the body"),
        (b"{}", "-1", "is '-1'; allowed: 0 to 2"),
        (b"{}", "9" * 5000, "allowed: 0 to 2"),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, header: str | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(body, header, SPEC, OUT)
    assert message in str(caught.value)


def test_bytes_after_the_last_tensor_are_refused() -> None:
    body = json.dumps(inputs()).encode()
    with pytest.raises(RequestError, match="4 bytes follow the last tensor"):
        decode_request(body + b"1234", str(len(body)), SPEC, OUT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("name", "shape", "datatype", "data", "parameters")


@settings(deadline=None, max_examples=300)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3), rest=st.binary(max_size=40), outer=JSON)
def test_nothing_but_a_request_error_is_raised(changes: dict[str, Any], rest: bytes, outer: Any) -> None:
    for document in (inputs(**changes), {**inputs(), "outputs": outer}, {"inputs": outer}, outer):
        body = json.dumps(document).encode()
        try:
            found = decode_request(body + rest, str(len(body)), SPEC, OUT)
        except RequestError:
            continue
        assert found.rows
        assert all(row.keys() == SPEC.keys() for row in found.rows)


def test_outputs_are_those_requested() -> None:
    document = {**inputs(), "outputs": [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}]}
    found = decode_request(json.dumps(document).encode(), None, SPEC, OUT)
    assert found.binary == {"z": True, "y": False}
    document = {**inputs(), "parameters": {"binary_data_output": True}, "outputs": [{"name": "y"}]}
    assert decode_request(json.dumps(document).encode(), None, SPEC, OUT).binary == {"y": True}


def test_json_has_no_infinities() -> None:
    inference = Inference(rows=({},), id=None, binary={"y": False})
    with pytest.raises(UsageError, match="an output is NaN or infinite, and JSON has no such numbers; remedy: request"):
        encode_response("m", inference, [{"y": np.array([np.inf], np.float32)}], {})


def test_a_type_without_a_name_in_the_protocol_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'x' is string\[\], which the protocol has no type for; allowed: bool"):
        tensor_document("x", TensorSpec(shape=(), dtype="string"))
