"""Exports: read back bit-identically by the programs that they are for."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

import deep5 as d5
import report_cases as cases
from command import Command
from comparison_cases import written_comparison
from deep5.cli.export import export
from deep5.core.errors import MissingDependency, OutputError, UsageError
from deep5.recipe.recipe import load_recipe
from deep5.results.comparison import load_comparison
from deep5.results.comparison_summary import results_of
from deep5.results.export.benchmark_statistics import benchmark_statistics
from deep5.results.kind import COMPARISON
from deep5.results.long_form import SAMPLE_COLUMNS
from deep5.results.mllog import read_mllog
from deep5.results.result import load
from deep5.results.round_samples import read_round_samples, round_samples_text
from deep5.results.samples_file import SampleRow, samples_text
from deep5.results.timed_rounds import SIDES
from deep5.run.execute import execute
from quick_peaks import quick_peaks

RULESETS = ("1.0.0", "3.0.0", "5.0.0")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trains."""
    recipe = load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": "reference"})
    return execute(recipe, out=tmp_path_factory.mktemp("training"), quiet=True).folder


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that times code."""
    return execute(load_recipe("overhead_trainer").at_size("smoke"), out=tmp_path_factory.mktemp("code")).folder


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of level 0."""
    settings = {"frameworks": ["reference"], "take": 2, "pictures": False}
    recipe = load_recipe("deepbench_gemm").at_size("smoke").with_settings(settings)
    with quick_peaks():
        return execute(recipe, out=tmp_path_factory.mktemp("operators"), quiet=True).folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison."""
    return written_comparison(tmp_path_factory.mktemp("comparison"))


def benchmarks(path: Path) -> dict[str, Any]:
    """The output of `pytest-benchmark compare`: the median in seconds by name."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", path, "--columns", "median,rounds", "--time-unit", "ns"],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Failed to load" not in done.stdout + done.stderr
    found = {}
    for line in done.stdout.splitlines():
        # A part of the file's name follows the benchmark's name; with several files the ratio to the best follows the
        # median.
        row = re.fullmatch(r"(\S.*\])(?: \(\w+\))? +([\d,.]+)(?: \([\d,.]+\))? +(\d+) *", line)
        if row is not None:
            found[row[1]] = (float(row[2].replace(",", "")) / 1e9, int(row[3]))
    return found


def bare(name: str) -> str:
    """A benchmark's name without the digest of its content."""
    return re.sub(r" \([0-9a-f]{8}\)\[", "[", name)


