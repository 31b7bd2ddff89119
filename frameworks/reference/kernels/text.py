"""Operators on strings, which are Python strings in object arrays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["Grams", "concatenate", "count_grams", "decoded", "full_match", "normalize", "split_texts"]


def decoded(texts: Any) -> Any:
    """Decode an array of bytes from a file to Python strings; other values, lists and None are unchanged."""
    if not isinstance(texts, np.ndarray) or texts.dtype.kind not in "OSU":
        return texts
    return _mapped(lambda text: text.decode() if isinstance(text, bytes) else str(text), texts, object)


def concatenate(a: Array, b: Array) -> Array:
    """ONNX StringConcat: the strings of a followed by those of b, broadcast."""
    return np.asarray(np.add(a, b), dtype=object)


def full_match(texts: Array, *, pattern: re.Pattern[str]) -> Array:
    """ONNX RegexFullMatch: whether the pattern matches the whole string."""
    return _mapped(lambda text: pattern.fullmatch(text) is not None, texts, bool)


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
    parts = [text.split(delimiter, times) if delimiter else text.strip().split(None, times) for text in flat]
    counts = np.array([len(found) for found in parts], np.int64)
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
        for length in grams.lengths:
            # A single element has no gaps.
            for step in range(1, 2 if length == 1 else grams.skips + 2):
                reach = (length - 1) * step
                for start in range(len(elements) - reach):
                    place = grams.places.get(tuple(elements[start : start + reach + 1 : step]))
                    if place is not None:
                        found[place] += 1
        for place, count in found.items():
            row[place] = 1 if grams.once else count
    y *= grams.weights
    return y.reshape(-1) if x.ndim == 1 else y


def _mapped(function: Callable[[Any], Any], texts: Array, dtype: Any) -> Array:
    made = np.empty(texts.size, dtype)
    made[:] = [function(text) for text in texts.reshape(-1).tolist()]
    return made.reshape(texts.shape)
