"""Philox4x32-10: random words that depend only on a counter and a key, in NumPy and in C.

Drawing the words of a node or of a sample needs no state and no fixed order: used by dropout's masks and augmentation.
"""

from __future__ import annotations

import numpy as np

__all__ = ["C_SOURCE", "philox"]

# Multipliers and key increments (Salmon et al., table 2 and section 3.3).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

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
    a, b = index & _LOW, index >> _HALF
    c, d = np.full_like(a, high & 0xFFFFFFFF), np.full_like(a, high >> 32)
    first, second = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        p, q = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b = (q >> _HALF) ^ b ^ np.uint64(first), q & _LOW
        c, d = (p >> _HALF) ^ d ^ np.uint64(second), p & _LOW
        first, second = (first + _INCREMENTS[0]) & 0xFFFFFFFF, (second + _INCREMENTS[1]) & 0xFFFFFFFF
    return np.stack([a, b, c, d]).astype(np.uint32)
