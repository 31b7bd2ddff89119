"""Ranks that are stopped or hang: named within the limit, with their state; and the run resumes."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deep5.results.result import load
from deep5.results.store import result_folders

pytestmark = pytest.mark.usefixtures("warm")

# The file SILENT names a rank, what happens to it, and where; `both` is every rank.
RECIPE = """
import os, signal, time
from pathlib import Path
import deep5 as d5
from deep5.training import checkpointer

SILENT = Path(__file__).with_name("silent")
RANK = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK"))


def silent(rank, where):
    if not SILENT.exists():
        return
    who, how, place = SILENT.read_text().split()
    if who in (str(rank), "both") and place == where:
        if how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "runs":
            while True:
                pass
        else:
            time.sleep(600)


class Silent(d5.Event):
    def before_step(self, trainer, info):
        self.rank = rank = trainer.communicator.rank
        if info.step == 0:
            silent(rank, "first")
        if info.step == 12:
            silent(rank, "step")


inner = checkpointer.write_checkpoint


def write_checkpoint(path, *given, **options):
    found = inner(path, *given, **options)
    if "0000000008" in str(path):
        silent(RANK, "checkpoint")
    return found


checkpointer.write_checkpoint = write_checkpoint
if RANK is not None:
    silent(RANK, "recipe")
FIXED = {
    "model": "lenet",
    "model_kwargs": {"activation": "tanh", "pooling": "average"},
    "dataset": "digits",
    "dataset_kwargs": {"size": 28, "limit": 330},
    "epochs": 3,
    "precision": "float64",
}
MUTABLE = {
    "batch_size": 50, "framework": "reference", "optimizer": "adam", "seed": 3,
    "scheme": "all_reduce", "scheme_kwargs": {"timeout_s": 8.0}, "events": [Silent()],
}
METRICS = [(d5.TestAccuracy(), None)]
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run that ends long before the limits of other waits: the longest is 60 s after the start."""
    command = [sys.executable, "-m", "deep5", "run", str(folder / "silent_ranks.py"), "--quiet", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def falls_silent(tmp_path: Path, launcher: str, who: str, how: str, where: str) -> str:
    """Run until a rank falls silent; check that the run can resume, and return the reason of its end."""
    (tmp_path / "silent_ranks.py").write_text(RECIPE)
    (tmp_path / "silent").write_text(f"{who} {how} {where}")
    words = ("--ranks", "2", "--launcher", launcher, "--checkpoint-every", "4", "--out", str(tmp_path / "out"))
    done = run(tmp_path, *words)
    assert done.returncode == 3, done.stderr
    if where == "recipe":
        assert not (tmp_path / "out").exists()
        return done.stderr
    (folder,) = result_folders(tmp_path / "out")
    result = load(folder)
    assert result.status in ("failed", "aborted")
    (reason,) = result.document["reasons"]
    last = done.stderr.splitlines()[-1]
    assert reason.partition("; remedy")[0] in last
    assert f"what it left is in {folder}" in last
    (tmp_path / "silent").unlink()
    again = run(tmp_path, *words[:4], "--resume", str(folder))
    assert again.returncode == 0, again.stderr
    resumed = load(folder)
    assert resumed.status == "success"
    assert [rank["steps"] for rank in json.loads((folder / "ranks.json").read_text())] == [21, 21]
    return str(reason)


HOST = re.escape(platform.node())
STOPPED = rf"rank {{}} of 2 on {HOST} has been stopped for \d s"


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
@pytest.mark.parametrize(
    "who", ["0", pytest.param("1", marks=pytest.mark.slow), pytest.param("both", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "where",
    [
        "step",
        pytest.param("first", marks=pytest.mark.slow),
        pytest.param("checkpoint", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_rank_is_named_and_the_run_resumes(tmp_path: Path, launcher: str, who: str, where: str) -> None:
    reason = falls_silent(tmp_path, launcher, who, "stops", where)
    if who == "both":
        assert re.match(rf"({STOPPED.format(0)} and )?{STOPPED.format('[01]')}, and ranks wait 8 s", reason), reason
    else:
        assert re.match(rf"{STOPPED.format(who)}, and ranks wait 8 s for each other at most", reason), reason


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
@pytest.mark.parametrize("who", ["0", "1"])
def test_a_rank_that_is_stopped_while_it_reads_its_recipe(tmp_path: Path, launcher: str, who: str) -> None:
    """Before a rank knows its limit, that of the first meeting counts."""
    said = falls_silent(tmp_path, launcher, who, "stops", "recipe")
    assert re.search(rf"rank {who} of 2 on {HOST} has been stopped for \d+ s, and ranks wait 60 s", said), said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
@pytest.mark.parametrize("who", ["0", "1"])
@pytest.mark.parametrize("how", ["sleeps", "runs"])
def test_a_rank_that_hangs_is_named_with_what_it_does(tmp_path: Path, launcher: str, who: str, how: str) -> None:
    reason = falls_silent(tmp_path, launcher, who, how, "step")
    state = {"sleeps": "sleeping", "runs": "running"}[how]
    other = 1 - int(who)
    assert re.match(
        rf"rank {who} of 2 on {HOST} is {state}; another rank waited for it, rank {other}: \w+ was not finished "
        rf"(on rank {other} )?within 8 s",
        reason,
    ), reason


@pytest.mark.parametrize(
    ("who", "where"),
    [
        ("1", "step"),
        *(pytest.param(who, where, marks=pytest.mark.slow) for who, where in (("0", "step"), ("1", "first"))),
    ],
)
def test_a_thread_that_hangs_is_named_with_its_place(tmp_path: Path, who: str, where: str) -> None:
    reason = falls_silent(tmp_path, "threads", who, "sleeps", where)
    line = RECIPE.splitlines().index("            time.sleep(600)") + 1
    place = rf"not there: rank {who} on {HOST}, which is at silent_ranks.py:{line}"
    assert re.search(rf"was not finished within 8 s; {place}", reason), reason
