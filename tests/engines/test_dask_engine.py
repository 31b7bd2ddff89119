"""Sweeps on Dask: real clusters, also one whose workers vanish."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from deep5.core.errors import UnknownName, UsageError
from deep5.engines import dask_engine
from deep5.engines.lease import ATTEMPT
from deep5.engines.make import make_engine
from deep5.measuring.pinning import processors
from deep5.results.result import load
from deep5.results.sweep.record import load_sweep
from deep5.search.sweep import run_sweep
from small_recipe import RECIPE

SPACE = {"optimizer_kwargs.lr": "log(1e-4, 1)"}
PROGRAM = [sys.executable, "-m"]
TWO = min(2, len(processors(2)))

# Dask's own code, which these tests do not own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(RECIPE)
    return path


def search(recipe, out, **more):
    about = {"goal": "test_loss", "trials": 4, "sampler": "random", "parallel": 2, "workers": TWO, "out": out}
    return run_sweep(recipe, SPACE, **{**about, **more})


def told(sweep):
    return [(t.number, t.settings, t.state, t.value, tuple(t.curve), t.epochs) for t in sweep.trials]


def test_a_cluster_of_its_own_runs_the_same_trials(recipe, tmp_path):
    local = search(recipe, tmp_path / "local")
    ours = search(recipe, tmp_path / "dask", engine="dask")
    assert told(ours) == told(local)


@pytest.fixture
def cluster():
    """A scheduler and a worker as a user starts them."""
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0", "PYTHONWARNINGS": "ignore"}
    about = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    port = _free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = subprocess.Popen(
        [*PROGRAM, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        **about,
    )

    def worker():
        return subprocess.Popen(
            [*PROGRAM, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"],
            **about,
        )

    workers = [worker()]
    yield address, workers, worker
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


def _free_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _command(recipe, out, epochs, engine):
    words = [*PROGRAM, "deep5", "sweep", str(recipe), "--goal", "test_loss", "--trials", "2", "--sampler", "random"]
    words += ["--param", "optimizer_kwargs.lr=log(1e-4, 1)", "--set", f"epochs={epochs}", "--engine", engine]
    return [*words, "--quiet", "--out", str(out)]


def test_results_return_from_workers_without_the_folder(recipe, tmp_path, cluster):
    local = search(recipe, tmp_path / "local", workers=1)
    ours = search(recipe, tmp_path / "away", workers=1, engine=f"dask:{cluster[0]},shared=no")
    assert told(ours) == told(local)
    for trial in ours.trials:
        assert load(ours.folder / trial.run, root=ours.folder).status == "success"
        assert trial.run.startswith(f"runs/{trial.number:05d}/1/")


def test_a_worker_that_vanishes_loses_no_trial(recipe, tmp_path, cluster):
    address, workers, worker = cluster
    driver = subprocess.Popen(_command(recipe, tmp_path / "out", 600, f"dask:{address}"), stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not [*tmp_path.glob("out/*/runs/00000/1/*/curve.jsonl")] and time.monotonic() < end:
            time.sleep(0.02)
        workers[0].send_signal(signal.SIGKILL)
        workers.append(worker())
        assert driver.wait(60) == 0
    finally:
        driver.kill()
        driver.wait()
    [folder] = (tmp_path / "out").iterdir()
    done = load_sweep(folder)
    assert [own.state for own in done.trials] == ["finished"] * 2
    assert done.trials[0].attempts == 2
    assert done.trials[0].epochs == 600
    assert (folder / "runs" / "00000" / "1" / ATTEMPT).exists()  # the lost attempt is kept


def test_what_is_refused(monkeypatch):
    monkeypatch.setattr(dask_engine, "_CONNECT_S", 1.0)
    with pytest.raises(UsageError, match="no scheduler of Dask at 'tcp://localhost:1'"):
        make_engine("dask:tcp://localhost:1", workers=1, processors_each=1)
    with pytest.raises(UsageError, match="4096 workers"):
        make_engine("dask", workers=4096, processors_each=1)
    with pytest.raises(UnknownName, match=r"unknown engine 'dusk'.*did you mean 'dask'"):
        make_engine("dusk", workers=1, processors_each=1)
    with pytest.raises(UsageError, match="local, which has no options"):
        make_engine("local:fast", workers=1, processors_each=1)


def test_an_interrupted_sweep_leaves_no_process(recipe, tmp_path):
    command = _command(recipe, tmp_path / "out", 100000, "dask")
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not [*tmp_path.glob("out/*/runs/00000/1/*/curve.jsonl")] and time.monotonic() < end:
            time.sleep(0.02)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
        assert "to resume, add --resume" in driver.stderr.read()
    finally:
        driver.kill()
        driver.wait()
        driver.stderr.close()
    end = time.monotonic() + 10
    while time.monotonic() < end and any(str(tmp_path) in " ".join(own.info["cmdline"] or ()) for own in _processes()):
        time.sleep(0.1)
    assert not [own for own in _processes() if str(tmp_path) in " ".join(own.info["cmdline"] or ())]


def _processes():
    return psutil.process_iter(["cmdline"])
