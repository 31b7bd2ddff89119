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
    exact_numbers,
    run_collective,
    shaped,
)

__all__ = ["check_moves", "check_not_finite", "check_reductions", "check_rounding"]

_SIZES = (0, 1, 2, 3, 7, 64, 17, 40_001)
"""Nothing, one, an even and two odd numbers, a multiple of vectors' lengths, one above one, and more than a block of a
pipeline."""
_LARGE = 1_000_003
"""More than what a library sends in one piece, or through memory that the processes share."""


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
    for (at, dtype), (place, count), (which, op) in product(*map(_numbered, (dtypes, sizes, get_args(Reduction)))):
        # Each size and each reduction runs both ways, each way on half of the dtypes; and to each root, both ways.
        started, root, number = (at + place + which) % 2 == 1, (at // 2 + place + which) % size, at + place
        what = f"{op} of {np.dtype(dtype)}[{count}]{', started' if started else ''}"
        every = [exact_numbers(dtype, count, each, op, size) for each in range(size)]
        total = _combined(op, every, dtype)
        buffer = shaped(every[rank].copy(), number)
        with counted_as(communicator, f"all_reduce, {what}", buffer.nbytes):
            run_collective(communicator, "all_reduce", started, buffer, op=op)
        check_same(communicator, f"all_reduce, {what}", buffer, total)
        if not started:
            # State cached from the first call must also serve the second, which has another shape and other numbers.
            others = [exact_numbers(dtype, count, each + 1, op, size) for each in range(size)]
            again = shaped(others[rank].copy(), number + 1)
            run_collective(communicator, "all_reduce", False, again, op=op)
            check_same(communicator, f"all_reduce once more, {what}", again, _combined(op, others, dtype))
        buffer = shaped(every[rank].copy(), number + 2)
        with counted_as(communicator, f"reduce to {root}, {what}", 0 if rank == root else buffer.nbytes):
            run_collective(communicator, "reduce", started, buffer, root=root, op=op)
        check_same(communicator, f"reduce to {root}, {what}", buffer, total if rank == root else every[rank])
        parts = [exact_numbers(dtype, size * count, each, op, size) for each in range(size)]
        total = _combined(op, parts, dtype)
        out = np.zeros(count, dtype)
        with counted_as(communicator, f"reduce_scatter, {what}", parts[rank].nbytes):
            run_collective(communicator, "reduce_scatter", started, parts[rank].reshape(size, count), out, op=op)
        check_same(communicator, f"reduce_scatter, {what}", out, total.reshape(size, count)[rank])


def _numbered(values: Sequence[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(values))


def check_not_finite(communicator: Communicator) -> None:
    """Check that NaN and infinities reach the results of every reduction, and move unchanged.

    Raises:
        CommunicationError: One is lost.
    """
    rank, size = communicator.rank, communicator.size
    for dtype, op in product((np.float32, np.float64), get_args(Reduction)):
        every = np.ones((size, size, 4), dtype)
        # What the maximum and the minimum of a NaN are, libraries decide.
        every[size - 1, :, 0] = np.nan if op in ("sum", "prod") else 1
        every[0, :, 1], every[size - 1, :, 2] = np.inf, -np.inf
        total = _COMBINE[op].reduce(every)
        buffer, kept, part = every[rank].copy(), every[rank].copy(), np.zeros(4, dtype)
        run_collective(communicator, "all_reduce", False, buffer, op=op)
        run_collective(communicator, "reduce", False, kept, root=size - 1, op=op)
        run_collective(communicator, "reduce_scatter", False, every[rank], part, op=op)
        expected = total, total if rank == size - 1 else every[rank], total[rank]
        found = zip(("all_reduce", "reduce", "reduce_scatter"), (buffer, kept, part), expected, strict=True)
        for name, got, want in found:
            if not np.array_equal(got, want, equal_nan=True):
                raise CommunicationError(
                    f"{name}, {op} of NaN and infinities on rank {rank} gives {got}; allowed: {want}"
                )
        moved = np.array([np.nan, np.inf, -np.inf, -0.0], dtype) if rank == 0 else np.zeros(4, dtype)
        run_collective(communicator, "broadcast", False, moved)
        check_same(
            communicator, "broadcast of NaN and infinities", moved, np.array([np.nan, np.inf, -np.inf, -0.0], dtype)
        )


def _combined(op: str, every: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    result: np.ndarray = _COMBINE[op].reduce([each.astype(np.int64) for each in every]).astype(dtype)
    return result


def check_rounding(communicator: Communicator) -> None:
    """Sums that round are close to the exact sum and the same on all ranks; many numbers are moved, too."""
    for count in (3, 40_001, _LARGE):
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
        for name, root in (("reduce", communicator.size - 1), ("broadcast", 0)):
            sums, own = buffer.copy(), every[communicator.rank].copy()
            run_collective(communicator, name, False, own, root=root)
            if name == "broadcast":
                sums = every[0]
            elif communicator.rank != root:
                sums = every[communicator.rank]
            if np.any(np.abs(own - sums) > communicator.size * np.finfo(np.float32).eps * magnitude):
                raise CommunicationError(f"{name}: a result of float32[{count}] is off by more than its rounding")


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
    variants = product(_numbered(dtypes), _numbered(sizes), (0, 1), (False, True))
    for (at, dtype), (place, count), turn, started in variants:
        if count > 10_000 and started and not turn:
            continue  # many elements take long
        what = f"of {np.dtype(dtype)}[{count}]{', once more' if turn else ''}{', started' if started else ''}"
        # The same root and shape in both turns and ways: it would see if it got what it got before.
        root, number = (at + place) % size, at + place
        every = np.stack([exact_numbers(dtype, count, each + turn, "sum", size) for each in range(size)])
        mine = every[rank].copy()
        size_bytes = mine.nbytes

        buffer = shaped(mine.copy(), number)
        with counted_as(communicator, f"broadcast {what}", size_bytes if rank == root else 0):
            run_collective(communicator, "broadcast", started, buffer, root=root)
        check_same(communicator, f"broadcast from {root} {what}", buffer, every[root])

        out = np.zeros((size, count), dtype)
        with counted_as(communicator, f"all_gather {what}", size_bytes):
            run_collective(communicator, "all_gather", started, shaped(mine, number + 1), out)
        check_same(communicator, f"all_gather {what}", out, every)

        out = np.zeros((size, count), dtype)
        with counted_as(communicator, f"gather {what}", 0 if rank == root else size_bytes):
            run_collective(communicator, "gather", started, mine, out if rank == root else None, root=root)
        check_same(communicator, f"gather to {root} {what}", out, every if rank == root else np.zeros_like(out))

        part = np.zeros(count, dtype)
        with counted_as(communicator, f"scatter {what}", size * size_bytes if rank == root else 0):
            run_collective(communicator, "scatter", started, every if rank == root else None, part, root=root)
        check_same(communicator, f"scatter from {root} {what}", part, every[rank])

        parts = np.stack([exact_numbers(dtype, count, rank + 2 * other + turn, "sum", size) for other in range(size)])
        out = np.zeros((size, count), dtype)
        with counted_as(communicator, f"all_to_all {what}", parts.nbytes):
            run_collective(communicator, "all_to_all", started, parts, out)
        expected = np.stack(
            [exact_numbers(dtype, count, other + 2 * rank + turn, "sum", size) for other in range(size)]
        )
        check_same(communicator, f"all_to_all {what}", out, expected)
        check_same(communicator, f"what {what} was sent", mine, every[rank])
