"""`KerasRecorder`: the result folder of a training by Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.core.plugins import missing_dependency
from deep5.recorder.hooks import Hooked
from deep5.recorder.spans import Epoch, Evaluation, Step
from deep5.results.result import Result

try:
    import keras
except ModuleNotFoundError as error:
    raise missing_dependency("KerasRecorder", error) from error

__all__ = ["KerasRecorder"]


class KerasRecorder(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """Records `model.fit(x, y, batch_size=32, callbacks=[KerasRecorder("my_net", samples=len(x), batch_size=32)])`.

    A step is what Keras runs between two of its hooks: one batch, or `steps_per_execution` batches. The training loss
    is Keras's mean over an epoch.

    Args:
        name: As for `deep5.record`, like goals, out and quiet.
        goals: Metrics and goals.
        samples: Number of training samples per epoch, which Keras does not report to callbacks.
        batch_size: Batch size, which it does not report either.
        out: Parent of the result folder.
        quiet: Print no table.
        accuracy: Name of the accuracy among the metrics of `compile`, a fraction.

    Raises:
        UsageError: The numbers are not integers of at least 1.
    """

    def __init__(
        self,
        name: str,
        goals: Any = None,
        *,
        samples: int,
        batch_size: int,
        out: str | Path = "results",
        quiet: bool = False,
        accuracy: str = "accuracy",
    ) -> None:
        super().__init__()
        for key, value in (("samples", samples), ("batch_size", batch_size)):
            if type(value) is not int or value < 1:
                raise UsageError(f"KerasRecorder: got {key}={brief(value)}; allowed: an integer of at least 1")
        loop = f"Keras {keras.__version__} on {keras.backend.backend()}"
        self._hooked = Hooked(name, goals, out, quiet=quiet, loop=loop)
        self._samples, self._batch, self._accuracy = samples, batch_size, accuracy
        self._watched = False

    @property
    def result(self) -> Result:
        """The result of the last training."""
        return self._hooked.run.result

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin the recording.

        Raises:
            UsageError: Keras makes another number of steps than `samples` and `batch_size` give.
        """
        due, steps = -(-self._samples // self._batch), (self.params or {}).get("steps")
        if steps is not None and steps != due:
            raise UsageError(
                f"KerasRecorder: {self._samples} samples in batches of {self._batch} are {due} batches, and Keras "
                f"makes {steps}; remedy: samples and batch_size of the training data"
            )
        self._hooked.begin()
        self._watched = False
        self._watch()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch."""
        self._hooked.enter(self._hooked.run.epoch())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a step."""
        first = batch * self._batch
        count = int(getattr(self.model, "steps_per_execution", 1))
        size = min(self._samples, first + count * self._batch) - first
        if size < 1:
            raise UsageError(
                f"KerasRecorder: the epoch has more than {self._samples} samples; remedy: samples=… of the training "
                "data"
            )
        self._hooked.enter(self._hooked.run.step(batch_size=size))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End the step."""
        if not self._watched:  # on TensorFlow, a model without an input shape has no variables before its first step
            self._watch()
        self._hooked.leave(Step)

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin an evaluation."""
        if self._hooked.recording:
            self._hooked.enter(self._hooked.run.evaluation())

    def on_test_end(self, logs: Any = None) -> None:
        """End the evaluation, with its scores."""
        if self._hooked.inside(Evaluation):
            self._hooked.log_scores(logs or {}, "loss", self._accuracy)
            self._hooked.leave(Evaluation)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the epoch, with its mean loss."""
        if logs and "loss" in logs:
            self._hooked.run.log(loss=logs["loss"])
        self._hooked.leave(Epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """End the recording."""
        self._hooked.end()

    def _watch(self) -> None:
        """Name a variable, for whose device the ends of epochs wait."""
        for variable in self.model.trainable_variables[:1]:
            # A step on JAX deletes the arrays that it is given; Keras itself waits there, for the numbers of each step.
            of_jax = keras.backend.backend() == "jax"
            self._hooked.run.watch(keras.ops.copy(variable.value) if of_jax else variable.value)
            self._watched = True
