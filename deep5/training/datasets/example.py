"""`tf.train.Example` messages: named lists of bytes, floats or integers, read and written without protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["Feature", "encode_example", "parse_example"]

Feature = list[bytes] | np.ndarray
"""The value of a feature: bytes, float32 or int64."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES, _FLOATS, _INTS = 1, 2, 3


def parse_example(message: bytes) -> dict[str, Feature]:
    """The features of an Example by name.

    Args:
        message: A serialized `tf.train.Example`.

    Returns:
        For each name, a list of bytes or an array of float32 or int64; a feature without values is omitted.

    Raises:
        UsageError: The message is not an Example; the error gives the reason and the position.

    References:
        TensorFlow, `example.proto` and `feature.proto`: Example { Features features = 1 },
        Features { map<string, Feature> feature = 1 },
        Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3 } }, each
        list with `repeated … value = 1`, numbers packed or not; Protocol Buffers, "Encoding".

    >>> parse_example(encode_example({"label": [3], "name": [b"cat"]}))
    {'label': array([3]), 'name': [b'cat']}
    """
    view = memoryview(message)
    found: dict[str, Feature] = {}
    for number, value in _fields(view):
        if number != 1:
            continue
        for inner, entry in _fields(_bytes(value)):
            if inner != 1:
                continue
            name, feature = "", None
            for part, content in _fields(_bytes(entry)):
                if part == 1:
                    name = _text(_bytes(content))
                elif part == 2:
                    feature = _feature(_bytes(content))
            if feature is not None:
                found[name] = feature
    return found


def encode_example(features: Mapping[str, Sequence[bytes] | Sequence[int] | Sequence[float]]) -> bytes:
    """A serialized `tf.train.Example`; names are written in order.

    Args:
        features: For each name, at least one value: bytes, 64-bit integers, or floats.

    Raises:
        UsageError: A list is empty, or holds values of another type.
    """
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _encoded(name, values))) for name, values in features.items()
    )
    return _field(1, entries)


def _encoded(name: str, values: Sequence[bytes] | Sequence[int] | Sequence[float]) -> bytes:
    if values and all(isinstance(value, bytes) for value in values):
        return _field(_BYTES, b"".join(_field(1, value) for value in values if isinstance(value, bytes)))
    if values and all(isinstance(value, (int, np.integer)) for value in values):
        return _field(_INTS, _field(1, b"".join(_varint(int(value) & 0xFFFF_FFFF_FFFF_FFFF) for value in values)))
    if values and all(isinstance(value, (float, np.floating)) for value in values):
        return _field(_FLOATS, _field(1, np.asarray(values, dtype="<f4").tobytes()))
    raise UsageError(f"feature {name!r} of an Example: allowed: a list of bytes, of integers or of floats")


def _feature(view: memoryview) -> Feature | None:
    for kind, content in _fields(view):
        if kind == _BYTES:
            return [bytes(_bytes(value)) for number, value in _fields(_bytes(content)) if number == 1]
        if kind == _FLOATS:
            raw = b"".join(
                bytes(value) if isinstance(value, memoryview) else _four(value)
                for number, value in _fields(_bytes(content))
                if number == 1
            )
            if len(raw) % 4:
                raise _wrong(f"a list of floats of {len(raw)} bytes")
            return np.frombuffer(raw, dtype="<f4").astype(np.float32)
        if kind == _INTS:
            numbers: list[int] = []
            for number, value in _fields(_bytes(content)):
                if number == 1:
                    numbers += [value] if isinstance(value, int) else _packed(value)
            # 64-bit two's complement.
            return np.array(numbers, dtype=np.uint64).view(np.int64)
    return None


def _four(value: int) -> bytes:
    if value > 0xFFFF_FFFF:
        raise _wrong("a float of more than four bytes")
    return struct.pack("<I", value)


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Number and value of each field: bytes as a view, a number as an int."""
    at = 0
    while at < len(view):
        tag, at = _read_varint(view, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _wrong("a field of number 0")
        if wire == _VARINT:
            value, at = _read_varint(view, at)
            yield number, value
            continue
        if wire == _LENGTH:
            size, at = _read_varint(view, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise _wrong(f"a field of the unknown wire type {wire}")
        if at + size > len(view):
            raise _wrong(f"a field of {size} bytes, of which {len(view) - at} are there")
        part = view[at : at + size]
        yield number, part if wire == _LENGTH else int.from_bytes(part, "little")
        at += size


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view):
            raise _wrong("it ends in the middle of a number")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise _wrong("a number of more than 64 bits")


def _packed(view: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(view):
        value, at = _read_varint(view, at)
        numbers.append(value)
    return numbers


def _bytes(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise _wrong("a number where a message or bytes belong")
    return value


def _text(view: memoryview) -> str:
    try:
        return bytes(view).decode()
    except UnicodeDecodeError as error:
        raise _wrong("a name that is not UTF-8") from error


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _wrong(what: str) -> UsageError:
    return UsageError(f"not a tf.train.Example: {what}")
