"""Buffers cut into buckets of equal size, each with a scale of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.distributed.compression.scratch import Scratch

__all__ = ["buckets_of", "check_bucket", "rows_of"]


def check_bucket(name: str, bucket: Any) -> int:
    """A number of elements that is a multiple of eight, so that buckets end where bytes do.

    Raises:
        UsageError: It is none.
    """
    if not is_whole(bucket) or bucket < 8 or bucket % 8:
        raise UsageError(f"{name}: got bucket={brief(bucket)}; allowed: a multiple of 8, such as 512")
    return int(bucket)


def buckets_of(count: int, bucket: int) -> int:
    """⌈n / d⌉."""
    return -(-count // bucket)


def rows_of(values: np.ndarray, bucket: int, scratch: Scratch) -> np.ndarray:
    """The values in rows of a bucket each, not to be changed; zeros fill the last one."""
    rows = buckets_of(values.size, bucket)
    if values.size == rows * bucket:
        return values.reshape(rows, bucket)
    filled = scratch.take("rows", rows * bucket, values.dtype)
    filled[: values.size] = values
    filled[values.size :] = 0
    return filled.reshape(rows, bucket)
