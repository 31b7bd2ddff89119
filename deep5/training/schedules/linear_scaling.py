"""`LinearScaling`: a schedule proportional to the batch size."""

from __future__ import annotations

from dataclasses import dataclass

from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.decay import as_schedule
from deep5.training.schedules.plan import Plan
from deep5.training.schedules.schedule import Schedule

__all__ = ["LinearScaling"]


@dataclass(frozen=True, init=False)
class LinearScaling(Schedule):
    """The linear scaling rule: a batch k times larger has a learning rate k times larger.

    The batch size is that of the epoch, which may grow, times the batches of an accumulated step. A smaller last batch
    of an epoch has no effect.

    Args:
        schedule: The value at the reference batch size: a schedule or a number.
        reference: The reference batch size.

    References:
        Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv:1706.02677, section 2.1.

    >>> import deep5 as d5
    >>> d5.LinearScaling(0.1, 256).value(d5.StepInfo(batch_size=7), d5.Plan(epochs=1, steps=10, batch_size=1024))
    0.4
    """

    schedule: Schedule
    reference: int

    def __init__(self, schedule: Schedule | float, reference: int = 256) -> None:
        if isinstance(reference, bool) or not isinstance(reference, int) or reference < 1:
            raise UsageError(
                f"LinearScaling: got reference={brief(reference)}; allowed: a batch size, an integer of at least 1"
            )
        object.__setattr__(self, "schedule", as_schedule(schedule, "LinearScaling"))
        object.__setattr__(self, "reference", reference)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """The schedule's value, scaled."""
        return self.schedule.value(info, plan) * (plan.epoch_batch_size(info.epoch) / self.reference)
