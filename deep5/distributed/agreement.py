"""Whether all ranks hold the same values: a checksum of each, compared in one message of a few bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.communicator import TIMEOUT_S, Communicator
from deep5.errors import CommunicationError

__all__ = ["check_agreement", "checksum"]


def checksum(values: np.ndarray) -> tuple[int, int]:
    """Two sums over the bits of a buffer, at the speed of memory: of its words, and of every word times its place's.

    The places count modulo a small prime, so that what is exchanged between two places is seen but for one in 251.

    Args:
        values: Contiguous, any dtype.

    >>> import numpy as np
    >>> checksum(np.array([1.0, 2.0])) == checksum(np.array([2.0, 1.0]))
    False
    """
    content = values.reshape(-1).view(np.uint8)
    whole = len(content) // 8 * 8
    words = content[:whole].view(np.uint64)
    total = int(words.sum(dtype=np.uint64)) + int(content[whole:].sum(dtype=np.uint64))
    placed, rows = 0, len(words) // _PRIME
    if rows:
        # The sum of each column, then of the columns times their places: memory is read once more and no more.
        columns = words[: rows * _PRIME].reshape(rows, _PRIME).sum(axis=0, dtype=np.uint64)
        placed = int((columns * _PLACES).sum(dtype=np.uint64))
    rest = words[rows * _PRIME :]
    placed += int((rest * _PLACES[: len(rest)]).sum(dtype=np.uint64))
    return total & _MASK, placed & _MASK


_PRIME = 251
_PLACES = np.arange(1, _PRIME + 1, dtype=np.uint64)
# What an int64 holds without its sign.
_MASK = (1 << 62) - 1


def check_agreement(
    communicator: Communicator, values: Sequence[np.ndarray], what: str, *, timeout_s: float = TIMEOUT_S
) -> None:
    """See that these values are, to the bit, those of every other rank.

    Args:
        communicator: Of the ranks that should agree.
        values: Contiguous buffers.
        what: Names them in the message.
        timeout_s: Limit of the wait.

    Raises:
        CommunicationError: They are not; the message names the ranks that differ from rank 0.
    """
    if communicator.size == 1:
        return
    own = np.array([number for part in values for number in checksum(part)], np.int64)
    everyone = np.empty((communicator.size, len(own)), np.int64)
    communicator.all_gather(own, everyone, timeout_s=timeout_s)
    if (everyone != everyone[0]).any():
        others = [str(rank) for rank in range(communicator.size) if (everyone[rank] != everyone[0]).any()]
        raise CommunicationError(
            f"the {what} of rank {', '.join(others)} are not those of rank 0; allowed: the same bits on every rank; "
            "remedy: the same seed, network and versions on all ranks, and a scheme whose result does not depend on "
            "the rank"
        )
