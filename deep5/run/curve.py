"""`CurveWriter`: the values of a metric during a run, in a file that other processes read while it grows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from deep5.core.errors import OutputError, UsageError
from deep5.core.events import Event
from deep5.core.files import write_atomically
from deep5.core.metric import Observer
from deep5.recipe.experiment import Experiment
from deep5.results.schema import metric_labels, metric_row
from deep5.results.validation import encode

__all__ = ["CURVE", "CurveWriter", "followed"]

CURVE = "curve.jsonl"
"""A line per epoch in a result folder: an object with `epoch` (epochs done), `step` and `value`."""


class CurveWriter(Event):
    """Appends the value of a metric to `curve.jsonl` after each epoch.

    Args:
        folder: The result folder.
        observer: The metric's observer, which gets each event first.
    """

    def __init__(self, folder: Path, observer: Observer) -> None:
        self._path, self._observer = folder / CURVE, observer

    def before_training(self, trainer: Any) -> None:
        """Keep the lines up to the checkpoint at which the run resumes, so that no epoch has two."""
        if self._path.exists():
            lines = self._path.read_text().splitlines(keepends=True)
            write_atomically(self._path, "".join(lines[: trainer.epoch]))

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Append the value, if the metric has one: what it would be if training ended now."""
        value = self._observer.value()
        line = json.dumps({"epoch": trainer.epoch, "step": trainer.step, "value": encode(value)}) + "\n"
        try:
            # One unbuffered write: a reader sees the whole line or, on a full disk, one without an end.
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            with os.fdopen(handle, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            raise OutputError(
                f"cannot write {self._path}: {error.strerror}; allowed: a writable folder; remedy: free some space"
            ) from error


def followed(experiment: Experiment, label: str) -> int:
    """The position of a metric among those of a recipe.

    Args:
        experiment: The experiment.
        label: The metric's name or, if a recipe has several of that name, its label.

    Raises:
        UsageError: The recipe has no such metric.
    """
    rows = [metric_row(metric, goal, evaluated=False, scope="") for metric, goal in experiment.metrics]
    labels = metric_labels(rows)
    if label not in labels:
        raise UsageError(
            f"the metric {label!r:.80} is not one of {experiment.name}; allowed: {', '.join(labels) or 'none'}"
        )
    return labels.index(label)
