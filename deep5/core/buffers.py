"""Checks of the arguments of collectives: contiguous numeric buffers, and a reduction."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["Reduction", "check_buffer", "check_pair", "check_written"]

Reduction = Literal["sum", "max", "min", "prod"]
_REDUCTIONS = frozenset(get_args(Reduction))


def check_buffer(buffer: Any, *, op: object = "sum") -> None:
    """Check that a buffer is a contiguous numeric array and that `op` is a reduction.

    Raises:
        UsageError: One of them is not.
    """
    if op not in _REDUCTIONS:
        raise UsageError(f"unknown reduction {op!r}; allowed: {', '.join(get_args(Reduction))}")
    if not isinstance(buffer, np.ndarray) or not buffer.flags.c_contiguous or buffer.dtype.hasobject:
        raise UsageError(
            f"got {type(buffer).__name__} as a buffer; allowed: a C-contiguous NumPy array of numbers; remedy: "
            "numpy.ascontiguousarray"
        )
    if not buffer.dtype.isnative:
        raise UsageError(
            f"got a buffer of {buffer.dtype.str}; allowed: numbers in this machine's byte order; remedy: "
            "array.astype(array.dtype.newbyteorder('='))"
        )


def check_written(buffer: np.ndarray) -> None:
    """Check that results can be written into a buffer.

    Raises:
        UsageError: It is read-only.
    """
    if not buffer.flags.writeable:
        raise UsageError(
            f"got a read-only array of {buffer.dtype}[{buffer.size}] for a result; allowed: one that can be written; "
            "remedy: array.copy()"
        )


def check_pair(part: Any, whole: Any, parts: int) -> None:
    """Check that one buffer has `parts` times as many elements as the other.

    Raises:
        UsageError: One is not a buffer, or the sizes do not fit.
    """
    check_buffer(part)
    check_buffer(whole)
    if part.size * parts != whole.size or part.dtype != whole.dtype:
        raise UsageError(
            f"got buffers of {part.dtype}[{part.size}] and {whole.dtype}[{whole.size}]; allowed: the same dtype, and "
            f"{parts} times the elements of the one in the other"
        )
