"""`deep5 audit` accuses no honest result, however drawn; and what excuses an honest one excuses no other.

With no finding in 200 drawn results, a finding has a probability of at most 1.5 % (rule of three, at 95 %).
"""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deep5.audit import audit
from deep5.audit.finding import Ledger
from deep5.audit.run_times import _check_epochs
from deep5.core.errors import RunFailed
from deep5.core.version import __version__
from deep5.recipe.recipe import load_recipe
from deep5.recipes import digits_lenet
from deep5.results.mllog import read_mllog
from deep5.results.samples_file import read_samples
from deep5.run.execute import execute
from deep5.training.checkpointer import Checkpointer
from deep5.training.stopping import StopAfter
from doctored import cells_of
from honest_cases import CASES, drawn, made
from honest_cases import QUICK as QUICKLY
from honest_cases import RUN as RUNS
from honest_machine import Clock, Hooks, Interruption
from honest_results import HONEST, LEVEL0, QUICK, RECIPE, RUN, STUDY, hashed_anew

# Cheap ones of the drawn cases, which run every day.
_DAILY = (1, 14, 27, 31, 58, 96)
_SET = "the system clock was set by {} s during the run, or the machine was suspended: the dates do not give its length"


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number in _DAILY else pytest.mark.slow) for number in range(CASES)]
)
def test_drawn_honest_results_pass(number: int, tmp_path: Path) -> None:
    case = drawn(number)
    found = made(case, tmp_path)
    assert list(found.findings) == [], case.what
    assert found.checks > 20


def test_cases_are_drawn_by_their_number() -> None:
    cases = [drawn(number) for number in range(CASES)]
    assert cases == [drawn(number) for number in range(CASES)]
    assert sum(case.kind == RUNS for case in cases) == 0.65 * CASES
    assert sum(case.kind == QUICKLY for case in cases) == 0.15 * CASES
    runs = [case for case in cases if case.kind == RUNS]
    for found in (
        [case for case in runs if case.set_at is not None and case.interruptions],
        [case for case in runs if max(case.pauses_s, default=0) > 86_400],
        [case for case in runs if case.newer],
        [case for case in runs if case.slow_disk],
        [case for case in runs if case.others],
        [case for case in runs if "SlowestStep" in case.source],
        [case for case in runs if "LargestStep" in case.source],
        [case for case in runs if "1e+30" in case.source],
    ):
        assert len(found) >= 5


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    hashed_anew(path.parent)


def _findings(folder: Path) -> list[str]:
    return [str(finding) for finding in audit([folder]).findings]


# The system clock -----------------------------------------------------------------------------------------------------


def _ran(out: Path, clock: Clock, *events: Any, resume: Path | None = None) -> Path:
    """The folder of a run of RECIPE, however it ended, with a checkpoint after each step."""
    out.mkdir(exist_ok=True)
    (out / "small.py").write_text(RECIPE)
    keeper = Checkpointer(every_steps=1, every_s=None)
    with clock.seen(), suppress(RunFailed, KeyboardInterrupt):
        execute(
            load_recipe(out / "small.py"), out=out / "runs", quiet=True, events=events, checkpointer=keeper,
            resume=resume,
        )  # fmt: skip
    (folder,) = (out / "runs").iterdir()
    return folder


def _reported(folder: Path) -> list[str]:
    """The warnings of a run about the system clock; a busy machine adds others."""
    return [said for said in json.loads((folder / "result.json").read_text())["warnings"] if "system clock" in said]


def _report(folder: Path, *warnings: str) -> None:
    """Replace the warnings about the system clock."""
    _edit(
        folder / "result.json",
        lambda d: d.update(warnings=[*(said for said in d["warnings"] if "system clock" not in said), *warnings]),
    )


def _sets(clock: Clock, by_s: float, step: int = 2) -> Hooks:
    return Hooks(random.Random(0), clock, step, by_s, slow=False)  # noqa: S311 - draws no secret


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_a_clock_that_was_set_is_reported_and_no_finding(by_s: float, tmp_path: Path) -> None:
    clock = Clock()
    folder = _ran(tmp_path, clock, _sets(clock, by_s))
    (warning,) = _reported(folder)
    assert any(warning == _SET.format(f"{by_s + off:+.0f}") for off in (-1, 0, 1))  # dates are in seconds
    assert _findings(folder) == []
    _report(folder, _SET.format("+900"))
    (finding,) = _findings(folder)
    assert "by which it reports that the system clock was set" in finding
    _report(folder)
    (finding,) = _findings(folder)
    assert finding.startswith("rule 8: ")
    assert "s by its clock; allowed: a difference of" in finding


