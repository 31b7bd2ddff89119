"""Ranks that are started and watched: every end is detected and named once, and no process remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from deep5.core.errors import MissingDependency, UsageError
from deep5.core.process_end import last_lines
from deep5.distributed.communicators.threads import ThreadCommunicator, run_in_threads
from deep5.distributed.launch.join import Report, compare_ranks
from deep5.distributed.launch.launcher import Launched, check_ranks, launched
from deep5.distributed.launch.start import Launcher, RanksEnded, start_ranks

LAUNCHERS = ["mpiexec", "torchrun"]
# Settings of a launcher or a batch system in the environment of the tests are not under test.
OWN = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "DEEP5_RANKS", "DEEP5_LAUNCH", "TORCHELASTIC_", "MASTER_")
ALONE = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MPI_LOCALRANKID"}
RANK = """
import json, os, signal, sys, time
from deep5.distributed.launch.join import Report
from deep5.distributed.launch.launcher import launched
me = launched()
report = Report()
report.started()
"""
WATCH = """
import json, os, sys
from deep5.distributed.launch.start import start_ranks
ended = start_ranks([sys.executable, "-c", sys.argv[2]], ranks=2, launcher=sys.argv[1], grace_s=8.0)
print("ENDED", ended.status, ended.lost, ended.result_folder, file=sys.stderr)
sys.exit(ended.status)
"""


@pytest.fixture(autouse=True)
def _not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(OWN) or name in ALONE:
            monkeypatch.delenv(name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of temporary folders, and a mark that identifies each process of the test by its environment."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("DEEP5_TEST_MARK", str(tmp_path))
    yield tmp_path
    assert left(str(tmp_path)) == []
    assert list((tmp_path / "t").glob("deep5-ranks-*")) == []


def left(mark: str, within_s: float = 0.0) -> list[str]:
    """Command lines of the processes of a test that are alive, at the latest `within_s` seconds later."""
    deadline = time.monotonic() + within_s
    while True:
        found = []
        for each in psutil.process_iter():
            try:
                mine = each.environ().get("DEEP5_TEST_MARK") == mark
                if mine and each.pid != os.getpid() and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(each.cmdline())[:200])
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def start(launcher: str, body: str, ranks: int = 2, **options: Any) -> RanksEnded:
    command = [sys.executable, "-c", RANK + textwrap.dedent(body)]
    return start_ranks(command, ranks=ranks, launcher=launcher, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("launcher", "ranks"), [("mpiexec", 3), ("torchrun", 2)])
def test_all_end_well_and_the_output_of_rank_0_comes_unchanged(
    place: Path, launcher: str, ranks: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ended = start(
        launcher,
        f"""
        report.folder(f"/results/{{me.rank}}")
        assert me.size == {ranks} and me.local_rank == me.rank, me
        if me.rank == 0:
            sys.stdout.buffer.write(bytes(range(256)) * 1000)
            print("progress", file=sys.stderr)
        else:
            print("another's")
            print("another's", file=sys.stderr)
        report.finished(0)
        """,
        ranks,
    )
    out, err = capfdbinary.readouterr()
    assert ended == RanksEnded(status=0, result_folder=Path("/results/0"))
    assert out == bytes(range(256)) * 1000
    assert err == b"progress\n"


KILLED = {
    "start": "if me.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(3600)",
    "middle": "time.sleep(0.5)\nif me.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(3600)",
    "end": "if me.rank == 0: sys.exit(0)\ntime.sleep(0.5)\nos.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize(
    ("launcher", "when"), [("mpiexec", "start"), ("mpiexec", "middle"), ("mpiexec", "end"), ("torchrun", "middle")]
)
def test_a_killed_rank_is_named_and_the_others_are_ended(
    place: Path, launcher: str, when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = start(launcher, KILLED[when], ranks=2)
    assert (ended.status, ended.lost, ended.failed, ended.signal) == (3, 1, None, signal.SIGKILL)
    assert "rank 1 of 2 is lost: it was killed by SIGKILL" in str(ended.error)
    assert ended.seconds_to_notice is not None
    assert ended.seconds_to_notice >= 0.0
    assert capfd.readouterr() == ("", "")  # no output of the launcher


def test_a_rank_that_does_not_end_by_sigterm_is_killed_with_what_it_started(place: Path) -> None:
    ended = start(
        "mpiexec",
        """
        import subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        time.sleep(0.3)
        if me.rank == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(3600)
        """,
    )
    assert (ended.lost, ended.signal) == (0, signal.SIGSEGV)


def test_an_error_of_a_ranks_own_is_told_once(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ended = start(
        "mpiexec",
        """
        assert report.watched
        while not os.path.exists(f"{os.environ['DEEP5_RANKS']}/rank-{1 - me.rank}.json"):
            time.sleep(0.01)
        time.sleep(0.1 * (1 - me.rank))
        report.failed(f"the recipe is not valid, says rank {me.rank}", 2, reason="it is not", trace="line 7")
        # As MPI's end may: it waits for the others.
        time.sleep(60 if me.rank else 0)
        sys.exit(2)
        """,
    )
    assert (ended.status, ended.lost, ended.failed) == (2, None, 1)
    assert ended.error == "the recipe is not valid, says rank 1"
    # Rank 0 reports the same 0.1 s later; deep5 waits 1 s for that.
    assert (ended.reason, ended.alike, ended.trace) == ("it is not", True, "line 7")
    assert capfd.readouterr() == ("", "")


def test_an_error_that_nobody_reported_is_told_by_what_the_rank_said(place: Path) -> None:
    ended = start("mpiexec", "if me.rank: raise ValueError('a slip')\ntime.sleep(3600)")
    assert (ended.status, ended.failed) == (1, 1)
    assert str(ended.error).endswith("ValueError: a slip")


def test_a_program_that_is_not_there_is_an_error(place: Path) -> None:
    ended = start_ranks(["/no/such/program"], ranks=2, launcher="mpiexec")
    assert ended.status == 127
    assert ended.failed is not None


def test_a_launcher_that_fails_is_told(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\necho there are no slots >&2\nexit 7\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr("deep5.distributed.launch.start._mpiexec", lambda: str(mpiexec))
    ended = start("mpiexec", "")
    assert ended.error == "mpiexec exited with status 7 before its ranks; its last output: there are no slots"
    assert ended.status == 3


def test_a_rank_that_does_not_begin_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.distributed.launch.job.BEGIN_S", 2.0)
    program = RANK.replace(
        "report.started()", "if me.rank == 1: print('reads', flush=True); time.sleep(3600)\nreport.started()"
    )
    ended = start_ranks([sys.executable, "-c", program + "time.sleep(3600)"], ranks=2, launcher="mpiexec")
    assert (ended.status, ended.failed) == (3, 1)
    assert ended.error is not None
    assert ended.error.startswith("rank 1 of 2 did not begin within 2 s of the first one; remedy: look at what takes")
    assert ended.error.endswith("its last output: reads")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_batch_system_gave_is_not_asked(place: Path, launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task on one node, and two ranks; deep5 starts its own ranks all on this machine."""
    for name, value in {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOBID": "4711",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NODELIST": "here,elsewhere",
        "SLURM_JOB_NODELIST": "here,elsewhere",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_NTASKS": "2",
        "PBS_JOBID": "4711",
        "PBS_NODEFILE": "/not/there",
    }.items():
        monkeypatch.setenv(name, value)
    ended = start(launcher, "assert not [name for name in os.environ if name.startswith('SLURM_')]\nreport.finished(0)")
    assert ended == RanksEnded(status=0), ended


