"""Strings exchanged between ranks, as byte buffers."""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator

__all__ = ["gather_texts"]


def gather_texts(communicator: Communicator, text: str, *, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Gather every rank's string on every rank, in rank order; also with names of files that are not UTF-8.

    >>> from deep5.core.communicator import SingleRank
    >>> gather_texts(SingleRank(), "only")
    ['only']
    """
    own = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    lengths = np.empty(communicator.size, np.int64)
    communicator.all_gather(np.array([len(own)], np.int64), lengths, timeout_s=timeout_s)
    # All parts of a collective have the same length: that of the longest string.
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(own)] = own
    everyone = np.empty((communicator.size, len(padded)), np.uint8)
    communicator.all_gather(padded, everyone, timeout_s=timeout_s)
    found = zip(everyone, lengths.tolist(), strict=True)
    return [part[:length].tobytes().decode("utf-8", "surrogatepass") for part, length in found]
