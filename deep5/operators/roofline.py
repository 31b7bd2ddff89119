"""Measured peaks of this machine: a matrix product and a copy, as reference for an operator's rates."""

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
    """Measured peaks.

    Attributes:
        flop_s: Floating-point operations per second of the fastest matrix product in `dtype`; None if no library has
            one.
        byte_s: Bytes per second, read and written, of the fastest copy of memory larger than any cache.
        threads: Number of threads.
        dtype: Element type of the product; rates of different element types are not comparable.
        seen: All measured peaks by library: `{"numpy": (flop_s, byte_s)}`; None if a library has none.

    References:
        Williams, Waterman and Patterson, Roofline: an insightful visual performance model, CACM 52(4), 2009.
    """

    flop_s: float | None
    byte_s: float
    threads: int
    dtype: str
    seen: Mapping[str, tuple[float | None, float | None]]

    def attainable(self, flops: int, moved_bytes: int) -> float | None:
        """Operations per second attainable by an operator of this work and traffic; None without a product rate.

        >>> Roofline(flop_s=100.0, byte_s=10.0, threads=1, dtype="float32", seen={}).attainable(20, 10)
        20.0
        """
        if self.flop_s is None:
            return None
        return min(self.flop_s, flops / moved_bytes * self.byte_s) if moved_bytes else self.flop_s

    def with_library(self, name: str, flop_s: float | None, byte_s: float | None) -> Roofline:
        """This roofline with the rates of another library; the fastest is the peak."""
        return Roofline(
            flop_s=max(filter(None, (self.flop_s, flop_s)), default=None),
            byte_s=max(self.byte_s, byte_s or 0.0),
            threads=self.threads,
            dtype=self.dtype,
            seen={**self.seen, name: (flop_s, byte_s)},
        )

    @property
    def fastest_copy(self) -> str | None:
        """The library whose copy of memory is the peak; None without one.

        >>> seen = {"numpy": (None, 7.0), "onnxruntime": (None, 9.0)}
        >>> Roofline(flop_s=None, byte_s=9.0, threads=1, dtype="int8", seen=seen).fastest_copy
        'onnxruntime'
        """
        return next((name for name, (_, byte_s) in self.seen.items() if byte_s == self.byte_s), None)

    def merged(self, other: Roofline) -> Roofline:
        """This roofline merged with another measurement on the same machine; the better one for each library."""
        best = self
        for name, rates in other.seen.items():
            pairs = zip(rates, self.seen.get(name, (None, None)), strict=True)
            flop_s, byte_s = (max(filter(None, pair), default=None) for pair in pairs)
            best = best.with_library(name, flop_s, byte_s)
        return best


def best_rate(work: Work, amount: float, most_s: float = 0.15) -> float:
    """The highest rate of any loop over a piece of work: only for peaks, the best measurement counts.

    Args:
        work: The function to call.
        amount: Operations or bytes per call.
        most_s: Measuring time in seconds; ten times as long if fewer than four loops fit.
    """
    time_loop(work, 1)
    begin = perf_counter()
    calls, times = calibrate(work, LEAST_SAMPLE_S)
    while (spent := perf_counter() - begin) < most_s or (len(times) < 4 and spent < 10 * most_s):
        times.append(time_loop(work, calls))
    return amount / min(times)


def numpy_roofline(threads: int, dtype: str = "float32", *, copies: bool = True) -> Roofline:
    """Measure the peaks of NumPy, its BLAS and the memory in this process.

    The copy is of arrays larger than the cache: it takes half a second with 32 MiB of cache, and five with 480 MiB.

    Args:
        threads: Threads of the BLAS, and of the copy.
        dtype: Element type of the product; BLAS supports only float32 and float64.
        copies: Whether the copy is measured; otherwise `byte_s` is 0, and None for NumPy.
    """
    flop_s = _product_rate(threads, dtype) if dtype in ("float32", "float64") else None
    byte_s = _copy_rate(threads) if copies else None
    seen = {"numpy": (flop_s, byte_s)}
    return Roofline(flop_s=flop_s, byte_s=byte_s or 0.0, threads=threads, dtype=dtype, seen=seen)


def _product_rate(threads: int, dtype: str) -> float:
    from threadpoolctl import threadpool_limits

    draw = np.random.Generator(np.random.Philox(0))
    a, b = (draw.standard_normal((PRODUCT, PRODUCT)).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    with threadpool_limits(threads, user_api="blas"):
        return best_rate(Work(call=lambda: np.matmul(a, b, out=out)), 2 * PRODUCT**3)


def _copy_rate(threads: int) -> float:
    """Bytes per second of a copy, split among threads: NumPy releases the GIL while it copies."""
    each = 2 * last_level_cache_bytes() // 8 // threads
    pairs: list[tuple[Any, Any]] = [(np.zeros(each), np.ones(each)) for _ in range(threads)]

    def copy(pair: tuple[Any, Any]) -> None:
        np.copyto(*pair)

    if threads == 1:
        return best_rate(Work(call=copy, arguments=(pairs[0],)), 2 * 8 * each)
    with ThreadPoolExecutor(threads) as pool:
        whole: Callable[[], object] = lambda: list(pool.map(copy, pairs))  # noqa: E731
        return best_rate(Work(call=whole), 2 * 8 * each * threads)
