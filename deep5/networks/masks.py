"""Dropout masks: they depend only on (seed, step, node), and are bit-identical in every framework.

Frameworks' random streams cannot be compared with each other, and ONNX Runtime's cannot even be restored. So masks are
drawn here, by a counter-based generator, and are inputs of a network.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from deep5.core import compiler
from deep5.core.seeds import derive_seed
from deep5.core.tensors import aligned_empty, numpy_dtype
from deep5.networks.philox import C_SOURCE, halves, philox

__all__ = ["dropout_mask", "mask_key", "threshold_and_scale"]

_C_SOURCE = (
    C_SOURCE
    + """#define LANES 16
static void block(uint32_t first, uint32_t high, const uint32_t *step, const uint32_t *key, uint32_t out[4][LANES]) {
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES], k = key[0], l = key[1];
    for (int i = 0; i < LANES; i++) { a[i] = first + i; b[i] = high; c[i] = step[0]; d[i] = step[1]; }
    for (unsigned round = 0; round < PHILOX_ROUNDS; round++) {
        for (int i = 0; i < LANES; i++) PHILOX_ROUND(a[i], b[i], c[i], d[i], k, l);
        k += PHILOX_I0; l += PHILOX_I1;
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
    """The factor of dropout: 0 with probability `ratio`, else 1 / (1 - ratio).

    Args:
        shape: Shape of dropout's input.
        ratio: In [0, 1).
        seed: Seed of the run's noise.
        step: Number of the step.
        node: Name of the node: every node has a separate stream.
        dtype: `"float32"`, `"float64"`, `"float16"` or `"bfloat16"`; the dropped elements do not depend on it.

    Returns:
        A NumPy array that owns its memory, 64-byte aligned.

    References:
        Srivastava et al., Dropout: a simple way to prevent neural networks from overfitting, JMLR 15, 2014; scaled in
        training as ONNX's Dropout is.
    """
    if dtype in ("float16", "bfloat16"):
        short = aligned_empty(shape, numpy_dtype(dtype))
        short[...] = dropout_mask(shape, ratio=ratio, seed=seed, step=step, node=node, dtype="float32")
        return short
    key = mask_key(seed, node)
    mask = aligned_empty(shape, dtype)
    threshold, scale = threshold_and_scale(ratio)
    call = _compiled(dtype)
    if call is None:
        words = philox(np.arange(-(-mask.size // 4)), high=step, key=key).T.reshape(-1)[: mask.size].reshape(shape)
        np.multiply(words >= threshold, np.dtype(dtype).type(scale), out=mask)
    else:
        pair = ctypes.c_uint32 * 2
        call(mask.ctypes.data, mask.size, pair(*halves(step)), pair(*halves(key)), threshold, scale)
    return mask


def mask_key(seed: int, node: str) -> int:
    """Philox's key of a node's stream."""
    return derive_seed(seed, "dropout", node)


def threshold_and_scale(ratio: float) -> tuple[int, float]:
    """The word below which an element is dropped, which meets the ratio to 2^-32, and the factor of the others."""
    return min(round(ratio * 2**32), 2**32 - 1), 1.0 / (1.0 - ratio)


@functools.cache
def _compiled(dtype: str) -> Any:
    """The C function for an element type, or None without a compiler that works."""
    library = compiler.optional_library(_C_SOURCE, functions=("mask_float32", "mask_float64"))
    if library is None:
        return None
    call = getattr(library, f"mask_{dtype}")
    real = ctypes.c_float if dtype == "float32" else ctypes.c_double
    call.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, real)
    call.restype = None
    return call
