"""Hooks shared by all levels: an `Event` listens, `Listeners` calls only overridden hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.tensors import Arrays

__all__ = ["HOOKS", "NO_CLASSES", "Event", "Listeners", "StepInfo", "StopTraining", "check_info"]

NO_CLASSES = "the labels are not classes, which are integers in the shape of the logits without their last axis"
"""The reason why an evaluation has no accuracy."""


class StepInfo(NamedTuple):
    """Information about a training step. Immutable.

    A named tuple, not a data class: one is created per step, and a frozen data class takes four times as long.

    Attributes:
        step: Steps done before this one, counted over the whole run, from 0.
        epoch: Epochs done before this one, from 0.
        batch_size: Samples in this batch; the last batch of an epoch may be smaller.
        sample_ids: Indices of the samples in the data set, shape (batch_size,), or None if unknown.
        seed: Seed of the run's noise; masks are a function of (seed, step, node).
        global_batch_size: Samples of all ranks in this step; 0 for a single rank.

    >>> import deep5 as d5
    >>> info = d5.StepInfo(step=7, epoch=1, batch_size=32)
    >>> info.step, info.sample_ids is None
    (7, True)
    >>> info._replace(step=8).step
    8
    """

    step: int = 0
    epoch: int = 0
    batch_size: int = 0
    sample_ids: Any = None
    seed: int = 0
    global_batch_size: int = 0


def check_info(info: StepInfo) -> StepInfo:
    """Check the information about a step.

    Raises:
        UsageError: It is not a `StepInfo`, its numbers are not integers, or `step`, `epoch` or `batch_size` is
            negative.
    """
    if type(info) is StepInfo:
        step, epoch, batch, _, seed, whole = info
        # Called in every step: the common case is checked first, in one expression.
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
                f"info: got {name}={brief(value)}; allowed: an integer{'' if least is None else ' of at least 0'}; "
                f"remedy: deep5.StepInfo(step=…, batch_size=…), steps counted from 0"
            )
    return info


class StopTraining(Exception):
    """Raised by an event to stop training cleanly; the message gives the reason.

    >>> import deep5 as d5
    >>> class GoodEnough(d5.Event):
    ...     def after_epoch(self, trainer, epoch):
    ...         if trainer.scores["loss"] < 2:
    ...             raise d5.StopTraining("the test loss is below 2")
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(), d5.OrderedSampler(data.train, 6), d5.OrderedSampler(data.test, 6))
    >>> trainer.train(epochs=5, events=[GoodEnough()]); trainer.epoch, trainer.status, trainer.reason
    (1, 'stopped', 'the test loss is below 2')
    """


class Event:
    """Base class of all listeners of a run: progress bars, loggers, schedules, metric observers.

    Override the hooks you need; a hook that is not overridden costs nothing. `trainer` is the calling `Trainer`. Times
    are host times of one clock (`time.perf_counter_ns`), taken by the trainer.

    >>> import deep5 as d5
    >>> class Sizes(d5.Event):
    ...     def before_training(self, trainer): self.sizes = []
    ...     def after_step(self, trainer, info, outputs, begin_ns, end_ns): self.sizes.append(info.batch_size)
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> sizes = Sizes()
    >>> d5.Trainer(executor, d5.Adam(), d5.OrderedSampler(data.train, 5)).train(epochs=1, events=[sizes]); sizes.sizes
    [5, 5, 2]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reject methods that look like hooks but would never be called.

        Raises:
            UsageError: A method has a name similar to a hook's.
        """
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith(("before_", "after_")) and not hasattr(super(cls, cls), name):
                hooks = [hook for hook in dir(Event) if hook.startswith(("before_", "after_"))]
                raise UsageError(
                    f"{cls.__qualname__}.{name} is not a hook; allowed: {', '.join(hooks)}{suggestion(name, hooks)}"
                )

    every_rank = True
    """False if only the first of several ranks has the event, such as a progress bar."""

    kept_as: ClassVar[str | None] = None
    """The name of this event's state in a checkpoint; None: the class name."""

    synchronous = False
    """True if `after_step` needs the device to have finished; the trainer then synchronizes every step."""

    def before_training(self, trainer: Any) -> None:
        """Called once, before the first epoch.

        Args:
            trainer: The calling `Trainer`.
        """

    def after_training(self, trainer: Any) -> None:
        """Called once, after the last epoch, also if an event stopped training.

        Args:
            trainer: The calling `Trainer`.
        """

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Before the first batch of an epoch, counted from 0.

        Args:
            trainer: The calling `Trainer`.
            epoch: Epochs done before this one, from 0.
        """

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """After the epoch's last step and its evaluation.

        Args:
            trainer: The calling `Trainer`.
            epoch: Epochs done before this one, from 0.
        """

    def before_batch(self, trainer: Any, epoch: int) -> None:
        """Before the next batch is requested from the sampler, even if there turns out to be none.

        Args:
            trainer: The calling `Trainer`.
            epoch: Epochs done before this one, from 0.
        """

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        """Before a step, when its batch is available.

        Args:
            trainer: The calling `Trainer`.
            info: The step.
        """

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """After a step.

        Args:
            trainer: The calling `Trainer`.
            info: The step.
            outputs: The network's outputs by name, as native values: reading one may force a synchronization, so
                read late.
            begin_ns: When the step began, on the clock of `time.perf_counter_ns`.
            end_ns: When it ended, on the same clock.
        """

    def after_batch(self, trainer: Any, info: StepInfo, outputs: Arrays) -> None:
        """After the training step of a batch and all `after_step` hooks.

        Args:
            trainer: The calling `Trainer`.
            info: The step.
            outputs: As for `after_step`.
        """

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Before the validation batches run.

        Args:
            trainer: The calling `Trainer`.
            epoch: Epochs done before this one, from 0.
        """

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        """After a validation batch.

        Args:
            trainer: The calling `Trainer`.
            ids: Indices of its samples in the data set, or None if unknown.
            inputs: Its inputs by name.
            outputs: All outputs of the network by name, as native values.
        """

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """After evaluation.

        Args:
            trainer: The calling `Trainer`.
            epoch: Epochs done before this one, from 0.
            scores: `loss`, `samples` and, if labels are classes, `accuracy` (percent).
        """

    def after_all(self, trainer: Any) -> None:
        """Between two steps and after each epoch, after all other hooks: checkpoints are written here.

        Args:
            trainer: The calling `Trainer`.
        """

    def state_dict(self) -> dict[str, Any]:
        """The event's state for a resume: JSON types and NumPy arrays, by name.

        Called in `after_all`. A resumed run passes it to `load_state_dict` after `before_training`; if it resumes in
        the middle of an epoch, `before_epoch` is not called again for that epoch.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the event after a resume.

        Args:
            state: The result of `state_dict`.
        """

    def after_timing(self, rounds: Any) -> None:
        """Called once, after the last round of a timing recipe, without a trainer.

        Args:
            rounds: A `deep5.measuring.timing.Rounds`.
        """

    def after_collectives(self, times: Any, summary: Any) -> None:
        """Called once, on the first rank of a collectives recipe, without a trainer.

        Args:
            times: A `deep5.bench.collective.measure.CollectiveTimes`.
            summary: The result of `deep5.bench.collective.summary.summarise_collectives` on it.
        """

    def after_serving(self, load: Any) -> None:
        """Called once, after the last request of a serving recipe, without a trainer.

        Args:
            load: A `deep5.bench.serving.records.ServedLoad`.
        """


_UNTRAINED = ("after_timing", "after_collectives", "after_serving")
HOOKS = tuple(name for name in vars(Event) if name.startswith(("before_", "after_")) and name not in _UNTRAINED)


class Listeners:
    """The events attached to one trainer: for each hook a tuple of bound methods.

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
        """Returns a replacement for an event's hook, for ranks that must stop together. None: call the hook itself."""
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
        """Attach events for the duration of a `with` block; they are detached after it, also after an exception.

        Raises:
            UsageError: A single event instead of several, or an object that is not an `Event`, such as a class instead
                of an instance.
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
