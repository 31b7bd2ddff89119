"""`DeepGradientCompression`: sparse gradients with momentum correction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import UsageError, brief
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.feedback import Kept, all_finite
from deep5.distributed.compression.sparse import (
    INDEX,
    add_stream,
    check_share,
    chosen,
    item_bytes,
    pack_stream,
    share_of,
    stream_bytes,
    unpack_stream,
)

__all__ = ["DeepGradientCompression"]


# Names of momentum hyperparameters of update rules.
_MOMENTA = ("momentum", "beta1", "momentum_decay")


class DeepGradientCompression(Compression):
    """Sends the largest elements of a velocity that every rank accumulates locally.

    g ← g · min(1, clip / (√N ‖g‖));  u ← m u + g;  v ← v + u;
    of v the k elements of largest magnitude are sent;  v ← 0 and u ← 0 where an element was sent.

    The scheme applies the momentum: the wrapped optimizer must have none (SGD). v is the residual of `Compression`, and
    error feedback is always on. The norm is clipped per buffer; N is the number of ranks: those of `all_reduce`, or the
    `size` passed to `bound`.

    During the first `warm_up_steps` steps the share is larger: with share r, r^((1 + ⌊4 t / T⌋) / 5) at step t of T.
    For r = 0.001 these are the paper's 25 %, 6.3 %, 1.6 %, 0.4 %, and 0.1 % afterwards.

    Messages are those of `TopKSparsification`: min(k · (4 + w), n · w) bytes for n elements of w bytes. As there,
    non-finite elements are sent first.

    Args:
        ratio: Share r of the elements to send after the warm-up, in (0, 1].
        momentum: m, in [0, 1).
        clip: Maximum norm of a buffer's gradient, divided by √N; None: no clipping.
        warm_up_steps: T; the paper uses four epochs.

    Raises:
        UsageError: An argument is out of range.

    References:
        Lin et al., Deep gradient compression: reducing the communication bandwidth for distributed training, ICLR 2018,
        equations 4 to 6 (momentum correction and factor masking), sections 3.1 to 3.3, algorithm 4.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> compression = d5.DeepGradientCompression(ratio=0.25, momentum=0.5, clip=None, warm_up_steps=0).bound(seed=0)
    >>> out = np.empty(4)
    >>> for step, gradient in enumerate(([4.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0])):
    ...     message = compression.encode(np.array(gradient), key="weights", step=step)
    ...     compression.decode(message, out)
    ...     print(message.nbytes, out.tolist())  # then what was kept of the second element: 3 + 0.5 · 3
    12 [4.0, 0.0, 0.0, 0.0]
    12 [0.0, 4.5, 0.0, 0.0]
    >>> [round(d5.DeepGradientCompression(0.001, warm_up_steps=100).share(step), 4) for step in (0, 25, 50, 75, 100)]
    [0.2512, 0.0631, 0.0158, 0.004, 0.001]
    """

    def __init__(
        self, ratio: float = 0.001, *, momentum: float = 0.9, clip: float | None = None, warm_up_steps: int = 0
    ) -> None:
        super().__init__()
        name = "DeepGradientCompression"
        share, _ = check_share(name, ratio, None)
        if not is_finite(momentum) or not 0 <= momentum < 1:
            raise UsageError(f"{name}: got momentum={brief(momentum)}; allowed: a number from 0 to below 1")
        if clip is not None and (not is_finite(clip) or clip <= 0):
            raise UsageError(f"{name}: got clip={brief(clip)}; allowed: None, or a number above 0")
        if not is_whole(warm_up_steps) or warm_up_steps < 0:
            raise UsageError(f"{name}: got warm_up_steps={brief(warm_up_steps)}; allowed: an integer from 0")
        self.ratio, self.momentum = share or ratio, float(momentum)
        self.clip = None if clip is None else float(clip)
        self.warm_up_steps = int(warm_up_steps)
        self._velocity = Kept("momentum")

    def share(self, step: int | None = None) -> float:
        """Share of the elements sent at a step; None: after the warm-up.

        Args:
            step: Counted from 0.

        Returns:
            The share, in (0, 1].
        """
        if step is None or step >= self.warm_up_steps:
            return self.ratio
        return float(self.ratio ** ((1 + 4 * step // self.warm_up_steps) / 5))

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """min(k · (4 + w), n · w) with the k of this step; see `Compression.message_bytes`."""
        return stream_bytes(count, share_of(count, self.share(step), None), dtype)

    def check_optimizer(self, optimizer: Any) -> None:
        """Reject an update rule with momentum, which would apply it twice.

        Raises:
            UsageError: It has momentum.
        """
        rule = getattr(optimizer, "rule", optimizer)
        if found := [name for name in getattr(rule, "hyper", ()) if name in _MOMENTA]:
            raise UsageError(
                f"DeepGradientCompression: got {type(rule).__name__} as the optimizer, which has {found[0]}; allowed: "
                "an optimizer without momentum, which this compression applies itself; remedy: d5.SGD"
            )

    def _keeps(self) -> tuple[Kept, ...]:
        """The residuals v, and the momenta u."""
        return (*super()._keeps(), self._velocity)

    def _parameters(self) -> dict[str, Any]:
        # Always on, therefore not a parameter.
        return {name: value for name, value in super()._parameters().items() if name != "feedback"}

    def _start(self) -> None:
        self._velocity = Kept("momentum")

    def _corrected(self, values: np.ndarray, key: str) -> np.ndarray:
        velocity = self._velocity.of(key, values)
        velocity *= values.dtype.type(self.momentum)
        velocity += self._clipped(values)
        return velocity

    def _clipped(self, values: np.ndarray) -> np.ndarray:
        if self.clip is None:
            return values
        norm = math.sqrt(float(np.dot(values, values)))
        bound = self.clip / math.sqrt(self._size)
        # A non-finite norm is left as it is, so that it is detected.
        return values * values.dtype.type(bound / norm) if bound < norm < math.inf else values

    def _sent(self, message: np.ndarray, key: str, acc: np.ndarray) -> None:
        velocity = self._velocity.of(key, acc)
        indices, _ = chosen(message, acc.size, acc.dtype)
        velocity[indices] = 0
        if not all_finite(velocity):
            velocity[~np.isfinite(velocity)] = 0

    def _fits(self, size_bytes: int, out: np.ndarray) -> bool:
        # The sender's step is unknown here: any number of elements may have been sent.
        return size_bytes == out.nbytes or (
            0 < size_bytes < out.nbytes and not size_bytes % (INDEX.itemsize + item_bytes(out.dtype))
        )

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        pack_stream(values, message, share_of(values.size, self.share(step), None), self._scratch)

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        unpack_stream(message, out)

    def _add(self, message: np.ndarray, total: np.ndarray) -> None:
        add_stream(message, total)
