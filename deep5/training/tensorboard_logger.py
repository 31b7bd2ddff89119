"""`TensorBoardLogger`: loss, scores, learning rate and throughput as TensorBoard scalars."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, time
from typing import Any, BinaryIO

import numpy as np

from deep5.core.errors import OutputError, UsageError, brief
from deep5.core.events import Event, StepInfo
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import Arrays, to_numpy
from deep5.training.loggers import logged_hyper

__all__ = ["TensorBoardLogger"]

# Maximum number of unread losses: an epoch may have millions of steps.
_MOST = 1024
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")


class TensorBoardLogger(Event):
    """Writes an event file for `tensorboard --logdir FOLDER`.

    Scalars by step, counted from 0: `loss/train`, and the learning rate and other scheduled values as `hyper/…`; at the
    last step of an epoch `loss/test` and `accuracy/test` (percent); `throughput/samples_per_second` of training without
    evaluation, over the steps between two readings. Losses are read once per epoch, or when a thousand are unread, and
    at every checkpoint.

    A continued training, also after a resume, begins another event file, which makes TensorBoard drop the previous
    file's points of steps that run again: each step has one point.

    Args:
        folder: Where the files go, created if it does not exist: one folder per run.
        every: Steps between two points of the training's scalars.

    Raises:
        UsageError: The folder name or the number of steps is invalid.

    >>> import pathlib, tempfile
    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(0.1), d5.ShuffleSampler(data.train, 4), d5.OrderedSampler(data.test, 6))
    >>> with tempfile.TemporaryDirectory() as folder:  # then: tensorboard --logdir FOLDER
    ...     trainer.train(epochs=2, events=[d5.TensorBoardLogger(folder, every=2)])
    ...     [path.name[:19] for path in pathlib.Path(folder).iterdir()]
    ['events.out.tfevents']
    """

    every_rank = False

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not str(folder):
            raise UsageError(f"TensorBoardLogger: got folder={brief(folder)}; allowed: the name of a folder")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"TensorBoardLogger: got every={brief(every)}; allowed: a number of steps, at least 1")
        self._folder, self._every = Path(folder), every
        self._file: BinaryIO | None = None
        self._forget()

    def _forget(self) -> None:
        self._rows: list[tuple[StepInfo, Any, tuple[Any, ...]]] = []
        self._samples, self._since_ns, self._last_step = 0, 0, -1
        # The last step that has a point, and its scalars, which a resume writes again: TensorBoard drops whole steps.
        self._step, self._point = -1, dict[str, float]()

    def describe(self) -> dict[str, Any]:
        """The event; its output does not affect a result."""
        return {"event": "tensorboard_logger"}

    def before_training(self, trainer: Any) -> None:
        """Create the folder and a file in it.

        Raises:
            MissingDependency: TensorBoard is not installed.
            OutputError: The file cannot be written.
        """
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ModuleNotFoundError as error:
            raise missing_dependency("the event 'tensorboard_logger'", error) from error
        self._events, self._summaries = event_pb2, summary_pb2
        self._forget()
        self._names, self._hyper = logged_hyper(trainer)
        self._first, self._begun = trainer.step, False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = self._new_path().open("xb")
        except OSError as error:
            raise self._unwritable(error) from error
        self._records = RecordWriter(self._file)
        self._write_record(file_version="brain.Event:2")

    def _new_path(self) -> Path:
        """A file name that sorts after all existing ones in TensorBoard's reading order."""
        stamps = [int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        stamp = max([int(time()), *(known + 1 for known in stamps)])
        host = re.sub(r"[^A-Za-z0-9-]", "_", socket.gethostname())
        return self._folder / f"events.out.tfevents.{stamp:010d}.{host}.{os.getpid()}.deep5"

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Keep the loss, unread."""
        self._samples += info.batch_size
        self._since_ns, self._last_step = self._since_ns or begin_ns, info.step
        if info.step % self._every == 0:
            self._rows.append((info, outputs.get(trainer.loss), self._hyper()))
            if len(self._rows) >= _MOST:
                self._write()

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Write the epoch's points; evaluation is no part of the throughput."""
        self._write()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Write the scores."""
        self._add(trainer.step - 1, {f"{name}/test": scores[name] for name in ("loss", "accuracy") if name in scores})
        self._flush()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Write the epoch's points, if there was no evaluation."""
        self._write()
        # Unreported throughput of this epoch must not count toward another epoch.
        self._samples = self._since_ns = 0

    def after_training(self, trainer: Any) -> None:
        """Write the remaining points of an incomplete epoch, and close the file."""
        if self._file is not None:
            try:
                self._write()
            finally:
                self._close()

    def state_dict(self) -> dict[str, Any]:
        """The last point; flushes all points so far to disk."""
        if self._file is not None:
            self._write()
            self._flush(to_disk=True)
        return {
            "step": self._step,
            "tags": list(self._point),
            "values": np.array(list(self._point.values()), np.float64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the last point: later points in other files are dropped, and the point is written again."""
        self._step = int(state["step"])
        self._point = dict(zip(state["tags"], np.asarray(state["values"]).tolist(), strict=True))

    def _write(self) -> None:
        """Read the unread losses and write them; the device has then finished, and the throughput is known."""
        if self._file is None or not self._samples:
            return
        rows, self._rows = self._rows, []
        for info, loss, hyper in rows:
            scalars = {} if loss is None else {"loss/train": float(to_numpy(loss))}
            values = zip(self._names, hyper, strict=True)
            self._add(info.step, scalars | {f"hyper/{name}": value for name, value in values if value is not None})
        now = perf_counter_ns()
        if rows:
            rate = self._samples / max((now - self._since_ns) / 1e9, 1e-9)
            self._add(self._last_step, {"throughput/samples_per_second": rate})
            self._samples, self._since_ns = 0, now
        self._flush()

    def _add(self, step: int, scalars: dict[str, float]) -> None:
        if not self._begun:
            self._begun = True
            self._begin()
        if step != self._step:
            self._step, self._point = step, {}
        self._point |= scalars
        self._write_scalars(step, scalars)

    def _begin(self) -> None:
        """Mark the end of older files at the start of this one."""
        goes_on = self._step >= 0
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write_record(step=self._step if goes_on else self._first, session_log=start)
        if goes_on:
            self._write_scalars(self._step, self._point)

    def _write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        of = self._summaries.Summary
        values = [of.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        if values:
            self._write_record(step=step, summary=of(value=values))

    def _write_record(self, **content: Any) -> None:
        try:
            self._records.write(self._events.Event(wall_time=time(), **content).SerializeToString())
        except OSError as error:
            self._close()
            raise self._unwritable(error) from error

    def _flush(self, *, to_disk: bool = False) -> None:
        if self._file is None:
            return
        try:
            self._file.flush()
            if to_disk:
                os.fsync(self._file.fileno())
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
        return OutputError(
            f"the event file in {self._folder} cannot be written ({error.strerror}); allowed: a folder that can be "
            "written"
        )
