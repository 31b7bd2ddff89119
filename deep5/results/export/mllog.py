"""MLPerf logs: a training run's own log, checked against the format; for a comparison, one per timed process.

References:
    MLCommons logging, https://github.com/mlcommons/logging.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.comparison_summary import standing, whole_rounds
from deep5.results.export.source import Source
from deep5.results.kind import COMPARISON_KIND
from deep5.results.long_form import sample_records
from deep5.results.mllog import TOKEN, EventType, MLLogLine, read_mllog
from deep5.results.result import EVENTS

__all__ = ["mllogs"]

_TYPES = ("POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END")


def mllogs(source: Source) -> Iterator[tuple[str, str]]:
    """Names and contents of the logs of one result.

    A comparison stores samples and no events: `time_ms` in its logs is computed from the start of the comparison, the
    start of the process, its first call, and the time of each sample after it; `tracked_stats` contains the seconds per
    call.

    Raises:
        UsageError: A run has no log, a line does not conform to the format, or samples match no process.
    """
    if source.about.kind == COMPARISON_KIND:
        yield from _of_comparison(source)
        return
    path = source.folder / EVENTS
    if not os.path.lexists(path):
        raise UsageError(
            f"{source.folder} holds no {EVENTS}; allowed: runs that train; remedy: --format pytest-benchmark for times"
        )
    lines = read_mllog(path)
    for number, line in enumerate(lines, start=1):
        _check(path, number, line)
    if not lines:
        raise UsageError(f"{path} holds no line of MLPerf logging; allowed: the log of a run that began")
    yield source.folder.name, "".join(_text(line) for line in _ended(lines, source.about.status))


def _ended(lines: Sequence[MLLogLine], status: str) -> Iterator[MLLogLine]:
    """The lines of a run; an unsuccessful run ends with an aborted `run_stop`, whether or not it wrote that line.

    Args:
        lines: As written by the run.
        status: The status in its result.json.
    """
    begun = stopped = False
    for line in lines:
        begun = begun or line.key == "run_start"
        stopped = stopped or line.key == "run_stop"
        failed = line.key == "run_stop" and status != "success"
        yield replace(line, metadata={**line.metadata, "status": "aborted"}) if failed else line
    if begun and not stopped:
        yield replace(lines[-1], event_type="INTERVAL_END", key="run_stop", value=None, metadata={"status": "aborted"})


def _check(path: Path, number: int, line: MLLogLine) -> None:
    wrong = (
        not isinstance(line.time_ms, int)
        or isinstance(line.time_ms, bool)
        or line.event_type not in _TYPES
        or not isinstance(line.key, str)
        or not isinstance(line.namespace, str)
        or not isinstance(line.metadata, dict)
    )
    if wrong:
        raise UsageError(f"{path}, event {number} is not as deep5 writes it: {str(line)[:120]}")


def _text(line: MLLogLine) -> str:
    fields = {
        "namespace": line.namespace,
        "time_ms": line.time_ms,
        "event_type": line.event_type,
        "key": line.key,
        "value": line.value,
        "metadata": line.metadata,
    }
    try:
        return f"{TOKEN} {json.dumps(fields, allow_nan=False)}\n"
    except ValueError as error:
        raise UsageError(f"the event {line.key!r:.60} holds a number that JSON cannot represent ({error})") from error


def _of_comparison(source: Source) -> Iterator[tuple[str, str]]:
    logs: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    listed = range(len(source.document["processes"]))
    for record in sample_records(source.folder, COMPARISON_KIND):
        if record["process"] not in listed:  # killed between its samples and its entry: it does not count
            continue
        logs.setdefault((record["candidate"], record["workload"], record["process"]), []).append(record)
    if not logs:
        raise UsageError(f"{source.folder} holds no samples; allowed: a comparison that measured")
    names: set[str] = set()
    for (candidate, workload, process), records in logs.items():
        try:
            lines = _process_lines(source, process, records)
        except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError) as error:
            raise UsageError(f"{source.folder}: its samples do not fit its processes ({error!r:.80})") from error
        name = f"{source.folder.name}-{_plain(candidate)}-{_plain(workload)}-{process}"
        while name in names:
            name += "_"
        names.add(name)
        yield name, "".join(map(_text, lines))


def _process_lines(source: Source, process: int, records: Sequence[Mapping[str, Any]]) -> list[MLLogLine]:
    """The log of one process and workload."""
    document = source.document
    begin_s = datetime.fromisoformat(document["started"]).timestamp() + document["processes"][process]["begin_s"]
    lines: list[MLLogLine] = []

    def add(event_type: EventType, key: str, at_s: float, value: Any = None, **metadata: Any) -> None:
        time_ms = int(1000 * at_s)
        lines.append(
            MLLogLine(namespace="", time_ms=time_ms, event_type=event_type, key=key, value=value, metadata=metadata)
        )

    add("INTERVAL_START", "init_start", begin_s)
    add("POINT_IN_TIME", "submission_benchmark", begin_s, source.about.recipe)
    add("POINT_IN_TIME", "submission_division", begin_s, source.about.division)
    add("POINT_IN_TIME", "seed", begin_s, document["seed"])
    add("INTERVAL_END", "init_stop", begin_s)
    add("INTERVAL_START", "run_start", begin_s)
    first_s = begin_s + next((own["value"] for own in records if own["phase"] == "first"), 0.0)
    at_s = first_s
    for own in records:
        at_s = max(at_s, first_s + own["time_s"])
        stats = {"seconds_a_call": own["value"], "calls": own["calls"]}
        add("POINT_IN_TIME", "tracked_stats", at_s, stats, step=own["index"], phase=own["phase"])
    add("INTERVAL_END", "run_stop", at_s, status="success" if _whole(document, process) else "aborted")
    return lines


def _whole(document: Mapping[str, Any], process: int) -> bool:
    """Whether a process finished and counts, and its candidate passed the proof of equivalence."""
    row = document["processes"][process]
    own = next(own for own in document["candidates"] if own["label"] == row["candidate"])
    ended = row["reason"] is None and row["round"] not in own["failed_rounds"] and process in standing(document)
    ended = ended and row["round"] < whole_rounds(document)
    return ended and own["status"] != "different"


def _plain(text: str) -> str:
    """A string as part of a file name."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "_" for sign in text)[:60]
