"""The Euclidean norm."""

from __future__ import annotations

from typing import Any

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS"]


def _reduce_l2(
    xp: Primitives, x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Array:
    """The root of the sum of squares; its gradient is 0 where the norm is 0. Integers are computed in float64."""
    kind, nothing = x.dtype, not axes and noop_with_empty_axes
    chosen = () if nothing else tuple(sorted({axis % x.ndim for axis in axes or range(x.ndim)}))
    x = x if xp.is_floating(kind) else xp.astype(x, xp.float64)
    total = xp.sum(x * x, axis=chosen, keepdims=bool(keepdims), dtype=x.dtype) if chosen else x * x
    some = total > 0
    root = xp.where(some, xp.sqrt(xp.where(some, total, xp.ones_like(total))), total)
    return root if root.dtype == kind else xp.astype(root, kind)


OPERATORS = {"ReduceL2": Composite(function=_reduce_l2, settings=(1,))}
