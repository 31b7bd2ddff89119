"""`OneCycle`: up, down, and a final decay."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from typing_extensions import override

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.plan import Plan
from deep5.training.schedules.schedule import Schedule, check_length, check_number, share_done

__all__ = ["OneCycle"]


@dataclass(frozen=True)
class OneCycle(Schedule):
    """The 1cycle policy: from `start` to `peak` and back in two phases, then in a third to `end`.

    For the learning rate, `peak` is the largest value that still converges and `end` is orders of magnitude below
    `start`. The momentum moves in the opposite direction, e.g. `OneCycle(0.95, 0.85, 0.95)`.

    Args:
        start: Value at the first step and at the end of the cycle.
        peak: Value at the middle of the cycle.
        end: Value at the end.
        cycle: Fraction of the length that the cycle takes, above 0 and at most 1; the paper says "slightly smaller"
            than all of it.
        anneal: The form of each phase: `"linear"` as in the paper, or `"cos"`, half a cosine, as fast.ai's and torch's.
        rise: Fraction of the length after which `peak` is reached; from there the value goes to `end` in one phase, and
            `cycle` has no effect. fast.ai has 0.25, torch 0.3. None: the paper's three phases.
        epochs: The length in epochs.
        steps: The length in steps; if neither is given, it is that of the training.

    References:
        Smith, A disciplined approach to neural network hyper-parameters: part 1, arXiv:1803.09820, 2018, section 4.
        Howard and Gugger, Fastai: a layered API for deep learning, Information 11(2), 2020, section 4.1.4, for `"cos"`.

    >>> import deep5 as d5
    >>> rate, plan = d5.OneCycle(0.1, 0.5, 0.0, cycle=0.8), d5.Plan(epochs=1, steps=100)
    >>> [round(rate.value(d5.StepInfo(step=step), plan), 9) for step in (0, 20, 40, 80, 90, 100)]
    [0.1, 0.3, 0.5, 0.1, 0.05, 0.0]
    >>> rate = d5.OneCycle(0.1, 0.5, 0.0, anneal="cos", rise=0.5)
    >>> [round(rate.value(d5.StepInfo(step=step), plan), 9) for step in (0, 25, 50, 75, 100)]
    [0.1, 0.3, 0.5, 0.25, 0.0]
    """

    start: float
    peak: float
    end: float
    _: KW_ONLY
    cycle: float = 0.9
    anneal: Literal["linear", "cos"] = "linear"
    rise: float | None = None
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "peak", "end", "cycle"):
            check_number(self, name)
        if not 0 < self.cycle <= 1:
            raise UsageError(f"OneCycle: got cycle={brief(self.cycle)}; allowed: a number above 0 and at most 1")
        if self.anneal not in ("linear", "cos"):
            raise UsageError(f"OneCycle: got anneal={brief(self.anneal)}; allowed: 'linear' or 'cos'")
        if self.rise is not None and not (is_finite(self.rise) and 0 < self.rise < 1):
            raise UsageError(f"OneCycle: got rise={brief(self.rise)}; allowed: a number between 0 and 1, or None")
        check_length(self, required=False)

    @override
    def describe(self) -> dict[str, Any]:
        """Without the later arguments where they are not given: a recipe's hash stays that of earlier versions."""
        found = super().describe()
        for name, default in (("anneal", "linear"), ("rise", None)):
            if found[name] == default:
                del found[name]
        return found

    @override
    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value in one of the phases."""
        done = share_done(info, plan, self.steps, self.epochs)
        up = self.cycle / 2 if self.rise is None else self.rise
        if done <= up:
            return self._between(self.start, self.peak, done / up)
        if self.rise is not None:
            return self._between(self.peak, self.end, (done - up) / (1.0 - up))
        if done <= self.cycle:
            return self._between(self.peak, self.start, done / up - 1.0)
        return self._between(self.start, self.end, (done - self.cycle) / (1.0 - self.cycle))

    def _between(self, begin: float, end: float, share: float) -> float:
        """Interpolation, exact at both ends."""
        if self.anneal == "cos":
            share = (1.0 - math.cos(math.pi * share)) / 2.0
        return begin * (1.0 - share) + end * share
