"""Whether training continued past a metric's samples, which are taken at the end of every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.core.metric import Sample

__all__ = ["ended_within_epoch"]


def ended_within_epoch(trainer: Any, samples: Sequence[Sample]) -> bool:
    """Whether training ended normally with steps after the last sample.

    Args:
        trainer: The trainer, in `after_training`.
        samples: One per epoch, with the number of steps then.
    """
    known = samples[-1].step or 0 if samples else 0
    return trainer.status in ("success", "stopped") and trainer.step > known
