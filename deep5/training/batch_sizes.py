"""`GrowingBatches`: a batch size that grows over the epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deep5.core.errors import UsageError

__all__ = ["GrowingBatches"]


@dataclass(frozen=True, kw_only=True)
class GrowingBatches:
    """Batches that grow every few epochs, as an alternative to learning-rate decay.

    A sampler accepts it as its batch size. The batch size is limited to the number of samples.

    Attributes:
        start: Samples per batch in the first epochs.
        factor: Each growth multiplies the batch size by it and rounds to the nearest integer.
        every: Epochs between two growths.
        most: The upper limit; None: all samples.

    Raises:
        UsageError: `start`, `every` or `most` is not an integer of at least 1, `most` is below `start`, or `factor` is
            not a finite number of at least 1.

    References:
        Smith, Kindermans, Ying and Le, Don't decay the learning rate, increase the batch size, ICLR 2018, section 5.

    >>> import deep5 as d5
    >>> sizes = d5.GrowingBatches(start=128, factor=5, every=60, most=5120)
    >>> [sizes(epoch) for epoch in (0, 59, 60, 120, 180)]
    [128, 128, 640, 3200, 5120]
    """

    start: int
    factor: float = 2.0
    every: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "every", "most"):
            value = getattr(self, name)
            if value is None and name == "most":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"GrowingBatches: got {name}={value!r}; allowed: an integer of at least 1")
        if self.most is not None and self.most < self.start:
            raise UsageError(f"GrowingBatches: got most={self.most}; allowed: at least start={self.start}")
        number = isinstance(self.factor, (int, float)) and not isinstance(self.factor, bool)
        if not number or not 1 <= self.factor < float("inf"):
            raise UsageError(f"GrowingBatches: got factor={self.factor!r}; allowed: a finite number of at least 1")

    def __call__(self, epoch: int) -> int:
        """Samples per batch in this epoch.

        Args:
            epoch: Counted from 0.
        """
        try:
            size = round(self.start * float(self.factor) ** (epoch // self.every))
        except OverflowError:
            size = 2**63 - 1
        return size if self.most is None else min(size, self.most)

    def describe(self) -> dict[str, Any]:
        """The values that enter a recipe's hash."""
        return {
            "batches": "growing",
            "start": self.start,
            "factor": float(self.factor),
            "every": self.every,
            "most": self.most,
        }
