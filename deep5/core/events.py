"""Hooks shared by all levels: an `Event` listens, `Listeners` calls only what somebody overrode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.tensors import Arrays

__all__ = ["HOOKS", "NO_CLASSES", "Event", "Listeners", "StepInfo", "StopTraining", "check_info"]

NO_CLASSES = "the labels are no classes, which are whole numbers of the shape of the logits without their last axis"
"""Why an evaluation has no accuracy."""


class StepInfo(NamedTuple):
    """What a step is told about itself. Immutable.

    A named tuple and not a data class: it is made once a step, and a frozen data class takes four times as long.

    Attributes:
        step: Steps done before this one, counted over the whole run, from 0.
        epoch: Epochs done before this one, from 0.
        batch_size: Samples in this batch; the last batch of an epoch may be smaller.
        sample_ids: Indices of the samples in the data set, shape (batch_size,), or None where they are unknown.
        seed: Seed of the run's noise; masks are a function of (seed, step, node).
        global_batch_size: Samples that all ranks have in this step; 0: there is one rank, which has them all.
    """

    step: int = 0
    epoch: int = 0
    batch_size: int = 0
    sample_ids: Any = None
    seed: int = 0
    global_batch_size: int = 0


def check_info(info: StepInfo) -> StepInfo:
    """What a step was told about itself.

    Raises:
        UsageError: It is no `StepInfo`, its numbers are no whole ones, or `step`, `epoch` or `batch_size` is below 0.
    """
    if type(info) is StepInfo:
        step, epoch, batch, _, seed, whole = info
        # Every step comes this way: what is nearly always there is asked first, in one line.
        if type(step) is type(epoch) is type(batch) is type(seed) is type(whole) is int and (
            step >= 0 and epoch >= 0 and batch >= 0 and whole >= 0
        ):
            return info
    if not isinstance(info, StepInfo):
        raise UsageError(f"info: got {brief(info)}; allowed: a StepInfo; remedy: deep5.StepInfo(step=…, batch_size=…)")
    for name, least in (("step", 0), ("epoch", 0), ("batch_size", 0), ("seed", None), ("global_batch_size", 0)):
        value = getattr(info, name)
        if not is_whole(value) or (least is not None and value < least):
            raise UsageError(
                f"info: got {name}={brief(value)}; allowed: a whole number{'' if least is None else ' of at least 0'}; "
                f"remedy: deep5.StepInfo(step=…, batch_size=…), steps counted from 0"
            )
    return info


class StopTraining(Exception):
    """Raised by an event to end training in good order; the message says why."""


class Event:
    """Base of everything that listens to a run: progress bars, loggers, schedules, metric observers.

    Override what is needed; a hook that nobody overrides costs nothing. `trainer` is the `Trainer` that calls.
    Times are host times of one clock (`time.perf_counter_ns`), taken by the trainer.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a hook that nobody would call.

        Raises:
            UsageError: A method is named like a hook and is none.
        """
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith(("before_", "after_")) and not hasattr(super(cls, cls), name):
                hooks = [hook for hook in dir(Event) if hook.startswith(("before_", "after_"))]
                raise UsageError(
                    f"{cls.__qualname__}.{name} is no hook; allowed: {', '.join(hooks)}{suggestion(name, hooks)}"
                )

    every_rank = True
    """False where one rank of several speaks for all, such as a progress bar: the first one's is the only one."""

    kept_as: ClassVar[str | None] = None
    """The name that this event's state has in a checkpoint; None: that of its class."""

    synchronous = False
    """True where `after_step` needs the device to have finished; the trainer then synchronises every step."""

    def before_training(self, trainer: Any) -> None:
        """Once, before the first epoch."""

    def after_training(self, trainer: Any) -> None:
        """Once, after the last epoch, also when training was stopped by an event."""

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Before the first batch of an epoch, counted from 0."""

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """After the epoch's last step and its evaluation."""

    def before_batch(self, trainer: Any, epoch: int) -> None:
        """Before the sampler is asked for what the next step learns from, also where there turns out to be no more."""

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        """Before a step, its batch at hand."""

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """After a step. `outputs` are native values: reading one may force a synchronisation, so read late."""

    def after_batch(self, trainer: Any, info: StepInfo, outputs: Arrays) -> None:
        """When a batch has been learned from and `after_step` is over everywhere."""

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Before the validation batches are run."""

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        """After a validation batch: its samples' indices (None where unknown), its inputs, and all outputs, native."""

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """After evaluation; `scores` holds `loss`, `samples` and, where labels are classes, `accuracy` (percent)."""

    def after_all(self, trainer: Any) -> None:
        """Between two steps, and after an epoch's end, when every other hook is over: checkpoints are taken here."""

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs of this event: JSON's types, and NumPy arrays, by name.

        Asked for in `after_all`. A resumed run calls `load_state_dict` with it behind `before_training`;
        `before_epoch` is not called again for an epoch that a resume goes on in the middle of.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""

    def after_timing(self, rounds: Any) -> None:
        """Once, after the last round of a timing recipe, without a trainer: `rounds` is a `measuring.timing.Rounds`."""

    def after_collectives(self, times: Any, summary: Any) -> None:
        """Once, on the first rank of a recipe of collectives, which has no trainer either.

        `times` is a `deep5.bench.collective.measure.CollectiveTimes`, `summary` what
        `deep5.bench.collective.summary.summarise_collectives` makes of it.
        """


