"""Strings exchanged between ranks, as byte buffers."""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.distributed.rows import gather_rows

__all__ = ["gather_texts"]


def gather_texts(communicator: Communicator, text: str, *, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Gather every rank's string on every rank, in rank order; also with names of files that are not UTF-8.

    >>> from deep5.core.communicator import SingleRank
    >>> gather_texts(SingleRank(), "only")
    ['only']
    """
    own = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    parts = gather_rows(communicator, own, timeout_s=timeout_s)
    return [part.tobytes().decode("utf-8", "surrogatepass") for part in parts]
