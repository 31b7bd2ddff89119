"""Child processes: every way to end is reported in words, everything is limited, and no process keeps running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import child_jobs as jobs
from deep5.core import child_process
from deep5.core.child_process import supervise
from deep5.core.process_end import full_disk, how_ended, last_lines
from deep5.core.process_tree import descendants, is_alive
from deep5.core.python_child import ask, keep, python_command, run_function

# The test fails, instead of hanging, if a limit does not work.
LONG_S, SHORT_S = 60.0, 2.0


def gone(process: int) -> bool:
    """Whether a process ends within some seconds; it may still be ending."""
    deadline = monotonic() + LONG_S
    while monotonic() < deadline:
        try:
            if not is_alive(psutil.Process(process)):
                return True
        except psutil.NoSuchProcess:
            return True
        sleep(0.01)
    return False


@pytest.fixture(params=[True, False], ids=["handle", "polling"])
def noticed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the system's handle for the end of a process."""
    if not request.param:
        monkeypatch.setattr(child_process, "_end_handle", lambda process: None)


@pytest.mark.usefixtures("noticed")
@pytest.mark.parametrize("value", [None, {"a": [1, 2.5, "ü\n"]}, "x" * 300_000], ids=["none", "nested", "large"])
def test_an_answer_returns_unchanged(value: Any) -> None:
    answer = ask(jobs.repeat, value, time_limit_s=LONG_S)
    assert (answer.value, answer.fault) == (value, None)
    assert (answer.ended.status, answer.ended.stopped, answer.ended.late) == (0, None, False)


def test_printed_garbage_does_not_reach_the_answer() -> None:
    answer = ask(jobs.noisy, 7, time_limit_s=LONG_S)
    assert (answer.value, answer.fault) == (7, None)
    assert (answer.ended.output, answer.ended.errors) == (b'{"a": \xff\xfe\0\n', b"]]] \xc3\n")


def test_a_child_has_a_closed_input_its_environment_its_group_and_the_modules_of_its_parent() -> None:
    answer = ask(jobs.surroundings, time_limit_s=LONG_S, environment={**os.environ, "DEEP5_TEST": "set"})
    assert answer.value == ["", "set", True, sys.path]


@pytest.mark.usefixtures("noticed")
def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    answer = ask(jobs.hang, str(tmp_path / "pid"), time_limit_s=SHORT_S)
    assert answer.fault == "did not finish within 2 s"
    assert answer.ended.late
    assert answer.ended.status == -signal.SIGKILL
    assert answer.ended.wall_s >= SHORT_S
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.usefixtures("noticed")
@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (0, "exited with status 0, without an answer; its last output: two | three | four"),
        (3, "exited with status 3, without an answer; its last output: two | three | four"),
        (-signal.SIGSEGV, "was killed by SIGSEGV; its last output: two | three | four"),
        (
            -signal.SIGKILL,
            "was killed by SIGKILL; the system does so when memory runs out; its last output: two | three | four",
        ),
        (-40, "was killed by signal 40; its last output: two | three | four"),
    ],
)
def test_an_end_without_an_answer_is_described(status: int, fault: str) -> None:
    answer = ask(jobs.stop, status, time_limit_s=LONG_S)
    assert (answer.value, answer.fault) == (None, fault)
    assert (answer.ended.status, answer.ended.stopped) == (status, None)


@pytest.mark.parametrize(
    ("job", "said"), [(jobs.fail, "ZeroDivisionError: by nothing"), (jobs.unwritable, "is not JSON serializable")]
)
def test_an_error_in_the_child_is_quoted(job: Any, said: str) -> None:
    answer = ask(job, time_limit_s=LONG_S)
    assert answer.fault is not None
    assert answer.fault.startswith("exited with status 1, without an answer; its last output: ")
    assert said in answer.fault


@pytest.mark.parametrize("handle", [1, 2])
def test_a_child_that_floods_its_output_is_ended(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "MOST_PRINTED", 1 << 20)
    ended = run_function(jobs.flood, handle, time_limit_s=LONG_S, separate=True)
    assert (ended.stopped, ended.late) == ("printed more than 1 MiB", False)
    assert sorted([len(ended.output), len(ended.errors)]) == [0, 1 << 20]


