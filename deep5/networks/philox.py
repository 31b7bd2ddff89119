"""Philox4x32-10: random words that depend only on a counter and a key, in NumPy and in C.

Drawing the words of a node or of a sample needs no state and no fixed order: used by dropout's masks and augmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["C_SOURCE", "halves", "philox", "words"]

# Multipliers and key increments (Salmon et al., table 2 and section 3.3).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

_NUMBERS = {
    "PHILOX_M0": _MULTIPLIERS[0],
    "PHILOX_M1": _MULTIPLIERS[1],
    "PHILOX_I0": _INCREMENTS[0],
    "PHILOX_I1": _INCREMENTS[1],
    "PHILOX_ROUNDS": _ROUNDS,
}
C_SOURCE = (
    "#include <stdint.h>\n"
    + "".join(f"#define {name} {value}u\n" for name, value in _NUMBERS.items())
    + """#define PHILOX_ROUND(A, B, C, D, FIRST, SECOND) do { \\
    uint64_t p = (uint64_t)(A) * PHILOX_M0, q = (uint64_t)(C) * PHILOX_M1; \\
    uint32_t x = (uint32_t)(q >> 32) ^ (B) ^ (FIRST), z = (uint32_t)(p >> 32) ^ (D) ^ (SECOND); \\
    A = x; B = (uint32_t)q; C = z; D = (uint32_t)p; \\
} while (0)
"""
)
"""One round in C; kernels run `PHILOX_ROUNDS` rounds, and add `PHILOX_I0` and `PHILOX_I1` to the key after each."""


def philox(index: np.ndarray, *, high: int, key: int) -> np.ndarray:
    """Four random words per counter: Philox4x32-10 of the counter (index, high) with the key.

    Args:
        index: Lower 64 bits of the counters, int64 or uint64, shape (counters,).
        high: Upper 64 bits, the same for all counters.
        key: 64 bits.

    Returns:
        uint32, shape (4, counters).

    References:
        Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11, section 3.3.
    """
    index = index.astype(np.uint64)
    counter = (_low(index), _high(index), *(np.full(index.shape, half, np.uint32) for half in halves(high)))
    return np.stack(words(counter, [np.array([half], np.uint32) for half in halves(key)]))


def words(counter: Sequence[Any], key: Sequence[Any]) -> tuple[Any, ...]:
    """The words of `philox`, in operations that NumPy and libraries like it share; 64-bit types must be enabled.

    Args:
        counter: Four arrays of uint32, the lowest bits first.
        key: Two arrays of uint32 that broadcast to the counter's shape, the lower bits first.
    """
    (a, b, c, d), (first, second) = counter, key
    for _ in range(_ROUNDS):
        p, q = (each.astype(np.uint64) * np.uint64(factor) for each, factor in zip((a, c), _MULTIPLIERS, strict=True))
        a, b, c, d = _high(q) ^ b ^ first, _low(q), _high(p) ^ d ^ second, _low(p)
        first, second = first + np.uint32(_INCREMENTS[0]), second + np.uint32(_INCREMENTS[1])
    return a, b, c, d


def halves(number: int) -> tuple[int, int]:
    """The lower and the upper 32 bits of 64."""
    return number & 0xFFFFFFFF, number >> 32


def _low(value: Any) -> Any:
    return value.astype(np.uint32)


def _high(value: Any) -> Any:
    return (value >> np.uint64(32)).astype(np.uint32)
