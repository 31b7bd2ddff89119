"""CRC-32C (Castagnoli) in NumPy: many short pieces at once, combined afterwards."""

from __future__ import annotations

import functools

import numpy as np

__all__ = ["crc32c", "masked_crc32c"]

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, bit-reversed
_MASK = 0xA282EAD8
_PIECE = 64  # bytes
_SHORT = 1024


def crc32c(data: bytes) -> int:
    """CRC-32C of a message.

    A short message is looked up in a table byte by byte. A long message is cut into pieces of equal length, which are
    looked up together, two bytes per step. Then neighbors are combined: the CRC is linear over GF(2), so the state
    after A + B is the state after A, advanced by len(B) zero bytes, XOR the state that B produces from zero.

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
    # Empty pieces at the front pad the count to a power of two: a zero state stays zero.
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
    """The masked CRC-32C that TFRecord files store: rotated right by 15 bits, plus a constant, modulo 2^32.

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
    """The state after each byte value: eight steps of the shift register."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, (states >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), states >> np.uint32(1))
    return states


@functools.cache
def _byte_list() -> list[int]:
    return [int(entry) for entry in _byte_table()]


@functools.cache
def _pair_table() -> np.ndarray:
    """The state after each pair of bytes."""
    table, pairs = _byte_table(), np.arange(1 << 16, dtype=np.uint32)
    once = table[pairs & 0xFF] ^ (pairs >> np.uint32(8))
    return np.asarray(table[once & 0xFF] ^ (once >> np.uint32(8)))


@functools.cache
def _zeros(level: int) -> np.ndarray:
    """The effect of `_PIECE` * 2^level zero bytes on each of the four bytes of the state, shape (4, 256)."""
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