@pytest.mark.usefixtures("noticed")
@pytest.mark.parametrize("ends", [True, False])
def test_a_grandchild_does_not_outlive_the_child_nor_delay_its_end(tmp_path: Path, ends: bool) -> None:
    ended = run_function(
        jobs.leave, str(tmp_path / "pid"), False, ends, time_limit_s=LONG_S if ends else SHORT_S, hear=None
    )
    assert ended.late is not ends
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_grandchild_in_its_own_session_is_ended_after_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_GRACE_S", 0.1)
    place = tmp_path / "pid"

    def look(processes: Sequence[psutil.Process]) -> str | None:
        there = place.exists() and place.read_text()
        return "is complete" if there and int(there) in {each.pid for each in processes} else None

    ended = run_function(jobs.leave, str(place), True, False, time_limit_s=LONG_S, look=look)
    assert (ended.stopped, ended.late, ended.where) == ("is complete", False, "")
    assert gone(int(place.read_text()))


@pytest.mark.usefixtures("noticed")
def test_reports_arrive_in_order_and_the_last_one_names_the_place() -> None:
    heard: list[str] = []
    answer = ask(jobs.steps, 1000, True, time_limit_s=LONG_S, hear=heard.append)
    assert heard == [f"step {number} of 1000" for number in range(1000)]
    assert (answer.value, answer.ended.where) == (1000, " in step 999 of 1000")
    answer = ask(jobs.steps, 0, False, time_limit_s=SHORT_S, hear=keep)
    assert answer.fault == "did not finish within 2 s in the start"


def test_reports_without_end_do_not_extend_the_limit() -> None:
    ended = run_function(jobs.chatter, time_limit_s=SHORT_S, hear=keep)
    assert (ended.stopped, ended.late, ended.where) == ("did not finish within 2 s", True, " in the same")


def test_a_report_changes_the_limit() -> None:
    answer = ask(
        jobs.steps, 2, False, time_limit_s=LONG_S, hear=lambda doing: 0.2 if doing.startswith("step 1") else LONG_S
    )
    assert answer.fault == "did not finish within 0.2 s in step 1 of 2"


def test_an_exception_in_the_parent_ends_the_child() -> None:
    def hear(doing: str) -> None:
        assert [each for each in descendants(os.getpid()) if is_alive(each)]
        raise KeyboardInterrupt(doing)

    before = {each.pid for each in descendants(os.getpid())}
    with pytest.raises(KeyboardInterrupt, match="step 0 of 1"):
        ask(jobs.steps, 1, False, time_limit_s=LONG_S, hear=hear)
    assert not [each for each in descendants(os.getpid()) if each.pid not in before and is_alive(each)]


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    program = (
        "import child_jobs, sys; from deep5.core.python_child import ask; "
        "ask(child_jobs.hang, sys.argv[1], time_limit_s=600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(place)], env={**os.environ, "PYTHONPATH": str(Path(jobs.__file__).parent)}
    ) as parent:
        deadline = monotonic() + LONG_S
        while not (place.exists() and place.read_text()) and monotonic() < deadline:
            sleep(0.01)
        parent.kill()
    assert gone(int(place.read_text()))


def test_standard_input_is_sent_whole() -> None:
    heard: list[str] = []
    run_function(jobs.received, time_limit_s=LONG_S, sent=bytes(1 << 20), hear=heard.append)
    assert heard == [f"{1 << 20} bytes"]


def test_words_after_a_command_become_its_last_argument() -> None:
    ended = supervise([*python_command(jobs.joined, 1, [2]), "three", "four"], time_limit_s=LONG_S)
    assert ended.output == b"(1, [2], ['three', 'four'])\n"
    assert supervise(python_command(jobs.joined, 1), time_limit_s=LONG_S).output == b"(1,)\n"


def test_a_program_that_is_missing_raises() -> None:
    with pytest.raises(FileNotFoundError, match="not-there"):
        supervise(["/not-there"], time_limit_s=LONG_S)


def test_words_for_ends_and_output() -> None:
    assert how_ended(0) == "exited with status 0"
    assert how_ended(-signal.SIGABRT) == "was killed by SIGABRT"
    assert last_lines(b" \n-----\n") == ""
    assert last_lines(b"a" * 300 + b"\n") == f"; its last output: {'a' * 200}"


def test_a_full_disk_of_temporary_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_disk() == ""
    own = os.statvfs(tempfile.gettempdir())
    fields = dict(zip(("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail"), own, strict=False))
    for changed, full in (
        ({"bavail": 1}, True),
        ({"favail": 0, "files": 100}, True),
        ({"favail": 0, "files": 0}, False),
    ):
        found = SimpleNamespace(**{f"f_{name}": value for name, value in {**fields, **changed}.items()})
        monkeypatch.setattr(os, "statvfs", lambda folder, found=found: found)
        assert ("only; remedy: free some space, or set TMPDIR" in full_disk()) == full