def exported(folder: Path, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    (path,) = export([folder], "pytest-benchmark", tmp_path / "out.json").paths
    return json.loads(path.read_text()), path


# pytest-benchmark


def test_operators_are_read_by_pytest_benchmark_with_the_same_medians(operators: Path, tmp_path: Path) -> None:
    document, path = exported(operators, tmp_path)
    rows = json.loads((operators / "operators.json").read_text())["rows"]
    expected = {f"{row['problem']}-{row['direction']}[{row['candidate']}]": row for row in rows}
    assert {bare(own["name"]) for own in document["benchmarks"]} == expected.keys()
    samples = load(operators).samples()
    printed = benchmarks(path)
    assert set(map(bare, printed)) == expected.keys()
    for own in document["benchmarks"]:
        row = expected[bare(own["name"])]
        raw = [sample.value for name in row["series"] for sample in samples[name]]
        assert own["stats"]["data"] == raw
        assert own["stats"]["median"] == row["median_s"] == statistics.median(raw)
        assert printed[own["name"]] == (pytest.approx(row["median_s"], abs=1e-13), len(raw))


def test_comparisons_are_read_by_pytest_benchmark(comparison: Path, tmp_path: Path) -> None:
    document, path = exported(comparison, tmp_path)
    steady = [sample for sample in load_comparison(comparison).samples() if sample.phase == "steady"]
    names = {f"{workload}[{label}]" for workload in ("gemm-1", "gemm-2") for label in ("reference", "jax, eager")}
    printed = benchmarks(path)
    assert set(map(bare, printed)) == names
    for own in document["benchmarks"]:
        raw = [
            sample.seconds
            for sample in steady
            if (sample.workload, sample.candidate) == (own["params"]["workload"], own["params"]["candidate"])
        ]
        assert own["stats"]["data"] == raw
        assert len(raw) == 3 * 7
        assert own["stats"]["iterations"] == 2
        assert printed[own["name"]] == (pytest.approx(statistics.median(raw), abs=1e-13), len(raw))
    groups = {own["group"].rpartition(" (")[0] for own in document["benchmarks"]}
    assert groups == {"deepbench_gemm: gemm-1", "deepbench_gemm: gemm-2"}


def test_timed_code_is_read_by_pytest_benchmark(code: Path, tmp_path: Path) -> None:
    document, path = exported(code, tmp_path)
    names = {f"overhead_trainer[{name}]" for name in ("candidate", "baseline", "baseline_again")}
    assert set(map(bare, benchmarks(path))) == names
    assert {bare(own["name"]) for own in document["benchmarks"]} == names


def test_exported_times_of_ranks_are_those_of_the_slowest(tmp_path: Path) -> None:
    first = {side: [1.0, 4.0, 2.0] for side in SIDES}
    second = {side: [3.0, 2.0, 2.0] for side in SIDES}
    folder = cases.timed(tmp_path, times=first, others=[second])
    document, _ = exported(folder, tmp_path)
    assert [own["stats"]["data"] for own in document["benchmarks"]] == [[3.0, 4.0, 2.0]] * 3


def test_fields_are_those_that_pytest_benchmark_itself_writes(code: Path, tmp_path: Path) -> None:
    from pytest_benchmark import plugin, stats

    fixture = SimpleNamespace(
        name="own",
        fullname="own",
        group=None,
        param=None,
        params=None,
        extra_info={},
        cprofile_stats=None,
        has_error=False,
    )
    options = {
        "disable_gc": False,
        "timer": "perf_counter",
        "min_rounds": 5,
        "max_time": 1.0,
        "min_time": 0.1,
        "warmup": False,
    }
    own = stats.Metadata(fixture, 1, options)
    own.update(1.0)
    machine = plugin.pytest_benchmark_generate_machine_info()
    commit = plugin.get_commit_info("deep5")
    theirs = plugin.pytest_benchmark_generate_json(None, [own], True, machine, commit)
    ours, _ = exported(code, tmp_path)
    assert theirs.keys() == ours.keys()
    assert theirs["version"].split(".")[0] == ours["version"].split(".")[0]
    assert theirs["machine_info"].keys() <= ours["machine_info"].keys()
    assert theirs["commit_info"].keys() - {"error"} == ours["commit_info"].keys()
    (there,), here = theirs["benchmarks"], ours["benchmarks"][0]
    assert there.keys() == here.keys()
    assert there["stats"].keys() == here["stats"].keys()
    assert there["options"].keys() == here["options"].keys()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 50, 51])
def test_statistics_are_those_of_pytest_benchmark(count: int) -> None:
    from pytest_benchmark.stats import Stats

    for kind in ("normal", "ties", "tails"):
        draw = np.random.default_rng(count)
        values = {
            "normal": draw.normal(10, 1, count),
            "ties": draw.integers(1, 3, count).astype(float),
            "tails": draw.pareto(1, count),
        }[kind].tolist()
        theirs = Stats()
        for value in values:
            theirs.update(value)
        ours = benchmark_statistics(values, 1)
        for field in Stats.fields:
            try:
                expected = getattr(theirs, field)
            except IndexError:  # some versions of pytest-benchmark read past the end
                continue
            assert ours[field] == expected, (field, values)


def test_the_machine_is_the_one_that_was_measured(code: Path, tmp_path: Path) -> None:
    shutil.copytree(code, tmp_path / "a")
    shutil.copytree(code, tmp_path / "b")
    document = json.loads((tmp_path / "b" / "result.json").read_text())
    document["system"]["before"]["host"] = "elsewhere"
    (tmp_path / "b" / "result.json").write_text(json.dumps(document))
    found, _ = exported(tmp_path / "b", tmp_path)
    assert found["machine_info"]["node"] == "elsewhere"
    commit = document["software"]["commit"] or {}
    assert found["commit_info"]["id"] == commit.get("id", "unversioned")
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(UsageError, match=r"several machines.*remedy: -o DIR"):
        export(folders, "pytest-benchmark", tmp_path / "both.json")
    assert len(export(folders, "pytest-benchmark", tmp_path / "files").paths) == 2
    assert len(exported(tmp_path / "a", tmp_path)[0]["benchmarks"]) == 3


def with_status(document: dict[str, Any], status: str) -> dict[str, Any]:
    """A run's document with this status."""
    if status == "success":
        return document
    metrics = [{**row, "passed": None} for row in document["metrics"]]
    return {**document, "status": status, "reasons": ["it broke"], "accepted": None, "metrics": metrics}


def changed(folder: Path, to: Path, **recipe: Any) -> Path:
    """A copy of a run with another recipe."""
    shutil.copytree(folder, to)
    document = json.loads((to / "result.json").read_text())
    document["recipe"] |= recipe
    (to / "result.json").write_text(json.dumps(document))
    return to


