"""CRC-32C (Castagnoli) in NumPy: many short pieces at once, joined afterwards."""

from __future__ import annotations

import functools

import numpy as np

__all__ = ["crc32c", "masked_crc32c"]

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
_MASK = 0xA282EAD8
_PIECE = 64  # bytes
_SHORT = 1024


def crc32c(data: bytes) -> int:
    """CRC-32C of a message.

    A short message goes through a table byte by byte. A long one is cut into pieces of one length, which go through a
    table together, two bytes a step; then neighbours are joined: as the CRC is linear over GF(2), the state after A + B
    is the one after A, moved on by len(B) zero bytes, plus (exclusive or) the one that B makes of zero.

    References:
        Castagnoli, Bräuer and Herrmann, Optimization of cyclic redundancy-check codes with 24 and 32 parity bits,
        IEEE Transactions on Communications 41(6), 1993; RFC 3720, appendix B.4.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if len(data) < _SHORT:
        return _bytewise(0xFFFFFFFF, data) ^ 0xFFFFFFFF
    pieces = len(data) // _PIECE
    head = len(data) - pieces * _PIECE
    words = np.frombuffer(data, dtype="<u2", offset=head).reshape(pieces, _PIECE // 2)
    # In front stand pieces of nothing up to a power of two: a state of zero stays zero.
    states = np.zeros(pieces, np.uint32)
    states[0] = _bytewise(0xFFFFFFFF, data[:head])
    table, low = _pair_table(), np.uint32(0xFFFF)
    for column in np.ascontiguousarray(words.T):
        states = table[(states ^ column) & low] ^ (states >> np.uint32(16))
    states = np.concatenate([np.zeros((1 << (pieces - 1).bit_length()) - pieces, np.uint32), states])
    level = 0
    while len(states) > 1:
        states = _moved(states[0::2], level) ^ states[1::2]
        level += 1
    return int(states[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C as TFRecord files store it: rotated right by 15 bits, plus a constant, modulo 2^32.

    References:
        TensorFlow, "TFRecord and tf.train.Example", section "TFRecords format details".
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _bytewise(state: int, data: bytes) -> int:
    table = _byte_list()
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


@functools.cache
def _byte_table() -> np.ndarray:
    """What a byte makes of the state: eight steps of the shift register."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, (states >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), states >> np.uint32(1))
    return states


@functools.cache
def _byte_list() -> list[int]:
    return [int(entry) for entry in _byte_table()]


@functools.cache
def _pair_table() -> np.ndarray:
    """What two bytes make of the state."""
    table, pairs = _byte_table(), np.arange(1 << 16, dtype=np.uint32)
    once = table[pairs & 0xFF] ^ (pairs >> np.uint32(8))
    return np.asarray(table[once & 0xFF] ^ (once >> np.uint32(8)))


@functools.cache
def _zeros(level: int) -> np.ndarray:
    """What `_PIECE` * 2^level zero bytes make of the state: of each of its four bytes, a table of shape (4, 256)."""
    states = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    if level:
        return _moved(_moved(states, level - 1), level - 1)
    for _ in range(_PIECE):
        states = _byte_table()[states & 0xFF] ^ (states >> np.uint32(8))
    return states


def _moved(states: np.ndarray, level: int) -> np.ndarray:
    moved = np.zeros_like(states)
    for byte, table in enumerate(_zeros(level)):
        moved ^= table[(states >> np.uint32(8 * byte)) & 0xFF]
    return moved
