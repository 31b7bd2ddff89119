"""`Trainer`: the loop and nothing else. Everything around it is an event."""

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
from deep5.core.tensors import Arrays, to_numpy
from deep5.training.batch_source import BatchSource, joined_batches, sample_count
from deep5.training.optimizer import as_step_optimizer
from deep5.training.rule import UpdateRule

__all__ = ["Trainer"]

# Where training stands, beside what others own.
_POSITION = ("step", "epoch", "batch", "scores")


class Trainer:
    """Trains an executor's network.

    Args:
        executor: The network on a framework.
        optimizer: An update rule, or an optimizer that owns its step.
        train_sampler: Batches to learn from.
        validation_sampler: Batches to judge by after each epoch; None: no evaluation.
        loss: Name of the scalar output to minimise.
        logits: Name of the output whose largest entry is the predicted class.
        label: Name of the input that holds the true class.
        seed: Of noise, handed to every step.
        communicator: Adds up the scores of all ranks; None: this process is alone.
        accumulate: Batches that one step learns from: their gradients make up one update. At the end of an epoch there
            may be fewer.

    Attributes:
        loss: Name of the output that is minimised.
        accumulate: As given.
        step: Steps done.
        epoch: Epochs done.
        batch: Batches of the epoch under way that were learned from.
        origin_ns: What the run's clock is counted from, in `time.perf_counter_ns`; 0 while it stands. It runs from the
            first epoch's beginning, behind `before_training`, to the end of training, before `after_training`. Time
            before a resume counts, what lay between does not.
        scores: Of the last evaluation: `accuracy` in percent (where labels are classes), mean `loss`, `samples`.
        first_evaluations_s: Seconds of the first evaluated batch of each size, by size: it compiles and allocates.
        status: `"ready"`, `"running"`, then `"success"`, `"stopped"` (by an event), `"aborted"` (by the user) or
            `"failed"`.
        reason: Why it was stopped, or empty.

    >>> import deep5 as d5
    >>> from deep5.training.datasets.class_templates import synthetic
    >>> data = synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = Trainer(executor, d5.Adam(), d5.ShuffleSampler(data.train, 5), d5.OrderedSampler(data.test, 6))
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
        wanted = {loss: executor.network.outputs}
        if validation_sampler is not None:
            wanted |= {logits: executor.network.outputs, label: executor.network.inputs}
        for name, where in wanted.items():
            if name not in where:
                raise UsageError(f"the network has no {name!r}; allowed: {', '.join(where)}")
        self.executor, self.train_sampler, self.validation_sampler = executor, train_sampler, validation_sampler
        self.optimizer = as_step_optimizer(optimizer, loss=loss)
        own = getattr(self.optimizer, "loss", loss)
        if own != loss:
            raise UsageError(
                f"the trainer's loss is {loss!r} but its optimizer's is {own!r}; remedy: name the same one"
            )
        self.optimizer.bind(executor)
        self._learn, self.accumulate = _learning(self.optimizer, accumulate), accumulate
        # Ranks that do not go in step meet at the end of an epoch's steps.
        self._settle: Callable[[], None] | None = getattr(self.optimizer, "settle", None)
        self.seed, self.communicator = seed, communicator
        self.loss, self._logits, self._label = loss, logits, label
        self.listeners = Listeners()
        self.step = self.epoch = self.batch = self.epochs = 0
        self.origin_ns = self._elapsed_ns = 0
        self._events_states: dict[str, Mapping[str, Any]] = {}
        self._restored = False
        # Events that have heard of the beginning of the epoch that a resume goes on in.
        self._in_the_middle: tuple[Event, ...] = ()
        self.scores: dict[str, float] = {}
        self.first_evaluations_s: dict[int, float] = {}
        self.status, self.reason = "ready", ""

    def listening(self, *events: Event) -> AbstractContextManager[None]:
        """Attach events for the length of a `with` block."""
        return self.listeners.attached(events)

    def elapsed_ns(self) -> int:
        """Nanoseconds of training so far: those before a resume count, those between two trainings do not.

        In `before_training` and `after_training` the clock stands: what events do there is not on it.
        """
        return perf_counter_ns() - self.origin_ns if self.origin_ns else self._elapsed_ns

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Everything that training goes on from, between two steps.

        Args:
            copy: Whether arrays are copies; else they are the live memory where that can be had, to be read at once.

        Returns:
            `trainer`: where it stands, in JSON's types; `executor` and `optimizer`: their states by name; `events`: the
            states of those attached events that keep one, by the name of their class and their place among its objects.
        """
        return {
            "trainer": {
                **{name: getattr(self, name) for name in _POSITION},
                "elapsed_ns": self.elapsed_ns(),
                "first_evaluations_s": list(self.first_evaluations_s.items()),
            },
            **{name: _state(part, copy) for name, part in (("executor", self.executor), ("optimizer", self.optimizer))},
            "events": {name: state for name, event in self._named_events().items() if (state := event.state_dict())},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`: the next `train` does the rest of the epoch, and gets the events' states.

        Raises:
            Deep5Error: The state is of another network or optimizer.
        """
        position = state["trainer"]
        self.executor.load_state_dict(state["executor"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in _POSITION:
            setattr(self, name, position[name])
        self.first_evaluations_s = {int(size): seconds for size, seconds in position["first_evaluations_s"]}
        self._elapsed_ns, self._events_states = position["elapsed_ns"], dict(state["events"])
        self._restored = True

    def train(self, epochs: int, events: Iterable[Event] = ()) -> None:
        """Train this many epochs more; an epoch under way counts as one.

        Args:
            epochs: At least 1.
            events: Attached for the length of this call. After `load_state_dict`, those that kept a state when it was
                made have to be among them.

        Raises:
            UsageError: A number of epochs that is no whole number of at least 1, or events that are none.
        """
        # A run may have been ended between its last epoch and its end.
        least = 0 if self._restored else 1
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < least:
            raise UsageError(f"{epochs!r} epochs; allowed: a whole number of at least {least}")
        self._restored = False
        with self.listeners.attached(events):
            self.epochs = self.epoch + epochs
            self.status, self.reason = "running", ""
            try:
                with ExitStack() as stack:
                    # Every event is told of the end, whatever becomes of the others.
                    for call in reversed(self.listeners.after_training):
                        stack.callback(call, self)
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
                self.executor.synchronize()  # the steps before it belong to the run
                raise
            self.status = "success"
        except BaseException as error:
            self._ended_by(error)
            raise
        finally:
            # The clock stands before anybody is told of the end: some work then, and others read it behind them.
            self._elapsed_ns, self.origin_ns = self.elapsed_ns(), 0

    def _named_events(self) -> dict[str, Event]:
        """The attached events by the name of their class, or that they give, and their place among its objects."""
        counts: Counter[str] = Counter()
        named = {}
        for event in self.listeners.events:
            kind = event.kept_as or type(event).__qualname__
            named[f"{kind}-{counts[kind]}"] = event
            counts[kind] += 1
        return named

    def _restore_events(self) -> None:
        """Hand the events their states; each under the name that it had.

        Raises:
            UsageError: An event that kept a state is not attached.
        """
        states, self._events_states = self._events_states, {}
        named = self._named_events()
        if lost := [name for name in states if name not in named]:
            raise UsageError(
                f"the state to go on from holds one of {lost[0]}, which does not listen; allowed: the events that "
                f"listened when it was made, {', '.join(states)}"
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
        # Counted before its evaluation, so that what is told of it is of as many epochs as are done.
        self.epoch, self.batch = epoch + 1, 0
        if self.validation_sampler is not None:
            for start in listeners.before_evaluation:
                start(self, epoch)
            self.scores = self._evaluate(self.validation_sampler, listeners.after_evaluation_batch)
            for stop in listeners.after_evaluation:
                stop(self, epoch, self.scores)
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
        # Where ranks share a batch: how many samples all of them have in it.
        whole = getattr(self.train_sampler, "global_batch_size", None)
        # What has no epoch to go on in need not know how.
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

        The network runs in evaluation mode, with the parameters that the optimizer evaluates by (`eval_param`).
        Every sample counts once, whatever the size of its batch; where a sample has several labels (a sequence), the
        accuracy is over all labels. Where logits are not numbers, nothing is predicted. Where labels are no classes,
        whole numbers of the shape of the logits without their last axis, there is no accuracy.
        """
        return self._evaluate(sampler, ())

    def _evaluate(self, sampler: BatchSource, watching: Sequence[Callable[..., None]]) -> dict[str, float]:
        averaged = getattr(self.optimizer, "averaged", nullcontext)
        right = judged = 0
        total_loss = samples = 0.0
        with averaged():
            for ids, inputs in sampler.batches(0):
                size = len(ids) if ids is not None else sample_count(inputs)
                begin = perf_counter_ns()
                outputs = self.executor.inference(inputs)
                logits, loss = to_numpy(outputs[self._logits]), float(to_numpy(outputs[self.loss]))
                # Both are here, so whatever computes them is done.
                end = perf_counter_ns()
                self.first_evaluations_s.setdefault(size, (end - begin) / 1e9)
                labels = to_numpy(inputs[self._label])
                if labels.dtype.kind in "iu" and labels.shape == logits.shape[:-1]:
                    hits = logits.argmax(axis=-1) == labels
                    # The largest of numbers and NaN is NaN, the first of them, and its place is no prediction.
                    if not math.isfinite(loss):
                        hits &= ~np.isnan(logits).any(axis=-1)
                    right += int(np.count_nonzero(hits))
                    judged += hits.size
                total_loss += loss * size
                samples += size
                for watch in watching:
                    watch(self, ids, inputs, outputs)
        if self.communicator is not None:
            totals = np.array([right, judged, total_loss, samples], np.float64)
            # The others may still be evaluating.
            self.communicator.all_reduce(totals, op="sum", timeout_s=10 * TIMEOUT_S)
            right, judged, total_loss, samples = totals.tolist()
        accuracy = {"accuracy": 100.0 * right / judged} if judged else {}
        return {**accuracy, "loss": total_loss / samples, "samples": samples}


def _state(part: Any, copy: bool) -> Any:
    """The state of an executor or an optimizer; one that has no views of it gives copies."""
    views = None if copy else getattr(part, "state_views", None)
    return part.state_dict() if views is None else views()


def _learning(optimizer: StepOptimizer, accumulate: int) -> Callable[[Any, StepInfo], Arrays]:
    """What learns from a batch, or from several as one step."""
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise UsageError(f"Trainer: got accumulate={accumulate!r:.60}; allowed: a whole number of at least 1")
    if accumulate == 1:
        return optimizer.step
    learn: Callable[[Any, StepInfo], Arrays] | None = getattr(optimizer, "accumulated_step", None)
    # Some evaluate the loss again within a step: one gradient of several batches is not enough for them.
    if learn is None or not getattr(optimizer, "accumulates", True):
        raise UsageError(
            f"Trainer: got accumulate={accumulate} with {type(optimizer).__name__}, which owns its step; allowed: a "
            "d5.UpdateRule, or an optimizer that takes one gradient a step and has accumulated_step(batches, info)"
        )
    return learn


def _check_parts(executor: object, *samplers: object) -> None:
    """Refuse what stands where an executor or a sampler belongs; both are known by what they have."""
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
