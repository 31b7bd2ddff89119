"""What this machine reaches, measured: a matrix product and a copy, beside which an operator's rates are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from deep5.measuring.loops import LEAST_SAMPLE_S, Work, calibrate, last_level_cache_bytes, time_loop

__all__ = ["Roofline", "best_rate", "numpy_roofline"]

PRODUCT = 1024
"""Rows and columns of the matrices."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Peaks, as measured.

    Attributes:
        flop_s: Floating-point operations a second of the fastest matrix product in `dtype`; None where nothing has one.
        byte_s: Bytes a second, read and written, of the fastest copy of memory that fits into no cache.
        threads: With so many threads.
        dtype: Of the product: a rate in one element type says nothing of another.
        seen: Every peak that was measured, by library: `{"numpy": (flop_s, byte_s)}`; None where one has none.

    References:
        Williams, Waterman and Patterson, Roofline: an insightful visual performance model, CACM 52(4), 2009.
    """

    flop_s: float | None
    byte_s: float
    threads: int
    dtype: str
    seen: Mapping[str, tuple[float | None, float | None]]

    def attainable(self, flops: int, moved_bytes: int) -> float | None:
        """Operations a second that an operator of this work and traffic could reach; None where no product is known.

        >>> Roofline(flop_s=100.0, byte_s=10.0, threads=1, dtype="float32", seen={}).attainable(20, 10)
        20.0
        """
        if self.flop_s is None:
            return None
        return min(self.flop_s, flops / moved_bytes * self.byte_s) if moved_bytes else self.flop_s

    def with_library(self, name: str, flop_s: float | None, byte_s: float | None) -> Roofline:
        """This roofline, with what another library reaches; the faster one is the peak."""
        return Roofline(
            flop_s=max(filter(None, (self.flop_s, flop_s)), default=None),
            byte_s=max(self.byte_s, byte_s or 0.0),
            threads=self.threads,
            dtype=self.dtype,
            seen={**self.seen, name: (flop_s, byte_s)},
        )

    def merged(self, other: Roofline) -> Roofline:
        """This roofline, with what another measurement on the same machine saw; of each library the better one."""
        best = self
        for name, rates in other.seen.items():
            pairs = zip(rates, self.seen.get(name, (None, None)), strict=True)
            flop_s, byte_s = (max(filter(None, pair), default=None) for pair in pairs)
            best = best.with_library(name, flop_s, byte_s)
        return best


def best_rate(work: Work, amount: float, most_s: float = 0.15) -> float:
    """The largest amount a second that any loop over a piece of work shows: a peak is the one thing that is best-of.

    Args:
        work: What is called.
        amount: What one call does, in operations or bytes.
        most_s: How long to look; ten times as long where fewer than four loops fit.
    """
    time_loop(work, 1)
    begin = perf_counter()
    calls, times = calibrate(work, LEAST_SAMPLE_S)
    while (spent := perf_counter() - begin) < most_s or (len(times) < 4 and spent < 10 * most_s):
        times.append(time_loop(work, calls))
    return amount / min(times)


def numpy_roofline(threads: int, dtype: str = "float32") -> Roofline:
    """What NumPy, its BLAS and the memory reach, in this process and with so many threads; takes half a second.

    Args:
        threads: Of the BLAS, and of the copy.
        dtype: Of the product; a BLAS has it in float32 and float64 alone.
    """
    flop_s = _product_rate(threads, dtype) if dtype in ("float32", "float64") else None
    byte_s = _copy_rate(threads)
    return Roofline(flop_s=flop_s, byte_s=byte_s, threads=threads, dtype=dtype, seen={"numpy": (flop_s, byte_s)})


def _product_rate(threads: int, dtype: str) -> float:
    from threadpoolctl import threadpool_limits

    draw = np.random.Generator(np.random.Philox(0))
    a, b = (draw.standard_normal((PRODUCT, PRODUCT)).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    with threadpool_limits(threads, user_api="blas"):
        return best_rate(Work(call=lambda: np.matmul(a, b, out=out)), 2 * PRODUCT**3)


def _copy_rate(threads: int) -> float:
    """Bytes a second of a copy, each thread its part: NumPy lets go of the interpreter while it copies."""
    each = 2 * last_level_cache_bytes() // 8 // threads
    pairs: list[tuple[Any, Any]] = [(np.zeros(each), np.ones(each)) for _ in range(threads)]

    def copy(pair: tuple[Any, Any]) -> None:
        np.copyto(*pair)

    if threads == 1:
        return best_rate(Work(call=copy, arguments=(pairs[0],)), 2 * 8 * each)
    with ThreadPoolExecutor(threads) as pool:
        whole: Callable[[], object] = lambda: list(pool.map(copy, pairs))  # noqa: E731
        return best_rate(Work(call=whole), 2 * 8 * each * threads)
