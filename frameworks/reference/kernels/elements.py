"""From floating-point numbers to the element type that an operator gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["in_range"]

# Sums of weights that are 1 but for rounding must not make 2 of 3: what is this near to a whole number is that number.
_DECIMALS = 6


def in_range(x: Array, dtype: Any) -> Array:
    """Numbers cut off to whole ones within what a whole type holds; as they are for a floating-point type."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.not_equal(x, 0)
    if kind.kind not in "iu":
        return x.astype(kind, copy=False)
    info = np.iinfo(kind)
    whole = np.trunc(np.round(np.nan_to_num(x), _DECIMALS))
    # The largest of 64 bits are no float64: what is not below them is them.
    top = whole >= float(info.max)
    return np.where(top, info.max, np.where(top, 0, np.maximum(whole, float(info.min))).astype(kind))
