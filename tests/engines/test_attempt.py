"""Attempts at runs: each run once, whatever kills, repeats or suspends the process that carries it out."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import wait
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from deep5.core.errors import OutputError, RunFailed, UsageError
from deep5.engines import attempt as module
from deep5.engines import lease
from deep5.engines.attempt import Worker, at_work, attempt
from deep5.engines.lease import ATTEMPT
from deep5.engines.local import LocalEngine
from deep5.engines.request import RunRequest
from deep5.measuring.pinning import processors
from deep5.results.result import load

RECIPE = '''
"""A small network on synthetic data."""

import deep5 as d5

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 16, "hidden": 16, "classes": 4},
    "dataset": "synthetic", "dataset_kwargs": {"shape": (16,), "classes": 4, "train": 400, "test": 100},
}
MUTABLE = {"framework": "reference", "batch_size": 50, "optimizer": "adam", "epochs": 2}
METRICS = [(d5.TestLoss(), None), (d5.TestAccuracy(), None)]
'''
LONG = ["--set", "epochs=800", "--checkpoint-every", "16"]


@pytest.fixture
def request_(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(RECIPE)
    return RunRequest(
        key="run",
        arguments=[str(path)],
        folder=str(tmp_path / "runs"),
        threads=1,
        processors=1,
        time_limit_s=120.0,
        memory_limit_bytes=4 << 30,
    )


def attempts(request):
    return sorted(path.name for path in (os.scandir(f"{request.folder}/{request.key}")))


def started(request):
    program = (
        "import json, sys; from dataclasses import asdict; from deep5.engines.attempt import attempt; "
        "from deep5.engines.request import RunRequest; "
        "print(json.dumps(asdict(attempt(RunRequest(**json.loads(sys.argv[1]))))))"
    )
    given = json.dumps(asdict(request))
    return subprocess.Popen([sys.executable, "-c", program, given], stdout=subprocess.PIPE, text=True)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def checkpoints(request):
    return [*Path(request.folder).glob("run/*/*/checkpoints/step-*.safetensors")]


def test_a_run_is_carried_out_once_and_then_known(request_):
    outcome = attempt(request_)
    assert (outcome.status, outcome.reason, outcome.stopped) == (0, None, None)
    assert load(outcome.run).status == "success"
    assert outcome.wall_s > 0
    assert outcome.memory_bytes > 1 << 20
    assert attempt(request_) == outcome
    assert attempts(request_) == ["1"]


def test_a_moved_folder_keeps_what_ended(request_, tmp_path):
    outcome = attempt(request_)
    (tmp_path / "runs").rename(tmp_path / "moved")
    again = attempt(replace(request_, folder=str(tmp_path / "moved")))
    assert again == replace(
        outcome,
        **{name: getattr(outcome, name).replace("/runs/", "/moved/") for name in ("attempt", "results", "run")},
    )


@pytest.mark.parametrize("results", ["../../elsewhere", "", 1, None])
def test_an_attempt_that_names_another_folder_is_not_followed(request_, results):
    attempt(request_)
    file = Path(request_.folder, "run", "1", ATTEMPT)
    file.write_text(json.dumps({**json.loads(file.read_text()), "results": results, "process": 0}))
    outcome = attempt(request_)
    assert outcome.attempt.endswith("/2")
    assert outcome.results.endswith("/2")


def test_two_processes_at_the_same_time_give_one_run(request_):
    request = replace(request_, arguments=[*request_.arguments, "--set", "epochs=200"])
    processes = [started(request) for _ in range(3)]
    outcomes = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert attempts(request) == ["1"]


@pytest.mark.daily
def test_the_next_attempt_resumes_what_a_killed_process_left(request_):
    request = replace(request_, arguments=[*request_.arguments, *LONG])
    process = started(request)
    until(lambda: checkpoints(request))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    outcome = attempt(request)
    assert attempts(request) == ["1", "2"]
    assert outcome.attempt.endswith("/2")
    assert outcome.results.endswith("/1")
    assert outcome.status == 0
    assert len(load(outcome.run).document["resumed"]) == 1


def test_a_process_that_lives_is_waited_for(request_):
    request = replace(request_, arguments=[*request_.arguments, *LONG])
    process = started(request)
    until(lambda: checkpoints(request))
    outcome = attempt(request)
    assert json.loads(process.communicate(timeout=60)[0]) == json.loads(json.dumps(asdict(outcome)))
    assert attempts(request) == ["1"]


def _elsewhere(request, age_s):
    """Make the first attempt one that another machine was carrying out, and renewed that long ago."""
    file = Path(request.folder, "run", "1", ATTEMPT)
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "host": "elsewhere", "ended": None}))
    then = time.time() - age_s
    os.utime(file, (then, then))
    return file


def test_a_machine_that_no_longer_renews_is_replaced_by_a_fresh_attempt(request_):
    first = attempt(request_)
    _elsewhere(request_, age_s=120.0)
    outcome = attempt(request_)
    assert attempts(request_) == ["1", "2"]
    assert outcome.results.endswith("/2")  # the other one may still write into its own
    assert outcome.run != first.run


def test_a_machine_that_renews_is_waited_for(request_):
    outcome = attempt(request_)
    file = _elsewhere(request_, age_s=1.0)
    ended = {**json.loads(file.read_text()), "ended": {**asdict(outcome), "host": "elsewhere", "wall_s": 123.0}}
    timer = threading.Timer(1.0, lambda: file.write_text(json.dumps(ended)))
    timer.start()
    assert attempt(request_) == replace(outcome, host="elsewhere", wall_s=123.0)
    timer.join()
    assert attempts(request_) == ["1"]


def test_a_live_attempt_renews_its_file(request_, monkeypatch):
    monkeypatch.setattr(lease, "_RENEWED_S", 0.2)
    seen = set()

    def stop(folder):
        seen.add((folder / ATTEMPT).stat().st_mtime_ns)
        return "was stopped by the test" if len(seen) > 2 else None

    outcome = attempt(replace(request_, arguments=[*request_.arguments, *LONG]), stop)
    assert outcome.stopped == "was stopped by the test"
    assert outcome.reason is None
    assert len(seen) > 2


def test_interrupted_in_this_process_it_resumes_in_this_process(request_):
    request = replace(request_, arguments=[*request_.arguments, *LONG])
    worker = Worker(processors=processors(1))

    def stop(folder):
        if checkpoints(request):
            worker.cancelled.set()

    with at_work(worker), pytest.raises(RunFailed, match="was interrupted"):
        attempt(request, stop)
    outcome = attempt(request)
    assert outcome.status == 0
    assert outcome.results.endswith("/1")


def test_the_reason_is_what_the_command_said(request_):
    wrong = replace(request_, key="wrong", arguments=[*request_.arguments, "--set", "batch_size=5000"])
    outcome = attempt(wrong)
    assert outcome.status == 2
    assert "'batch_size' is 5000; allowed: at most 400" in outcome.reason
    assert outcome.run is None
    late = attempt(replace(request_, key="late", arguments=[*request_.arguments, *LONG], time_limit_s=1.0))
    assert "did not finish within 1 s; remedy: --time-limit" in late.reason
    large = attempt(replace(request_, key="large", memory_limit_bytes=1 << 20))
    assert "used too much memory" in large.reason
    assert "allowed: 1 MiB; remedy: --memory-limit" in large.reason


def test_a_full_disk_says_nothing_about_the_run(request_, monkeypatch):
    monkeypatch.setattr(module, "_message", lambda output: "cannot write: No space left on device")
    wrong = replace(request_, arguments=[*request_.arguments, "--set", "batch_size=5000"])
    with pytest.raises(OutputError, match="No space left"):
        attempt(wrong)
    monkeypatch.undo()
    assert attempt(request_).status == 0  # another attempt
    assert attempts(request_) == ["1", "2"]


def _place(seconds):
    time.sleep(seconds)
    return tuple(module._own.worker.processors)


@pytest.mark.skipif(len(processors(2)) < 2, reason="two workers need two processors")
def test_workers_have_disjoint_processors_of_this_process():
    with LocalEngine(workers=2, processors_each=1) as engine:
        places = [future.result() for future in [engine.submit(_place, 0.05) for _ in range(8)]]
    assert len(set(places)) == 2
    assert not set(places[0]) & (set(next(own for own in places if own != places[0])))
    assert set().union(*places) <= os.sched_getaffinity(0)


def test_an_engine_returns_what_a_call_raises_and_refuses_too_many_workers():
    with LocalEngine() as engine:
        future = engine.submit(int, "x")
        wait([future])
        assert isinstance(future.exception(), ValueError)
    for workers, each in ((0, 1), (4096, 1), (1, 4096)):
        with pytest.raises(UsageError, match=r"allowed: .* remedy: --workers"):
            LocalEngine(workers=workers, processors_each=each)
    with pytest.raises(RuntimeError):
        engine.submit(int, "1")
