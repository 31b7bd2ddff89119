"""`SlowRank`: delays one rank, to measure the effect on a scheme."""

from __future__ import annotations

from time import sleep
from typing import Any

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.events import Event, StepInfo

__all__ = ["SlowRank"]


class SlowRank(Event):
    """Makes a rank sleep before each of its steps, like a slower machine.

    Args:
        rank: The rank to delay.
        delay_ms: Milliseconds per step.

    Raises:
        UsageError: An argument is out of range, or the rank does not exist when training begins.

    >>> import deep5 as d5
    >>> d5.SlowRank(rank=1, delay_ms=5).describe()
    {'event': 'slow_rank', 'rank': 1, 'delay_ms': 5.0}
    """

    def __init__(self, rank: int, delay_ms: float) -> None:
        if not is_whole(rank) or rank < 0:
            raise UsageError(f"SlowRank: got rank={brief(rank)}; allowed: a rank, from 0 on")
        if not is_finite(delay_ms) or not 0 <= delay_ms <= 60_000:
            raise UsageError(f"SlowRank: got delay_ms={brief(delay_ms)}; allowed: milliseconds from 0 to 60000")
        self.rank, self.delay_ms = int(rank), float(delay_ms)
        self._here = False

    def describe(self) -> dict[str, Any]:
        """The delayed rank and its delay."""
        return {"event": "slow_rank", "rank": self.rank, "delay_ms": self.delay_ms}

    def before_training(self, trainer: Any) -> None:
        """Determine whether this is the rank."""
        communicator = trainer.communicator
        size = 1 if communicator is None else communicator.size
        if self.rank >= size:
            raise UsageError(f"SlowRank: got rank={self.rank} and {size} ranks; allowed: from 0 to {size - 1}")
        self._here = self.rank == (0 if communicator is None else communicator.rank)

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        """Sleep."""
        if self._here:
            sleep(self.delay_ms / 1000.0)