def test_of_what_a_launcher_says_boxes_are_left_out() -> None:
    said = b"-----------\nThere are not enough slots\n\x00\nin the system\n------------\n  \n"
    assert last_lines(said) == "; its last output: There are not enough slots | in the system"


NO_LISTENER = """#!/bin/sh
if [ "$1" != --version ] && [ $(cat {count} | wc -l) -lt {fails} ]
then
    echo once more >> {count}
    echo "The PMIx server's listener thread failed to start." >&2
    exit 213
fi
exec {mpiexec} "$@"
"""


@pytest.mark.parametrize(("fails", "status"), [(2, 0), (3, 3)])
def test_a_launcher_that_found_no_network_is_tried_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, status: int
) -> None:
    from deep5.distributed.launch.start import _mpiexec

    count, mpiexec = tmp_path / "count", tmp_path / "mpiexec"
    count.touch()
    mpiexec.write_text(NO_LISTENER.format(count=count, fails=fails, mpiexec=_mpiexec()))
    mpiexec.chmod(0o755)
    monkeypatch.setattr("deep5.distributed.launch.start._mpiexec", lambda: str(mpiexec))
    ended = start("mpiexec", "report.finished(0)")
    assert ended.status == status, ended
    assert ("listener thread failed to start" in str(ended.error)) == (status == 3)
    assert len(count.read_text().splitlines()) == fails


