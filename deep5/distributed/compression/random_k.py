"""`RandomKSparsification`: all ranks draw the same elements and send only their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.seeds import derive_seed
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.feedback import all_finite
from deep5.distributed.compression.sparse import check_share, item_bytes, share_of

__all__ = ["RandomKSparsification"]

# A message starts with the seed of its indices.
_DRAW = np.dtype(np.uint64)


class RandomKSparsification(Compression):
    """Sends k elements drawn at random, the same on all ranks, summed by a plain all-reduce of their values.

    decode(encode(x))ᵢ = c xᵢ where i was drawn, else 0. With error feedback c = 1; without it c = n / k, so that
    E decode(encode(x)) = x.

    A message of n elements of w bytes has 8 + k · w bytes, with k = max(1, round(ratio · n)); in an all-reduce, where
    every rank knows the draw, k · w. If a rank's values are not all finite, it sends NaN for all drawn elements: every
    rank detects it, wherever the non-finite element is.

    Args:
        ratio: Share of the elements to send, in (0, 1]; default 0.01.
        k: Number of elements, instead of a share.
        feedback: See `Compression`.

    Raises:
        UsageError: An argument is out of range.

    References:
        Stich et al., Sparsified SGD with memory, NeurIPS 2018, definition 2.2 (rand_k); Wangni et al., Gradient
        sparsification for communication-efficient distributed optimization, NeurIPS 2018, with equal probabilities, for
        c = n / k.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.RandomKSparsification(k=2, feedback=False).bound(seed=0)
    >>> values, out = np.array([1.0, 2.0, 3.0, 4.0]), np.empty(4)
    >>> message = compression.encode(values, key="weights", step=0)
    >>> compression.decode(message, out)
    >>> message.nbytes, out.tolist()  # what is drawn is multiplied by 4 / 2
    (24, [0.0, 4.0, 0.0, 8.0])
    >>> compression.all_reduce_bytes(4, np.float64)  # ranks that draw alike send only values
    16
    """

    def __init__(self, ratio: float | None = None, *, k: int | None = None, feedback: bool = True) -> None:
        super().__init__(feedback=feedback)
        self.ratio, self.k = check_share("RandomKSparsification", ratio, k)
        self._drawn: tuple[tuple[int, int, int], np.ndarray] | None = None

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """8 + k · w; see `Compression.message_bytes`."""
        return _DRAW.itemsize + share_of(count, self.ratio, self.k) * item_bytes(dtype)

    def all_reduce_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int | None:
        """k · w; see `Compression.all_reduce_bytes`."""
        return self.message_bytes(count, dtype) - _DRAW.itemsize

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        draw = derive_seed(self._seed or 0, "compression", "indices", key, step)
        message[: _DRAW.itemsize].view(_DRAW)[0] = draw
        sent = message[_DRAW.itemsize :].view(values.dtype)
        np.take(values, self._indices(draw, values.size), out=sent, mode="clip")
        if not self.feedback and sent.size:
            sent *= values.size / sent.size
        if not all_finite(values):
            sent[...] = np.nan

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        draw = int(message[: _DRAW.itemsize].view(_DRAW)[0])
        out[...] = 0
        out[self._indices(draw, out.size)] = message[_DRAW.itemsize :].view(out.dtype)

    def _exchange(self, communicator: Communicator, message: np.ndarray, buffer: np.ndarray, timeout_s: float) -> None:
        communicator.all_reduce(message[_DRAW.itemsize :].view(buffer.dtype), timeout_s=timeout_s)
        self._unpack(message, buffer)

    def _indices(self, draw: int, count: int) -> np.ndarray:
        """The sorted elements of one draw; the last draw is cached, because encoding and decoding use the same."""
        k = share_of(count, self.ratio, self.k)
        requested = (draw, count, k)
        if self._drawn is None or self._drawn[0] != requested:
            generator = np.random.Generator(np.random.Philox(draw))
            drawn = generator.choice(count, k, replace=False, shuffle=False) if k < count else np.arange(count)
            drawn.sort()
            self._drawn = requested, drawn
        return self._drawn[1]