@pytest.mark.parametrize("by", ["group", "name", "func", "fullname"])
def test_what_computes_something_else_has_another_name(by: str, code: Path, tmp_path: Path) -> None:
    """Equal names are shown side by side: the same benchmark of another run, but no other fixed part or status."""
    recipe = json.loads((code / "result.json").read_text())["recipe"]
    folders = {
        "same": changed(code, tmp_path / "same", mutable={**recipe["mutable"], "seed": 7}),
        # It claims the same hash.
        "fixed": changed(code, tmp_path / "fixed", fixed={**recipe["fixed"], "more": 1}),
        "size": changed(code, tmp_path / "size", size="other"),
        "set": changed(code, tmp_path / "set", mutable={**recipe["mutable"], "batch_size": 999}),
        "failed": changed(code, tmp_path / "failed"),
    }
    failed = json.loads((folders["failed"] / "result.json").read_text())
    (folders["failed"] / "result.json").write_text(json.dumps(with_status(failed, "failed")))
    names = {}
    for name, folder in {"": code, **folders}.items():
        found = json.loads(export([folder], "pytest-benchmark", tmp_path / f"{name}.json").paths[0].read_text())
        names[name] = {own["name"].split("[")[0] if by == "func" else own[by] for own in found["benchmarks"]}
    assert names.pop("same") == names[""]
    told = list(names.values())
    assert all(not one & other for place, one in enumerate(told) for other in told[:place])
    assert all(", failed)" in own for own in names["failed"])


