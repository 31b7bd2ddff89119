"""`CSVLogger`: the loss of every step and the scores of every epoch, in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from deep5.core.errors import OutputError, UnknownName, UsageError, brief
from deep5.core.events import Event, StepInfo
from deep5.core.tensors import Arrays, to_numpy
from deep5.training.hyper import hyper_reader, hyper_value
from deep5.training.schedules.scheduled import Scheduled

__all__ = ["CSVLogger", "logged_hyper"]

# Maximum number of unread losses: an epoch may have millions of steps.
_MOST = 1024


class CSVLogger(Event):
    """Writes one row per step: `step,epoch,loss,seconds,test_accuracy`, the learning rate and other scheduled values.

    Steps and epochs count from 0; the accuracy of an epoch's evaluation, in percent, is in the row of its last step.
    Losses are read and written once per epoch, or when a thousand are unread, and at every checkpoint.

    A training that begins at step 0 replaces the file. A continued one, also after a resume, appends to it: rows of
    steps that will run again are removed, so that each step has one row.

    Args:
        path: The file.
        loss: Name of the output to log.

    Raises:
        UsageError: The path is invalid.

    >>> import pathlib, tempfile
    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(0.1), d5.ShuffleSampler(data.train, 4), d5.OrderedSampler(data.test, 6))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer.train(epochs=2, events=[d5.CSVLogger(f"{folder}/log.csv")])
    ...     head, *rows = pathlib.Path(folder, "log.csv").read_text().splitlines()
    >>> head, len(rows)
    ('step,epoch,loss,seconds,test_accuracy,lr', 6)
    """

    every_rank = False

    def __init__(self, path: str | Path, *, loss: str = "loss") -> None:
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise UsageError(f"CSVLogger: got path={brief(path)}; allowed: the name of a file, such as 'log.csv'")
        self._path, self._loss = Path(path), loss
        self._file: BinaryIO | None = None
        self._rows: list[tuple[StepInfo, Any, int, tuple[Any, ...]]] = []
        # The row to which an accuracy may still be added, and its offset.
        self._last, self._last_begin = "", 0

    def describe(self) -> dict[str, Any]:
        """The event; its path does not affect a result."""
        return {"event": "csv_logger"}

    def before_training(self, trainer: Any) -> None:
        """Open the file, and remove the rows that will be written again.

        Raises:
            OutputError: The file cannot be written or is the log of another training.
            UnknownName: The network has no such output.
        """
        if self._loss not in trainer.executor.network.outputs:
            raise UnknownName("output", self._loss, trainer.executor.network.outputs)
        names, self._hyper = logged_hyper(trainer)
        head = ",".join(["step", "epoch", "loss", "seconds", "test_accuracy", *names]).encode() + b"\n"
        self._rows, self._last = [], ""
        try:
            begins = trainer.step == 0 or not self._path.exists()
            self._file = self._path.open("w+b" if begins else "r+b")
            if begins:
                self._file.write(head)
                self._file.flush()
            else:
                self._cut(head, trainer.step)
        except OSError as error:
            self._close()
            raise self._unwritable(error) from error
        except OutputError:
            self._close()
            raise

    def _cut(self, head: bytes, step: int) -> None:
        """Keep the rows before a step, without an incomplete row."""
        file: Any = self._file
        if file.readline() != head:
            raise OutputError(
                f"the log {self._path} has other columns than {head.decode().strip()}; allowed: the log of the "
                "resumed training; remedy: name another file"
            )
        end = file.tell()
        for line in file:
            number = line.partition(b",")[0]
            if not (line.endswith(b"\n") and number.isdigit() and int(number) < step):
                break
            self._last, self._last_begin, end = line.decode(), end, end + len(line)
        file.seek(end)
        file.truncate()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Keep the loss, unread."""
        self._rows.append((info, outputs[self._loss], end_ns - begin_ns, self._hyper()))
        if len(self._rows) >= _MOST:
            self._write()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Write the epoch's rows, with the accuracy in the last one."""
        self._write(scores.get("accuracy"))

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Write the epoch's rows, if there was no evaluation."""
        self._write()

    def after_training(self, trainer: Any) -> None:
        """Write the remaining rows of an incomplete epoch, and close the file."""
        if self._file is not None:
            try:
                self._write()
            finally:
                self._close()

    def state_dict(self) -> dict[str, Any]:
        """Empty, but flushes the rows of all steps so far to disk, where a resume finds them."""
        if self._file is not None:
            self._write()
            self._guarded(lambda file: os.fsync(file.fileno()))
        return {}

    def _write(self, accuracy: float | None = None) -> None:
        if self._file is None:
            return
        lines = []
        for info, loss, nanoseconds, hyper in self._rows:
            cells = "".join("," if value is None else f",{float(value)!r}" for value in hyper)
            lines.append(f"{info.step},{info.epoch},{float(to_numpy(loss))!r},{nanoseconds / 1e9!r},{cells}\n")
        self._rows.clear()
        again = accuracy is not None and not lines and bool(self._last)
        if again:
            lines = [self._last]
        if not lines:
            return
        if accuracy is not None:
            # The fifth column; the rows were written without it.
            before, after = lines[-1].split(",")[:4], lines[-1].rstrip("\n").split(",")[5:]
            lines[-1] = ",".join([*before, repr(float(accuracy)), *after]) + "\n"

        def write(file: BinaryIO) -> None:
            begin = file.seek(self._last_begin if again else 0, os.SEEK_SET if again else os.SEEK_END)
            file.write("".join(lines).encode())
            file.truncate()
            file.flush()
            self._last, self._last_begin = lines[-1], begin + sum(map(len, lines[:-1]))

        self._guarded(write)

    def _guarded(self, write: Callable[[BinaryIO], None]) -> None:
        file: Any = self._file
        try:
            write(file)
        except OSError as error:
            self._close()
            raise self._unwritable(error) from error

    def _close(self) -> None:
        """Close the file and ignore errors: failed writes have been reported."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(f"the log {self._path} cannot be written ({error.strerror}); allowed: a writable file")


def logged_hyper(trainer: Any) -> tuple[tuple[str, ...], Callable[[], tuple[Any, ...]]]:
    """The names of the learning rate and other scheduled values, and a function that reads their current values.

    Args:
        trainer: About to train, with its events attached.
    """
    events = [event for event in trainer.listeners.events if isinstance(event, Scheduled)]
    names = [name for event in events for name in event.schedules]
    if hyper_value(trainer.optimizer, "lr") is not None:
        names.insert(0, "lr")
    names = list(dict.fromkeys(names))
    return tuple(names), hyper_reader(trainer.optimizer, names, events)
