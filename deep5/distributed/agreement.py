"""Check that all ranks hold the same values: one checksum per rank, compared in a message of a few bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import CommunicationError

__all__ = ["check_agreement", "checksum"]


def checksum(values: np.ndarray) -> tuple[int, int]:
    """Two sums over the bits of a buffer, computed at several GB/s: of its words, and of each word times its position.

    Sums are modulo 2⁶⁴. A difference in the upper half of a word would cancel if many words had it (all signs flipped,
    for example), so each word counts together with its upper half times an odd constant. Positions count modulo a small
    prime, so that a swap of two positions is detected in all but one of 251 cases.

    Args:
        values: Contiguous, any dtype.

    Returns:
        The bits of both sums as int64.

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
        # A block that fits the cache, so that memory is read once.
        part = words[begin * _PRIME : min(begin + _ROWS, rows) * _PRIME].reshape(-1, _PRIME)
        halves = np.right_shift(part, _HALF, out=upper[: len(part)])
        columns += part.sum(axis=0, dtype=np.uint64) + halves.sum(axis=0, dtype=np.uint64) * _ODD
    last = np.zeros(_PRIME, np.uint64)
    rest = words[rows * _PRIME :]
    last[: len(rest)] = rest
    # The trailing bytes that do not fill a word form one word.
    last[len(rest)] = int.from_bytes(content[whole:].tobytes(), "little")
    columns += last + (last >> _HALF) * _ODD
    sums = np.array([columns.sum(dtype=np.uint64), (columns * _PLACES).sum(dtype=np.uint64)]).view(np.int64)
    return int(sums[0]), int(sums[1])


_PRIME, _ROWS = 251, 64
_PLACES = np.arange(1, _PRIME + 1, dtype=np.uint64)
# 2⁶⁴ divided by the golden ratio, made odd: it spreads differences of upper halves over all bits.
_HALF, _ODD = np.uint64(32), np.uint64(0x9E3779B97F4A7C15)


def check_agreement(
    communicator: Communicator,
    values: Sequence[np.ndarray],
    what: str,
    *,
    ranks: Sequence[int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Check that these values are bit-identical on all ranks.

    Args:
        communicator: Connects the ranks that should agree.
        values: Contiguous buffers.
        what: Name of the values in the message.
        ranks: Rank numbers to use in the message; None: the communicator's.
        timeout_s: Time limit.

    Raises:
        CommunicationError: The values differ; the message lists the ranks that differ from the first.
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
            f"the {what} of rank {', '.join(others)} differ from those of rank {names[0]}; allowed: the same bits on "
            "every rank; remedy: the same seed, network and versions on all ranks, and a scheme whose result does "
            "not depend on the rank"
        )
