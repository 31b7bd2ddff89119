"""`LightningRecorder`: the result folder of a training by PyTorch Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.core.plugins import missing_dependency
from deep5.recorder.hooks import Hooked
from deep5.recorder.spans import Epoch, Evaluation, Step
from deep5.results.result import Result

try:
    import lightning
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.utilities.data import extract_batch_size
except ModuleNotFoundError as error:
    raise missing_dependency("LightningRecorder", error) from error

__all__ = ["LightningRecorder"]


class LightningRecorder(Callback):
    """Records `Trainer.fit`: `Trainer(callbacks=[LightningRecorder("my_net", goals={"throughput": ">= 1000"})])`.

    A step is the processing of a batch: from `on_train_batch_start` to `on_train_batch_end`. An evaluation is a
    validation, without the one that checks sanity before the training.

    Args:
        name: As for `deep5.record`, like goals, out and quiet.
        goals: Metrics and goals.
        out: Parent of the result folder.
        quiet: Print no table.
        accuracy: Name under which the module logs the validation accuracy, a fraction as torchmetrics returns it.
        loss: Name under which it logs the validation loss.
    """

    def __init__(
        self,
        name: str,
        goals: Any = None,
        *,
        out: str | Path = "results",
        quiet: bool = False,
        accuracy: str = "val_acc",
        loss: str = "val_loss",
    ) -> None:
        self._hooked = Hooked(name, goals, out, quiet=quiet, loop=f"Lightning {lightning.__version__}")
        self._accuracy, self._loss = accuracy, loss

    @property
    def result(self) -> Result:
        """The result of the last training."""
        return self._hooked.run.result

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the recording."""
        self._hooked.begin()
        for parameter in pl_module.parameters():
            self._hooked.run.watch(parameter)
            break

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch."""
        self._hooked.enter(self._hooked.run.epoch())

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step."""
        self._hooked.enter(self._hooked.run.step(batch_size=extract_batch_size(batch)))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the step, with its loss."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            # Lightning divides it by the number of batches whose gradients it accumulates.
            self._hooked.run.log(loss=loss * trainer.accumulate_grad_batches)
        self._hooked.leave(Step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an evaluation."""
        if self._hooked.recording and not trainer.sanity_checking:
            self._hooked.enter(self._hooked.run.evaluation())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End the evaluation, with its scores."""
        if self._hooked.inside(Evaluation):
            self._hooked.log_scores(trainer.callback_metrics, self._loss, self._accuracy)
            self._hooked.leave(Evaluation)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the epoch."""
        self._hooked.leave(Epoch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording."""
        self._hooked.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording of a training that failed."""
        self._hooked.end(exception)