def test_a_clock_that_was_not_set_is_not_reported(tmp_path: Path) -> None:
    assert _reported(_ran(tmp_path, Clock())) == []


def test_a_pause_of_days_is_no_clock_that_was_set(tmp_path: Path) -> None:
    clock = Clock()
    folder = _ran(tmp_path, clock, Interruption(3, KeyboardInterrupt()))
    clock.off_s += 3.5 * 86_400
    folder = _ran(tmp_path, clock, resume=folder)
    assert _reported(folder) == []
    assert _findings(folder) == []


def test_a_run_that_starts_again_after_days_has_a_later_log(tmp_path: Path) -> None:
    """Interrupted before its first checkpoint: the log is that of the second process."""
    clock = Clock()
    folder = _ran(tmp_path, clock, Interruption(0, KeyboardInterrupt()))
    clock.off_s += 3.5 * 86_400
    folder = _ran(tmp_path, clock, resume=folder)
    assert json.loads((folder / "result.json").read_text())["status"] == "success"
    assert _findings(folder) == []


def test_a_process_that_was_killed_after_its_clock_was_set_back(tmp_path: Path) -> None:
    """The killed process writes no warning: the one that resumes sees that it ends before it began."""
    clock = Clock()
    folder = _ran(tmp_path, clock, _sets(clock, -3600.0), Interruption(3, KeyboardInterrupt()))
    assert re.search(r"set by -3[56]\d\d s", _reported(folder)[0])
    _report(folder)  # as after a kill
    folder = _ran(tmp_path, clock, resume=folder)
    (warning,) = _reported(folder)
    assert re.search(r"set by -3[56]\d\d s", warning)  # the time between the processes counts
    assert _findings(folder) == []
    _report(folder)
    assert len(_findings(folder)) == 1


def _comparison(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(HONEST / QUICK, tmp_path / QUICK))
    shutil.copy(digits_lenet.__file__, folder / "recipe.py")
    return folder


def _ends_later(document: Any, by_s: int) -> None:
    ended = datetime.fromisoformat(document["finished"]) + timedelta(seconds=by_s)
    document["finished"] = f"{ended:%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize("by_s", [900, -900])
def test_dates_of_a_comparison_agree_with_its_duration(by_s: int, tmp_path: Path) -> None:
    folder = _comparison(tmp_path)
    assert _findings(folder) == []
    _edit(folder / "comparison.json", lambda d: _ends_later(d, by_s))
    (finding,) = _findings(folder)
    assert finding.startswith("rule 8: ")
    assert "s by its clock; allowed: a difference of" in finding
    _edit(folder / "comparison.json", lambda d: d["warnings"].append(_SET.format(f"{by_s:+}")))
    assert _findings(folder) == []


def test_a_resumed_comparison_took_no_less_than_its_duration(tmp_path: Path) -> None:
    folder = _comparison(tmp_path)
    _edit(folder / "comparison.json", lambda d: d["resumed"].append(d["started"]))
    _edit(folder / "comparison.json", lambda d: _ends_later(d, 86_400))
    assert not any("by its dates" in finding for finding in _findings(folder))
    _edit(folder / "comparison.json", lambda d: _ends_later(d, -86_400 - 900))
    assert any("by its dates" in finding for finding in _findings(folder))


# A busy machine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "accused"), [(0.5, False), (0.01, True), (None, True)])
def test_a_delay_between_two_readings_of_a_short_run(tmp_path: Path, share: float | None, accused: bool) -> None:
    """Seen in a run of one epoch beside ten other programs: 0.37 s by its samples, and 0.74 s by the events."""
    folder = Path(shutil.copytree(HONEST / RUN, tmp_path / RUN))
    path = folder / "result.json"
    document = json.loads(path.read_text())
    document["resources"]["others_share"] = share
    path.write_text(json.dumps(document))
    ledger = Ledger(RUN)
    samples = read_samples(folder / "samples.csv")
    lines = read_mllog(folder / "events.mllog")
    assert sum(line.key == "epoch_start" for line in lines) < 5  # the median of more ignores delays
    late = [replace(line, time_ms=line.time_ms + 600 * (line.key != "epoch_start")) for line in lines]
    _check_epochs(ledger, document, samples, late)
    assert bool([finding for finding in ledger.findings if "by the throughput" in finding.what]) == accused


