"""`EpochTimes`: when an epoch of a recorded loop trained, and when it was evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["EpochTimes"]


@dataclass
class EpochTimes:
    """The times of an epoch in nanoseconds on the run's clock.

    Attributes:
        begin_ns: Its begin.
        end_ns: Its end, or that of an evaluation after it.
        evaluated_ns: Total of its evaluations.
        within_ns: Total of the evaluations before its end.
        scores: Of its last evaluation: `loss`, and `accuracy` in percent.
        scored_step: Steps done at the last evaluation.
        scored_begin_ns: Begin of the last evaluation.
        scored_end_ns: Its end.
    """

    begin_ns: int
    end_ns: int = 0
    evaluated_ns: int = 0
    within_ns: int = 0
    scores: dict[str, Any] = field(default_factory=dict)
    scored_step: int = -1
    scored_begin_ns: int = 0
    scored_end_ns: int = 0
    _own_end_ns: int = 0

    def evaluated(self, begin_ns: int, end_ns: int, step: int, *, late: bool) -> None:
        """Add an evaluation.

        Args:
            begin_ns: Its begin.
            end_ns: Its end.
            step: Steps done.
            late: Whether the epoch had ended: then it ends with the evaluation.
        """
        self.evaluated_ns += end_ns - begin_ns
        self.scored_begin_ns, self.scored_end_ns, self.scored_step = begin_ns, end_ns, step
        if late:
            self._own_end_ns = self._own_end_ns or self.end_ns
            self.end_ns = end_ns
        else:
            self.within_ns += end_ns - begin_ns

    def busy_ns(self, steps: int) -> int:
        """Nanoseconds from the begin to the end of the steps, without evaluations.

        Args:
            steps: Steps done at the end of the epoch.
        """
        end = self._own_end_ns or self.end_ns
        if self.scored_step == steps and not self._own_end_ns and self.within_ns:
            # The last evaluation followed the last step: what comes after it is not training.
            before = self.within_ns - (self.scored_end_ns - self.scored_begin_ns)
            return self.scored_begin_ns - self.begin_ns - before
        return end - self.begin_ns - self.within_ns
