"""Buffers that ranks reduce for timing, and the check of the result."""

from __future__ import annotations

import numpy as np

from deep5.bench.collective.plan import CollectivePlan
from deep5.core.seeds import generator

__all__ = ["allowed_error", "drawn", "largest_error", "reference"]


def drawn(plan: CollectivePlan, rank: int, elements: int) -> np.ndarray:
    """A rank's buffer, which any rank can reproduce; shape (elements,), of the plan's dtype.

    Sums use values in [-1, 1), products values in [0.8, 1.25), so that they neither overflow nor vanish. Integers are
    3, 5 or 7 in products, which wrap around and are never zero, and 1 to 16 otherwise. Therefore no rank starts with
    the result of a sum or a product.
    """
    random: np.random.Generator = generator(plan.seed, "collective", rank, elements)
    dtype = np.dtype(plan.dtype)
    if dtype.kind == "i":
        if plan.op == "prod":
            return np.asarray(np.array([3, 5, 7], dtype)[random.integers(0, 3, elements)])
        return np.asarray(random.integers(1, 17, elements, dtype=dtype))
    values: np.ndarray = random.random(elements, np.float64 if dtype == np.float64 else np.float32)
    low, span = (0.8, 0.45) if plan.op == "prod" else (-1.0, 2.0)
    values *= span
    values += low
    return np.asarray(values.astype(dtype, copy=False))


def reference(plan: CollectivePlan, ranks: int, elements: int) -> np.ndarray:
    """The correct result, in float64, or in int64 for integers."""
    from deep5.distributed.collectives.messages import COMBINE

    wide = np.int64 if np.dtype(plan.dtype).kind == "i" else np.float64
    total = drawn(plan, 0, elements).astype(wide)
    for rank in range(1, ranks):
        COMBINE[plan.op](total, drawn(plan, rank, elements), out=total)
    return np.asarray(total)


def allowed_error(plan: CollectivePlan, ranks: int) -> float:
    """Allowed difference of a correct result from the reference: absolute for sums, relative for products, otherwise 0.

    P - 1 roundings, in any order, cause an error of at most (P - 1) u sum |x|, or (P - 1) u times the product, to first
    order in the unit roundoff u. Twice that covers the higher orders and the rounding of the reference.

    References:
        Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002, sections 3.1 and 4.2.
    """
    dtype = np.dtype(plan.dtype)
    if dtype.kind == "i" or plan.op in ("max", "min"):
        return 0.0
    roundoff = float(np.finfo(dtype).eps) / 2
    return 2 * (ranks - 1) * roundoff * (ranks if plan.op == "sum" else 1)


def largest_error(plan: CollectivePlan, result: np.ndarray, right: np.ndarray) -> float:
    """The largest error of a result, for comparison with `allowed_error`; infinite if a value is not finite.

    Args:
        plan: The plan.
        result: Shape (elements,).
        right: Result of `reference`.
    """
    worst, step = 0.0, 1 << 20  # in chunks, since buffers may take a large part of the memory
    for begin in range(0, result.size, step):
        got, due = result[begin : begin + step], right[begin : begin + step]
        if result.dtype.kind == "i":
            worst = max(worst, float(np.count_nonzero(got != due.astype(result.dtype))))
            continue
        errors = np.abs(got.astype(np.float64) - due)
        if plan.op == "prod":
            errors /= np.abs(due)
        largest = float(errors.max())
        worst = max(worst, largest if np.isfinite(largest) else float("inf"))
    return worst
