"""`Cosine`: half a cosine wave down, once or with warm restarts."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.plan import Plan, periods_done
from deep5.training.schedules.schedule import Schedule, check_length, check_number, share_done

__all__ = ["Cosine"]


@dataclass(frozen=True)
class Cosine(Schedule):
    """Cosine annealing: end + (start − end) / 2 · (1 + cos(π · t / T)), at every step; `end` from T.

    Args:
        start: Value of the first step, η_max.
        end: η_min.
        epochs: T in epochs.
        steps: T in steps; if neither is given, T is the end of training.
        restarts: Restart at T instead of staying at `end`: SGDR. Requires `epochs` or `steps`.
        factor: T_mult, the ratio of each period's length to the previous one; at least 1.

    References:
        Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, ICLR 2017, equation 5; T_cur is
        counted in steps, or in epochs and their fractions.

    >>> import deep5 as d5
    >>> plan = d5.Plan(epochs=4, steps=10)
    >>> [round(d5.Cosine(0.4).value(d5.StepInfo(step=step), plan), 9) for step in (0, 20, 40)]
    [0.4, 0.2, 0.0]
    >>> sgdr = d5.Cosine(0.4, steps=10, restarts=True, factor=2)
    >>> [round(sgdr.value(d5.StepInfo(step=step), plan), 9) for step in (0, 5, 10, 20, 30)]
    [0.4, 0.2, 0.4, 0.2, 0.4]
    """

    start: float
    end: float = 0.0
    _: KW_ONLY
    epochs: float | None = None
    steps: int | None = None
    restarts: bool = False
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("start", "end", "factor"):
            check_number(self, name)
        if not isinstance(self.restarts, bool):
            raise UsageError(f"Cosine: got restarts={brief(self.restarts)}; allowed: True or False")
        if self.factor < 1 or (self.factor != 1 and not self.restarts):
            raise UsageError(
                f"Cosine: got factor={brief(self.factor)}; allowed: a number of at least 1, and 1 without restarts"
            )
        check_length(self, required=self.restarts)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """See the class, and `Schedule.value` for the arguments."""
        share = self._share_of_period(info, plan) if self.restarts else share_done(info, plan, self.steps, self.epochs)
        part = 0.5 * (1.0 + math.cos(math.pi * share))
        # Exact at both ends, unlike end + (start − end) · part.
        return self.start * part + self.end * (1.0 - part)

    def _share_of_period(self, info: StepInfo, plan: Plan) -> float:
        """T_cur / T_i."""
        done: float
        length: float
        if self.epochs is None:
            done, length = plan.steps_done(info), self.steps or 1
        else:
            done, length = plan.epochs_done(info), self.epochs
        if self.factor != 1:
            while periods_done(done, length)[0]:
                done, length = done - length, length * self.factor
        return periods_done(done, length)[1]
