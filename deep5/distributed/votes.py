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

# Interval of votes of ranks in lockstep, in seconds: rare enough to cost nothing, frequent enough to stop soon.
_EVERY_S = 0.25
_MOST_STEPS = 1000


class Votes(Event):
    """Ranks vote, every quarter of a second and before and after every epoch, on whether to stop or write a checkpoint.

    A condition seen by only one rank (a time limit, a NaN loss, a signal) must not end it while the others wait for it.
    So a request of its events to stop is kept until the next vote, which ends all ranks at the same step. Without
    lockstep there are no votes within an epoch.

    Args:
        communicator: Connects all ranks; meanwhile not used for anything else, except by a scheme in lockstep.
        keeper: Writes this rank's part of the checkpoints; None: there are none. It must not be registered as an event
            itself.
        lockstep: Whether all ranks take the same steps, as in synchronous schemes.
        timeout_s: Time limit of a vote. Before the first step, when one rank may still prepare what the others have, it
            is 60 s at least.
    """

    # One process can resume from the checkpoints of ranks, and ranks from those of one process.
    kept_as = Checkpointer.__qualname__

    def __init__(
        self,
        communicator: Communicator,
        keeper: Checkpointer | None,
        *,
        lockstep: bool,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.communicator, self.keeper, self.lockstep, self.timeout_s = communicator, keeper, lockstep, timeout_s
        if keeper is not None:
            # A rank that leads keeps the checkpoint that the others still have: the last step that all of them wrote.
            keeper.confirm = self._meet
        self._reason: str | None = None
        self._next = self._last_step = 0
        self._last_s = perf_counter()

    def deferred(self, event: Event, call: Callable[..., None]) -> Callable[..., None]:
        """Wrap an event's hook so that it does not stop this rank by itself; see `Listeners.deferred`."""
        if event is self:
            return call

        def listen(*given: Any) -> None:
            try:
                call(*given)
            except StopTraining as stop:
                self._reason = self._reason or str(stop)

        # The hook's owner: the trainer checks it when it resumes within an epoch.
        listen.__self__ = event  # type: ignore[attr-defined]
        return listen

    def before_training(self, trainer: Any) -> None:
        """Prepare the checkpoint folder before any rank writes."""
        if self.keeper is not None:
            self.keeper.before_training(trainer)
            self.communicator.barrier(timeout_s=max(self.timeout_s, TIMEOUT_S))
        self._next = self._last_step = trainer.step
        self._last_s = perf_counter()

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Stop together before the first step if an event of any rank, such as an evaluation's, requests it."""
        # Ranks that resume in the middle of an epoch differ in the events that were called at its start.
        if not trainer.batch:
            wanted = np.array([self._reason is not None], np.float64)
            self.communicator.all_reduce(wanted, op="max", timeout_s=self.timeout_s)
            if wanted[0]:
                self._stop()

    def after_all(self, trainer: Any) -> None:
        """Vote when it is due."""
        keeper, ended = self.keeper, not trainer.batch
        if keeper is not None and (ended or self.lockstep):
            # If ranks differ, their mean, for example, is evaluated.
            keeper.consider_best(trainer, getattr(trainer.optimizer, "averaged", nullcontext))
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
            # Without lockstep, only at the end of an epoch can one file hold the state of all ranks.
            if due or interrupted:
                keeper.write(trainer)
            if interrupted and keeper.interruption is not None:
                keeper.interruption()
        if interrupted:
            raise KeyboardInterrupt("another rank was interrupted")
        if stop:
            self._stop()

    def _stop(self) -> NoReturn:
        """End all ranks, with the reason of the first rank that gave one."""
        reported = gather_texts(self.communicator, self._reason or "", timeout_s=self.timeout_s)
        self._reason = None
        raise StopTraining(next((text for text in reported if text), "an event of a rank ended it without a reason"))

    def _meet(self) -> None:
        self.communicator.barrier(timeout_s=self.timeout_s)

    def state_dict(self) -> dict[str, Any]:
        """The state of the checkpoint event."""
        return {} if self.keeper is None else self.keeper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        if self.keeper is not None:
            with suppress(KeyError):
                self.keeper.load_state_dict(state)
