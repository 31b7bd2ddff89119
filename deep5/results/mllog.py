"""Events of a run as lines of MLPerf logging, which its compliance tools read: `:::MLLOG {json}`.

References:
    MLCommons, MLPerf Training Rules, and https://github.com/mlcommons/logging (keys and their meaning).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deep5.core.errors import UsageError
from deep5.core.events import Event
from deep5.core.metric import Goal
from deep5.results.reading import TABLE_BYTES, parsed, read_bytes
from deep5.results.validation import encode

__all__ = ["MLLog", "MLLogLine", "read_mllog"]

TOKEN = ":::MLLOG"  # noqa: S105 - the mark that a line begins with

EventType = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]


@dataclass(frozen=True, kw_only=True)
class MLLogLine:
    """One line.

    Attributes:
        namespace: Namespace of the writer; empty for the run as a whole.
        time_ms: Milliseconds since 1970 (UTC).
        event_type: "POINT_IN_TIME", "INTERVAL_START" or "INTERVAL_END".
        key: For example "run_start".
        value: In JSON types.
        metadata: For example `{"epoch_num": 1}`.
    """

    namespace: str
    time_ms: int
    event_type: str
    key: str
    value: Any
    metadata: dict[str, Any]


class MLLog(Event):
    """Writes the run into an MLPerf log.

    The constructor writes `init_start` and the keys; training writes `init_stop`, `run_start`, `epoch_start`,
    `epoch_stop`, `eval_start`, `eval_stop`, `eval_accuracy` and `run_stop`. `epoch_num` counts from 1, so that at an
    evaluation it is the number of completed epochs. `eval_accuracy` is a fraction in [0, 1], as MLPerf defines it, not
    deep5's percent. Times advance with the trainer's clock (`time.perf_counter_ns`), so that differences of `time_ms`
    are durations even if the system clock is set during the run.

    Args:
        write: Receives one line without its line break, such as `ResultFolder.append_event`.
        keys: The keys that MLPerf requires of a run: `seed`, `global_batch_size`, `opt_name`, `submission_benchmark`,
            `submission_division`, `train_samples`, `eval_samples`, `cache_clear` …; in JSON types.
        target: Goal of the accuracy in percent; for MLPerf a run is a success once an evaluation has reached it. None:
            a run that finished is a success.
        namespace: Namespace of the writer.
        resumed: Whether the log continues from a checkpoint's state, so that its beginning is already written.
        clock: Nanoseconds of a clock that does not go back; its first reading is taken as the present.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        keys: Mapping[str, Any] | None = None,
        target: Goal | None = None,
        namespace: str = "",
        resumed: bool = False,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._write, self._resumed, self._clock = write, resumed, clock
        self._namespace = namespace
        self._target = target
        self._reached = target is None
        self._open: list[tuple[str, dict[str, Any]]] = []
        self._stopped = False
        self._offset_ns = time.time_ns() - clock()
        if not resumed:
            self._line("INTERVAL_START", "init_start")
            for key, value in (keys or {}).items():
                self.event(key, value)

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        """Write a point in time; value and metadata in JSON types."""
        self._line("POINT_IN_TIME", key, value, metadata)

    def stop(self, status: Literal["success", "aborted"]) -> None:
        """End the run, including the current epoch and evaluation; later calls do nothing.

        `after_training` calls it; code that catches an error of the training calls it with "aborted".
        """
        if self._stopped:
            return
        self._stopped = True
        while self._open:
            name, metadata = self._open.pop()
            self._line(
                "INTERVAL_END", f"{name}_stop", metadata={**metadata, "status": status} if name == "run" else metadata
            )

    def before_training(self, trainer: Any) -> None:
        """Write `init_stop` and `run_start`; a resumed run already has them."""
        if self._resumed:
            return
        self._line("INTERVAL_END", "init_stop")
        self._start("run")

    def after_training(self, trainer: Any) -> None:
        """Write `run_stop` with its status."""
        ended_well = getattr(trainer, "status", "success") in ("success", "stopped")
        self.stop("success" if self._reached and ended_well else "aborted")

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Write `epoch_start`."""
        self._start("epoch", epoch_num=epoch + 1)

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Write `epoch_stop`."""
        self._stop_up_to("epoch")

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Write `eval_start`."""
        self._start("eval", epoch_num=epoch + 1)

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Write `eval_accuracy`, if there is one, and `eval_stop`."""
        percent = scores.get("accuracy")
        if percent is not None:
            self.event("eval_accuracy", float(percent) / 100, epoch_num=epoch + 1)
            if self._target is not None and self._target.met(percent):
                self._reached = True
        self._stop_up_to("eval")

    def state_dict(self) -> dict[str, Any]:
        """The open intervals, and whether the target was reached."""
        return {"open": [list(interval) for interval in self._open], "reached": self._reached}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, and write that the run resumes."""
        self._open = [(name, dict(metadata)) for name, metadata in state["open"]]
        self._reached = bool(state["reached"])
        self.event("deep5_resumed")

    def _start(self, name: str, **metadata: Any) -> None:
        self._open.append((name, metadata))
        self._line("INTERVAL_START", f"{name}_start", metadata=metadata)

    def _stop_up_to(self, name: str) -> None:
        """End the innermost interval of this name, and the open intervals within it."""
        if not any(name == opened for opened, _ in self._open):
            return
        opened = ""
        while opened != name:
            opened, metadata = self._open.pop()
            self._line("INTERVAL_END", f"{opened}_stop", metadata=metadata)

    def _line(
        self, event_type: EventType, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        fields = {
            "namespace": self._namespace,
            "time_ms": (self._clock() + self._offset_ns) // 1_000_000,
            "event_type": event_type,
            "key": key,
            "value": encode(value, key),
            "metadata": encode(dict(metadata or {}), key),
        }
        self._write(f"{TOKEN} {json.dumps(fields, allow_nan=False)}")


def read_mllog(path: str | Path) -> list[MLLogLine]:
    """Read a log; lines that do not begin with `:::MLLOG` come from other programs and are skipped.

    A last line truncated by a kill or a full disk is omitted.

    Raises:
        UsageError: The file cannot be read, or a line before the last is damaged.
    """
    texts = read_bytes(path, most_bytes=TABLE_BYTES).decode("utf-8", errors="replace").split("\n")
    lines = []
    # The part after the last line break is empty or a truncated line.
    for number, text in enumerate(texts, start=1):
        if not text.startswith(TOKEN):
            continue
        try:
            lines.append(_parse(text))
        except (ValueError, TypeError) as error:
            if number < len(texts):
                raise UsageError(f"{path}, line {number} is damaged ({error}): {text[:80]!r}") from error
    return lines


def _parse(text: str) -> MLLogLine:
    fields = parsed(text[len(TOKEN) :].encode())
    if not isinstance(fields, dict):
        raise TypeError("not a JSON object")
    return MLLogLine(**fields)
