"""Rows gathered from ranks that have different numbers of them."""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator

__all__ = ["gather_rows"]


def gather_rows(communicator: Communicator, rows: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> list[np.ndarray]:
    """Gather every rank's rows on every rank, in rank order.

    Args:
        communicator: The communicator of the ranks.
        rows: Shape (count, *row), of which only the count differs between ranks.
        timeout_s: Seconds to wait for the other ranks, in each of two collectives.

    >>> from deep5.core.communicator import SingleRank
    >>> [part.tolist() for part in gather_rows(SingleRank(), np.array([[1, 2], [3, 4]]))]
    [[[1, 2], [3, 4]]]
    """
    counts = np.empty(communicator.size, np.int64)
    communicator.all_gather(np.array([len(rows)], np.int64), counts, timeout_s=timeout_s)
    # All parts of a collective have the same size: that of the rank with the most rows.
    padded = np.zeros((int(counts.max()), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    every = np.empty((communicator.size, *padded.shape), rows.dtype)
    if every.size:
        communicator.all_gather(padded, every, timeout_s=timeout_s)
    return [part[:count] for part, count in zip(every, counts.tolist(), strict=True)]
