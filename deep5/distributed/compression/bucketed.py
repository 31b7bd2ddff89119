"""Buffers cut into buckets of equal size, each with its own scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.distributed.compression.scratch import Scratch

__all__ = ["buckets_of", "check_bucket", "rows_of"]


def check_bucket(name: str, bucket: Any) -> int:
    """Check a bucket size: a multiple of eight elements, so that buckets end on byte boundaries.

    Raises:
        UsageError: It is not a positive multiple of eight.
    """
    if not is_whole(bucket) or bucket < 8 or bucket % 8:
        raise UsageError(f"{name}: got bucket={brief(bucket)}; allowed: a multiple of 8, such as 512")
    return int(bucket)


def buckets_of(count: int, bucket: int) -> int:
    """⌈n / d⌉."""
    return -(-count // bucket)


def rows_of(values: np.ndarray, bucket: int, scratch: Scratch) -> np.ndarray:
    """The values as rows of one bucket each, read-only by convention; the last row is padded with zeros."""
    rows = buckets_of(values.size, bucket)
    if values.size == rows * bucket:
        return values.reshape(rows, bucket)
    filled = scratch.take("rows", rows * bucket, values.dtype)
    filled[: values.size] = values
    filled[values.size :] = 0
    return filled.reshape(rows, bucket)
