"""`Trainer`: the loop and nothing else. Everything around it is an event."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter_ns

import numpy as np

from deep5.communicator import Communicator
from deep5.errors import UsageError, brief
from deep5.events import Event, Listeners, StepInfo, StopTraining
from deep5.executors import GraphExecutor, StepOptimizer
from deep5.tensors import to_numpy
from deep5.training.optimizer import as_step_optimizer
from deep5.training.rule import UpdateRule
from deep5.training.sampler import Sampler

__all__ = ["Trainer"]


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

    Attributes:
        loss: Name of the output that is minimised.
        step: Steps done.
        epoch: Epochs done.
        scores: Of the last evaluation: `accuracy` in percent, mean `loss`, `samples`.
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
        train_sampler: Sampler,
        validation_sampler: Sampler | None = None,
        *,
        loss: str = "loss",
        logits: str = "logits",
        label: str = "label",
        seed: int = 0,
        communicator: Communicator | None = None,
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
        self.seed, self.communicator = seed, communicator
        self.loss, self._logits, self._label = loss, logits, label
        self.listeners = Listeners()
        self.step = self.epoch = self.epochs = 0
        self.scores: dict[str, float] = {}
        self.first_evaluations_s: dict[int, float] = {}
        self.status, self.reason = "ready", ""

    def listening(self, *events: Event) -> AbstractContextManager[None]:
        """Attach events for the length of a `with` block."""
        return self.listeners.attached(events)

    def train(self, epochs: int, events: Iterable[Event] = ()) -> None:
        """Train this many epochs more.

        Args:
            epochs: At least 1.
            events: Attached for the length of this call.

        Raises:
            UsageError: A number of epochs that is no whole number of at least 1, or events that are none.
        """
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise UsageError(f"{epochs!r} epochs; allowed: a whole number of at least 1")
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
            for epoch in range(self.epoch, self.epochs):
                self._train_epoch(epoch)
            self.status = "success"
        except BaseException as error:
            self._ended_by(error)
            raise

    def _ended_by(self, error: BaseException) -> None:
        if isinstance(error, StopTraining):
            self.status, self.reason = "stopped", str(error)
        else:
            self.status = "failed" if isinstance(error, Exception) else "aborted"
            self.reason = str(error) or type(error).__name__

    def _train_epoch(self, epoch: int) -> None:
        listeners = self.listeners
        for before in listeners.before_epoch:
            before(self, epoch)
        before_step, after_step = listeners.before_step, listeners.after_step
        synchronize = self.executor.synchronize if any(event.synchronous for event in listeners.events) else None
        optimizer_step, seed = self.optimizer.step, self.seed
        for ids, inputs in self.train_sampler.batches(epoch):
            info = StepInfo(self.step, epoch, len(ids), ids, seed)
            for ready in before_step:
                ready(self, info)
            begin = perf_counter_ns()
            outputs = optimizer_step(inputs, info)
            if synchronize is not None:
                synchronize()
            end = perf_counter_ns()
            self.step += 1
            for done in after_step:
                done(self, info, outputs, begin, end)
        self.executor.synchronize()
        self.epoch = epoch + 1
        if self.validation_sampler is not None:
            for start in listeners.before_evaluation:
                start(self, epoch)
            self.scores = self.evaluate(self.validation_sampler)
            for stop in listeners.after_evaluation:
                stop(self, epoch, self.scores)
        for after in listeners.after_epoch:
            after(self, epoch)

    def evaluate(self, sampler: Sampler) -> dict[str, float]:
        """Accuracy in percent, mean loss and number of samples over all batches of a sampler.

        The network runs in evaluation mode, with the parameters that the optimizer evaluates by (`eval_param`).
        Every sample counts once, whatever the size of its batch. Where logits are not numbers, nothing is predicted.
        """
        averaged = getattr(self.optimizer, "averaged", nullcontext)
        totals = np.zeros(3)
        with averaged():
            for ids, inputs in sampler.batches(0):
                begin = perf_counter_ns()
                outputs = self.executor.inference(inputs)
                logits, loss = to_numpy(outputs[self._logits]), float(to_numpy(outputs[self.loss]))
                # Both are here, so whatever computes them is done.
                end = perf_counter_ns()
                self.first_evaluations_s.setdefault(len(ids), (end - begin) / 1e9)
                hits = logits.argmax(axis=-1) == to_numpy(inputs[self._label])
                # The largest of numbers and NaN is NaN, the first of them, and its place is no prediction.
                if not math.isfinite(loss):
                    hits &= ~np.isnan(logits).any(axis=-1)
                totals += np.array([np.count_nonzero(hits), loss * len(ids), len(ids)])
        if self.communicator is not None:
            self.communicator.all_reduce(totals, op="sum", timeout_s=60.0)
        right, total_loss, samples = totals.tolist()
        return {"accuracy": 100.0 * right / samples, "loss": total_loss / samples, "samples": samples}


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
