"""Exports times of operators, networks and code as the JSON that `pytest-benchmark compare` reads.

References:
    pytest-benchmark, https://pytest-benchmark.readthedocs.io/, its hook `pytest_benchmark_generate_json`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.comparison_summary import failed_turns, standing, whole_rounds
from deep5.results.export.benchmark_statistics import benchmark_statistics
from deep5.results.export.source import Source
from deep5.results.kind import COMPARISON_KIND, RUN_KIND
from deep5.results.long_form import sample_records
from deep5.results.reading import read_object
from deep5.results.result import Result
from deep5.results.stored import printable
from deep5.results.timed_rounds import timed_rounds

__all__ = ["Benchmarks", "benchmark_entry", "benchmarks_file", "benchmarks_of", "commit_of", "machine_of"]

VERSION = "5.2.3"
"""Version of pytest-benchmark whose fields are used."""

_OPERATORS = "operators.json"
_WHO = frozenset({"framework", "frameworks", "seed"})


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """The benchmarks of one result, with its machine and commit; a file has one of each.

    Attributes:
        machine: The machine that was measured, not the one that exports.
        commit: Commit of the source.
        started: Start time of the result.
        benchmarks: Benchmarks in pytest-benchmark's format.
    """

    machine: dict[str, Any]
    commit: dict[str, Any]
    started: str
    benchmarks: list[dict[str, Any]]


def benchmarks_of(source: Source) -> Benchmarks:
    """One benchmark per workload and candidate, with every steady sample.

    Statistics are pytest-benchmark's, over all samples together. For several processes deep5 uses the median of their
    medians, which is stored under `extra_info`.

    `pytest-benchmark compare` matches benchmarks by group and name: so both contain a digest of the computation
    (recipe, size, fixed part, threads, and the settings that no candidate's name states), and the status if it is not
    success.

    Args:
        source: A result of operators, timed code or a comparison.

    Raises:
        UsageError: The result has no such times, or samples are not times.
    """
    return Benchmarks(
        machine=machine_of(source.document),
        commit=commit_of(source.document),
        started=str(source.document["started"] or "").replace("Z", "+00:00"),
        benchmarks=list(_benchmarks(source)),
    )


def benchmarks_file(parts: Sequence[Benchmarks]) -> bytes:
    """One document for several results.

    Raises:
        UsageError: They are from several machines, environments or commits.
    """
    first = parts[0]
    if any(part.machine != first.machine or part.commit != first.commit for part in parts):
        raise UsageError(
            "these results are of several machines, environments or commits, and a file of pytest-benchmark has one of "
            "each; remedy: -o DIR, for one file per result"
        )
    document = {
        "machine_info": first.machine,
        "commit_info": first.commit,
        "benchmarks": [benchmark for part in parts for benchmark in part.benchmarks],
        "datetime": first.started,
        "version": VERSION,
    }
    try:
        return (json.dumps(document, indent=4, allow_nan=False) + "\n").encode()
    except ValueError as error:
        raise UsageError(f"these results hold a number that JSON cannot represent ({error})") from error


def _identity(document: Mapping[str, Any]) -> str:
    """Digest of the computation and its number of threads; excludes the candidate and the seed."""
    recipe = document["recipe"]
    settings = {key: value for key, value in recipe["mutable"].items() if key not in _WHO}
    identity = [recipe[key] for key in ("name", "size", "hash", "fixed")]
    threads = document.get("threads")
    # A run's `threads` also contains its libraries' thread pools, which are specific to the candidate.
    identity += [settings, document.get("kind"), document.get("level")]
    identity += [threads["asked"] if isinstance(threads, dict) else threads]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _benchmarks(source: Source) -> Iterator[dict[str, Any]]:
    if source.about.kind == COMPARISON_KIND:
        found = _of_comparison(source)
    elif source.about.kind == RUN_KIND and source.document["level"] == 0:
        found = _of_operators(source)
    else:
        found = _of_code(source)
    count = 0
    status = source.about.status
    what = _identity(source.document) + (f", {status}" if status != "success" else "")
    for named, labelled, times, calls, extra in found:
        if not times:
            continue
        # pytest-benchmark prints names unescaped.
        workload, candidate = printable(named), printable(labelled)
        count += 1
        if not all(math.isfinite(value) and value >= 0 for value in times):
            raise UsageError(f"{source.folder}: a sample of {workload}, {candidate} is not a time; allowed: seconds")
        try:
            statistics = benchmark_statistics(times, calls)
            if not math.isfinite(statistics["total"]):
                raise OverflowError("their sum is too large")
        except ArithmeticError as error:
            raise UsageError(f"{source.folder}: no statistics of {workload}, {candidate} ({error})") from error
        name = f"{workload} ({what})[{candidate}]"
        settings = {"candidate": candidate, "workload": workload}
        yield benchmark_entry(
            name,
            group=f"{source.about.recipe}: {workload} ({what})",
            fullname=f"{source.about.run_id}::{name}",
            statistics=statistics,
            params=settings,
            param=candidate,
            extra={
                "recipe": source.about.recipe,
                "recipe_hash": source.about.hash,
                "size": source.about.size,
                "division": source.about.division,
                "status": status,
                "run_id": source.about.run_id,
                **extra,
            },
        )
    if not count:
        raise UsageError(
            f"{source.folder} holds no times for pytest-benchmark; allowed: results of operators, of timed code, and "
            "comparisons; remedy: --format mllog for training, csv or parquet for all"
        )


def benchmark_entry(
    name: str,
    *,
    group: str | None,
    fullname: str,
    statistics: Mapping[str, Any],
    extra: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    param: str | None = None,
) -> dict[str, Any]:
    """One benchmark in pytest-benchmark's format, timed by deep5's rules.

    Args:
        name: Its name.
        group: Benchmarks that are compared; None: no group.
        fullname: Its name with the place where it is defined.
        statistics: As made by `benchmark_statistics`.
        extra: What deep5 knows besides.
        params: Its parameters, or None.
        param: Their name, or None.
    """
    return {
        "group": group,
        "name": name,
        "fullname": fullname,
        "params": None if params is None else dict(params),
        "param": param,
        "extra_info": dict(extra),
        "options": {
            "disable_gc": False,
            "timer": "perf_counter",
            "min_rounds": 1,
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": dict(statistics),
    }


_Series = Iterator[tuple[str, str, list[float], int, dict[str, Any]]]


def _of_comparison(source: Source) -> _Series:
    stands = standing(source.document)
    faulty, rounds = failed_turns(source.document), whole_rounds(source.document)
    grouped: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for record in sample_records(source.folder, COMPARISON_KIND):
        counts = record["process"] in stands and (record["round"], record["candidate"]) not in faulty
        if record["phase"] == "steady" and counts and record["round"] < rounds:
            grouped.setdefault((record["workload"], record["candidate"]), []).append((record["value"], record["calls"]))
    results = {(row["workload"], row["candidate"]): row for row in source.document["results"]}
    verdicts = {(row["workload"], row["candidate"]): row for row in source.document["verdicts"]}
    statuses = {row["label"]: row["status"] for row in source.document["candidates"]}
    for key, samples in grouped.items():
        # A candidate that computes something else has no comparable time.
        if key not in results or statuses.get(key[1]) == "different":
            continue
        extra = {f"deep5_{name}": results[key][name] for name in ("median_s", "low_s", "high_s", "processes")}
        extra["deep5_verdict"] = verdicts[key]["word"] if key in verdicts else None
        yield *key, [value for value, _ in samples], _same([calls for _, calls in samples]), extra


def _of_operators(source: Source) -> _Series:
    series: dict[str, list[float]] = {}
    for record in sample_records(source.folder, RUN_KIND):
        series.setdefault(record["metric"], []).append(record["value"])
    document = read_object(source.folder / _OPERATORS)
    try:
        for row in document["rows"]:
            times = [value for name in row["series"] for value in series[name]]
            extra = {f"deep5_{name}": row[name] for name in ("median_s", "low_s", "high_s", "processes")}
            workload = f"{row['problem']}-{row['direction']}"
            yield workload, row["candidate"], times, max(1, int(row["calls"])), {"title": row["title"], **extra}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{source.folder}/{_OPERATORS} does not fit its samples ({error!r:.80})") from error


def _of_code(source: Source) -> _Series:
    steps = source.document["measurement"]["loops"]
    for side, times in timed_rounds(Result(folder=source.folder, document=source.document)).items():
        yield str(source.about.recipe), side, times, 1, {"steps_a_call": steps}


def _same(numbers: Sequence[int]) -> int:
    return numbers[0] if all(number == numbers[0] for number in numbers) else 1


def machine_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The machine that was measured, not the one that exports.

    Args:
        document: `system` and `software` are those of a result.
    """
    system, software = document["system"]["before"] or {}, document["software"] or {}
    cpu, platform = system.get("cpu") or {}, str(software.get("platform") or "")
    name, _, rest = platform.partition("-")
    return {
        "node": system.get("host"),
        "processor": cpu.get("architecture"),
        "machine": cpu.get("architecture"),
        "python_compiler": None,
        "python_implementation": software.get("implementation"),
        "python_implementation_version": software.get("python"),
        "python_version": software.get("python"),
        "python_build": None,
        "release": rest,
        "system": name,
        "cpu": {
            "brand_raw": cpu.get("model"),
            "vendor_id_raw": cpu.get("vendor"),
            "arch_string_raw": cpu.get("architecture"),
            "count": cpu.get("logical_cores"),
        },
        "deep5": software.get("deep5"),
        "packages": software.get("packages"),
    }


def commit_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The commit of deep5's source that measured.

    Args:
        document: As for `machine_of`.
    """
    commit = (document["software"] or {}).get("commit") or {}
    return {
        "id": commit.get("id") or "unversioned",
        "time": None,
        "author_time": None,
        "dirty": bool(commit.get("dirty")),
        "project": "deep5",
        "branch": "(unknown)",
    }
