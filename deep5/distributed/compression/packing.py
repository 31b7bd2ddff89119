"""Packs small integers into few bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

__all__ = ["pack", "packed_bytes", "unpack"]

_WORD = np.dtype("<u8")
# Where eight packed numbers fill one NumPy integer, that integer is copied instead of its bytes.
_WHOLE: dict[int, Any] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def packed_bytes(count: int, bits: int) -> int:
    """bits · ⌈n / 8⌉: numbers are packed in groups of eight, which take `bits` bytes."""
    return bits * -(-count // 8)


def pack(codes: np.ndarray, bits: int, message: np.ndarray) -> None:
    """Pack numbers.

    Args:
        codes: uint8, a multiple of eight elements, each below 2 to the power of `bits`; modified.
        bits: From 1 to 8.
        message: uint8 of size `packed_bytes`; receives the result.
    """
    if bits == 8:
        message[...] = codes
        return
    words = codes.view(_WORD)
    spare = np.empty_like(words)
    # Eight numbers are in a word, one per byte; first neighbors are merged, then pairs, then groups of four.
    for width in (8, 16, 32):
        gap = _WORD.type(width - bits * width // 8)
        np.bitwise_and(words, _high(width), out=spare)
        np.right_shift(spare, gap, out=spare)
        np.bitwise_and(words, _low(width), out=words)
        np.bitwise_or(words, spare, out=words)
    if bits in _WHOLE:
        message.view(_WHOLE[bits])[...] = words
    else:
        message.reshape(-1, bits)[...] = words.view(np.uint8).reshape(-1, 8)[:, :bits]


def unpack(message: np.ndarray, bits: int, codes: np.ndarray) -> None:
    """Unpack a message into `codes`, uint8 with a multiple of eight elements."""
    if bits == 8:
        codes[...] = message
        return
    words = codes.view(_WORD)
    if bits in _WHOLE:
        words[...] = message.view(_WHOLE[bits])
    else:
        words[...] = 0
        codes.reshape(-1, 8)[:, :bits] = message.reshape(-1, bits)
    spare = np.empty_like(words)
    for width in (32, 16, 8):
        gap = _WORD.type(width - bits * width // 8)
        # A group of `width` bits holds two consecutive halves of this many bits.
        half = bits * width // 8
        np.left_shift(words, gap, out=spare)
        np.bitwise_and(spare, _high(width), out=spare)
        np.bitwise_and(words, _low(width, half), out=words)
        np.bitwise_or(words, spare, out=words)


@functools.cache
def _low(width: int, bits: int | None = None) -> np.unsignedinteger:
    """Mask of the lowest bits of the lower half of every group of twice this width."""
    mask, group = (1 << (width if bits is None else bits)) - 1, 2 * width
    return _WORD.type(sum(mask << begin for begin in range(0, 64, group)))


@functools.cache
def _high(width: int) -> np.unsignedinteger:
    """Mask of the upper half of every group of twice this width."""
    return _WORD.type(int(_low(width)) << width)
