"""`NonFiniteLoss`: says so once where a loss is not a number or infinite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from deep5.events import Event, StepInfo
from deep5.tensors import Arrays, to_numpy

__all__ = ["NonFiniteLoss"]

# Losses to keep unread: an epoch may have millions of steps.
_MOST = 1024

_WHY = (
    "what follows from it says little; the usual reasons are a label that is no class, data that is not finite, and "
    "too large a learning rate"
)


class NonFiniteLoss(Event):
    """Tells of the first training loss that is NaN or infinite; of an evaluation's, where all those before it are not.

    Losses are read at the end of an epoch, when the device has finished, or when a thousand are unread: steps do not
    wait for them. Labels outside their range raise an error on some back-ends and give NaN on those that compile,
    where nothing can raise.

    Args:
        tell: Takes a sentence; called once a run at most.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._unread: list[tuple[Any, int, int]] = []
        self._found = False

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Keep the loss, which may not be there yet."""
        # An optimizer of the user's may return other outputs, or none.
        if not self._found and outputs and trainer.loss in outputs:
            self._unread.append((outputs[trainer.loss], info.step, info.epoch))
            if len(self._unread) >= _MOST:
                self._read()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Read the epoch's losses, which come first, and look at the mean loss, which is a number of the host's."""
        self._read()
        loss = scores.get("loss", 0.0)
        if not self._found and not math.isfinite(loss):
            self._found = True
            self._tell(f"the loss of the evaluation after epoch {epoch + 1} is {loss}; {_WHY}")

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses, where there was no evaluation."""
        self._read()

    def after_training(self, trainer: Any) -> None:
        """Read what an epoch that was cut short left."""
        self._read()

    def _read(self) -> None:
        for value, step, epoch in self._unread:
            loss = float(to_numpy(value))
            if not math.isfinite(loss):
                self._found = True
                self._tell(f"the training loss is {loss} at step {step} of epoch {epoch}, counted from 0; {_WHY}")
                break
        self._unread.clear()
