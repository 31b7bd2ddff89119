"""Feature operators of ai.onnx.ml for tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import NetworkError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = [
    "binarize",
    "encode_labels",
    "extract_features",
    "impute",
    "join_features",
    "normalize",
    "one_hot",
    "scale",
]


def extract_features(x: Array, places: Array) -> Array:
    """ai.onnx.ml ArrayFeatureExtractor: elements of the last axis; one row if x has rank 1.

    Raises:
        NetworkError: An index is out of range.
    """
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    index, extent = places.reshape(-1), rows.shape[-1]
    if index.size and not 0 <= index.min() <= index.max() < extent:
        raise NetworkError(f"ArrayFeatureExtractor: a place is outside the axis; allowed: 0 to {extent - 1}")
    picked: Array = np.take(rows, index, axis=-1)
    return picked


def binarize(x: Array, *, threshold: float) -> Array:
    """ai.onnx.ml Binarizer: 1 where x is greater than the threshold, else 0."""
    return np.asarray(x > np.asarray(threshold).astype(x.dtype)).astype(x.dtype)


def encode_labels(x: Array, *, keys: Array, values: Array, default: Any) -> Array:
    """ai.onnx.ml LabelEncoder: each element's value, or the default if it is not a key.

    Args:
        x: Any shape.
        keys: 1-D; of equal keys the last one counts, and NaN equals NaN.
        values: One per key; their dtype is the result's.
        default: The value of other elements.
    """
    table = dict(zip(map(_key, keys.tolist()), range(len(keys)), strict=True))
    distinct, places = np.unique(x, return_inverse=True)
    all_values = np.empty(len(values) + 1, values.dtype)
    all_values[:-1], all_values[-1] = values, default
    found = np.array([table.get(_key(element), len(values)) for element in distinct.tolist()], np.int64)
    mapped: Array = all_values[found[places.reshape(x.shape)]]
    return mapped


def impute(x: Array, *, replaced: Any, by: Array) -> Array:
    """ai.onnx.ml Imputer: elements that equal `replaced`, NaN included, become those of their column."""
    chosen = np.isnan(x) if isinstance(replaced, float) and np.isnan(replaced) else x == replaced
    found: Array = np.where(chosen, by.astype(x.dtype), x)
    return found


def join_features(*parts: Array) -> Array:
    """ai.onnx.ml FeatureVectorizer: the columns of all inputs, float32."""
    rows = [part.reshape(1, -1) if part.ndim == 1 else part for part in parts]
    return np.concatenate([part.reshape(len(part), -1).astype(np.float32) for part in rows], axis=1)


def normalize(x: Array, *, norm: str) -> Array:
    """ai.onnx.ml Normalizer: each row over its maximum, sum of magnitudes or length; rows of 0 stay; float32."""
    rows = x.astype(np.float32)
    if norm == "MAX":
        size = rows.max(axis=-1, keepdims=True)
    elif norm == "L1":
        size = np.abs(rows).sum(axis=-1, keepdims=True)
    else:
        size = np.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    found: Array = rows / np.where(size == 0, 1, size)
    return found


def one_hot(x: Array, *, categories: Array) -> Array:
    """ai.onnx.ml OneHotEncoder: a new last axis with 1 where an element is the category, float32."""
    elements = x if x.dtype == object else x.astype(np.int64)
    return np.asarray(elements[..., None] == categories).astype(np.float32)


def scale(x: Array, *, offset: Array, factor: Array) -> Array:
    """ai.onnx.ml Scaler: (x - offset) * factor per column, float32."""
    found: Array = (x.astype(np.float32) - offset) * factor
    return found


def _key(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124 - NaN
