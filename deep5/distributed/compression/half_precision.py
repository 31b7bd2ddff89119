"""`HalfPrecision`: sums in 16-bit floating point."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import UsageError, brief
from deep5.core.tensors import numpy_dtype
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.sparse import item_bytes

__all__ = ["HalfPrecision"]

_KINDS = ("bfloat16", "float16")


class HalfPrecision(Compression):
    """Rounds elements to the nearest 16-bit value, sums them by an all-reduce in that type, and casts back.

    decode(encode(x)) = cast(cast₁₆(x)). A message of n elements has 2 n bytes.

    A value outside the range of float16, ±65504, in a rank's elements or in a sum becomes infinity, so that every rank
    detects it: loss scaling skips such a step, and without loss scaling the non-finite values are reported. Saturation
    would hide a wrong sum. bfloat16 has the range of float32 and eight bits of precision. NaN stays NaN.

    Error feedback is off by default, as is usual: it compensates the rounding of each rank's elements in later steps,
    which takes memory, but not the rounding of the sums.

    Args:
        kind: `"float16"` or `"bfloat16"`.
        feedback: See `Compression`.

    Raises:
        UsageError: An argument is out of range.

    References:
        Micikevicius et al., Mixed precision training, ICLR 2018, section 2, for the types and their ranges.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.HalfPrecision("bfloat16").bound(seed=0)
    >>> values = np.array([1.0, 3.14159, 1e30], np.float32)
    >>> message, out = compression.encode(values, key="weights", step=0), np.empty_like(values)
    >>> compression.decode(message, out)
    >>> values.nbytes, message.nbytes, out[:2].tolist(), bool(np.isfinite(out).all())  # float16 would overflow
    (12, 6, [1.0, 3.140625], True)
    """

    def __init__(self, kind: str = "bfloat16", *, feedback: bool = False) -> None:
        super().__init__(feedback=feedback)
        if not isinstance(kind, str) or kind not in _KINDS:
            raise UsageError(f"HalfPrecision: got kind={brief(kind)}; allowed: {', '.join(_KINDS)}")
        self.kind = kind

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """2 n bytes for n elements; see `Compression.message_bytes`."""
        item_bytes(dtype)
        return 2 * count

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        message.view(numpy_dtype(self.kind))[...] = values

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        out[...] = message.view(numpy_dtype(self.kind))

    def _exchange(self, communicator: Communicator, message: np.ndarray, buffer: np.ndarray, timeout_s: float) -> None:
        with np.errstate(all="ignore"):
            communicator.all_reduce(message.view(numpy_dtype(self.kind)), timeout_s=timeout_s)
            self._unpack(message, buffer)
