"""Convert floating-point results to an operator's output dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["in_range"]

# Weights may sum to slightly less than 1, which must not turn 3 into 2: values this close to an integer are rounded to
# it.
_DECIMALS = 6


def in_range(x: Array, dtype: Any) -> Array:
    """Numbers truncated and clipped to the range of an integer dtype; unchanged for a floating-point dtype."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.not_equal(x, 0)
    if kind.kind not in "iu":
        return x.astype(kind, copy=False)
    info = np.iinfo(kind)
    whole = np.trunc(np.round(np.nan_to_num(x), _DECIMALS))
    # The largest 64-bit integers are not exact in float64: values that are not below them become the maximum.
    top = whole >= float(info.max)
    return np.where(top, info.max, np.where(top, 0, np.maximum(whole, float(info.min))).astype(kind))
