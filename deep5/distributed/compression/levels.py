"""Buckets of elements as a scale each and a small whole number an element, rounded at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.distributed.compression.packing import pack, unpack
from deep5.distributed.compression.scratch import Scratch

__all__ = ["pack_levels", "unpack_levels"]

# Elements that are worked on at a time: what is made of them stays in a core's cache.
_BLOCK = 1 << 15


def pack_levels(
    rows: np.ndarray, scales: np.ndarray, levels: int, random: Any, message: np.ndarray, count: int, scratch: Scratch
) -> None:
    """Fill a message with ⌊s x / scale + u⌋, at least −s and at most s, whose expectation is s x / scale.

    u is uniform in [0, 1), in steps of 2⁻²⁴. Of x < 0 that is what −⌊s |x| / scale + u⌋ is: the next whole number on
    either side, with the same probabilities.

    Args:
        rows: Shape (buckets, elements of a bucket).
        scales: Of each row; where one is not finite, all its numbers are zero.
        levels: s.
        random: A generator, Philox.
        message: uint8 of `packed_bytes(count, bits)`, bits as many as 2 s has.
        count: How many elements there are, without what fills the last row.
        scratch: Keeps memory.
    """
    bits, bucket, number = (2 * levels).bit_length(), rows.shape[1], rows.dtype.type
    usable = np.isfinite(scales)
    # Not products with s / scale, which is infinite where the scale is denormal.
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
        # Half the time of Generator.random, which makes a call an element.
        raw = random.bit_generator.random_raw(taken.size // 2).view(np.uint32)
        raw >>= np.uint32(8)
        np.multiply(raw.reshape(taken.shape), number(2.0**-24), out=uniform, casting="unsafe", dtype=rows.dtype)
        parts += uniform
        np.floor(parts, out=parts)
        # A sum may round up to the next whole number, and a clipped element lies beyond.
        np.clip(parts, number(-levels), number(levels), out=parts)
        parts += number(levels)
        codes = codes_all[: taken.size]
        codes.reshape(taken.shape)[...] = parts
        first = begin * bucket
        there = -(-min(count - first, taken.size) // 8)
        pack(codes[: 8 * there], bits, message[first // 8 * bits :][: there * bits])


def unpack_levels(message: np.ndarray, scales: np.ndarray, levels: int, out: np.ndarray, bucket: int) -> None:
    """The elements of a message of `pack_levels`: scale · number / s."""
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
