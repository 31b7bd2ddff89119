"""Times in pytest-benchmark's storage: one numbered file per run, which `pytest-benchmark compare` and deep5 read."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, OutputError, UsageError
from deep5.core.quantities import percent, ratio, seconds, seconds_between

if TYPE_CHECKING:
    from deep5.testing.timed import Timed

__all__ = ["change_of", "earlier", "machine_folder", "shown", "store"]

_FILE = re.compile(r"(\d{4,})_deep5-.*\.json")
_NUMBERED = re.compile(r"(\d{4,})_.*\.json")
_TRIES = 100
_FEWEST = 8


def machine_folder() -> str:
    """The folder of this machine in a storage, named as pytest-benchmark does: `Linux-CPython-3.11-64bit`."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.system()}-{platform.python_implementation()}-{version}-{platform.architecture()[0]}"


def store(storage: Path, timed: Sequence[Timed]) -> Path:
    """Write a new file `NNNN_deep5-DATE.json` with the raw samples of one run.

    Args:
        storage: The storage, which is created if it does not exist.
        timed: The times.

    Returns:
        The file.

    Raises:
        OutputError: The storage cannot be written.
        UsageError: A time is not a finite number.
    """
    from deep5.measuring.environment import describe_environment
    from deep5.results.export.pytest_benchmark import Benchmarks, benchmarks_file, commit_of, machine_of

    begun = datetime.now(UTC)
    environment = describe_environment()
    document = {"system": {"before": environment.system}, "software": environment.software}
    part = Benchmarks(
        machine=machine_of(document),
        commit=commit_of(document),
        started=begun.strftime("%Y-%m-%dT%H:%M:%S+00:00"),
        benchmarks=list(map(_entry, timed)),
    )
    content = benchmarks_file([part])
    folder = storage / machine_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            path = folder / f"{_next_number(folder):04}_deep5-{begun:%Y%m%d-%H%M%S}.json"
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:  # another run of pytest took the number
                continue
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            return path
    except OSError as error:
        raise OutputError(
            f"the times cannot be stored in {folder}: {error.strerror or error}; allowed: a writable folder; remedy: "
            "--deep5-storage DIR"
        ) from error
    raise OutputError(f"no number is free in {folder}; remedy: --deep5-storage DIR")


def _next_number(folder: Path) -> int:
    numbers = [int(found[1]) for path in folder.iterdir() if (found := _NUMBERED.fullmatch(path.name))]
    return max(numbers, default=0) + 1


def _entry(timed: Timed) -> dict[str, Any]:
    from deep5.measuring.samples import median_interval
    from deep5.results.export.benchmark_statistics import benchmark_statistics
    from deep5.results.export.pytest_benchmark import benchmark_entry

    interval = median_interval(timed.samples_s)
    return benchmark_entry(
        timed.name,
        group=None,
        fullname=timed.fullname,
        statistics=benchmark_statistics(timed.samples_s, timed.calls),
        extra={
            "deep5_median_s": median(timed.samples_s),
            "deep5_low_s": interval.low,
            "deep5_high_s": interval.high,
            "deep5_confidence": interval.confidence,
            "deep5_first_call_s": timed.first_call_s,
            "deep5_warm_ups": timed.warm_ups,
            "deep5_steady": timed.steady,
            "deep5_others_share": timed.others_share,
        },
    )


def earlier(storage: Path) -> tuple[Path | None, dict[str, list[float]]]:
    """The last file that deep5 stored for this machine, and the samples in it by full name, in seconds per call.

    A file that is damaged, or not by deep5, counts as none.

    Args:
        storage: The storage.
    """
    from deep5.results.reading import read_object

    folder = storage / machine_folder()
    try:
        names = [(int(found[1]), path) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name))]
    except OSError:
        return None, {}
    if not names:
        return None, {}
    path = max(names)[1]
    try:
        samples = {
            str(entry["fullname"]): [float(value) for value in entry["stats"]["data"]]
            for entry in read_object(path)["benchmarks"]
        }
    except (UsageError, KeyError, TypeError, ValueError):
        return None, {}
    return path, samples


def change_of(now_s: Sequence[float], before_s: Sequence[float]) -> str:
    """The change of a median since an earlier run, with its interval; empty if there is nothing to compare.

    Args:
        now_s: Samples in seconds.
        before_s: Earlier samples in seconds.
    """
    from deep5.measuring.statistics import ratio_of_medians

    if len(before_s) < _FEWEST:
        return ""
    try:
        middle, interval = ratio_of_medians(now_s, before_s)
    except Deep5Error:
        return ""
    word = "slower" if interval.low > 1 else "faster" if interval.high < 1 else "no change shown"
    own, low, high = (ratio(value, decimals=3) for value in (middle, interval.low, interval.high))
    return f"{own} of before ({low} … {high}), {word}"


def shown(timed: Timed) -> str:
    """Median and interval, and what makes them uncertain."""
    from deep5.measuring.machine_load import CROWDED
    from deep5.measuring.samples import median_interval

    interval = median_interval(timed.samples_s)
    notes = [] if timed.steady else ["the times had not settled"]
    if timed.others_share is not None and math.isfinite(timed.others_share) and timed.others_share > CROWDED:
        notes.append(f"other programs took {percent(timed.others_share)} of the processors")
    return "; ".join([f"{seconds(median(timed.samples_s))} ({seconds_between(interval.low, interval.high)})", *notes])
