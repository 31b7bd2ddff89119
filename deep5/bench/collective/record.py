"""A result folder of all-reduce: collective.json, samples.csv, collective.svg and .png."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.bench.collective.measure import CollectiveTimes, Measured
from deep5.bench.collective.summary import CollectiveSummary
from deep5.core.errors import MissingDependency, OutputError
from deep5.core.metric import Sample
from deep5.results.folder import new_folder
from deep5.results.samples_file import SAMPLES, sample_rows, samples_text
from deep5.results.validation import encode

__all__ = ["COLLECTIVE", "check_writable", "collective_document", "collective_pictures", "write_collective"]

COLLECTIVE = "collective.json"
"""File in the folder with the plan, the machine, the fitted constants, and the rows."""

_VERSION = 1


def collective_document(times: CollectiveTimes, summary: CollectiveSummary, launcher: str) -> dict[str, Any]:
    """The content of collective.json, in JSON types.

    Args:
        times: The measurements.
        summary: Their summary.
        launcher: The launcher of the ranks.
    """
    from deep5.measuring.environment import describe_software, describe_system

    reported = asdict(summary)
    found = encode(
        {
            "version": _VERSION,
            "plan": asdict(times.plan),
            "ranks": times.ranks,
            "launcher": launcher,
            "others_share": times.others_share,
            "clock": "time.perf_counter_ns on every rank, around the call, after a barrier; the slowest rank's",
            "order": "all algorithms in a new random order every two rounds, reversed in the second; size by size",
            "machine": reported["machine"],
            "optimal_segment_bytes": {str(size): best for size, best in summary.optimal_segment_bytes.items()},
            "rows": list(reported["rows"]),
            "measured": [_looked_at(each) for each in times.measured],
            "wrong": list(summary.wrong),
            "system": describe_system(),
            "software": describe_software(),
        }
    )
    return dict(found)


def write_collective(
    times: CollectiveTimes, summary: CollectiveSummary, document: Mapping[str, Any], out: str | Path
) -> tuple[Path, list[str]]:
    """Create `<out>/collective-<UTC yyyymmdd-hhmmss>-<6 hex digits>/`; it appears complete or not at all.

    Args:
        times: The measurements.
        summary: Their summary.
        document: Result of `collective_document`.
        out: Parent of the folder; created if it does not exist.

    Returns:
        The folder, and why a file is missing.

    Raises:
        OutputError: It cannot be written.
    """
    files: dict[str, str | bytes] = {
        COLLECTIVE: json.dumps(document, indent=2, allow_nan=False) + "\n",
        SAMPLES: _samples(times),
    }
    missing = []
    try:
        files.update(collective_pictures(summary, document))
    except MissingDependency as error:
        missing.append(f"no collective.svg was drawn: {error}")
    name = f"collective-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = Path(out).absolute() / name
    new_folder(folder, files)
    return folder, missing


def check_writable(out: str | Path) -> None:
    """Check a folder for results before the measurement; it is created if it does not exist.

    Raises:
        OutputError: It cannot be written.
    """
    out = Path(out).absolute()
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(prefix=".collective-", dir=out).cleanup()


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write results to {out}: {error.strerror or error}; allowed: a writable folder; remedy: another "
            "--out"
        ) from error


def _samples(times: CollectiveTimes) -> str:
    """All raw times: one row `ring/1024` per call; `message/1024` and `addition/1024`, to which the model is fitted."""
    series = {f"{each.algorithm}/{each.size_bytes}": each.seconds for each in times.measured}
    series |= {f"message/{size}": tuple(values) for size, values in times.message_s.items()}
    series |= {f"addition/{size}": tuple(values) for size, values in times.addition_s.items()}
    rows = [row for name, values in series.items() for row in sample_rows(name, "s", map(Sample, values))]
    return samples_text(rows)


def _looked_at(each: Measured) -> dict[str, Any]:
    """Measurements other than times, by rank."""
    names = ("algorithm", "size_bytes", "sent_bytes", "messages", "largest_error", "checksums", "same_bits")
    return {name: getattr(each, name) for name in names}


def collective_pictures(summary: CollectiveSummary, document: Mapping[str, Any]) -> dict[str, bytes]:
    """The charts of a measurement, by file name.

    Args:
        summary: Its summary.
        document: Result of `collective_document`.

    Raises:
        MissingDependency: The drawing package is not installed.
    """
    from deep5.core.charts import files
    from deep5.results.charts.collective import collective_chart, collective_title

    rows = [asdict(row) for row in summary.rows]
    return files("collective", collective_chart(rows, summary.ranks, collective_title(document)))