def test_a_comparison_with_other_threads_has_other_names(comparison: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    shutil.copytree(comparison, more)
    document = json.loads((more / COMPARISON).read_text())
    (more / COMPARISON).write_text(json.dumps({**document, "threads": document["threads"] + 1}))
    one, other = ({own["name"] for own in exported(folder, tmp_path)[0]["benchmarks"]} for folder in (comparison, more))
    assert {bare(name) for name in one} == {bare(name) for name in other}
    assert not one & other


def test_what_has_no_times_is_refused(training: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no times for pytest-benchmark; allowed: .*; remedy: --format mllog"):
        export([training], "pytest-benchmark", tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_sample_that_is_no_time_is_refused(value: float, code: Path, tmp_path: Path) -> None:
    shutil.copytree(code, tmp_path / "a")
    rows = [SampleRow(metric=f"{side}_time", index=0, value=value, unit="s") for side in SIDES]
    (tmp_path / "a" / "samples.csv").write_text(samples_text(rows))
    with pytest.raises(UsageError, match="is not a time; allowed: seconds"):
        export([tmp_path / "a"], "pytest-benchmark", tmp_path / "out.json")


def test_operators_without_their_samples_are_refused(operators: Path, tmp_path: Path) -> None:
    shutil.copytree(operators, tmp_path / "a")
    (tmp_path / "a" / "samples.csv").unlink()
    with pytest.raises(UsageError, match=r"operators\.json does not fit its samples"):
        export([tmp_path / "a"], "pytest-benchmark", tmp_path / "out.json")
    (tmp_path / "a" / "operators.json").unlink()
    os.mkfifo(tmp_path / "a" / "operators.json")
    with pytest.raises(UsageError, match=r"operators\.json is not a plain file"):
        export([tmp_path / "a"], "pytest-benchmark", tmp_path / "out.json")


def test_the_plugin_stays_out_of_the_projects_own_tests(request: pytest.FixtureRequest) -> None:
    assert not request.config.pluginmanager.hasplugin("benchmark")


# MLPerf logging


@pytest.mark.parametrize("ruleset", RULESETS)
@pytest.mark.parametrize("of", ["training", "comparison"])
def test_mlperfs_own_parser_reads_every_line(
    of: str, ruleset: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from mlperf_logging.compliance_checker.mlp_parser import parse_file

    for path in export([request.getfixturevalue(of)], "mllog", tmp_path / "logs").paths:
        lines, errors = parse_file(str(path), ruleset=ruleset)
        assert errors == []
        assert len(lines) == len(path.read_text().splitlines()) > 8
        assert [line.key for line in lines if line.key in ("run_start", "run_stop")] == ["run_start", "run_stop"]
        times = [line.timestamp for line in lines]
        assert times == sorted(times)


def test_the_log_of_a_training_is_the_one_that_it_wrote(training: Path, tmp_path: Path) -> None:
    (path,) = export([training], "mllog", tmp_path / "a.log").paths
    assert read_mllog(path) == read_mllog(training / "events.mllog")
    assert path.read_text() == (training / "events.mllog").read_text()


def test_a_comparison_is_a_log_a_process_with_its_times(comparison: Path, tmp_path: Path) -> None:
    paths = export([comparison], "mllog", tmp_path / "logs").paths
    assert len(paths) == len({path.name for path in paths}) == 2 * 3 * 2
    times = [line.value["seconds_a_call"] for path in paths for line in read_mllog(path) if line.key == "tracked_stats"]
    assert sorted(times) == sorted(sample.seconds for sample in load_comparison(comparison).samples())
    with pytest.raises(UsageError, match=r"12 logs do not fit into .*; remedy: -o DIR"):
        export([comparison], "mllog", tmp_path / "one.mllog")


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("status", ["success", "failed", "aborted", "invalid"])
def test_a_run_that_is_no_success_ends_as_aborted(status: str, ended: bool, training: Path, tmp_path: Path) -> None:
    shutil.copytree(training, tmp_path / "a")
    document = json.loads((training / "result.json").read_text())
    (tmp_path / "a" / "result.json").write_text(json.dumps(with_status(document, status)))
    log = tmp_path / "a" / "events.mllog"
    lines = log.read_text().splitlines(keepends=True)
    assert json.loads(lines[-1].removeprefix(":::MLLOG"))["metadata"] == {"status": "success"}
    log.write_text("".join(lines if ended else lines[:-4]))
    (path,) = export([tmp_path / "a"], "mllog", tmp_path / "out.log").paths
    stops = [line for line in read_mllog(path) if line.key == "run_stop"]
    whole = status == "success" and ended
    assert [line.metadata["status"] for line in stops] == ["success" if whole else "aborted"]
    assert read_mllog(path)[-1] == stops[0]


def test_a_process_that_failed_ends_as_aborted(comparison: Path, tmp_path: Path) -> None:
    shutil.copytree(comparison, tmp_path / "a")
    document = json.loads((comparison / "comparison.json").read_text())
    document["processes"][1]["reason"] = "out of memory"
    document["candidates"][0]["failed_rounds"] = [2]
    (tmp_path / "a" / "comparison.json").write_text(json.dumps(document))
    aborted = {row["candidate"] + str(row["round"]) for row in [document["processes"][1]]} | {"reference2"}
    found = set()
    for path in export([tmp_path / "a"], "mllog", tmp_path / "logs").paths:
        process = document["processes"][int(path.stem.rpartition("-")[2])]
        if read_mllog(path)[-1].metadata["status"] == "aborted":
            found.add(process["candidate"] + str(process["round"]))
    assert found == aborted


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (':::MLLOG {"namespace": "", "time_ms": 1}', "is damaged"),
        (
            ':::MLLOG {"namespace": "", "time_ms": "x", "event_type": "POINT_IN_TIME", "key": "a", "value": 1, '
            '"metadata": {}}',
            "event 1 is not as deep5 writes it",
        ),
        (
            ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "a", "value": NaN, '
            '"metadata": {}}',
            "NaN is not JSON",
        ),
        ("nothing", "holds no line of MLPerf logging"),
    ],
)
def test_a_log_that_is_not_of_the_format_is_refused(line: str, message: str, training: Path, tmp_path: Path) -> None:
    shutil.copytree(training, tmp_path / "a")
    (tmp_path / "a" / "events.mllog").write_text(f"{line}\n")
    with pytest.raises(UsageError, match=message):
        export([tmp_path / "a"], "mllog", tmp_path / "out.mllog")
    assert not (tmp_path / "out.mllog").exists()


def test_a_run_without_a_log_is_refused(code: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no events\.mllog; allowed: runs that train; remedy: "):
        export([code], "mllog", tmp_path)


# Tables


def bits(values: Any) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


@pytest.fixture
def odd(training: Path, tmp_path: Path) -> tuple[Path, list[SampleRow]]:
    """A run with samples that an export can easily lose."""
    shutil.copytree(training, tmp_path / "odd")
    values = [0.1 + 0.2, 5e-324, -0.0, float("inf"), float("-inf"), float("nan"), 1 / 3, 1.7976931348623157e308]
    rows = [
        SampleRow(metric='a, "b"\nü', index=i, value=value, unit="%", step=i or None, time_s=1 / 7 if i else None)
        for i, value in enumerate(values)
    ]
    (tmp_path / "odd" / "samples.csv").write_text(samples_text(rows))
    return tmp_path / "odd", rows


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_give_back_every_sample_to_the_bit(form: str, odd: tuple[Path, list[SampleRow]], tmp_path: Path) -> None:
    folder, rows = odd
    (path,) = export([folder], form, tmp_path / f"out.{form}").paths
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(path.read_text(), newline="")))
        values = [float(row["value"]) for row in found]
        times = [float(row["time_s"]) if row["time_s"] else None for row in found]
        steps = [int(row["step"]) if row["step"] else None for row in found]
        read = pd.read_csv(path)
    else:
        found = parquet.read_table(path).to_pylist()
        values, times, steps = ([row[name] for row in found] for name in ("value", "time_s", "step"))
        read = pd.read_parquet(path)
    assert bits(values) == bits(row.value for row in rows)
    assert times == [row.time_s for row in rows]
    assert steps == [row.step for row in rows]
    assert [row["metric"] for row in found] == [row.metric for row in rows]
    assert bits(read["value"]) == bits(row.value for row in rows)
    assert {row["run_id"] for row in found} == {load(folder).document["run_id"]}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_runs_and_comparisons_fit_into_one_table(
    form: str, training: Path, comparison: Path, code: Path, tmp_path: Path
) -> None:
    (path,) = export([training, comparison, code], form, tmp_path / f"all.{form}").paths
    read = pd.read_parquet(path) if form == "parquet" else pd.read_csv(path)
    assert set(SAMPLE_COLUMNS) <= set(read.columns)
    times = read[read["kind"] == "comparison"]
    assert bits(times["value"]) == bits(sample.seconds for sample in load_comparison(comparison).samples())
    expected = sum(len(rows) for folder in (training, code) for rows in load(folder).samples().values())
    assert len(read) == expected + len(times)
    assert read["run_id"].nunique() == 3


def test_a_spreadsheet_computes_no_name(training: Path, tmp_path: Path) -> None:
    shutil.copytree(training, tmp_path / "a")
    rows = [SampleRow(metric="=1+1", index=0, value=-1.5, unit="@x", step=-3)]
    (tmp_path / "a" / "samples.csv").write_text(samples_text(rows))
    (path,) = export([tmp_path / "a"], "csv", tmp_path / "out.csv").paths
    (row,) = csv.DictReader(io.StringIO(path.read_text(), newline=""))
    assert [row[name] for name in ("metric", "unit", "value", "step")] == ["'=1+1", "'@x", "-1.5", "-3"]


def test_more_samples_than_memory_holds_are_left_out_and_told(
    training: Path, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deep5.cli import export as export_command

    sizes = {folder: (folder / "samples.csv").stat().st_size for folder in (training, code)}
    large, small = sorted(sizes, key=lambda folder: -sizes[folder])
    monkeypatch.setattr(export_command, "_SAMPLES_BYTES", sizes[small])
    done = export([large, small], "csv", tmp_path / "out")
    assert [path.name for path in done.paths] == [f"{small.name}.csv"]
    assert done.left_out == [
        f"{large} has {sizes[large]} bytes of samples; allowed: {sizes[small]}; read its samples.csv"
    ]
    monkeypatch.setattr(export_command, "_SAMPLES_BYTES", sizes[large])
    with pytest.raises(UsageError, match=r"bytes of samples do not fit into .*remedy: -o DIR"):
        export([large, small], "csv", tmp_path / "out.csv")
    assert len(export([large, small], "csv", tmp_path / "out").paths) == 2


def test_a_run_without_samples_is_an_empty_table(training: Path, tmp_path: Path) -> None:
    shutil.copytree(training, tmp_path / "a")
    (tmp_path / "a" / "samples.csv").unlink()
    for form in ("csv", "parquet"):
        told = export([tmp_path / "a"], form, tmp_path / f"out.{form}").left_out
        assert told == [f"{tmp_path / 'a'} has no samples"]
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 0
    assert len(pd.read_csv(tmp_path / "out.csv")) == 0


def tables(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_what_failed_and_has_no_samples_is_told_and_the_rest_is_kept(form: str, tmp_path: Path, deep5: Command) -> None:
    results = tmp_path / "results"
    cases.run(results, "whole")
    partly, failed, killed = (cases.run(results, name, ended="failed") for name in ("partly", "failed", "killed"))
    (failed / "samples.csv").unlink()
    (killed / "samples.csv").write_text((partly / "samples.csv").read_text().splitlines()[0] + "\n")
    answer = deep5("export", "results", "--format", form, "-o", f"all.{form}")
    assert answer.status == 1
    assert answer.out == f"all.{form}\n"
    assert sorted(answer.err.splitlines()) == sorted(
        f"deep5: not exported: {folder} has no samples (failed: it failed)" for folder in (failed, killed)
    )
    read = tables(tmp_path / f"all.{form}")
    assert {partly.name} == set(read[read["status"] == "failed"]["run_id"])
    assert list(read.groupby("status").size()) == [18, 18]


@pytest.mark.parametrize("advice", ["; remedy: --debug shows where", "; allowed: 1, 2; remedy: --size 2"])
def test_of_why_there_are_no_samples_the_reason_alone_is_told(advice: str, tmp_path: Path, deep5: Command) -> None:
    folder = cases.run(tmp_path / "results", "failed", ended="failed")
    document = json.loads((folder / "result.json").read_text())
    document["reasons"] = [f"the metric 'own' raised ValueError: a; b{advice}"]
    (folder / "result.json").write_text(json.dumps(document))
    (folder / "samples.csv").unlink()
    answer = deep5("export", str(folder), "--format", "csv", "-o", "out")
    told = f"{folder} has no samples (failed: the metric 'own' raised ValueError: a; b)"
    assert answer.err == f"deep5: not exported: {told}\n"


def test_a_round_that_was_broken_off_counts_nowhere(tmp_path: Path) -> None:
    """An interrupted comparison: its medians are of complete rounds, and so are the exported samples."""
    folder = cases.comparison(tmp_path, rounds=3)
    document = json.loads((folder / "comparison.json").read_text())
    samples = [s for s in read_round_samples(folder / "samples.csv") if s.round < 2 or s.candidate == "jax"]
    (folder / "samples.csv").write_text(round_samples_text(samples))
    results = results_of([s for s in samples if s.round < 2], {})
    document |= {"status": "aborted", "reasons": ["interrupted"], "results": results, "verdicts": []}
    (folder / "comparison.json").write_text(json.dumps(document))
    found = exported(folder, tmp_path)[0]["benchmarks"]
    counts = {row["candidate"]: row["samples"] for row in results}
    assert len(set(counts.values())) == 1
    assert [own["stats"]["rounds"] for own in found] == list(counts.values())
    ended = {path.name: read_mllog(path)[-1] for path in export([folder], "mllog", tmp_path / "logs").paths}
    assert sorted(line.metadata["status"] for line in ended.values()) == ["aborted"] + ["success"] * 6


def test_who_computed_it_is_not_part_of_what_was_computed(operators: Path, tmp_path: Path) -> None:
    """A run that starts on another framework has other libraries loaded, each with its own threads."""
    document = json.loads((operators / "result.json").read_text())
    other = Path(shutil.copytree(operators, tmp_path / "other"))
    threads = {**document["threads"], "pools": {"openmp (libgomp-0.so)": 2}}
    (other / "result.json").write_text(json.dumps({**document, "threads": threads}))
    one, two = ({own["name"] for own in exported(folder, tmp_path)[0]["benchmarks"]} for folder in (operators, other))
    assert one == two


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_samples_of_who_is_refused_say_so(form: str, tmp_path: Path) -> None:
    """A candidate that failed in its first round, in a comparison that succeeded."""
    folder = cases.comparison(tmp_path, labels=("one", "two", "three"), rounds=2)
    document = json.loads((folder / "comparison.json").read_text())
    document["candidates"][1] |= {"status": "failed", "reason": "it has 3 threads", "failed_rounds": [0]}
    document["candidates"][2] |= {"status": "different", "reason": "off"}
    for key in ("results", "verdicts"):
        document[key] = [row for row in document[key] if row["candidate"] == "one"]
    (folder / "comparison.json").write_text(json.dumps(document))
    found = export([folder], form, tmp_path / f"all.{form}")
    assert found.left_out == []
    statuses = {"one": "success", "two": "failed", "three": "different"}
    read = tables(found.paths[0])
    assert dict(zip(read["candidate"], read["status"], strict=True)) == statuses
    frame = d5.results.load(tmp_path, samples=True)
    assert dict(zip(frame["candidate"], frame["status"], strict=True)) == statuses
    found = export([folder], "pytest-benchmark", tmp_path / "all.json")
    assert found.left_out == [
        f"{folder}: two has no times that count (failed: it has 3 threads)",
        f"{folder}: three has no times that count (different: off)",
    ]


@pytest.mark.parametrize("form", ["csv", "parquet", "pytest-benchmark"])
def test_a_candidate_that_failed_before_its_first_sample_is_told(form: str, tmp_path: Path, deep5: Command) -> None:
    folder = cases.comparison(tmp_path, labels=("one", "two", "three"), rounds=2)
    document = json.loads((folder / "comparison.json").read_text())
    for place, status in enumerate(("timed", "failed", "different")):
        document["candidates"][place] |= {"status": status, "reason": None if place == 0 else "no\x1bmemory"}
    document["verdicts"] = [row for row in document["verdicts"] if row["candidate"] != "two"]
    document["results"] = [row for row in document["results"] if row["candidate"] != "two"]
    (folder / "comparison.json").write_text(json.dumps(document))
    lines = (folder / "samples.csv").read_text().splitlines()
    (folder / "samples.csv").write_text("\n".join(line for line in lines if not line.startswith("two,")) + "\n")
    answer = deep5("export", str(folder), "--format", form, "-o", "out")
    assert answer.status == 1
    told = ["two has no samples (failed: no\\x1bmemory)"]
    if form == "pytest-benchmark":
        ended = (("two", "failed"), ("three", "different"))
        told = [f"{own} has no times that count ({why}: no\\x1bmemory)" for own, why in ended]
    # A table contains the samples of a candidate that was timed before its results were found to differ.
    assert answer.err.splitlines() == [f"deep5: not exported: {folder}: {own}" for own in told]


def test_runs_of_a_study_that_left_nothing_are_told(tmp_path: Path, deep5: Command) -> None:
    folder = cases.study(tmp_path)
    said = f"deep5: not exported: {folder} has 1 run that failed without results; its study.json says why\n"
    for folders in ([folder], [folder, folder / "runs"], [tmp_path, folder]):
        answer = deep5("export", *map(str, folders), "--format", "csv", "-o", "out")
        assert (answer.status, answer.err, len(answer.out.split())) == (1, said, 4)
    cases.run(folder / "runs", "momentum2", 2, ended="failed")
    answer = deep5("export", str(folder), "--format", "csv", "-o", "out")
    assert (answer.status, answer.err, len(answer.out.split())) == (0, "", 5)


def test_without_pyarrow_the_command_that_installs_it_is_told(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"needs pyarrow.*pip install 'deep5\[report\]'"):
        export([training], "parquet", tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []
    export([training], "csv", tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("sample", "fits"),
    [
        # Of a process that is not listed, as after a kill: only raw samples.
        ("reference,gemm-1,0,99,steady,0,1.0,1,0.0", ("csv", "parquet")),
        ("reference,gemm-1,0,-1,steady,0,1.0,1,0.0", ("csv", "parquet")),
        ("reference,gemm-1,0,0,steady,0,1.0,1,inf", ("csv", "parquet", "pytest-benchmark")),
        (
            "reference,gemm-1,0,0,steady,0,1e308,1,0.0\nreference,gemm-1,0,0,steady,1,1e308,1,0.0",
            ("csv", "parquet", "mllog"),
        ),
        (
            f"reference,gemm-1,0,0,steady,{10**30},1.0,{10**30},0.0",
            ("csv", "mllog", "pytest-benchmark"),
        ),
        ("reference,gemm-1,0,0,steady,0,nan,1,0.0", ("csv", "parquet")),
        ("not,a,sample", ()),
    ],
)
def test_samples_that_fit_nothing_are_left_out_and_told(
    sample: str, fits: tuple[str, ...], comparison: Path, tmp_path: Path, deep5: Command
) -> None:
    header = (comparison / "samples.csv").read_text().splitlines()[0]
    shutil.copytree(comparison, tmp_path / "results" / "good")
    shutil.copytree(comparison, tmp_path / "results" / "odd")
    (tmp_path / "results" / "odd" / "samples.csv").write_text(f"{header}\n{sample}\n")
    for form in ("csv", "parquet", "mllog", "pytest-benchmark"):
        answer = deep5("export", "results", "--format", form, "-o", f"out-{form}")
        made = [path.name for path in (tmp_path / f"out-{form}").iterdir()]
        assert any(name.startswith("good") for name in made)
        assert any(name.startswith("odd") for name in made) == (form in fits), form
        assert answer.status == (0 if form in fits else 1)
        assert answer.err.count("not exported: ") == (0 if form in fits else 1)
        assert "unexpected" not in answer.err


# The command, and its output paths


def test_the_command_writes_and_names_the_files(training: Path, code: Path, tmp_path: Path, deep5: Command) -> None:
    answer = deep5("export", str(training), str(code), "--format", "csv", "-o", "tables")
    assert answer.status == 0
    assert answer.out.split() == [f"tables/{training.name}.csv", f"tables/{code.name}.csv"]
    assert deep5("export", str(training), "--format", "csv", "-o", "one.csv", "--quiet").out == ""
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "tables" / f"{training.name}.csv").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_results_is_all_of_them_each_once(training: Path, tmp_path: Path) -> None:
    for place in ("one/run", "two/run"):
        shutil.copytree(training, tmp_path / "results" / place)
    folders = [tmp_path / "results", tmp_path / "results" / "one" / "run"]
    paths = export(folders, "mllog", tmp_path / "logs").paths
    assert sorted(path.name for path in paths) == ["run-2.mllog", "run.mllog"]
    assert [path.name for path in export(folders, "csv", tmp_path / "t").paths] == ["run.csv", "run-2.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RUN", "--format", "xml", "-o", "x"), "'xml' is not one of"),
        (("RUN", "--format", "csv"), "Missing option '-o'"),
        (("--format", "csv", "-o", "x"), "Missing argument 'FOLDER"),
        (("nowhere", "--format", "csv", "-o", "x"), "cannot list nowhere"),
        ((".", "--format", "csv", "-o", "x"), ". holds no results"),
        (("RUN", "--format", "csv", "-o", "x.parquet"), "x.parquet does not have the ending of csv"),
        (("RUN", "--format", "csv", "-o", "RUN"), "lies in a result folder"),
        (("RUN", "--format", "csv", "-o", "RUN/out.csv"), "lies in a result folder"),
        (("RUN", "--format", "csv", "-o", "/proc/nothing/x.csv"), "cannot write /proc/nothing/x.csv"),
    ],
)
def test_wrong_usage_ends_with_two(arguments: tuple[str, ...], message: str, training: Path, deep5: Command) -> None:
    before = sorted(training.iterdir())
    answer = deep5("export", *(word.replace("RUN", str(training)) for word in arguments))
    assert answer.status == 2
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert sorted(training.iterdir()) == before


