"""`Votes`: ranks that train together stop together and write their checkpoints at the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.events import Event, StopTraining
from deep5.distributed.texts import gather_texts
from deep5.training.checkpointer import Checkpointer

__all__ = ["Votes"]

# How often ranks in step ask each other, in seconds: seldom enough to cost nothing, often enough to end soon.
_EVERY_S = 0.25
_MOST_STEPS = 1000


class Votes(Event):
    """Asks all ranks, every quarter of a second, before and after every epoch, who wants to stop and whose checkpoint
    is due.

    What one rank alone finds out (a time that is up, a loss that is no number, a signal) must not end it while the
    others wait for it. So whatever its events raise to stop is kept until the next vote, and then ends all ranks at
    the same step. Nobody votes within an epoch where ranks are not in step.

    Args:
        communicator: Of all ranks, used for nothing else meanwhile but by a scheme in step.
        keeper: Writes this rank's part of the checkpoints; None: there are none. It is not to listen by itself.
        lockstep: Whether all ranks take the same steps, as synchronous schemes do.
        timeout_s: Limit of the wait for a vote.
    """

    # One process goes on from the checkpoints of ranks, and ranks from those of one process.
    kept_as = Checkpointer.__qualname__

    def __init__(
        self,
        communicator: Communicator,
        keeper: Checkpointer | None,
        *,
        lockstep: bool,
        timeout_s: float = 10 * TIMEOUT_S,
    ) -> None:
        self.communicator, self.keeper, self.lockstep, self.timeout_s = communicator, keeper, lockstep, timeout_s
        if keeper is not None:
            # A rank that is ahead keeps what the others still have: the last step that all of them wrote.
            keeper.confirm = self._meet
        self._reason: str | None = None
        self._next = self._last_step = 0
        self._last_s = perf_counter()

    def deferred(self, event: Event, call: Callable[..., None]) -> Callable[..., None]:
        """An event's hook that does not stop this rank by itself; see `Listeners.deferred`."""
        if event is self:
            return call

        def listen(*given: Any) -> None:
            try:
                call(*given)
            except StopTraining as stop:
                self._reason = self._reason or str(stop)

        # Whose hook it is: the trainer asks, where it goes on within an epoch.
        listen.__self__ = event  # type: ignore[attr-defined]
        return listen

    def before_training(self, trainer: Any) -> None:
        """Get the folder of checkpoints ready, before any rank writes."""
        if self.keeper is not None:
            self.keeper.before_training(trainer)
            self._meet()
        self._next = self._last_step = trainer.step
        self._last_s = perf_counter()

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Stop together before the first step, where an event of any rank wants to: one that judges evaluations."""
        # Ranks that go on in the middle of an epoch have different events that were told of its begin.
        if not trainer.batch:
            wanted = np.array([self._reason is not None], np.float64)
            self.communicator.all_reduce(wanted, op="max", timeout_s=self.timeout_s)
            if wanted[0]:
                self._stop()

    def after_all(self, trainer: Any) -> None:
        """Vote, where it is time."""
        keeper, ended = self.keeper, not trainer.batch
        if keeper is not None and (ended or self.lockstep):
            # Of ranks that differ it is their mean, say, that was judged.
            keeper.judge(trainer, getattr(trainer.optimizer, "averaged", nullcontext))
            if self.lockstep and keeper.due_by_steps(trainer):
                keeper.write(trainer)
        if not ended and (not self.lockstep or trainer.step < self._next):
            return
        due = keeper is not None and keeper.due(trainer)
        interrupted = keeper is not None and keeper.interruption is not None
        seconds = (perf_counter() - self._last_s) / max(trainer.step - self._last_step, 1)
        votes = np.array([self._reason is not None, due, interrupted, seconds], np.float64)
        self.communicator.all_reduce(votes, op="max", timeout_s=self.timeout_s)
        stop, due, interrupted, seconds = votes.tolist()
        self._last_s, self._last_step = perf_counter(), trainer.step
        self._next = trainer.step + min(max(round(_EVERY_S / max(seconds, 1e-9)), 1), _MOST_STEPS)
        if keeper is not None:
            # Where ranks are not in step, the end of an epoch is the only place where one file can hold them all.
            if due or interrupted:
                keeper.write(trainer)
            if interrupted and keeper.interruption is not None:
                keeper.interruption()
        if interrupted:
            raise KeyboardInterrupt("another rank was interrupted")
        if stop:
            self._stop()

    def _stop(self) -> NoReturn:
        """End all ranks, for the reason of the first that has told one."""
        told = gather_texts(self.communicator, self._reason or "", timeout_s=self.timeout_s)
        self._reason = None
        raise StopTraining(next((text for text in told if text), "an event of a rank ended it, and told no reason"))

    def _meet(self) -> None:
        self.communicator.barrier(timeout_s=self.timeout_s)

    def state_dict(self) -> dict[str, Any]:
        """What the checkpoints' own event keeps."""
        return {} if self.keeper is None else self.keeper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        if self.keeper is not None:
            with suppress(KeyError):
                self.keeper.load_state_dict(state)
