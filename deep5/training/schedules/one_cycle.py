"""`OneCycle`: up, down, and a final decay."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.plan import Plan
from deep5.training.schedules.schedule import Schedule, check_length, check_number, share_done

__all__ = ["OneCycle"]


@dataclass(frozen=True)
class OneCycle(Schedule):
    """The 1cycle policy: from `start` to `peak` and back in two linear phases, then in a third to `end`.

    For the learning rate, `peak` is the largest value that still converges and `end` is orders of magnitude below
    `start`. The momentum moves in the opposite direction, e.g. `OneCycle(0.95, 0.85, 0.95)`.

    Args:
        start: Value at the first step and at the end of the cycle.
        peak: Value at the middle of the cycle.
        end: Value at the end.
        cycle: Fraction of the length that the cycle takes, above 0 and at most 1; the paper says "slightly smaller"
            than all of it.
        epochs: The length in epochs.
        steps: The length in steps; if neither is given, it is that of the training.

    References:
        Smith, A disciplined approach to neural network hyper-parameters: part 1, arXiv:1803.09820, 2018, section 4.

    >>> rate = OneCycle(0.1, 0.5, 0.0, cycle=0.8)
    >>> [round(rate.value(StepInfo(step=step), Plan(epochs=1, steps=100)), 9) for step in (0, 20, 40, 80, 90, 100)]
    [0.1, 0.3, 0.5, 0.1, 0.05, 0.0]
    """

    start: float
    peak: float
    end: float
    _: KW_ONLY
    cycle: float = 0.9
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "peak", "end", "cycle"):
            check_number(self, name)
        if not 0 < self.cycle <= 1:
            raise UsageError(f"OneCycle: got cycle={brief(self.cycle)}; allowed: a number above 0 and at most 1")
        check_length(self, required=False)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value on one of the three lines."""
        done = share_done(info, plan, self.steps, self.epochs)
        half = self.cycle / 2
        if done <= half:
            return _between(self.start, self.peak, done / half)
        if done <= self.cycle:
            return _between(self.peak, self.start, done / half - 1.0)
        return _between(self.start, self.end, (done - self.cycle) / (1.0 - self.cycle))


def _between(begin: float, end: float, share: float) -> float:
    """Linear interpolation, exact at both ends."""
    return begin * (1.0 - share) + end * share
