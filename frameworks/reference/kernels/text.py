"""Operators on strings, which are Python strings in object arrays."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.errors import NetworkError, ShapeError
from deep5.core.memory import available_bytes
from deep5.frameworks.reference.kernels.matching import matches
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["Grams", "concatenate", "count_grams", "decoded", "full_match", "normalize", "split_texts"]

# A Python string, and its place in an array.
_OBJECT_BYTES = 64
# Strings up to this size are not compared with the memory that is left.
_SMALL_BYTES = 1 << 28


def decoded(texts: Any) -> Any:
    """Decode an array of bytes from a file to Python strings; other values, lists and None are unchanged."""
    if not isinstance(texts, np.ndarray) or texts.dtype.kind not in "OSU":
        return texts
    return _mapped(lambda text: text.decode() if isinstance(text, bytes) else str(text), texts, object)


def concatenate(a: Array, b: Array) -> Array:
    """ONNX StringConcat: the strings of a followed by those of b, broadcast."""
    count = math.prod(np.broadcast_shapes(a.shape, b.shape))
    longest = sum(max(map(len, each.reshape(-1).tolist()), default=0) for each in (a, b))
    if count * (_OBJECT_BYTES + longest) > _SMALL_BYTES:
        characters = sum(sum(map(len, each.reshape(-1).tolist())) * (count // max(each.size, 1)) for each in (a, b))
        _check_memory("StringConcat", count * _OBJECT_BYTES + characters)
    return np.asarray(np.add(a, b), dtype=object)


def full_match(texts: Array, *, pattern: re.Pattern[str]) -> Array:
    """ONNX RegexFullMatch: whether the pattern matches the whole string."""
    made = np.empty(texts.size, bool)
    made[:] = matches(pattern, texts.reshape(-1).tolist())
    return made.reshape(texts.shape)


def split_texts(texts: Array, *, delimiter: str, most: int | None) -> tuple[Array, Array]:
    """ONNX StringSplit: split each string into parts.

    Args:
        texts: Any shape.
        delimiter: The separator of parts; if empty, white space, which is also stripped.
        most: The maximum number of splits; None: no limit.

    Returns:
        The parts, padded with empty strings, (*shape, maximum number of parts); and the number of parts of each, int64.
    """
    times = -1 if most is None else most
    flat = texts.reshape(-1).tolist()
    most_parts = [text.count(delimiter) + 1 if delimiter else len(text) // 2 + 1 for text in flat]
    _check_memory("StringSplit", sum(most_parts) * _OBJECT_BYTES)
    parts = [text.split(delimiter, times) if delimiter else text.strip().split(None, times) for text in flat]
    counts = np.array([len(found) for found in parts], np.int64)
    _check_memory("StringSplit", len(parts) * int(counts.max(initial=0)) * 8)
    filled = np.full((len(parts), int(counts.max(initial=0))), "", object)
    for row, found in enumerate(parts):
        filled[row, : len(found)] = found
    return filled.reshape(*texts.shape, filled.shape[1]), counts.reshape(texts.shape)


def normalize(texts: Array, *, stopwords: Sequence[str], case_sensitive: bool, change: str) -> Array:
    """ONNX StringNormalizer: without stop words, and optionally in lower or upper case.

    Args:
        texts: (C,) or (1, C).
        stopwords: The strings to remove.
        case_sensitive: Whether stop words are case-sensitive.
        change: `"LOWER"`, `"UPPER"` or `"NONE"`.

    Returns:
        (K,) or (1, K), the K remaining strings; one empty string if there are none.

    Raises:
        ShapeError: `x` has another shape.
    """
    if texts.ndim not in (1, 2) or (texts.ndim == 2 and len(texts) != 1):
        raise ShapeError(f"StringNormalizer: got shape {texts.shape}; allowed: (C,) or (1, C)")
    fold: Callable[[str], str] = str if case_sensitive else str.lower
    left_out = {fold(word) for word in stopwords}
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    changed = changes[change]
    kept = [changed(text) for text in texts.reshape(-1).tolist() if fold(text) not in left_out] or [""]
    return np.array(kept, object).reshape((1,) * (texts.ndim - 1) + (-1,))


@dataclass(frozen=True, kw_only=True)
class Grams:
    """The n-grams to count.

    Attributes:
        places: The position of each n-gram's count in the result.
        weights: The factor of the count by position; all ones if the mode is `"TF"`.
        lengths: The lengths n to count.
        skips: The maximum number of elements to skip between two of an n-gram.
        once: Whether an n-gram counts only once.
    """

    places: Mapping[tuple[Any, ...], int]
    weights: Array
    lengths: range
    skips: int
    once: bool


def count_grams(x: Array, *, grams: Grams) -> Array:
    """ONNX TfIdfVectorizer: the count of each n-gram in a row, with up to `skips` elements between two of it.

    Args:
        x: Integers or strings, (C,) or (N, C).
        grams: The n-grams.

    Returns:
        float32, (places,) or (N, places).

    Raises:
        ShapeError: `x` has another shape.
    """
    if x.ndim not in (1, 2):
        raise ShapeError(f"TfIdfVectorizer: got shape {x.shape}; allowed: (C,) or (N, C)")
    y = np.zeros((1 if x.ndim == 1 else len(x), len(grams.weights)), np.float32)
    for row, elements in zip(y, x.reshape(len(y), -1).tolist(), strict=True):
        found: Counter[int] = Counter()
        counted = {len(gram) for gram in grams.places}
        for length in range(grams.lengths.start, min(grams.lengths.stop, len(elements) + 1)):
            if length not in counted:
                continue
            # A single element has no gaps, and an n-gram with gaps is no longer than the row.
            widest = 1 if length == 1 else min(grams.skips + 1, (len(elements) - 1) // (length - 1))
            for step in range(1, widest + 1):
                reach = (length - 1) * step
                for start in range(len(elements) - reach):
                    place = grams.places.get(tuple(elements[start : start + reach + 1 : step]))
                    if place is not None:
                        found[place] += 1
        for place, count in found.items():
            row[place] = 1 if grams.once else count
    y *= grams.weights
    return y.reshape(-1) if x.ndim == 1 else y


def _check_memory(operator: str, size: int) -> None:
    """Raise an error for strings that would not fit into the memory that is left."""
    if size > _SMALL_BYTES and size > (most := available_bytes() // 4):  # strings are copied by what reads them
        raise NetworkError(
            f"{operator}: the strings take {size:.2g} bytes; allowed: {most:.2g}, a quarter of what is free; remedy: "
            "fewer or shorter strings"
        )


def _mapped(function: Callable[[Any], Any], texts: Array, dtype: Any) -> Array:
    made = np.empty(texts.size, dtype)
    made[:] = [function(text) for text in texts.reshape(-1).tolist()]
    return made.reshape(texts.shape)
