"""Encodes each bucket as one scale and one small integer per element, rounded stochastically."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.distributed.compression.packing import pack, unpack
from deep5.distributed.compression.scratch import Scratch

__all__ = ["pack_levels", "unpack_levels"]

# Elements processed at a time: their intermediate results fit a core's cache.
_BLOCK = 1 << 15


def pack_levels(
    rows: np.ndarray, scales: np.ndarray, levels: int, random: Any, message: np.ndarray, count: int, scratch: Scratch
) -> None:
    """Fill a message with ⌊s x / scale + u⌋, clipped to [−s, s], whose expectation is s x / scale.

    u is uniform in [0, 1), in steps of 2⁻²⁴. For x < 0 this equals −⌊s |x| / scale + u⌋ in distribution: the adjacent
    integers on either side, with the same probabilities.

    Args:
        rows: Shape (buckets, elements of a bucket).
        scales: One per row; a row with a non-finite scale is encoded as zeros.
        levels: s.
        random: A Philox generator.
        message: uint8 of `packed_bytes(count, bits)`, where bits is the bit length of 2 s.
        count: Number of elements, excluding the padding of the last row.
        scratch: Reusable memory.
    """
    bits, bucket, number = (2 * levels).bit_length(), rows.shape[1], rows.dtype.type
    usable = np.isfinite(scales)
    # Not multiplication by s / scale, which is infinite if the scale is denormal.
    divisors = np.where(usable & (scales > 0), scales, 1)[:, None]
    step = max(1, _BLOCK // bucket)
    parts_all = scratch.take("parts", step * bucket, rows.dtype).reshape(step, bucket)
    uniform_all = scratch.take("uniform", step * bucket, rows.dtype).reshape(step, bucket)
    codes_all = scratch.take("codes", step * bucket, np.uint8)
    for begin in range(0, len(rows), step):
        block = slice(begin, begin + step)
        taken = rows[block]
        parts, uniform = parts_all[: len(taken)], uniform_all[: len(taken)]
        np.divide(taken, divisors[block], out=parts)
        parts *= number(levels)
        if not usable[block].all():
            parts[~usable[block]] = 0
        # Half the time of Generator.random, which makes one call per element.
        raw = random.bit_generator.random_raw(taken.size // 2).view(np.uint32)
        raw >>= np.uint32(8)
        np.multiply(raw.reshape(taken.shape), number(2.0**-24), out=uniform, casting="unsafe", dtype=rows.dtype)
        parts += uniform
        np.floor(parts, out=parts)
        # A sum may round up to the next integer, and clipped elements exceed the range.
        np.clip(parts, number(-levels), number(levels), out=parts)
        parts += number(levels)
        codes = codes_all[: taken.size]
        codes.reshape(taken.shape)[...] = parts
        first = begin * bucket
        there = -(-min(count - first, taken.size) // 8)
        pack(codes[: 8 * there], bits, message[first // 8 * bits :][: there * bits])


def unpack_levels(message: np.ndarray, scales: np.ndarray, levels: int, out: np.ndarray, bucket: int) -> None:
    """Decode a message of `pack_levels`: scale · number / s."""
    bits, number = (2 * levels).bit_length(), out.dtype.type
    factors = (scales / number(levels))[:, None]
    step = max(1, _BLOCK // bucket)
    codes = np.zeros(step * bucket, np.uint8)
    for begin in range(0, len(scales), step):
        first = begin * bucket
        part = out[first : first + step * bucket]
        there = -(-part.size // 8)
        unpack(message[first // 8 * bits :][: there * bits], bits, codes[: 8 * there])
        whole = part.size // bucket
        body, tail = part[: whole * bucket].reshape(whole, bucket), part[whole * bucket :]
        np.subtract(codes[: body.size].reshape(body.shape), number(levels), out=body)
        body *= factors[begin : begin + whole]
        if tail.size:
            np.subtract(codes[body.size : part.size], number(levels), out=tail)
            tail *= factors[begin + whole, 0]
