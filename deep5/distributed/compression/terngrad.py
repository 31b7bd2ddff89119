"""`TernGrad`: gradients as −1, 0 and 1, times a scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.distributed.compression.bucketed import buckets_of, check_bucket, rows_of
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.levels import pack_levels, unpack_levels
from deep5.distributed.compression.packing import packed_bytes
from deep5.distributed.compression.sparse import item_bytes

__all__ = ["TernGrad"]


class TernGrad(Compression):
    """Encodes each bucket of d elements as a scale and a random −1, 0 or 1 per element.

    s = max |xᵢ|;  Q(x)ᵢ = s · sgn(xᵢ) · bᵢ, with P(bᵢ = 1) = |xᵢ| / s: E Q(x) = x.
    With clipping, x is first clipped to ±c σ, where σ² is the variance of the bucket; clipping introduces a bias.

    A message of n elements of w bytes has ⌈n / d⌉ · w + 2 · ⌈n / 8⌉ bytes: two bits per element, where the paper counts
    log₂ 3.

    Of the paper's two variants, this is the one with separate scales per rank: they are sent in the message, and
    messages are decoded before they are summed. Sharing the largest scale of all ranks saves bits where a server sums
    ternary numbers, but costs one more exchange and increases the variance. A flat buffer does not show layer
    boundaries, so buckets replace the paper's layers.

    Error feedback is off by default: the paper has none, and Q is not a contraction, so the residual may grow without
    bound. A bucket with a non-finite element becomes NaN.

    Args:
        clip: c; None: no clipping and no bias.
        bucket: d, a multiple of 8.
        feedback: See `Compression`.

    Raises:
        UsageError: An argument is out of range.

    References:
        Wen et al., TernGrad: ternary gradients to reduce communication in distributed deep learning, NeurIPS 2017,
        equations 1 to 3, and gradient clipping with c = 2.5.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.TernGrad(clip=None, bucket=8).bound(seed=0)
    >>> decoded, out = [], np.empty(3)
    >>> for step in range(1000):
    ...     compression.decode(compression.encode(np.array([2.0, -1.0, 0.0]), key="weights", step=step), out)
    ...     decoded.append(out.copy())
    >>> sorted(set(np.ravel(decoded).tolist())), np.mean(decoded, axis=0).round(1).tolist()  # three values, unbiased
    ([-2.0, 0.0, 2.0], [2.0, -1.0, 0.0])
    """

    def __init__(self, clip: float | None = 2.5, *, bucket: int = 2048, feedback: bool = False) -> None:
        super().__init__(feedback=feedback)
        if clip is not None and (not is_finite(clip) or clip <= 0):
            raise UsageError(f"TernGrad: got clip={brief(clip)}; allowed: None, or a number above 0")
        self.clip = None if clip is None else float(clip)
        self.bucket = check_bucket("TernGrad", bucket)

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """⌈n / d⌉ · w + 2 · ⌈n / 8⌉; see `Compression.message_bytes`."""
        return buckets_of(count, self.bucket) * item_bytes(dtype) + packed_bytes(count, 2)

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        rows = rows_of(values, self.bucket, self._scratch)
        scales = np.maximum(rows.max(axis=1), -rows.min(axis=1))
        usable = np.isfinite(scales)
        if self.clip is not None:
            bounds = self._bounds(rows, values.size)
            # Infinite where squares overflow: then nothing is clipped.
            np.minimum(scales, bounds, out=scales, where=usable & np.isfinite(bounds))
        head = scales.nbytes
        message[:head].view(values.dtype)[...] = np.where(usable, scales, np.nan)
        random = generator(self._seed or 0, "compression", "rounding", self._rank, key, step)
        pack_levels(rows, scales, 1, random, message[head:], values.size, self._scratch)

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        head = buckets_of(out.size, self.bucket) * out.itemsize
        unpack_levels(message[head:], message[:head].view(out.dtype), 1, out, self.bucket)

    def _bounds(self, rows: np.ndarray, count: int) -> np.ndarray:
        """c σ of each bucket; the padding of the last bucket does not count."""
        members = np.full(len(rows), self.bucket)
        members[-1:] -= rows.size - count
        means = rows.sum(axis=1) / members
        squares = np.einsum("ij,ij->i", rows, rows) / members
        deviations = np.sqrt(np.maximum(squares - means * means, 0))
        # A bucket of equal elements has zero deviation, which would clip everything.
        bounds = np.where(deviations > 0, (self.clip or 0) * deviations, np.inf)
        return bounds.astype(rows.dtype)
