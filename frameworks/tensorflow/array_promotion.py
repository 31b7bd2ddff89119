"""Promotion of TensorFlow arrays and numbers by the standard's type promotion table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.core.errors import Unsupported, brief
from deep5.frameworks.tensorflow.array import TensorFlowArray, extent_tensor
from deep5.networks.tracing.extents import TracedExtent
from deep5.networks.tracing.promotion import KINDS, kind_of, promoted

__all__ = ["operands"]


def operands(function: str, values: Sequence[Any], *kinds: str) -> list[Any]:
    """Converts arrays, numbers and dimensions to tensors of one dtype, by the standard's promotion table.

    A number takes the dtype of the arrays.

    Args:
        function: Name of the function for messages.
        values: Arrays, numbers and dimensions.
        kinds: The kinds, out of `KINDS`, that the function accepts; all if none is given.

    Raises:
        Unsupported: There is no array, a kind is not accepted, or the standard does not define the promotion.
    """
    numbers = [isinstance(value, (bool, int, float, TracedExtent)) for value in values]
    arrays = [_tensor(value) for value, number in zip(values, numbers, strict=True) if not number]
    if not arrays:
        raise Unsupported(f"{function} of only numbers; allowed: at least one array; remedy: xp.asarray")
    dtype = arrays[0].dtype
    if any(x.dtype != dtype for x in arrays):
        dtype = tf.as_dtype(promoted(*(np.dtype(x.dtype.as_numpy_dtype) for x in arrays)))
    if kinds and kind_of(np.dtype(dtype.as_numpy_dtype)) not in kinds:
        allowed = ", ".join(KINDS[kind] for kind in kinds)
        raise Unsupported(f"{function} of {dtype.name}; allowed: {allowed}; remedy: xp.astype")
    left = iter(arrays)
    return [
        _number(function, value, dtype) if number else tf.cast(next(left), dtype)  # unchanged if it has that dtype
        for value, number in zip(values, numbers, strict=True)
    ]


def _tensor(value: Any) -> Any:
    if isinstance(value, TensorFlowArray):
        return value.tensor
    if isinstance(value, (tf.Tensor, tf.Variable, np.ndarray, np.generic)):
        return tf.convert_to_tensor(value)
    raise Unsupported(f"got {brief(value)}; allowed: an array; remedy: xp.asarray({brief(value)}, dtype=x.dtype)")


def _number(function: str, value: Any, dtype: Any) -> Any:
    if isinstance(value, TracedExtent):
        return tf.cast(extent_tensor(value, tf.int64), dtype)
    kind = kind_of(np.dtype(dtype.as_numpy_dtype))
    if (kind == "bool" and not isinstance(value, bool)) or (kind == "integer" and type(value) is not int):
        raise Unsupported(f"{function} of {dtype.name} and the number {value!r}; allowed: a number of its kind")
    try:
        return tf.constant(value, dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise Unsupported(f"{function}: {dtype.name} has no {value!r}") from error
