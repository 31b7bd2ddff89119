"""Checks of the results and the traffic of collectives, on several dtypes and sizes, blocking and started."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import numpy as np

from deep5.core.communicator import Communicator, Reduction
from deep5.core.errors import CommunicationError
from deep5.distributed.communicators.check_parts import (
    DTYPES,
    ENOUGH_S,
    check_same,
    counted_as,
    run_collective,
    small_numbers,
)

__all__ = ["check_moves", "check_reductions", "check_rounding"]

_SIZES = (0, 1, 2, 3, 7, 13, 17, 40_001)
"""Nothing, one, an even and an odd number, primes, one above a vector's length, and more than a block of a pipeline."""


_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def check_reductions(communicator: Communicator, dtypes: Sequence[Any] = DTYPES, sizes: Sequence[int] = _SIZES) -> None:
    """Check that reductions give the exact result and count the bytes they send.

    Args:
        communicator: This rank's.
        dtypes: Element types of the buffers.
        sizes: Their numbers of elements.

    Raises:
        CommunicationError: A reduction fails the check.
    """
    rank, size = communicator.rank, communicator.size
    for number, (dtype, count, op) in enumerate(product(dtypes, sizes, get_args(Reduction))):
        # Each size and each reduction runs both ways, each way on half of the dtypes.
        started = (number // (4 * len(sizes)) + number // 4 + number) % 2 == 1
        what = f"{op} of {np.dtype(dtype)}[{count}]{', started' if started else ''}"
        root = number % size
        every = [small_numbers(dtype, count, each, op, size) for each in range(size)]
        total = _combined(op, every, dtype)
        buffer = every[rank].copy()
        with counted_as(communicator, f"all_reduce, {what}", buffer.nbytes):
            run_collective(communicator, "all_reduce", started, buffer, op=op)
        check_same(communicator, f"all_reduce, {what}", buffer, total)
        if not started:
            # State cached from the first call must also serve the second, which has another shape and other numbers.
            others = [small_numbers(dtype, count, each + 1, op, size) for each in range(size)]
            again = others[rank].reshape(1, count).copy()
            run_collective(communicator, "all_reduce", False, again, op=op)
            check_same(communicator, f"all_reduce once more, {what}", again.reshape(-1), _combined(op, others, dtype))
        buffer = every[rank].copy()
        with counted_as(communicator, f"reduce to {root}, {what}", 0 if rank == root else buffer.nbytes):
            run_collective(communicator, "reduce", started, buffer, root=root, op=op)
        check_same(communicator, f"reduce to {root}, {what}", buffer, total if rank == root else every[rank])
        parts = [small_numbers(dtype, size * count, each, op, size) for each in range(size)]
        total = _combined(op, parts, dtype)
        out = np.zeros(count, dtype)
        with counted_as(communicator, f"reduce_scatter, {what}", parts[rank].nbytes):
            run_collective(communicator, "reduce_scatter", started, parts[rank].reshape(size, count), out, op=op)
        check_same(communicator, f"reduce_scatter, {what}", out, total.reshape(size, count)[rank])


def _combined(op: str, every: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    result: np.ndarray = _COMBINE[op].reduce([each.astype(np.int64) for each in every]).astype(dtype)
    return result


def check_rounding(communicator: Communicator) -> None:
    """Sums that round are close to the exact sum and the same on all ranks."""
    for count in (3, 40_001):
        every = np.random.default_rng(5).standard_normal((communicator.size, count)).astype(np.float32)
        buffer = every[communicator.rank].copy()
        communicator.all_reduce(buffer, timeout_s=ENOUGH_S)
        exact, magnitude = every.sum(0, dtype=np.float64), np.abs(every).sum(0, dtype=np.float64)
        # Each of the size - 1 additions rounds by at most half a ulp of a value below the sum of magnitudes.
        if np.any(np.abs(buffer - exact) > communicator.size * np.finfo(np.float32).eps * magnitude):
            raise CommunicationError(f"all_reduce: a sum of float32[{count}] is off by more than its rounding")
        results = np.empty((communicator.size, count), np.float32)
        communicator.all_gather(buffer, results, timeout_s=ENOUGH_S)
        check_same(communicator, f"all_reduce: the bits of rank 0's sum of float32[{count}]", buffer, results[0])


def check_moves(communicator: Communicator, dtypes: Sequence[Any] = DTYPES, sizes: Sequence[int] = _SIZES) -> None:
    """Check that collectives without arithmetic move every element to its place, twice, with other numbers.

    Args:
        communicator: This rank's.
        dtypes: Element types of the buffers.
        sizes: Their numbers of elements.

    Raises:
        CommunicationError: A collective fails the check.
    """
    rank, size = communicator.rank, communicator.size
    for number, (dtype, count, turn, started) in enumerate(product(dtypes, sizes, (0, 1), (False, True))):
        what = f"of {np.dtype(dtype)}[{count}]{', once more' if turn else ''}{', started' if started else ''}"
        # The same root in both turns and ways: it would see if it got what it got before.
        root = (number // 4) % size
        every = np.stack([small_numbers(dtype, count, each + turn, "sum", size) for each in range(size)])
        mine = every[rank].copy()
        size_bytes = mine.nbytes

        buffer = mine.copy()
        with counted_as(communicator, f"broadcast {what}", size_bytes if rank == root else 0):
            run_collective(communicator, "broadcast", started, buffer, root=root)
        check_same(communicator, f"broadcast from {root} {what}", buffer, every[root])

        out = np.zeros((size, count), dtype)
        with counted_as(communicator, f"all_gather {what}", size_bytes):
            run_collective(communicator, "all_gather", started, mine, out)
        check_same(communicator, f"all_gather {what}", out, every)

        out = np.zeros((size, count), dtype)
        with counted_as(communicator, f"gather {what}", 0 if rank == root else size_bytes):
            run_collective(communicator, "gather", started, mine, out if rank == root else None, root=root)
        check_same(communicator, f"gather to {root} {what}", out, every if rank == root else np.zeros_like(out))

        part = np.zeros(count, dtype)
        with counted_as(communicator, f"scatter {what}", size * size_bytes if rank == root else 0):
            run_collective(communicator, "scatter", started, every if rank == root else None, part, root=root)
        check_same(communicator, f"scatter from {root} {what}", part, every[rank])

        parts = np.stack([small_numbers(dtype, count, rank + 2 * other + turn, "sum", size) for other in range(size)])
        out = np.zeros((size, count), dtype)
        with counted_as(communicator, f"all_to_all {what}", parts.nbytes):
            run_collective(communicator, "all_to_all", started, parts, out)
        expected = np.stack(
            [small_numbers(dtype, count, other + 2 * rank + turn, "sum", size) for other in range(size)]
        )
        check_same(communicator, f"all_to_all {what}", out, expected)
        check_same(communicator, f"what {what} was sent", mine, every[rank])
