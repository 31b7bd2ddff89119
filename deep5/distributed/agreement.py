"""Whether all ranks hold the same values: a checksum of each, compared in one message of a few bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import CommunicationError

__all__ = ["check_agreement", "checksum"]


def checksum(values: np.ndarray) -> tuple[int, int]:
    """Two sums over the bits of a buffer, at some GB a second: of its words, and of every word times its place's.

    Sums are modulo 2⁶⁴, in which a difference of a word's upper half would be lost when many words have it (all signs
    turned, say). So each word counts together with its upper half times an odd number. The places count modulo a small
    prime, so that what is exchanged between two places is seen but for one in 251.

    Args:
        values: Contiguous, any dtype.

    Returns:
        The bits of both sums, as int64 has them.

    >>> import numpy as np
    >>> checksum(np.array([1.0, 2.0])) == checksum(np.array([2.0, 1.0]))
    False
    """
    content = values.reshape(-1).view(np.uint8)
    whole = len(content) // 8 * 8
    words = content[:whole].view(np.uint64)
    columns = np.zeros(_PRIME, np.uint64)
    rows = len(words) // _PRIME
    upper = np.empty((min(rows, _ROWS), _PRIME), np.uint64)
    for begin in range(0, rows, _ROWS):
        # A part that stays in the cache: the memory itself is read once.
        part = words[begin * _PRIME : min(begin + _ROWS, rows) * _PRIME].reshape(-1, _PRIME)
        halves = np.right_shift(part, _HALF, out=upper[: len(part)])
        columns += part.sum(axis=0, dtype=np.uint64) + halves.sum(axis=0, dtype=np.uint64) * _ODD
    last = np.zeros(_PRIME, np.uint64)
    rest = words[rows * _PRIME :]
    last[: len(rest)] = rest
    # What does not fill a word is one of its own.
    last[len(rest)] = int.from_bytes(content[whole:].tobytes(), "little")
    columns += last + (last >> _HALF) * _ODD
    sums = np.array([columns.sum(dtype=np.uint64), (columns * _PLACES).sum(dtype=np.uint64)]).view(np.int64)
    return int(sums[0]), int(sums[1])


_PRIME, _ROWS = 251, 64
_PLACES = np.arange(1, _PRIME + 1, dtype=np.uint64)
# 2⁶⁴ divided by the golden ratio, made odd: it spreads a difference of upper halves over all bits.
_HALF, _ODD = np.uint64(32), np.uint64(0x9E3779B97F4A7C15)


def check_agreement(
    communicator: Communicator,
    values: Sequence[np.ndarray],
    what: str,
    *,
    ranks: Sequence[int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """See that these values are, to the bit, those of every other rank.

    Args:
        communicator: Of the ranks that should agree.
        values: Contiguous buffers.
        what: Names them in the message.
        ranks: What the message calls the ranks; None: as the communicator does.
        timeout_s: Limit of the wait.

    Raises:
        CommunicationError: They are not; the message names the ranks that differ from the first.
    """
    if communicator.size == 1:
        return
    own = np.array([number for part in values for number in checksum(part)], np.int64)
    everyone = np.empty((communicator.size, len(own)), np.int64)
    communicator.all_gather(own, everyone, timeout_s=timeout_s)
    if (everyone != everyone[0]).any():
        names = range(communicator.size) if ranks is None else ranks
        others = [str(name) for name, own in zip(names, everyone, strict=True) if (own != everyone[0]).any()]
        raise CommunicationError(
            f"the {what} of rank {', '.join(others)} are not those of rank {names[0]}; allowed: the same bits on every "
            "rank; remedy: the same seed, network and versions on all ranks, and a scheme whose result does not depend "
            "on the rank"
        )