@pytest.mark.parametrize(("share", "times", "accused"), [(0.97, 4, False), (0.97, 40, True), (0.01, 4, True)])
def test_a_peak_of_training_that_was_measured_under_load(
    tmp_path: Path, share: float, times: int, accused: bool
) -> None:
    """Seen on JAX beside other programs, which took 97 % of the processors: 357 % of the measured peak."""
    folder = Path(shutil.copytree(HONEST / RUN, tmp_path / RUN))
    value = next(row["value"] for row in json.loads((folder / "result.json").read_text())["metrics"]
                 if row["name"] == "utilisation")  # fmt: skip
    cells_of("utilisation", 100 * times / value)(folder)
    _edit(folder / "result.json", lambda d: d["resources"].update(others_share=share))
    assert any("of the machine's measured peak" in finding for finding in _findings(folder)) == accused


def test_a_peak_that_was_measured_under_load(tmp_path: Path) -> None:
    """A product may be faster than the measured peak where deep5 reports it, and never by any factor."""
    from deep5.bench.summary import _beyond_peak, rates_of, roofline_of

    folder = Path(shutil.copytree(HONEST / LEVEL0, tmp_path / LEVEL0))

    def slower(factor: float) -> Callable[[Any], None]:
        def change(document: Any) -> None:
            (row,), peak = document["rows"], document["roofline"]
            goal = row["flops"] / row["median_s"] / factor
            peak["flop_s"] = goal
            peak["seen"] = {name: [goal, rates[1]] for name, rates in peak["seen"].items()}
            row |= rates_of(row["median_s"], row["flops"], row["bytes"], roofline_of(peak))

        return change

    def tell(document: Any) -> None:
        (warning,) = _beyond_peak(json.loads((folder / "operators.json").read_text())["rows"])
        document["warnings"].append(warning)

    _edit(folder / "operators.json", slower(3.0))
    (finding,) = _findings(folder)
    assert "the machine's measured peak is" in finding
    for name in ("operators.json", "result.json"):
        _edit(folder / name, tell)
    assert _findings(folder) == []
    _edit(folder / "operators.json", slower(30.0))
    (finding,) = _findings(folder)
    assert "the machine's measured peak is" in finding
    _edit(folder / "operators.json", slower(1.0))
    assert _beyond_peak(json.loads((folder / "operators.json").read_text())["rows"]) == []


def test_steps_next_to_slow_events_are_not_compared_with_the_losses(tmp_path: Path) -> None:
    """An event of the recipe may take longer than a step; a network may be so small that deep5 takes longer."""
    folder = _run(tmp_path)
    _edit(folder / "result.json", lambda d: d["components"].update(events=[{"object": "Hooks"}]))
    report = audit([folder])
    assert [str(finding) for finding in report.findings] == []
    assert any("other events, metrics, checkpoints" in what for what in report.skipped)
    _edit(folder / "result.json", lambda d: d["components"].update(events=[{"event": "progress_bar"}]))
    assert not any("other events, metrics, checkpoints" in what for what in audit([folder]).skipped)


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (3.0, True), (0.1, True)])
def test_the_throughput_is_within_the_clock_of_its_steps(factor: float, found: bool, tmp_path: Path) -> None:
    """By one clock, without any allowance for a busy machine."""
    folder = _run(tmp_path)
    with (folder / "samples.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    with (folder / "samples.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        for line in lines:
            scaled = line["metric"] == "throughput"
            writer.writerow({**line, "value": repr(float(line["value"]) * factor)} if scaled else line)
    found_now = [finding for finding in _findings(folder) if "s by the throughput, and its steps" in finding]
    assert bool(found_now) == found


@pytest.mark.parametrize(("samples", "found"), [(96, True), (3, False)])
def test_seeds_of_a_tiny_training_set_may_draw_one_order(samples: int, found: bool, tmp_path: Path) -> None:
    """Three samples have 216 orders in three epochs."""
    folder = Path(shutil.copytree(HONEST / STUDY, tmp_path / STUDY))
    for run in (folder / "runs").iterdir():
        _edit(run / "result.json", lambda d: d["provenance"].update(batch_order="0123456789abcdef" * 4))
        log = run / "events.mllog"
        log.write_text(log.read_text().replace('"train_samples", "value": 96', f'"train_samples", "value": {samples}'))
    assert any("have the same batch order" in finding for finding in _findings(folder)) == found


# Keys of newer versions -----------------------------------------------------------------------------------------------


def _run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HONEST / RUN, tmp_path / RUN))


