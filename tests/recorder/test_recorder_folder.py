"""The folder of a recorded loop: signed, changed, killed at any moment, and in programs with worker processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
import forked
from deep5.audit.folders import audit
from deep5.core.errors import UsageError
from deep5.results.pack import pack
from deep5.results.result import load
from deep5.results.signature import MANIFEST, sign, verify
from deep5.trained.load import trained
from recorded_loops import busy
from stored_runs import SSH_KEYGEN, new_key

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def record(out: Path, name: str = "loop") -> Any:
    """A finished recording with regions, evaluations and losses."""
    with d5.record(name, {"training_loss": "< 5", "test_accuracy": None}, out=out, quiet=True) as run:
        for _ in range(2):
            with run.epoch():
                for _ in range(3):
                    with run.step(batch_size=2), run.region("forward"):
                        busy(1e-4)
                        run.log(loss=1.0)
                with run.evaluation():
                    run.log(accuracy=50.0)
    return run.result


@pytest.mark.skipif(not shutil.which(SSH_KEYGEN), reason="no ssh-keygen")
def test_one_changed_byte_in_any_file_is_found(tmp_path: Path) -> None:
    new_key(tmp_path, "mine", "ada@example.org")
    folder = record(tmp_path / "results").folder
    names = sorted(path.name for path in folder.iterdir())
    assert {"result.json", "samples.csv", "events.mllog", "time_breakdown.csv"} <= set(names)
    assert sign(folder, tmp_path / "mine") == len(names)
    assert verify(folder, tmp_path / "mine.pub")
    for name in names:
        path = folder / name
        content = path.read_bytes()
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        found = verify(folder, tmp_path / "mine.pub")
        assert not found, name
        assert [name in fault for fault in found.faults] == [True], name
        path.write_bytes(content)
    assert verify(folder, tmp_path / "mine.pub")
    assert MANIFEST not in names


_KILLED = """
import sys, deep5 as d5
from deep5.recorder import outcome
from recorded_loops import busy
outcome._INTERVAL_NS = outcome._MULTIPLE = 0  # it is always writing
with d5.record("killed", {"training_loss": None, "test_accuracy": None}, out=sys.argv[1], quiet=True) as run:
    print("begun", flush=True)
    for epoch in range(10_000):
        with run.epoch():
            for step in range(20):
                with run.step(batch_size=4), run.region("forward"):
                    run.log(loss=1.0)
            with run.evaluation(), run.region("test"):
                run.log(accuracy=50.0)
"""


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_loop_killed_at_random_moments_leaves_a_readable_folder(count: int, tmp_path: Path) -> None:
    draw = random.Random(count)  # noqa: S311 - moments
    for number in range(count):
        out = tmp_path / str(number)
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(out)], stdout=subprocess.PIPE, env=ENVIRONMENT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            time.sleep(draw.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        (folder,) = (path for path in out.iterdir() if not path.name.startswith("."))
        result = load(folder)
        assert (result.status, result.accepted) == ("aborted", None)
        for label, rows in result.samples().items():
            assert [row.index for row in rows] == list(range(len(rows))), label
        found = audit([folder])
        assert found, found.findings
    for words in (
        ("results", "list", str(tmp_path)),
        ("report", str(tmp_path), "-o", str(tmp_path / "page.html")),
        ("audit", str(tmp_path)),
    ):
        done = forked.run(["-m", "deep5", *words], timeout=300)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0, (words, done.stderr)


_WORKERS = """
import multiprocessing, sys
import torch
import deep5 as d5

def double(number):
    return 2 * number

data = torch.utils.data.TensorDataset(torch.arange(40.0))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
with d5.record("workers", {"training_loss": None}, out=sys.argv[1], quiet=True) as run:
    for _ in range(2):
        with run.epoch():
            for (batch,) in loader:
                with run.step(batch_size=len(batch)):
                    run.log(loss=batch.mean())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
print(run.result.status, run.result.metric("training_loss"))
"""


def test_workers_of_a_loader_and_forked_processes_do_not_disturb(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _WORKERS, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "success 19.5\n"
    assert done.stderr == ""
    (folder,) = tmp_path.iterdir()
    assert len(load(folder).samples()["time[step]"]) == 20
    assert audit([folder]), audit([folder]).findings


def test_the_same_cell_twice_makes_two_folders(tmp_path: Path) -> None:
    one, other = record(tmp_path), record(tmp_path)
    assert one.folder != other.folder
    assert load(one.folder).accepted
    assert load(other.folder).accepted
    assert len(list(tmp_path.iterdir())) == 2


def test_a_recording_is_not_repeated_and_has_no_network(tmp_path: Path) -> None:
    folder = record(tmp_path / "results").folder
    with pytest.raises(UsageError, match=r"is a recording of a loop that deep5 does not have; .*start the loop's own"):
        pack(folder, tmp_path / "loop.zip")
    assert not (tmp_path / "loop.zip").exists()
    with pytest.raises(UsageError, match=r"is a recording, and a recorder saves no network"):
        trained(folder)


def test_a_recorder_in_a_thread(tmp_path: Path) -> None:
    """A loop may run in a thread; a second thread cannot begin its own recorder, or a step of the open one."""
    found: list[Any] = []

    def loop() -> None:
        found.append(record(tmp_path))

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join(60)
    assert found[0].accepted
    assert audit([found[0].folder])

    errors: list[str] = []

    def interferes(run: Any) -> None:
        for use in (run.step(batch_size=1).__enter__, run.epoch().__enter__, d5.record("b", out=tmp_path).__enter__):
            try:
                use()
            except UsageError as error:
                errors.append(str(error))

    with d5.record("a", out=tmp_path, quiet=True) as run, run.epoch(), run.step(batch_size=1):
        other = threading.Thread(target=interferes, args=(run,))
        other.start()
        other.join(60)
    assert run.result
    assert [error.split(";")[0] for error in errors] == [
        "a step begins in a step",
        "an epoch begins in a step",
        "the recorder 'b' begins while 'a' is open",
    ]
