"""`TopKSparsification`: sends only the gradients of largest magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.sparse import (
    add_stream,
    check_share,
    pack_stream,
    share_of,
    stream_bytes,
    unpack_stream,
)

__all__ = ["TopKSparsification"]


class TopKSparsification(Compression):
    """Sends the k elements of largest magnitude, as indices and values, from every rank to every rank.

    decode(encode(x))ᵢ = xᵢ if |xᵢ| is one of the k largest, else 0; among equal ones the first are chosen.

    A message of n elements of w bytes has min(k · (4 + w), n · w) bytes, with k = max(1, round(ratio · n)): if indices
    and values would be no smaller than the buffer, the whole buffer is sent. NaN counts as larger than infinity, so
    that it is sent first.

    Args:
        ratio: Share of the elements to send, in (0, 1]; default 0.01.
        k: Number of elements, instead of a share.
        feedback: See `Compression`; without it the elements left out are lost.

    Raises:
        UsageError: An argument is out of range.

    References:
        Aji and Heafield, Sparse communication for distributed gradient descent, EMNLP 2017, algorithm 1; Stich et al.,
        Sparsified SGD with memory, NeurIPS 2018, definition 2.2 (top_k).

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.TopKSparsification(k=1).bound(seed=0)
    >>> message, out = compression.encode(np.array([1.0, -3.0, 2.0]), key="weights", step=0), np.empty(3)
    >>> compression.decode(message, out)
    >>> message.shape, out.tolist()
    ((12,), [0.0, -3.0, 0.0])
    """

    def __init__(self, ratio: float | None = None, *, k: int | None = None, feedback: bool = True) -> None:
        super().__init__(feedback=feedback)
        self.ratio, self.k = check_share("TopKSparsification", ratio, k)

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """min(k · (4 + w), n · w); see `Compression.message_bytes`."""
        return stream_bytes(count, share_of(count, self.ratio, self.k), dtype)

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        pack_stream(values, message, share_of(values.size, self.ratio, self.k), self._scratch)

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        unpack_stream(message, out)

    def _add(self, message: np.ndarray, total: np.ndarray) -> None:
        add_stream(message, total)
