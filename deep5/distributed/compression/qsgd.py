"""`QSGD`: gradients as a norm and small integers, rounded stochastically."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.distributed.compression.bucketed import buckets_of, check_bucket, rows_of
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.levels import pack_levels, unpack_levels
from deep5.distributed.compression.packing import packed_bytes
from deep5.distributed.compression.sparse import item_bytes

__all__ = ["QSGD"]


class QSGD(Compression):
    """Encodes each bucket of d elements as its 2-norm and one integer in [−s, s] per element.

    Q(x)ᵢ = ‖x‖₂ · sgn(xᵢ) · ξᵢ / s, with ξᵢ = ⌊s |xᵢ| / ‖x‖₂ + u⌋ and u uniform in [0, 1): E Q(x) = x.

    The paper uses Elias coding; here all numbers have b = ⌈log₂(2s + 1)⌉ bits, so that messages have a fixed size and
    are packed without a loop: a message of n elements of w bytes has ⌈n / d⌉ · w + b · ⌈n / 8⌉ bytes.

    Error feedback is off by default: the paper has none, and the scheme is unbiased. With it the residual is bounded
    only where Q is a contraction, √d < s or d < s²: for example s = 127 and d = 512. A bucket with a non-finite element
    becomes NaN.

    Args:
        levels: s, from 1 to 127.
        bucket: d, a multiple of 8.
        feedback: See `Compression`.

    Raises:
        UsageError: An argument is out of range.

    References:
        Alistarh et al., QSGD: communication-efficient SGD via gradient quantization and encoding, NeurIPS 2017,
        section 3.1, and section 4 for the buckets.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.QSGD(levels=5, bucket=8).bound(seed=0)
    >>> values = np.array([3.0, -4.0, 0.0, 0.0])  # the norm is 5: a multiple of 5 / levels is exact
    >>> message, out = compression.encode(values, key="weights", step=0), np.empty(4)
    >>> compression.decode(message, out)
    >>> message.nbytes, out.tolist()
    (12, [3.0, -4.0, 0.0, 0.0])
    >>> d5.QSGD().message_bytes(1_000_000, np.float32)  # 4,000,000 uncompressed
    507816
    """

    def __init__(self, levels: int = 7, *, bucket: int = 512, feedback: bool = False) -> None:
        super().__init__(feedback=feedback)
        if not is_whole(levels) or not 1 <= levels <= 127:
            raise UsageError(f"QSGD: got levels={brief(levels)}; allowed: an integer from 1 to 127")
        self.levels = int(levels)
        self.bucket = check_bucket("QSGD", bucket)

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """⌈n / d⌉ · w + b · ⌈n / 8⌉; see `Compression.message_bytes`."""
        return buckets_of(count, self.bucket) * item_bytes(dtype) + packed_bytes(count, (2 * self.levels).bit_length())

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        rows = rows_of(values, self.bucket, self._scratch)
        norms = _norms(rows)
        head = norms.nbytes
        message[:head].view(values.dtype)[...] = np.where(np.isfinite(norms), norms, np.nan)
        random = generator(self._seed or 0, "compression", "rounding", self._rank, key, step)
        pack_levels(rows, norms, self.levels, random, message[head:], values.size, self._scratch)

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        head = buckets_of(out.size, self.bucket) * out.itemsize
        unpack_levels(message[head:], message[:head].view(out.dtype), self.levels, out, self.bucket)


def _norms(rows: np.ndarray) -> np.ndarray:
    """2-norm of each row, also where squares exceed the range of the dtype."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    tiny = np.sqrt(np.finfo(rows.dtype).tiny) * 1e3
    doubtful = ~((norms > tiny) & (norms < np.inf))
    if doubtful.any():
        some = rows[doubtful]
        most = np.abs(some).max(axis=1, keepdims=True)
        scaled = some / np.where(most > 0, most, 1)
        norms[doubtful] = most[:, 0] * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return norms
