"""`OneBit`: one bit per element and two means per bucket."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.distributed.compression.bucketed import buckets_of, check_bucket, rows_of
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.packing import packed_bytes
from deep5.distributed.compression.sparse import item_bytes

__all__ = ["OneBit"]


class OneBit(Compression):
    """Encodes each bucket of d elements as one bit per element, the mean of the elements ≥ 0, and that of the others.

    Q(x)ᵢ = μ₊ where xᵢ ≥ 0, else μ₋;  μ₊ = mean of the xⱼ ≥ 0, μ₋ = mean of the xⱼ < 0.

    These are the two values per bucket with the least squared error. Buckets replace the columns of the paper's weight
    matrices.

    A message of n elements of w bytes has 2 w · ⌈n / d⌉ + ⌈n / 8⌉ bytes. A bucket with a NaN becomes NaN; one with an
    infinity becomes infinite on that side.

    Args:
        bucket: d, a multiple of 8.
        feedback: See `Compression`; without it the scheme is biased, and the paper's does not train.

    Raises:
        UsageError: An argument is out of range.

    References:
        Seide et al., 1-bit stochastic gradient descent and its application to data-parallel distributed training of
        speech DNNs, Interspeech 2014, section 3.2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.OneBit(bucket=8).bound(seed=0)
    >>> values = np.array([1.0, 3.0, -2.0, 2.0, -4.0, 2.0, 2.0, -6.0])
    >>> message, out = compression.encode(values, key="weights", step=0), np.empty(8)
    >>> compression.decode(message, out)
    >>> message.nbytes, out.tolist()  # two means, and a byte of signs
    (17, [2.0, 2.0, -4.0, 2.0, -4.0, 2.0, 2.0, -4.0])
    >>> message = compression.encode(np.zeros(8), key="weights", step=1)  # the next message carries the error
    >>> compression.decode(message, out); out.tolist()
    [-1.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, -1.5]
    """

    def __init__(self, *, bucket: int = 512, feedback: bool = True) -> None:
        super().__init__(feedback=feedback)
        self.bucket = check_bucket("OneBit", bucket)

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """2 w · ⌈n / d⌉ + ⌈n / 8⌉; see `Compression.message_bytes`."""
        return 2 * item_bytes(dtype) * buckets_of(count, self.bucket) + packed_bytes(count, 1)

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        rows = rows_of(values, self.bucket, self._scratch)
        bits = np.packbits(rows.reshape(-1) >= 0)
        above = np.bitwise_count(bits.reshape(len(rows), self.bucket // 8)).sum(axis=1, dtype=np.int64)
        below = self.bucket - above
        # The padding of the last bucket is zero and does not count as elements.
        above[-1:] -= rows.size - values.size
        part = self._scratch.take("parts", rows.size, values.dtype).reshape(rows.shape)
        head = 2 * len(rows) * values.itemsize
        means = message[:head].view(values.dtype).reshape(2, len(rows))
        # NumPy's maximum and minimum both propagate NaN.
        means[0] = np.maximum(rows, 0, out=part).sum(axis=1) / np.maximum(above, 1)
        means[1] = np.minimum(rows, 0, out=part).sum(axis=1) / np.maximum(below, 1)
        message[head:] = bits[: message.size - head]

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        rows = buckets_of(out.size, self.bucket)
        head = 2 * rows * out.itemsize
        # As integers: below xor (bit · (above xor below)) selects one of the two bit patterns exactly.
        number = np.dtype(f"u{out.itemsize}")
        above, below = message[:head].view(number).reshape(2, rows, 1)
        bits = np.unpackbits(message[head:], count=rows * self.bucket).reshape(rows, self.bucket)
        whole = self._scratch.take("parts", bits.size, number).reshape(bits.shape)
        np.multiply(bits, above ^ below, out=whole, dtype=number)
        whole ^= below
        out[...] = whole.reshape(-1)[: out.size].view(out.dtype)
