"""Dropout's masks: a function of (seed, step, node) and of nothing else, the same bits for every framework.

A framework's own random stream cannot be compared with another's, and ONNX Runtime's cannot even be restored. So masks
are drawn here, by a counter-based generator, and enter a network as inputs.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from deep5 import compiler
from deep5.seeds import derive_seed
from deep5.tensors import aligned_empty

__all__ = ["dropout_mask", "philox"]

# Multipliers and key increments of Philox4x32 (Salmon et al., table 2 and section 3.3).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)

_NUMBERS = {"M0": _MULTIPLIERS[0], "M1": _MULTIPLIERS[1], "I0": _INCREMENTS[0], "I1": _INCREMENTS[1], "ROUNDS": _ROUNDS}
_C_SOURCE = (
    "".join(f"#define {name} {value}u\n" for name, value in _NUMBERS.items())
    + """#include <stdint.h>
#define LANES 16
static void block(uint32_t first, uint32_t high, const uint32_t *step, const uint32_t *key, uint32_t out[4][LANES]) {
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES], k = key[0], l = key[1];
    for (int i = 0; i < LANES; i++) { a[i] = first + i; b[i] = high; c[i] = step[0]; d[i] = step[1]; }
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LANES; i++) {
            uint64_t p = (uint64_t)a[i] * M0, q = (uint64_t)c[i] * M1;
            uint32_t x = (uint32_t)(q >> 32) ^ b[i] ^ k, z = (uint32_t)(p >> 32) ^ d[i] ^ l;
            a[i] = x; b[i] = (uint32_t)q; c[i] = z; d[i] = (uint32_t)p;
        }
        k += I0; l += I1;
    }
    for (int i = 0; i < LANES; i++) { out[0][i] = a[i]; out[1][i] = b[i]; out[2][i] = c[i]; out[3][i] = d[i]; }
}
#define MASK(NAME, TYPE) \\
void NAME(TYPE *mask, int64_t size, const uint32_t *step, const uint32_t *key, uint32_t threshold, TYPE scale) { \\
    uint32_t word[4][LANES]; \\
    for (int64_t begin = 0; begin < size; begin += 4 * LANES) { \\
        uint64_t counter = (uint64_t)begin / 4; \\
        block((uint32_t)counter, (uint32_t)(counter >> 32), step, key, word); \\
        TYPE part[4 * LANES]; \\
        for (int i = 0; i < LANES; i++) \\
            for (int j = 0; j < 4; j++) part[4 * i + j] = word[j][i] >= threshold ? scale : 0; \\
        int64_t count = size - begin < 4 * LANES ? size - begin : 4 * LANES; \\
        for (int64_t i = 0; i < count; i++) mask[begin + i] = part[i]; \\
    } \\
}
MASK(mask_float32, float)
MASK(mask_float64, double)
"""
)


def dropout_mask(shape: tuple[int, ...], *, ratio: float, seed: int, step: int, node: str, dtype: str) -> Any:
    """What dropout multiplies by: 0 with probability `ratio`, else 1 / (1 - ratio).

    Args:
        shape: Of the value that is dropped from.
        ratio: In [0, 1).
        seed: Seed of the run's noise.
        step: Number of the step.
        node: Name of the node: every node has a stream of its own.
        dtype: `"float32"` or `"float64"`; what is dropped does not depend on it.

    Returns:
        A NumPy array of its own memory, 64-byte aligned.

    References:
        Srivastava et al., Dropout: a simple way to prevent neural networks from overfitting, JMLR 15, 2014; scaled in
        training as ONNX's Dropout is.
    """
    key = derive_seed(seed, "dropout", node)
    mask = aligned_empty(shape, dtype)
    # Words below the threshold are dropped: the ratio is met to 2^-32.
    threshold, scale = min(round(ratio * 2**32), 2**32 - 1), 1.0 / (1.0 - ratio)
    call = _compiled(dtype)
    if call is None:
        words = philox(-(-mask.size // 4), step=step, key=key).reshape(-1)[: mask.size].reshape(shape)
        np.multiply(words >= threshold, np.dtype(dtype).type(scale), out=mask)
    else:
        pair = ctypes.c_uint32 * 2
        call(
            mask.ctypes.data,
            mask.size,
            pair(step & 0xFFFFFFFF, step >> 32),
            pair(key & 0xFFFFFFFF, key >> 32),
            threshold,
            scale,
        )
    return mask


def philox(blocks: int, *, step: int, key: int) -> Any:
    """Random words, four a block: block i is Philox4x32-10 of the counter (i, step) under the key.

    Args:
        blocks: How many.
        step: Upper 64 bits of the counter.
        key: 64 bits.

    Returns:
        Shape (blocks, 4), uint64 that hold 32 bits each.

    References:
        Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11, section 3.3.
    """
    index = np.arange(blocks, dtype=np.uint64)
    a, b = index & _LOW, index >> np.uint64(32)
    c, d = np.full_like(a, step & 0xFFFFFFFF), np.full_like(a, step >> 32)
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        p, q = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b, c, d = (
            (q >> np.uint64(32)) ^ b ^ np.uint64(low),
            q & _LOW,
            (p >> np.uint64(32)) ^ d ^ np.uint64(high),
            p & _LOW,
        )
        low, high = (low + _INCREMENTS[0]) & 0xFFFFFFFF, (high + _INCREMENTS[1]) & 0xFFFFFFFF
    return np.stack([a, b, c, d], axis=1)


@functools.cache
def _compiled(dtype: str) -> Any:
    """The C function for an element type, or None where there is no compiler."""
    if compiler.compiler() is None:
        return None
    call = getattr(compiler.load_library(_C_SOURCE), f"mask_{dtype}")
    real = ctypes.c_float if dtype == "float32" else ctypes.c_double
    call.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, real)
    call.restype = None
    return call