def test_a_result_is_written_over_by_no_name_for_it(
    training: Path, tmp_path: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    run = Path(shutil.copytree(training, root / "run1"))
    (tmp_path / "link").symlink_to(root)
    (root / "study").mkdir()
    (root / "study" / "study.json").write_text("{")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for given, out in (
        ("link", "root/run1/samples.csv"),
        ("link/../root", "link/run1/more.csv"),
        ("root", "root/study/more.csv"),
    ):
        answer = deep5("export", given, "--format", "csv", "-o", out)
        assert (answer.status, "lies in a result folder" in answer.err) == (2, True), answer.err
    monkeypatch.chdir(run)
    with pytest.raises(UsageError, match="lies in a result folder"):
        export(["../run1"], "csv", "samples.csv")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    monkeypatch.chdir(root)
    # Each once, and by its name, for any way to write its path.
    found = export([".", "run1/..", "../link"], "csv", tmp_path / "out")
    assert [path.name for path in found.paths] == ["run1.csv"]


def test_what_does_not_fit_is_left_out_and_told(training: Path, code: Path, tmp_path: Path, deep5: Command) -> None:
    root = tmp_path / "results"
    for name, folder in (("trained", training), ("timed", code), ("two", training), ("pipe", training)):
        shutil.copytree(folder, root / name)
    (root / "two" / "comparison.json").write_text("{}")
    (root / "pipe" / "result.json").unlink()
    os.mkfifo(root / "pipe" / "result.json")
    answer = deep5("export", "results", "--format", "pytest-benchmark", "-o", "all.json")
    assert (answer.status, answer.out) == (1, "all.json\n")
    told = answer.err.splitlines()
    assert all(line.startswith("deep5: not exported: ") for line in told)
    for what in (
        "trained holds no times",
        "pipe cannot be read: .*not a plain file",
        "two.* holds result.json and comparison",
    ):
        assert len([line for line in told if re.search(what, line)]) == 1, (what, told)
    assert len(benchmarks(tmp_path / "all.json")) == 3
    answer = deep5("export", "results", "--format", "mllog", "-o", "logs")
    assert (answer.status, answer.out) == (1, "logs/trained.mllog\n")
    answer = deep5("export", "results/timed", "--format", "mllog", "-o", "none")
    assert answer.status == 2
    assert "nothing to export: " in answer.err
    assert not (tmp_path / "none").exists()


def test_names_that_would_steer_a_terminal_are_written_out(training: Path, tmp_path: Path, deep5: Command) -> None:
    shutil.copytree(training, tmp_path / "a\x1b[31m")
    shutil.copytree(training, tmp_path / "b\x1b[32m")
    (tmp_path / "b\x1b[32m" / "result.json").write_text("{")
    answer = deep5("export", ".", "--format", "csv", "-o", "out")
    assert answer.status == 1
    assert r"out/a\x1b[31m.csv" in answer.out
    assert r"b\x1b[32m cannot be read" in answer.err
    assert "\x1b" not in answer.out + answer.err


def test_an_old_file_stays_where_the_new_one_cannot_be_written(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = export([training], "csv", tmp_path / "out.csv").paths
    before = path.read_text()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        export([training], "csv", path)
    monkeypatch.undo()
    assert path.read_text() == before
    assert [own.name for own in tmp_path.iterdir()] == ["out.csv"]
