"""Values of the files in a tar file by the ending of their names; code that a pickle could run is never loaded."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.numpy_files import NPY, check_npy
from deep5.training.datasets.pixels import Scaling

__all__ = ["IMAGES", "KINDS", "check_kind", "value_of"]

IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "pgm", "pbm", "bmp", "gif", "tif", "tiff")
"""Endings of images."""

KINDS = ("cls", "cls2", "index", "inx", "id", "txt", "text", "json", "npy", *IMAGES)
"""Endings that have a value."""

_INTEGERS, _STRINGS = ("cls", "cls2", "index", "inx", "id"), ("txt", "text")
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt", "ten", "tb", "mp", "msg")
_UNIT = Scaling(mean=(0.0,), std=(1.0,))


def check_kind(what: str, kind: str) -> None:
    """Reject an ending without a value.

    Raises:
        UsageError: It is a pickle or another format, or is unknown.
    """
    last = kind.rpartition(".")[2]
    if last in _PICKLES:
        raise UsageError(
            f"{what}: entries that end in .{kind} are not read: a pickle runs code when it is loaded, and other binary "
            f"formats have no fixed meaning; allowed: {', '.join(KINDS)}; remedy: arrays as .npy, numbers as .json"
        )
    if last not in KINDS:
        raise UsageError(f"{what}: entries that end in .{kind} have no decoder; allowed: {', '.join(KINDS)}")


def value_of(content: bytes, kind: str, field: str, decoder: Decoder | None, name: str) -> Any:
    """The value of an entry.

    Args:
        content: Its bytes.
        kind: The ending of its name, such as "jpg" or "seg.png"; the part after the last dot decides.
        field: For JSON, the name of a field of the object; empty: the whole value.
        decoder: Decodes images.
        name: The entry's name in messages.

    Returns:
        An int or a string, or an array: of an image float32 (channels, size, size) in [0, 1], of a JSON list of numbers
        float32, or int64 where all are integers.

    Raises:
        UsageError: The content does not decode; the message includes `name`.
    """
    last = kind.rpartition(".")[2]
    if last in IMAGES:
        if decoder is None:
            raise UsageError(f"{name} is an image; allowed: with size=; remedy: size=64, say")
        return _UNIT.apply(decoder.decode(content, name)[None])[0]
    if last == "npy":
        return _array(content, name)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name}: the byte 0x{content[error.start]:02x} at position {error.start + 1} is not UTF-8; allowed: UTF-8"
        ) from error
    if last in _INTEGERS:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
            raise UsageError(f"{name} holds {brief(text)}; allowed: an integer; remedy: .txt for the names of classes")
        return int(text)
    if last in _STRINGS:
        return text.strip()
    return _json(text, field, name)


def _array(content: bytes, name: str) -> np.ndarray:
    try:
        check_npy(content[: len(NPY)])
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, OSError) as error:
        raise UsageError(
            f"{name} is no array ({' '.join(str(error).split())[:120]}); allowed: a .npy file as numpy.save writes it, "
            "without objects"
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise UsageError(f"{name} holds {getattr(array, 'dtype', 'several arrays')}; allowed: one array of numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _json(text: str, field: str, name: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{name} is no JSON ({' '.join(str(error).split())[:120]}); allowed: a value in JSON; remedy: make it again"
        ) from error
    if field:
        if not isinstance(value, dict):
            raise UsageError(
                f"{name} holds {brief(value)}; allowed: an object with the field {field!r}; remedy: 'json', the value"
            )
        if field not in value:
            raise UsageError(f"{name} has no field {field!r}; allowed: {', '.join(map(str, value))[:200]}")
        value = value[field]
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # ragged
        array = np.empty(0, object)
    if array.dtype.kind not in "iuf" or array.size == 0:
        raise UsageError(
            f"{name} holds {brief(value)}; allowed: a number, a string, or a list of numbers of one length; remedy: "
            "'json:FIELD' for a field of an object"
        )
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
