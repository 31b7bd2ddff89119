"""`deep5 calibrate`: what it stores for a machine, the load it records, and what it prints when it replaces a file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import deep5.measuring.calibration
from command import Command
from deep5.measuring.calibration import Calibration, calibration_of_this_machine, kept_calibration, machine_id, said_of
from deep5.measuring.machine_load import machine_state, share_of_others
from deep5.measuring.pinning import processors

THREADS = 1


def _made(share: float | None = 0.0, age_days: float = 0) -> Calibration:
    return Calibration(
        machine=deep5.measuring.calibration.machine_id(),
        threads=THREADS,
        processes={"copy": tuple(1 + 0.001 * (number % 7) for number in range(32))},
        when=(datetime.now(UTC) - timedelta(days=age_days)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        others_share=share,
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of this machine's calibration, in the test's own cache."""
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    path = deep5.measuring.calibration._file(deep5.measuring.calibration.machine_id(), THREADS)
    path.parent.mkdir(parents=True)
    return path


def test_a_calibration_reads_back(kept: Path) -> None:
    made = _made(0.25)  # under load, which keeps it valid for some minutes
    kept.write_text(json.dumps(made.document()))
    assert calibration_of_this_machine(THREADS) == kept_calibration(THREADS) == made


def test_one_under_load_is_soon_measured_again(kept: Path) -> None:
    for share, lasts in ((0.04, True), (0.05, False)):
        made = _made(share, age_days=1 / 72)  # twenty minutes
        kept.write_text(json.dumps(made.document()))
        assert (calibration_of_this_machine(THREADS) == made) == lasts


def test_an_old_one_is_measured_again_and_still_known(kept: Path) -> None:
    made = _made(age_days=2)
    kept.write_text(json.dumps(made.document()))
    assert calibration_of_this_machine(THREADS) is None
    assert kept_calibration(THREADS) == made


@pytest.mark.parametrize("change", [{"version": 1}, {"others_share": "much"}, {"when": "yesterday"}, {"processes": {}}])
def test_a_file_that_is_damaged_or_of_an_earlier_version_is_none(kept: Path, change: dict[str, object]) -> None:
    kept.write_text(json.dumps({**_made().document(), **change}))
    assert kept_calibration(THREADS) is None


def test_load_is_told_and_warned_of_from_five_percent_on() -> None:
    assert said_of(_made(None), None) == []
    assert said_of(_made(0.049), None) == ["other programs took 4.9 % of the processors meanwhile"]
    assert [line.partition(":")[0] for line in said_of(_made(0.05), None)] == [
        "other programs took 5.0 % of the processors meanwhile",
        "warning",
    ]


def test_what_others_took_is_what_is_busy_and_not_ones_own() -> None:
    def at(seconds: float, busy_s: float, own_s: float) -> dict[str, float]:
        return {"at_s": seconds, "busy_s": busy_s, "own_s": own_s, "processors": 2}

    # Two spans of half a second each on two processors: other programs used 0.4 s of 2 s.
    spans = [(at(0, 10, 0), at(0.5, 10.7, 0.5)), (at(7, 90, 0), at(7.5, 90.7, 0.5))]
    assert share_of_others(spans) == pytest.approx(0.2)
    assert share_of_others(spans[:1]) is None
    # Ticks may be counted late: the share is never negative.
    assert share_of_others([(at(0, 0, 0), at(2, 1.9, 2))]) == 0


@pytest.mark.slow
def test_the_load_while_calibrating_is_measured_and_kept(
    deep5: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process computes on the same processor all the time, and an older calibration is replaced."""
    monkeypatch.setattr("deep5.measuring.calibration.PROCESSES", 16)
    before = _made(age_days=2)
    kept.write_text(json.dumps(before.document()))
    pin = f"import os; os.sched_setaffinity(0, {processors(THREADS)})"
    with subprocess.Popen([sys.executable, "-c", f"{pin}\nwhile True: pass"]) as busy:
        try:
            answer = deep5("calibrate", "--threads", str(THREADS))
        finally:
            busy.kill()
    assert answer.status == 0
    made = kept_calibration(THREADS)
    assert made is not None
    assert made.others_share is not None
    assert made.others_share > 0.2
    assert answer.out.splitlines()[3:] == said_of(made, before)
    assert len(said_of(made, before)) == 3
    assert f"replaces the calibration of {before.when}: largest difference of two processes 0.6 % -> " in answer.out


def test_what_a_process_started_itself_is_its_own() -> None:
    """For example a compiler, or a program that identifies the processor."""
    before = machine_state()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
    assert machine_state()["own_s"] - before["own_s"] >= 1


def test_clear_forgets_every_number_of_threads_or_the_one_that_is_given(deep5: Command, kept: Path) -> None:
    machine = machine_id()
    own = [kept.with_name(f"{machine}-{threads}.json") for threads in (1, 2, 16)]
    other = kept.with_name(f"{'0' * 16}-1.json")  # several machines may share a cache
    for path in (*own, other):
        path.write_text("{}")
    assert deep5("calibrate", "--clear", "--threads", "2") == (0, "", "")
    assert [path.exists() for path in (*own, other)] == [True, False, True, True]
    assert deep5("calibrate", "--clear") == (0, "", "")
    assert [path.exists() for path in (*own, other)] == [False, False, False, True]
    assert deep5("calibrate", "--clear") == (0, "", "")  # there is nothing to forget


def test_what_cannot_be_forgotten_is_told_in_one_line(deep5: Command, kept: Path) -> None:
    kept.mkdir()
    answer = deep5("calibrate", "--clear")
    (line,) = answer.err.splitlines()
    assert f"cannot remove {kept}: " in line
    assert answer.status == 2
