"""`Trainer`: only the training loop. Everything else is an event."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter_ns
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import UsageError, brief
from deep5.core.events import Event, Listeners, StepInfo, StopTraining
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Arrays, to_numpy
from deep5.networks.labels import ignored_label
from deep5.training.batch_source import BatchSource, joined_batches, sample_count
from deep5.training.optimizer import as_step_optimizer
from deep5.training.reinforcement.online import OnlineSampler
from deep5.training.retrace import ConfirmedConstants
from deep5.training.rule import UpdateRule
from deep5.training.scores import class_hits

__all__ = ["Trainer", "check_names"]

# The trainer's own position; other state belongs to its parts.
_POSITION = ("step", "epoch", "batch", "scores")


class Trainer:
    """Trains an executor's network.

    Args:
        executor: The network on a framework.
        optimizer: An update rule, or an optimizer that owns its step.
        train_sampler: Training batches.
        validation_sampler: Batches for evaluation after each epoch; None: no evaluation.
        loss: Name of the scalar output to minimize.
        logits: Name of the output whose largest entry is the predicted class.
        label: Name of the input with the true class. A network with neither has no accuracy, only a loss.
        seed: The seed of noise, passed to every step.
        communicator: Adds up the scores of all ranks; None: a single process.
        accumulate: Number of batches per step: their gradients make up one update. The last step of an epoch may have
            fewer.

    Attributes:
        executor: As given.
        optimizer: The optimizer as a `StepOptimizer`, bound to the executor.
        train_sampler: As given; likewise `validation_sampler`, `seed` and `communicator`.
        listeners: The attached events: those of `train` during its call, and those of `listening`.
        loss: Name of the output that is minimized.
        accumulate: As given.
        step: Steps done.
        epoch: Epochs done.
        epochs: Epochs done when the current or last call of `train` is complete.
        batch: Batches of the current epoch that were processed.
        origin_ns: The origin of the run's clock, in `time.perf_counter_ns`; 0 while it is stopped. The clock runs from
            the start of the first epoch, after `before_training`, to the end of training, before `after_training`. Time
            before a resume counts, the interruption does not.
        scores: Of the last evaluation: `accuracy` in percent (where labels are classes), mean `loss`, `samples`.
        first_evaluations_s: Seconds of the first evaluated batch of each size, by size: it includes compilation and
            allocation.
        status: `"ready"`, `"running"`, then `"success"`, `"stopped"` (by an event), `"aborted"` (by the user) or
            `"failed"`.
        reason: Why it stopped, or empty.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(), d5.ShuffleSampler(data.train, 5), d5.OrderedSampler(data.test, 6))
    >>> trainer.train(epochs=2); trainer.step, trainer.epoch, trainer.scores["samples"]
    (6, 2, 6.0)
    """

    def __init__(
        self,
        executor: GraphExecutor,
        optimizer: UpdateRule | StepOptimizer,
        train_sampler: BatchSource,
        validation_sampler: BatchSource | None = None,
        *,
        loss: str = "loss",
        logits: str = "logits",
        label: str = "label",
        seed: int = 0,
        communicator: Communicator | None = None,
        accumulate: int = 1,
    ) -> None:
        _check_parts(executor, train_sampler, validation_sampler)
        check_names(executor.network, loss, None if validation_sampler is None else logits, label)
        self.executor, self.train_sampler, self.validation_sampler = executor, train_sampler, validation_sampler
        self.optimizer = as_step_optimizer(optimizer, loss=loss)
        own = getattr(self.optimizer, "loss", loss)
        if own != loss:
            raise UsageError(
                f"the trainer's loss is {loss!r} but its optimizer's is {own!r}; remedy: name the same one"
            )
        self.optimizer.bind(executor)
        # A source that plays with what was learned.
        self._online = train_sampler if isinstance(train_sampler, OnlineSampler) else None
        if self._online is not None:
            self._online.bind(executor)
        self._learn, self.accumulate = _learning(self.optimizer, accumulate), accumulate
        # Asynchronous ranks synchronize at the end of an epoch's steps.
        self._settle: Callable[[], None] | None = getattr(self.optimizer, "settle", None)
        self.seed, self.communicator = seed, communicator
        self.loss, self._logits, self._label = loss, logits, label
        self._has_classes = logits in executor.network.outputs and label in executor.network.inputs
        self._ignored = ignored_label(executor.network, label)
        self.listeners = Listeners()
        self.step = self.epoch = self.batch = self.epochs = 0
        self.origin_ns = self._elapsed_ns = 0
        self._events_states: dict[str, Mapping[str, Any]] = {}
        self._restored = False
        # Events that have already received the beginning of the resumed epoch.
        self._in_the_middle: tuple[Event, ...] = ()
        self.scores: dict[str, float] = {}
        self.first_evaluations_s: dict[int, float] = {}
        self.status, self.reason = "ready", ""
        self._constants = ConfirmedConstants()

    def listening(self, *events: Event) -> AbstractContextManager[None]:
        """Attach events for the duration of a `with` block.

        Args:
            *events: The events.
        """
        return self.listeners.attached(events)

    def elapsed_ns(self) -> int:
        """Nanoseconds of training so far: time before a resume counts, time between two trainings does not.

        The clock is stopped in `before_training` and `after_training`: events there take no time on it.
        """
        return perf_counter_ns() - self.origin_ns if self.origin_ns else self._elapsed_ns

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Everything that a resume needs, between two steps.

        Args:
            copy: Whether to copy arrays; otherwise they are views of live memory if available, to be read immediately.

        Returns:
            `trainer`: its position, in JSON types; `executor` and `optimizer`: their states by name; `batches`: that of
            an `OnlineSampler`; `events`: the states of those attached events that have one, by the name of their class
            and their index among its instances.
        """
        self._constants.confirm_if_due()
        return {
            "trainer": {
                **{name: getattr(self, name) for name in _POSITION},
                "elapsed_ns": self.elapsed_ns(),
                "first_evaluations_s": list(self.first_evaluations_s.items()),
            },
            **{name: _state(part, copy) for name, part in (("executor", self.executor), ("optimizer", self.optimizer))},
            **({} if self._online is None else {"batches": self._online.state_dict()}),
            "events": {name: state for name, event in self._named_events().items() if (state := event.state_dict())},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict`: the next `train` does the rest of the epoch, and restores the events' states.

        Args:
            state: A result of `state_dict`, of a trainer that was made like this one.

        Raises:
            Deep5Error: The state belongs to another network or optimizer.
        """
        position = state["trainer"]
        self.executor.load_state_dict(state["executor"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._online is not None:
            self._online.load_state_dict(state["batches"])
        for name in _POSITION:
            setattr(self, name, position[name])
        self.first_evaluations_s = {int(size): seconds for size, seconds in position["first_evaluations_s"]}
        self._elapsed_ns, self._events_states = position["elapsed_ns"], dict(state["events"])
        self._restored = True

    def train(self, epochs: int, events: Iterable[Event] = ()) -> None:
        """Train for this many more epochs; an incomplete epoch counts as one.

        Args:
            epochs: At least 1.
            events: Attached for the duration of this call. After `load_state_dict`, the events with a state in it have
                to be among them.

        Raises:
            UsageError: `epochs` is not an integer of at least 1, or an event is invalid.
        """
        # A run may have been interrupted between its last epoch and its end.
        least = 0 if self._restored else 1
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < least:
            raise UsageError(f"{epochs!r} epochs; allowed: an integer of at least {least}")
        self._restored = False
        with self.listeners.attached(events):
            self.epochs = self.epoch + epochs
            self.status, self.reason = "running", ""
            try:
                with ExitStack() as stack:
                    # Every event is notified of the end, even if others fail.
                    for call in reversed(self.listeners.after_training):
                        stack.callback(call, self)
                    with self._constants:
                        self._train_epochs()
            except BaseException as error:
                self._ended_by(error)
                if not isinstance(error, StopTraining):
                    raise

    def _train_epochs(self) -> None:
        try:
            for call in self.listeners.before_training:
                call(self)
            self._restore_events()
            self.origin_ns = perf_counter_ns() - self._elapsed_ns
            try:
                for epoch in range(self.epoch, self.epochs):
                    self._train_epoch(epoch)
            except StopTraining:
                self.executor.synchronize()  # the previous steps belong to the run
                raise
            self.status = "success"
        except BaseException as error:
            self._ended_by(error)
            raise
        finally:
            # Stop the clock before notifying events of the end: some do work then, and others read the clock after
            # them.
            self._elapsed_ns, self.origin_ns = self.elapsed_ns(), 0

    def _named_events(self) -> dict[str, Event]:
        """The attached events by the name of their class, or their own name, and their index among its instances."""
        counts: Counter[str] = Counter()
        named = {}
        for event in self.listeners.events:
            kind = event.kept_as or type(event).__qualname__
            named[f"{kind}-{counts[kind]}"] = event
            counts[kind] += 1
        return named

    def _restore_events(self) -> None:
        """Restore the events' states, each under its previous name.

        Raises:
            UsageError: An event with a state is not attached.
        """
        states, self._events_states = self._events_states, {}
        named = self._named_events()
        if lost := [name for name in states if name not in named]:
            raise UsageError(
                f"the state to resume from holds one of {lost[0]}, which is not attached; allowed: the events that "
                f"were attached when it was saved, {', '.join(states)}"
            )
        for name, state in states.items():
            named[name].load_state_dict(state)
        if self.batch:
            self._in_the_middle = tuple(named[name] for name in states)

    def _ended_by(self, error: BaseException) -> None:
        if isinstance(error, StopTraining):
            self.status, self.reason = "stopped", str(error)
        else:
            self.status = "failed" if isinstance(error, Exception) else "aborted"
            self.reason = str(error) or type(error).__name__

    def _train_epoch(self, epoch: int) -> None:
        listeners = self.listeners
        for before in listeners.before_epoch:
            if not any(getattr(before, "__self__", None) is event for event in self._in_the_middle):
                before(self, epoch)
        self._in_the_middle = ()
        self._train_batches(epoch)
        if self._settle is not None:
            self._settle()
        self.executor.synchronize()
        # Counted before its evaluation, so that events see the number of completed epochs.
        self.epoch, self.batch = epoch + 1, 0
        if self.validation_sampler is not None:
            for start in listeners.before_evaluation:
                start(self, epoch)
            self.scores = self._evaluate(self.validation_sampler, listeners.after_evaluation_batch)
            for stop in listeners.after_evaluation:
                stop(self, epoch, self.scores)
        self._constants.confirm_if_due()
        for after in listeners.after_epoch:
            after(self, epoch)
        for settle in listeners.after_all:
            settle(self)

    def _train_batches(self, epoch: int) -> None:
        listeners, count = self.listeners, self.accumulate
        before_batch, before_step = listeners.before_batch, listeners.before_step
        after_step, after_batch, after_all = listeners.after_step, listeners.after_batch, listeners.after_all
        synchronize = self.executor.synchronize if any(event.synchronous for event in listeners.events) else None
        learn, seed = self._learn, self.seed
        # If ranks share a batch: the number of samples of all ranks in it.
        whole = getattr(self.train_sampler, "global_batch_size", None)
        # A source that never resumes within an epoch need not support `start`.
        batches = self.train_sampler.batches(epoch, self.batch) if self.batch else self.train_sampler.batches(epoch)
        for wait in before_batch:
            wait(self, epoch)
        for ids, inputs in batches if count == 1 else joined_batches(batches, count):
            size = len(ids) if ids is not None else sample_count(inputs)
            info = StepInfo(self.step, epoch, size, ids, seed)
            if whole is not None:
                info = self._of_all_ranks(info, whole, count if count == 1 else len(inputs))
            for ready in before_step:
                ready(self, info)
            begin = perf_counter_ns()
            outputs = learn(inputs, info)
            if synchronize is not None:
                synchronize()
            end = perf_counter_ns()
            self.step += 1
            self.batch += 1 if count == 1 else len(inputs)
            for done in after_step:
                done(self, info, outputs, begin, end)
            for learned in after_batch:
                learned(self, info, outputs)
            for settle in after_all:
                settle(self)
            for wait in before_batch:
                wait(self, epoch)

    def _of_all_ranks(self, info: StepInfo, whole: Callable[[int, int], int | None], batches: int) -> StepInfo:
        sizes = [whole(info.epoch, self.batch + number) or 0 for number in range(batches)]
        return info._replace(global_batch_size=sum(sizes))

    def evaluate(self, sampler: BatchSource) -> dict[str, float]:
        """Accuracy in percent, mean loss and number of samples over all batches of a sampler.

        The network runs in evaluation mode, with the optimizer's evaluation parameters (`eval_param`). Every sample
        counts once, for any batch size; if a sample has several labels (a sequence), the accuracy is over all labels.
        A label that the network's loss ignores, such as padding, does not count. NaN logits predict nothing. If labels
        are not classes, that is integers of the shape of the logits without the last dimension, there is no accuracy.

        Args:
            sampler: The batches of its first epoch are evaluated.

        Returns:
            `loss`, `samples`, and `accuracy` if labels are classes.
        """
        return self._evaluate(sampler, ())

    def _evaluate(self, sampler: BatchSource, watching: Sequence[Callable[..., None]]) -> dict[str, float]:
        averaged = getattr(self.optimizer, "averaged", nullcontext)
        right = counted = 0
        total_loss = samples = 0.0
        with averaged():
            for ids, inputs in sampler.batches(0):
                size = len(ids) if ids is not None else sample_count(inputs)
                begin = perf_counter_ns()
                outputs = self.executor.inference(inputs)
                logits = to_numpy(outputs[self._logits]) if self._has_classes else None
                loss = float(to_numpy(outputs[self.loss]))
                # All are read, so the computation is finished.
                end = perf_counter_ns()
                self.first_evaluations_s.setdefault(size, (end - begin) / 1e9)
                if logits is not None:
                    hits = class_hits(logits, to_numpy(inputs[self._label]), self._ignored, math.isfinite(loss))
                    right += int(np.count_nonzero(hits))
                    counted += hits.size
                total_loss += loss * size
                samples += size
                for watch in watching:
                    watch(self, ids, inputs, outputs)
        if self.communicator is not None:
            totals = np.array([right, counted, total_loss, samples], np.float64)
            # The other ranks may still be evaluating.
            self.communicator.all_reduce(totals, op="sum", timeout_s=10 * TIMEOUT_S)
            right, counted, total_loss, samples = totals.tolist()
        accuracy = {"accuracy": 100.0 * right / counted} if counted else {}
        return {**accuracy, "loss": total_loss / samples, "samples": samples}


def _state(part: Any, copy: bool) -> Any:
    """The state of an executor or an optimizer; without views, copies."""
    views = None if copy else getattr(part, "state_views", None)
    return part.state_dict() if views is None else views()


def _learning(optimizer: StepOptimizer, accumulate: int) -> Callable[[Any, StepInfo], Arrays]:
    """The function that trains on one batch, or on several as one step."""
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise UsageError(f"Trainer: got accumulate={accumulate!r:.60}; allowed: an integer of at least 1")
    if accumulate == 1:
        return optimizer.step
    learn: Callable[[Any, StepInfo], Arrays] | None = getattr(optimizer, "accumulated_step", None)
    # Some optimizers evaluate the loss repeatedly within a step: one gradient of several batches is not enough.
    if learn is None or not getattr(optimizer, "accumulates", True):
        raise UsageError(
            f"Trainer: got accumulate={accumulate} with {type(optimizer).__name__}, which owns its step; allowed: a "
            "d5.UpdateRule, or an optimizer that takes one gradient a step and has accumulated_step(batches, info)"
        )
    return learn


def check_names(network: NetworkSpec, loss: str = "loss", logits: str | None = "logits", label: str = "label") -> None:
    """Reject a network without the tensors that a training reads.

    Args:
        network: The network.
        loss: The output to differentiate.
        logits: The output to evaluate; None: nothing is evaluated.
        label: The input that it is evaluated with.

    Raises:
        UsageError: It has no such loss, or one of logits and label without the other.
    """
    wanted = {loss: network.outputs}
    if logits is not None and (logits in network.outputs or label in network.inputs):
        wanted |= {logits: network.outputs, label: network.inputs}
    for name, where in wanted.items():
        if name not in where:
            raise UsageError(
                f"the network has no {name!r}; allowed: {', '.join(where)}; remedy: name one of its tensors {name!r}"
            )


def _check_parts(executor: object, *samplers: object) -> None:
    """Reject invalid executors and samplers; both are identified by their attributes."""
    if not (hasattr(executor, "network") and hasattr(executor, "synchronize")):
        raise UsageError(
            f"Trainer: got {brief(executor)} as the executor; allowed: a network on a framework; remedy: "
            "deep5.framework('pytorch').executor(network)"
        )
    for name, sampler in zip(("train_sampler", "validation_sampler"), samplers, strict=True):
        if not hasattr(sampler, "batches") and (sampler is not None or name == "train_sampler"):
            raise UsageError(
                f"Trainer: got {brief(sampler)} as {name}; allowed: a deep5.Sampler; remedy: "
                "deep5.ShuffleSampler(data.train, 32), say"
            )
