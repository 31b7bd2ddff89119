"""`NonFiniteLoss` says where a loss is not a number or infinite, `StopOnNaN` stops there; both read losses late."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.core.events import Event, StepInfo, StopTraining
from deep5.core.tensors import Arrays, to_numpy

__all__ = ["NonFiniteLoss", "StopOnNaN"]

# Losses to keep unread: an epoch may have millions of steps.
_MOST = 1024
# Indices of samples that a sentence names: the batch may have thousands.
_NAMED = 8

_WHY = (
    "what follows from it says little; the usual reasons are a label that is no class, data that is not finite, and "
    "too large a learning rate"
)


class _Losses(Event):
    """Keeps losses of training steps unread, which may not be there yet, and finds the first that is not finite."""

    def __init__(self) -> None:
        self._unread: list[tuple[Any, StepInfo, int]] = []
        self._found: str | None = None

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Keep the loss, which may not be there yet."""
        # An optimizer of the user's may return other outputs, or none.
        if self._found is None and outputs and trainer.loss in outputs:
            self._unread.append((outputs[trainer.loss], info, trainer.batch))
            if len(self._unread) >= _MOST:
                self._read()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Read the epoch's losses, which come first, and look at the mean loss, which is a number of the host's."""
        self._read()
        loss = scores.get("loss", 0.0)
        if self._found is None and not math.isfinite(loss):
            self._find(f"the loss of the evaluation after epoch {epoch + 1} is {loss}")

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses, where there was no evaluation."""
        self._read()

    def _read(self) -> None:
        for value, info, batches in self._unread:
            loss = float(to_numpy(value))
            if not math.isfinite(loss):
                # Where a step is of several batches, the last of them.
                self._find(
                    f"the training loss is {loss} at step {info.step} of epoch {info.epoch}, counted from 0; it is of "
                    f"batch {max(batches - 1, 0)} of the epoch{_samples(info)}"
                )
                break
        self._unread.clear()

    def _find(self, told: str) -> None:
        self._found = told


def _samples(info: StepInfo) -> str:
    """Which samples a batch is of, the first of them by name."""
    if info.sample_ids is None:
        return f", {info.batch_size} samples that have no number"
    first = ", ".join(str(int(index)) for index in islice(info.sample_ids, _NAMED))
    return f", samples {first}{f' and {info.batch_size - _NAMED} more' if info.batch_size > _NAMED else ''}"


class NonFiniteLoss(_Losses):
    """Tells of the first training loss that is NaN or infinite; of an evaluation's, where all those before it are not.

    Losses are read at the end of an epoch, when the device has finished, or when a thousand are unread: steps do not
    wait for them. Labels outside their range raise an error on some back-ends and give NaN on those that compile,
    where nothing can raise.

    Args:
        tell: Takes a sentence; called once a training at most, and after a resume with the same sentence again.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def after_training(self, trainer: Any) -> None:
        """Read what an epoch that was cut short left."""
        self._read()

    def _find(self, told: str) -> None:
        super()._find(told)
        self._tell(f"{told}; {_WHY}")

    def state_dict(self) -> dict[str, Any]:
        """Whether it was told; what is unread is read."""
        self._read()
        return {"found": self._found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; what was found is told again, since whoever heard it may be gone."""
        if state["found"] is not None:
            self._find(state["found"])


class StopOnNaN(_Losses):
    """Stops where a loss is NaN or infinite, and says at which step and of which samples.

    Losses are read every few steps, and when an epoch's steps are over: training goes on for so long at most, and what
    is said is the step that it began with.

    Args:
        every: Steps between two readings; 1 has every step wait for its loss.

    Raises:
        UsageError: No whole number of at least 1.
    """

    def __init__(self, every: int = 100) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"StopOnNaN: got every={brief(every)}; allowed: a number of steps, at least 1")
        super().__init__()
        self.every = every

    def describe(self) -> dict[str, Any]:
        """How often it looks."""
        return {"event": "stop_on_nan", "every": self.every}

    def before_training(self, trainer: Any) -> None:
        """Begin anew with a new training."""
        self._unread.clear()
        if trainer.step == 0:
            self._found = None

    def before_batch(self, trainer: Any, epoch: int) -> None:
        """Read the losses where it is time; by the step alone, so that a resumed run stops at the same one.

        Raises:
            StopTraining: One is not finite.
        """
        if trainer.step % self.every == 0:
            self._stop()

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses.

        Raises:
            StopTraining: One is not finite; there is nothing to evaluate.
        """
        self._stop()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses, where there was no evaluation; judge the evaluation, where there was.

        Raises:
            StopTraining: One is not finite.
        """
        self._stop()

    def _stop(self) -> None:
        self._read()
        if self._found is not None:
            raise StopTraining(self._found)

    def state_dict(self) -> dict[str, Any]:
        """What was found; what is unread is read, and acted on when it is time."""
        self._read()
        return {"found": self._found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._found = state["found"]
