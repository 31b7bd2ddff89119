"""`CSVLogger`: the loss of every step and the scores of every epoch, in a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TextIO

from deep5.errors import OutputError, UnknownName
from deep5.events import Event, StepInfo
from deep5.tensors import Arrays, to_numpy

__all__ = ["CSVLogger"]


class CSVLogger(Event):
    """Writes `step,epoch,loss,seconds,test_accuracy` rows; losses are read and written once an epoch.

    Args:
        path: The file; what was there is replaced when training begins.
        loss: Name of the output to log.
    """

    def __init__(self, path: str, *, loss: str = "loss") -> None:
        self._path, self._loss = path, loss
        self._file: TextIO | None = None
        self._rows: list[tuple[int, int, Any, int]] = []

    def describe(self) -> dict[str, Any]:
        """The event; where it writes does not matter to a result."""
        return {"event": "csv_logger"}

    def before_training(self, trainer: Any) -> None:
        """Open the file.

        Raises:
            OutputError: It cannot be written.
            UnknownName: The network has no such output.
        """
        if self._loss not in trainer.executor.network.outputs:
            raise UnknownName("output", self._loss, trainer.executor.network.outputs)
        try:
            self._file = Path(self._path).open("w", newline="", encoding="utf-8")  # noqa: SIM115 - closed when training ends
        except OSError as error:
            raise OutputError(
                f"the log {self._path} cannot be written ({error.strerror}); allowed: a writable file"
            ) from error
        self._writer = csv.writer(self._file)
        self._writer.writerow(["step", "epoch", "loss", "seconds", "test_accuracy"])
        self._rows = []

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Keep the loss, unread."""
        self._rows.append((info.step, info.epoch, outputs[self._loss], end_ns - begin_ns))

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Write the epoch's rows; the accuracy stands in the last one."""
        self._write(trainer.scores.get("accuracy", ""))

    def after_training(self, trainer: Any) -> None:
        """Write what an unfinished epoch left, and close."""
        if self._file is not None:
            with self._file:
                self._write("")
            self._file = None

    def _write(self, accuracy: float | str) -> None:
        if self._file is None:
            return
        for number, (step, at, loss, nanoseconds) in enumerate(self._rows, start=1):
            last = accuracy if number == len(self._rows) else ""
            self._writer.writerow([step, at, repr(float(to_numpy(loss))), nanoseconds / 1e9, last])
        self._rows.clear()
        self._file.flush()