def _at_top(document: Any) -> None:
    document["seal"] = {"kind": "none"}


def _within(document: Any) -> None:
    document["measurement"]["governor"] = "performance"


def _in_a_list(document: Any) -> None:
    rows = document.get("metrics", document.get("processes"))
    for row in rows:
        row["origin"] = "drawn"


def _of(version: str, *adds: Callable[[Any], None]) -> Callable[[Any], None]:
    """Add keys, and state that this version wrote the result."""

    def change(document: Any) -> None:
        for add in adds:
            add(document)
        document["software"]["deep5"] = version

    return change


def _rehashed(folder: Path) -> None:
    """Give the environment the hash that belongs to the version."""
    from deep5.measuring.environment import environment_hash

    (path,) = (path for path in (folder / "result.json", folder / "comparison.json") if path.exists())

    def change(document: Any) -> None:
        software = document["software"]
        software["packages"]["deep5"] = software["deep5"]
        document["provenance"]["environment"] = environment_hash(document["system"]["before"], software)
        if (folder / "environment.json").exists():
            _edit(folder / "environment.json", lambda e: e.update(software=software))

    _edit(path, change)


@pytest.mark.parametrize("kind", [RUN, QUICK])
@pytest.mark.parametrize("add", [_at_top, _within, _in_a_list])
def test_keys_of_a_newer_version_are_not_rechecked(kind: str, add: Callable[[Any], None], tmp_path: Path) -> None:
    folder = _run(tmp_path) if kind == RUN else _comparison(tmp_path)
    name = "result.json" if kind == RUN else "comparison.json"
    _edit(folder / name, _of("99.0", add))
    _rehashed(folder)
    report = audit([folder])
    assert [str(finding) for finding in report.findings] == []
    assert any("a newer deep5 wrote it" in what for what in report.skipped)


@pytest.mark.parametrize("version", [__version__, "0.0.9", "newer", "", f"{__version__}.0", f"{__version__}+local"])
@pytest.mark.parametrize("add", [_at_top, _within, _in_a_list])
def test_unknown_keys_of_this_or_an_older_version_are_a_finding(
    version: str, add: Callable[[Any], None], tmp_path: Path
) -> None:
    folder = _run(tmp_path)
    _edit(folder / "result.json", _of(version, add))
    _rehashed(folder)
    (finding,) = _findings(folder)
    assert "result.json cannot be read" in finding
    assert "has the unknown field" in finding


def test_a_newer_version_excuses_nothing_else(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    _edit(folder / "result.json", _of("99.0", _at_top))
    _rehashed(folder)
    _edit(folder / "result.json", lambda d: d["metrics"][0].update(value=99.0))
    assert any("the value of test_accuracy; stored 99.0" in finding for finding in _findings(folder))
    _edit(folder / "result.json", lambda d: d["metrics"][0].update(samples="many"))
    assert any("result.json cannot be read" in finding for finding in _findings(folder))
    _edit(folder / "result.json", lambda d: d.update(schema_version="99"))
    assert any("has schema version '99'" in finding for finding in _findings(folder))


def test_a_run_that_an_event_stopped_before_its_first_step_has_no_first_call(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(RECIPE)
    stop = StopAfter(1e-9)
    folder = execute(load_recipe(tmp_path / "small.py"), out=tmp_path, quiet=True, events=[stop]).folder
    assert _findings(folder) == []
    _edit(folder / "result.json", lambda d: d.update(reasons=["test_accuracy did not meet its goal"]))
    assert any("the first call is not separate" in finding for finding in _findings(folder))
