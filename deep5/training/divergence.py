"""`NonFiniteLoss` reports a NaN or infinite loss, `StopOnNaN` stops at it; both read losses with a delay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.core.events import Event, StepInfo, StopTraining
from deep5.core.tensors import Arrays, to_numpy

__all__ = ["NonFiniteLoss", "StopOnNaN"]

# Maximum number of unread losses: an epoch may have millions of steps.
_MOST = 1024
# Maximum number of sample indices in a message: a batch may have thousands.
_NAMED = 8

_WHY = (
    "what follows from it says little; the usual reasons are a label out of range, data that is not finite, and "
    "too large a learning rate"
)


class _Losses(Event):
    """Keeps losses of training steps, possibly still in computation, unread and finds the first that is not finite."""

    def __init__(self) -> None:
        self._unread: list[tuple[Any, StepInfo, int]] = []
        self._found: str | None = None

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Keep the loss, which may still be in computation."""
        # A user's optimizer may return other outputs, or none.
        if self._found is None and outputs and trainer.loss in outputs:
            self._unread.append((outputs[trainer.loss], info, trainer.batch))
            if len(self._unread) >= _MOST:
                self._read()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Read the epoch's losses, which come first, and check the mean loss, a host number."""
        self._read()
        loss = scores.get("loss", 0.0)
        if self._found is None and not math.isfinite(loss):
            self._find(f"the loss of the evaluation after epoch {epoch + 1} is {loss}")

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses, if there was no evaluation."""
        self._read()

    def _read(self) -> None:
        for value, info, batches in self._unread:
            loss = float(to_numpy(value))
            if not math.isfinite(loss):
                # If a step has several batches, the last of them.
                self._find(
                    f"the training loss is {loss} at step {info.step} of epoch {info.epoch}, counted from 0; it is of "
                    f"batch {max(batches - 1, 0)} of the epoch{_samples(info)}"
                )
                break
        self._unread.clear()

    def _find(self, message: str) -> None:
        self._found = message


def _samples(info: StepInfo) -> str:
    """A description of a batch that names the first of its samples."""
    if info.sample_ids is None:
        return f", {info.batch_size} samples that have no number"
    first = ", ".join(str(int(index)) for index in islice(info.sample_ids, _NAMED))
    return f", samples {first}{f' and {info.batch_size - _NAMED} more' if info.batch_size > _NAMED else ''}"


class NonFiniteLoss(_Losses):
    """Reports the first NaN or infinite training loss; that of an evaluation only if all losses before it are finite.

    Losses are read at the end of an epoch, after the device has finished, or when a thousand are unread: steps do not
    wait for them. Labels out of range raise an error on some back-ends and produce NaN on compiling ones, which cannot
    raise.

    Args:
        tell: Receives a sentence; called at most once per training, and again with the same sentence after a resume.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def after_training(self, trainer: Any) -> None:
        """Read the remaining losses of an incomplete epoch."""
        self._read()

    def _find(self, message: str) -> None:
        super()._find(message)
        self._tell(f"{message}; {_WHY}")

    def state_dict(self) -> dict[str, Any]:
        """Whether the loss was reported; reads the unread losses."""
        self._read()
        return {"found": self._found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` and repeat an earlier report, since its recipient may be gone."""
        if state["found"] is not None:
            self._find(state["found"])


class StopOnNaN(_Losses):
    """Stops at a NaN or infinite loss, and reports its step and samples.

    Losses are read every few steps and after an epoch's last step: training continues at most that long, and the
    report names the first step with such a loss.

    Args:
        every: Steps between two readings; with 1, every step waits for its loss.

    Raises:
        UsageError: `every` is not an integer of at least 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> pixels, labels = np.ones((8, 4), np.float32), np.zeros(8, np.int64)
    >>> pixels[5] = np.nan
    >>> train = d5.OrderedSampler(d5.ArrayDataset({"input": pixels, "label": labels}), 2)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.SGD(0.1), train)
    >>> trainer.train(epochs=5, events=[d5.StopOnNaN(every=1)])
    >>> trainer.status, trainer.step, trainer.reason[-12:]
    ('stopped', 3, 'samples 4, 5')
    """

    def __init__(self, every: int = 100) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"StopOnNaN: got every={brief(every)}; allowed: a number of steps, at least 1")
        super().__init__()
        self.every = every

    def describe(self) -> dict[str, Any]:
        """The interval of the readings."""
        return {"event": "stop_on_nan", "every": self.every}

    def before_training(self, trainer: Any) -> None:
        """Reset for a new training."""
        self._unread.clear()
        if trainer.step == 0:
            self._found = None

    def before_batch(self, trainer: Any, epoch: int) -> None:
        """Read the losses if due; this depends only on the step, so that a resumed run stops at the same one.

        Raises:
            StopTraining: A loss is not finite.
        """
        if trainer.step % self.every == 0:
            self._stop()

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses.

        Raises:
            StopTraining: A loss is not finite; there is nothing to evaluate.
        """
        self._stop()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Read the epoch's losses if there was no evaluation, else check the evaluation.

        Raises:
            StopTraining: A loss is not finite.
        """
        self._stop()

    def _stop(self) -> None:
        self._read()
        if self._found is not None:
            raise StopTraining(self._found)

    def state_dict(self) -> dict[str, Any]:
        """The finding so far; reads the unread losses, and a stop follows at the next check."""
        self._read()
        return {"found": self._found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._found = state["found"]