_UNTRAINED = ("after_timing", "after_collectives")
HOOKS = tuple(name for name in vars(Event) if name.startswith(("before_", "after_")) and name not in _UNTRAINED)


class Listeners:
    """The events attached to one trainer, as a tuple of bound methods a hook.

    >>> class Count(Event):
    ...     epochs = 0
    ...     def after_epoch(self, trainer, epoch): self.epochs += 1
    >>> count, listeners = Count(), Listeners()
    >>> with listeners.attached([count]):
    ...     for call in listeners.after_epoch: call(None, 0)
    >>> count.epochs, len(listeners.after_epoch)
    (1, 0)
    """

    before_training: tuple[Callable[..., None], ...]
    after_training: tuple[Callable[..., None], ...]
    before_epoch: tuple[Callable[..., None], ...]
    after_epoch: tuple[Callable[..., None], ...]
    before_batch: tuple[Callable[..., None], ...]
    before_step: tuple[Callable[..., None], ...]
    after_step: tuple[Callable[..., None], ...]
    after_batch: tuple[Callable[..., None], ...]
    before_evaluation: tuple[Callable[..., None], ...]
    after_evaluation_batch: tuple[Callable[..., None], ...]
    after_evaluation: tuple[Callable[..., None], ...]
    after_all: tuple[Callable[..., None], ...]

    def __init__(self) -> None:
        self.events: tuple[Event, ...] = ()
        self.deferred: Callable[[Event, Callable[..., None]], Callable[..., None]] | None = None
        """Gives what is called in place of an event's hook; for ranks that may only stop together. None: the hook."""
        self._collect(())

    def _collect(self, events: Iterable[Event]) -> None:
        self.events = tuple(events)
        for hook in HOOKS:
            inherited = getattr(Event, hook)
            setattr(
                self,
                hook,
                tuple(
                    getattr(event, hook) if self.deferred is None else self.deferred(event, getattr(event, hook))
                    for event in self.events
                    if getattr(type(event), hook, inherited) is not inherited
                ),
            )

    @contextmanager
    def attached(self, events: Iterable[Event]) -> Iterator[None]:
        """Attach events for the length of a `with` block; they are gone after it, also after an exception.

        Raises:
            UsageError: One event in place of several, or something that is no `Event`, such as a class in place of its
                object.
        """
        if isinstance(events, Event) or not isinstance(events, Iterable):
            raise UsageError(f"got {brief(events)} as events; allowed: a list of events; remedy: events=[…] around it")
        before, added = self.events, tuple(events)
        for event in added:
            if not isinstance(event, Event):
                raise UsageError(f"got {event!r} as an event; allowed: objects of d5.Event or of a subclass")
        self._collect((*before, *added))
        try:
            yield
        finally:
            self._collect(before)