UNREACHED = """
began = {place!r} + "/began"
if me.rank == 1:  # on a busy machine, it may start much later than the other
    open(began, "w").close()
while not os.path.exists(began):
    time.sleep(0.01)
if me.rank == 0:
    report.failed("rank 1 did not answer", reason="rank 1 did not answer", unreached=True)
    sys.exit(3)
time.sleep({seconds})
os.kill(os.getpid(), signal.SIGABRT)
"""


@pytest.mark.parametrize(("seconds", "lost", "failed"), [(2.5, 1, None), (60, None, 0)])
def test_a_rank_that_did_not_reach_another_is_named_where_nothing_ended_that(
    place: Path, seconds: float, lost: int | None, failed: int | None
) -> None:
    """A process ends some time after its connections: the system may write its memory to a file."""
    ended = start("mpiexec", UNREACHED.format(place=str(place), seconds=seconds))
    assert (ended.status, ended.lost, ended.failed) == (3, lost, failed), ended
    assert ended.signal == (signal.SIGABRT if lost else None)
    assert (ended.error == "rank 1 did not answer") == (failed == 0)


@pytest.mark.parametrize(("launcher", "number"), [("mpiexec", signal.SIGINT), ("torchrun", signal.SIGTERM)])
def test_a_signal_at_the_parent_lets_the_ranks_save(place: Path, launcher: str, number: int) -> None:
    body = RANK + textwrap.dedent(
        f"""
        def save(number, frame):
            time.sleep(0.2 + 0.8 * me.rank)  # the first that is done does not end the other
            open({str(place)!r} + f"/saved-{{me.rank}}", "w").write(str(number))
            sys.exit(130)
        signal.signal(signal.SIGINT, save)
        signal.signal(signal.SIGTERM, save)
        report.folder("/results/run")
        open({str(place)!r} + f"/here-{{me.rank}}", "w").close()
        time.sleep(3600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", WATCH, launcher, body], stderr=subprocess.PIPE, text=True)
    until(lambda: all((place / f"here-{rank}").exists() for rank in (0, 1)))
    parent.send_signal(number)
    err = parent.communicate(timeout=30)[1]
    assert parent.returncode == 130
    assert err == "ENDED 130 None /results/run\n"
    assert [(place / f"saved-{rank}").read_text() for rank in (0, 1)] == [str(int(number))] * 2


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_end_with_a_parent_that_is_killed(place: Path, launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(place / "t"))
    body = RANK + f"open({str(place)!r} + f'/here-{{me.rank}}', 'w').close(); time.sleep(3600)"
    parent = subprocess.Popen([sys.executable, "-c", WATCH, launcher, body])
    until(lambda: all((place / f"here-{rank}").exists() for rank in (0, 1)))
    parent.kill()
    parent.wait()
    assert left(str(place), within_s=10.0) == []
    # The files of the launcher and the ranks of MPI.
    assert [path for path in (place / "t").iterdir() if path.name.startswith("ompi.")] == []


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rank_0_draws_on_the_terminal_itself(place: Path) -> None:
    import pty

    terminal, there = pty.openpty()
    body = RANK + "print(sys.stdout.isatty(), sys.stderr.isatty()) if me.rank == 0 else print('another')"
    parent = subprocess.Popen([sys.executable, "-c", WATCH, "mpiexec", body], stdout=there, stderr=there)
    assert parent.wait(30) == 0
    os.close(there)
    assert os.read(terminal, 4096).decode().splitlines() == ["True True", "ENDED 0 None None"]
    os.close(terminal)


JOINED = """
import numpy as np
from deep5.distributed.launch.join import compare_ranks, join
from deep5.core.errors import UsageError
communicator = join(me)
total = np.array([me.rank + 1.0])
communicator.all_reduce(total)
told = None
try:
    compare_ranks(communicator, {"recipe": "abc", "numpy": "2.1" if me.rank else "2.2"})
except UsageError as error:
    told = str(error)
communicator.barrier()
print(json.dumps([type(communicator).__name__, total[0], told]))
"""


@pytest.mark.parametrize(
    ("launcher", "name"), [("mpiexec", "MPICommunicator"), ("torchrun", "ProcessGroupCommunicator")]
)
def test_ranks_meet(place: Path, launcher: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(launcher, JOINED).status == 0
    kind, total, told = json.loads(capfd.readouterr().out)
    assert (kind, total) == (name, 3.0)
    assert told.startswith("the ranks differ in numpy: '2.2' on rank 0 and '2.1' on rank 1")


def test_ranks_that_differ_are_refused_on_all_of_them() -> None:
    def refused(communicator: ThreadCommunicator) -> str:
        facts = {"recipe": "abc", "versions": "é" * (1 + communicator.rank // 2)}
        with pytest.raises(UsageError, match=r"the ranks differ in versions: 'é' on rank 0, 1 and 'éé' on rank 2, 3"):
            compare_ranks(communicator, facts)
        with pytest.raises(UsageError, match="the ranks differ in commit: nothing on rank 0, 1, 2 and 'x' on rank 3"):
            compare_ranks(communicator, {"commit": "x"} if communicator.rank == 3 else {})
        lists = [1] * 100 + [communicator.rank % 2]
        settings = {"seed": communicator.rank, "batch_size": 64, "kwargs": {"lr": 0.1, "sizes": lists}}
        told = (
            "the ranks differ in the settings: seed: 0 on rank 0, 1 on rank 1, 2 on rank 2, 3 on rank 3; "
            r"kwargs\.sizes: … 1, 1, 1, 0\] on rank 0, 2, … 1, 1, 1, 1\] on rank 1, 3; allowed: the same"
        )
        with pytest.raises(UsageError, match=told):
            compare_ranks(communicator, {"the settings": settings})
        with pytest.raises(UsageError, match=r"the settings: lr: nothing on rank 0, 1, 2, 0\.1 on rank 3; allowed"):
            compare_ranks(communicator, {"the settings": {"lr": 0.1} if communicator.rank == 3 else {}})
        compare_ranks(communicator, {"recipe": "abc", "the settings": {"lr": 0.1}})
        return "refused"

    assert run_in_threads(4, refused) == ["refused"] * 4


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
TORCH = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "LOCAL_RANK": "0"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (OPEN_MPI, (1, 4, "mpi", None, "mpiexec of Open MPI")),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (1, 4, "mpi", 0, "mpiexec of Open MPI")),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, "mpi", None, "mpiexec")),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        (TORCH, (1, 4, "torch", 0, "RANK and WORLD_SIZE")),
        ({**TORCH, "TORCHELASTIC_RUN_ID": "x"}, (1, 4, "torch", 0, "torchrun")),
        ({"RANK": "3", "WORLD_SIZE": "4"}, None),
        (BATCH, None),
        (STEP, (3, 4, "mpi", 1, "srun")),
        ({**STEP, "PMIX_RANK": "3"}, (3, 4, "mpi", 1, "srun")),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
        ({**BATCH, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}, None),
        # One torchrun per machine, each a task of Slurm's.
        ({**STEP, **TORCH}, (1, 4, "torch", 0, "RANK and WORLD_SIZE")),
        # In a job of Slurm's, mpiexec starts the requested number of ranks.
        ({**BATCH, **OPEN_MPI}, (1, 4, "mpi", None, "mpiexec of Open MPI")),
        (
            {"DEEP5_LAUNCH": "mpiexec:4", **OPEN_MPI, "RANK": "0", "WORLD_SIZE": "9"},
            (1, 4, "mpi", None, "mpiexec of Open MPI"),
        ),
        ({"DEEP5_LAUNCH": "mpiexec:1", "PMI_RANK": "0", "PMI_SIZE": "1"}, (0, 1, "mpi", None, "mpiexec")),
    ],
)
def test_what_a_process_was_started_as(
    variables: Mapping[str, str], expected: tuple[Any, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = launched()
    assert (None if found is None else (found.rank, found.size, found.kind, found.local_rank, found.by)) == expected
    assert found is None or isinstance(found, Launched)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set; allowed: an integer"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE is 'four'; allowed: an integer"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, "rank 1 of 1; allowed: a rank below"),
        ({**OPEN_MPI, **TORCH, "WORLD_SIZE": "8"}, "rank 1 of 4 and RANK and WORLD_SIZE that it is rank 1 of 8"),
        ({**STEP, "PMIX_RANK": "2"}, "SLURM_PROCID=3 and PMIX_RANK=2; allowed: the same"),
        ({"DEEP5_LAUNCH": "mpiexec:3", **OPEN_MPI}, "'mpiexec:3' and a job of 4; allowed: the same number"),
        ({"DEEP5_LAUNCH": "mpiexec:3"}, "no variable of it"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(
    variables: Mapping[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        launched()


def test_who_is_not_watched_reports_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = Report()
    report.started()
    report.failed("nobody hears it")
    assert not report.watched
    assert list(tmp_path.iterdir()) == []


def test_without_mpiexec_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    told = r"mpiexec is not installed.*pip install 'deep5\[mpi\]', or --launcher "
    with pytest.raises(MissingDependency, match=f"{told}torchrun$"):
        start_ranks(["true"], ranks=2, launcher="mpiexec")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=f"{told}threads$"):
        start_ranks(["true"], ranks=2, launcher="mpiexec")


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'deep5\[pytorch\]'"):
        start_ranks(["true"], ranks=2, launcher="torchrun")


@pytest.mark.parametrize("ranks", [0, -1, True, 2.0])
def test_a_number_of_ranks_that_is_none_is_refused(ranks: Any) -> None:
    with pytest.raises(UsageError, match="allowed: an integer of at least 1"):
        start_ranks(["true"], ranks=ranks, launcher="mpiexec")


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_more_ranks_than_a_machine_can_start_are_refused(launcher: Launcher) -> None:
    processors = len(os.sched_getaffinity(0))
    most = max(8 * processors, 16)
    with pytest.raises(
        UsageError,
        match=rf"^100000 ranks on this machine, whose processors are {processors}; .*; remedy: --ranks {most}, or",
    ):
        start_ranks(["true"], ranks=100_000, launcher=launcher)
    check_ranks(most)
    with pytest.raises(UsageError, match=f"^{most + 1} ranks"):
        check_ranks(most + 1)


def test_a_launcher_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown launcher 'srun'; allowed: mpiexec, torchrun"):
        start_ranks(["true"], ranks=2, launcher="srun")  # type: ignore[arg-type]
