"""`TransformersRecorder`: the result folder of a training by Hugging Face's `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.plugins import missing_dependency
from deep5.recorder.hooks import Hooked
from deep5.recorder.spans import Epoch, Evaluation, Step
from deep5.results.result import Result

try:
    import transformers
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise missing_dependency("TransformersRecorder", error) from error

__all__ = ["TransformersRecorder"]


class TransformersRecorder(TrainerCallback):
    """Records `Trainer.train`: `Trainer(…, callbacks=[TransformersRecorder("my_net", goals={"throughput": None})])`.

    A step is an update: it may accumulate the gradients of several batches. The training loss is that of
    `logging_steps`, a mean over the steps since the last one. The trainer replaces a NaN loss by that mean unless
    `logging_nan_inf_filter=False`.

    Args:
        name: As for `deep5.record`, like goals, out and quiet.
        goals: Metrics and goals.
        out: Parent of the result folder.
        quiet: Print no table.
        accuracy: Name of the evaluation's accuracy, a fraction, as `compute_metrics` returns it, after `eval_`.
        loss: Name of the evaluation's loss.
    """

    def __init__(
        self,
        name: str,
        goals: Any = None,
        *,
        out: str | Path = "results",
        quiet: bool = False,
        accuracy: str = "eval_accuracy",
        loss: str = "eval_loss",
    ) -> None:
        self._hooked = Hooked(name, goals, out, quiet=quiet, loop=f"Transformers {transformers.__version__}")
        self._accuracy, self._loss = accuracy, loss
        self._steps = self._logged = 0
        self._evaluates = False

    @property
    def result(self) -> Result:
        """The result of the last training."""
        return self._hooked.run.result

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin the recording.

        Raises:
            UsageError: The data set has no length, so the sizes of its last batches are unknown.
        """
        loader = others["train_dataloader"]
        try:
            self._samples, self._batches = len(loader.dataset), len(loader)
        except TypeError as error:
            raise UsageError(
                "TransformersRecorder needs to know the sizes of the batches, and the training set has no length; "
                "allowed: a data set with a length"
            ) from error
        self._batch, self._accumulated = args.train_batch_size, args.gradient_accumulation_steps
        if args.dataloader_drop_last:
            self._samples = self._batches * self._batch
        self._hooked.begin()
        for parameter in others["model"].parameters():
            self._hooked.run.watch(parameter)
            break

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin an epoch."""
        self._steps = 0
        self._hooked.enter(self._hooked.run.epoch())

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin a step."""
        first = self._steps * self._accumulated
        last = min(first + self._accumulated, self._batches)
        size = min(last * self._batch, self._samples) - first * self._batch
        self._hooked.enter(self._hooked.run.step(batch_size=size))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the step; an evaluation may follow it."""
        self._hooked.leave(Step)
        self._steps += 1
        self._logged += 1
        self._before_evaluation(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the epoch; an evaluation may follow it."""
        self._hooked.leave(Epoch)
        self._before_evaluation(control)

    def _before_evaluation(self, control: Any) -> None:
        # The trainer logs the loss before it evaluates.
        self._evaluates = control.should_evaluate
        if self._evaluates and not control.should_log:
            self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        if self._evaluates and not self._hooked.inside(Evaluation):
            self._hooked.enter(self._hooked.run.evaluation())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Record the mean loss of the steps since the last one."""
        if self._hooked.recording and not self._hooked.inside(Evaluation):
            if logs and "loss" in logs and self._logged:
                self._hooked.run.log(loss=logs["loss"])
                self._logged = 0
            self._begin_evaluation()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin the evaluation, at the latest."""
        if self._hooked.recording:
            self._begin_evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
        """End the evaluation, with its scores."""
        if self._hooked.recording:
            self._hooked.log_scores(metrics or {}, self._loss, self._accuracy)
            self._hooked.leave(Evaluation)
            self._evaluates = False

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the recording."""
        self._hooked.end()
