"""Loops that a recorder refuses, and what is left when a loop ends early."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit.folders import audit
from deep5.core.errors import OutputError, UsageError
from deep5.results.folder import ResultFolder
from deep5.results.result import load
from recorded_loops import broken, busy

Body = Callable[[Any], None]


def unclosed_region(run: Any) -> None:
    with run.epoch(), run.step(batch_size=1):
        run.region("forward").__enter__()


def overlapping_regions(run: Any) -> None:
    with run.epoch(), run.step(batch_size=1), run.region("forward"), run.region("backward"):
        pass


def crossed_regions(run: Any) -> None:
    with run.epoch():
        one, other = run.region("one"), run.region("other")
        one.__enter__()
        other.__exit__(None, None, None)


def step_without_epoch(run: Any) -> None:
    with run.step(batch_size=1):
        pass


def step_in_step(run: Any) -> None:
    with run.epoch(), run.step(batch_size=1), run.step(batch_size=1):
        pass


def step_in_region(run: Any) -> None:
    with run.epoch(), run.region("data"), run.step(batch_size=1):
        pass


def epoch_in_epoch(run: Any) -> None:
    with run.epoch(), run.epoch():
        pass


def evaluation_first(run: Any) -> None:
    with run.evaluation():
        pass


def evaluation_in_step(run: Any) -> None:
    with run.epoch(), run.step(batch_size=1), run.evaluation():
        pass


def region_outside(run: Any) -> None:
    with run.region("data"):
        pass


def in_step(call: Body) -> Body:
    def body(run: Any) -> None:
        with run.epoch(), run.step(batch_size=1):
            call(run)

    return body


def two_losses(run: Any) -> None:
    run.log(loss=1)
    run.log(loss=1)


def mean_without_steps(run: Any) -> None:
    with run.epoch():
        with run.step(batch_size=1):
            run.log(loss=1)
        run.log(loss=1)


def warned(result: Any) -> list[str]:
    """The warnings, except that the recorder waited for no device: it depends on whether the process has loaded JAX."""
    return [each for each in result.document["warnings"] if not each.startswith("no array was given")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (unclosed_region, "the step ends while the region 'forward' is open; allowed: .*remedy: use 'with'"),
        (overlapping_regions, "'backward' begins while 'forward' is open; allowed: one after another"),
        (crossed_regions, "the region 'other' ends while the region 'one' is open"),
        (step_without_epoch, r"a step begins outside of an epoch; .*remedy: with run\.epoch"),
        (step_in_step, "a step begins in a step"),
        (step_in_region, "a step begins while the region 'data' is open"),
        (epoch_in_epoch, "an epoch begins in an epoch; allowed: after the end"),
        (evaluation_first, "an evaluation begins outside of an epoch"),
        (evaluation_in_step, "an evaluation begins in a step"),
        (region_outside, "the region 'data' begins outside of an epoch"),
        (in_step(two_losses), "the loss of this step is already logged"),
        (mean_without_steps, "a mean loss is logged without a step since the last loss"),
        (lambda run: run.log(loss=1), "a loss is logged outside of an epoch"),
        (lambda run: run.log(accuracy=1), "an accuracy is logged outside of an epoch"),
        (in_step(lambda run: run.log(accuracy=1)), "an accuracy is logged in a step"),
        (in_step(lambda run: run.log(bleu=1)), "got bleu to log; allowed: loss, accuracy"),
        (in_step(lambda run: run.log(loss="high")), "got loss='high'; allowed: a number"),
        (in_step(lambda run: run.log(loss=np.ones(3))), "got loss=.*allowed: a number, or an array with one element"),
        (lambda run: run.step(batch_size=0), "got batch_size=0; allowed: an integer of at least 1"),
        (lambda run: run.step(batch_size=2.5), "got batch_size=2.5"),
        (lambda run: run.step(batch_size=True), "got batch_size=True"),
        (in_step(lambda run: run.region("")), "got the region ''; allowed: a name"),
        (in_step(lambda run: run.region("step")), "got the region 'step'"),
        (in_step(lambda run: run.region(["x"])), "got the region"),
        (in_step(lambda run: [run.region(f"{n}") for n in range(101)]), "more than 100"),
    ],
)
def test_wrong_uses_are_refused_and_end_a_readable_result(body: Body, message: str, tmp_path: Path) -> None:
    run = d5.record("wrong", out=tmp_path, quiet=True)
    with pytest.raises(UsageError, match=message), run:
        body(run)
    assert run.result.status == "failed"
    assert run.result.reasons
    assert not run.result
    assert audit([run.folder]), audit([run.folder]).findings


def test_accuracies_are_percent(tmp_path: Path) -> None:
    def evaluate(accuracy: float) -> Body:
        def body(run: Any) -> None:
            with run.epoch():
                with run.step(batch_size=1):
                    pass
                with run.evaluation():
                    run.log(accuracy=accuracy)

        return body

    assert "got the accuracy 101.0" in broken(tmp_path, evaluate(101.0)).reasons[0]
    assert "got the accuracy nan" in broken(tmp_path, evaluate(float("nan"))).reasons[0]
    result = broken(tmp_path, evaluate(0.97), {"test_accuracy": 90})
    assert result.accepted is False
    assert "looks like fractions" in warned(result)[0]


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        ({"trohghput": 1}, "unknown metric 'trohghput'; .*did you mean 'throughput'"),
        ({"top_k": 90}, "a recorder cannot measure 'top_k': .*allowed: wall_clock_time, throughput"),
        ({"throughput": "< 5"}, "points the wrong way"),
        ({"throughput": "fast"}, "cannot be read"),
        ("throughput", "got goals='throughput'; allowed: a dict"),
    ],
)
def test_goals_are_refused_before_the_loop(goals: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        d5.record("goals", goals, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", " ", "x" * 101, 3, "a\nb"])
def test_names_are_refused(name: Any) -> None:
    with pytest.raises(UsageError, match=r"got the name .*allowed: a printable string"):
        d5.record(name)


def test_a_loop_without_steps_is_failed_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with d5.record("none", out=tmp_path) as run, run.epoch():
        pass
    assert run.result.status == "failed"
    assert "the loop made no step" in capsys.readouterr().err
    assert "run.step(batch_size=…)" in run.result.reasons[0]


def test_the_loops_own_errors_pass_and_samples_stay(tmp_path: Path) -> None:
    run = d5.record("error", out=tmp_path, quiet=True)

    def body() -> None:
        with run, run.epoch():
            for step in range(5):
                with run.step(batch_size=2), run.region("forward"):
                    run.log(loss=1 / (3 - step))

    with pytest.raises(ZeroDivisionError):
        body()
    assert run.result.status == "failed"
    assert run.result.reasons == ("ZeroDivisionError: division by zero",)
    assert len(run.result.samples()["time[step]"]) == 3
    assert audit([run.folder]), audit([run.folder]).findings
    with pytest.raises(KeyboardInterrupt), d5.record("stop", out=tmp_path, quiet=True) as run, run.epoch():
        raise KeyboardInterrupt
    assert run.result.status == "aborted"
    assert run.result.reasons == ("interrupted by the user",)


def test_a_step_that_raises_is_not_a_sample(tmp_path: Path) -> None:
    with d5.record("skip", {"training_loss": None}, out=tmp_path, quiet=True) as run, run.epoch():
        for step in range(4):
            try:
                with run.step(batch_size=2), run.region("forward"):
                    run.log(loss=step)
                    if step == 1:
                        raise MemoryError
            except MemoryError:
                continue
    assert [s.value for s in run.result.samples()["training_loss"]] == [0, 2, 3]
    assert run.result
    assert audit([run.folder]), audit([run.folder]).findings


def test_a_loss_that_is_not_finite_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body(run: Any) -> None:
        with run.epoch():
            for step in range(3):
                with run.step(batch_size=2):
                    run.log(loss=float("nan") if step else 1.0)

    result = broken(tmp_path, body, {"training_loss": "< 5"})
    assert result.accepted is False
    assert "the training loss is nan at step 1" in warned(result)[0]
    assert "the training loss is nan" in capsys.readouterr().err
    assert audit([result.folder]), audit([result.folder]).findings


def test_goals_without_values_are_not_met_and_said(tmp_path: Path) -> None:
    def body(run: Any) -> None:
        with run.epoch(), run.step(batch_size=2):
            pass

    goals = {"training_loss": "< 5", "test_accuracy": 1, "test_loss": None}
    result = broken(tmp_path, body, goals)
    assert result.accepted is False
    assert len(warned(result)) == 3
    assert "remedy: run.log(loss=loss) in each step" in warned(result)[0]
    assert audit([result.folder]), audit([result.folder]).findings


def test_an_evaluation_that_is_not_of_the_last_epoch_is_said(tmp_path: Path) -> None:
    with d5.record("every", {"test_accuracy": 1}, out=tmp_path, quiet=True) as run:
        for epoch in range(3):
            with run.epoch():
                with run.step(batch_size=2):
                    pass
                if epoch == 1:
                    run.log(accuracy=70)
    assert any("is of epoch 2 of 3" in warning for warning in run.result.document["warnings"])
    assert audit([run.folder]), audit([run.folder]).findings


def test_two_recorders_at_once_and_one_twice(tmp_path: Path) -> None:
    one, other = (d5.record(name, out=tmp_path, quiet=True) for name in ("one", "other"))
    with pytest.raises(UsageError, match="has no result yet"):
        _ = one.result
    with pytest.raises(UsageError, match=r"'one' is not recording; .*remedy: with deep5\.record"):
        one.epoch()
    at_once = pytest.raises(UsageError, match="'other' begins while 'one' is open; allowed: one at a time")
    with one, one.epoch(), one.step(batch_size=1), at_once, other:
        pass
    assert one.result
    with pytest.raises(UsageError, match="'one' was used before"), one:
        pass
    with pytest.raises(UsageError, match="'one' is not recording"):
        one.log(loss=1)


_FORKED = """
import json, os, sys
import deep5 as d5

with d5.record("parent", {"training_loss": None}, out=sys.argv[1], quiet=True) as run, run.epoch():
    for step in range(3):
        with run.step(batch_size=1), run.region("forward"):
            run.log(loss=step)
    messages = []
    uses = [
        run.region("forward").__enter__,
        run.step(batch_size=1).__enter__,
        run.epoch().__enter__,
        lambda: run.log(loss=1),
        lambda: run.region("new").__enter__(),
        lambda: run.__exit__(None, None, None),
    ]
    for use in uses:
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                use()
                os.write(write, b"nothing")
            except BaseException as error:
                os.write(write, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(0)
        os.close(write)
        messages.append(os.read(read, 10_000).decode())
        os.close(read)
        os.waitpid(child, 0)
print(json.dumps({"messages": messages, "process": os.getpid(), "folder": str(run.folder)}))
"""


def test_a_forked_worker_cannot_record(tmp_path: Path) -> None:
    # In another process: JAX, which other tests load into this one, has threads, and forbids to fork.
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    answer = json.loads(done.stdout)
    *messages, last = answer["messages"]
    assert last == "nothing"
    for message in messages:
        assert message.startswith(f"UsageError: the recorder belongs to process {answer['process']}, and this is its ")
        assert "the data loader" in message
    result = load(answer["folder"])
    assert result
    assert len(result.samples()["time[forward]"]) == 3
    assert audit([result.folder])


_KILLED = """
import sys, deep5 as d5
from deep5.recorder import outcome
outcome._INTERVAL_NS, outcome._MULTIPLE = 50_000_000, 0  # however slow the disk is
from recorded_loops import busy
with d5.record("killed", {"training_loss": None, "step_latency": None}, out=sys.argv[1], quiet=True) as run:
    for epoch in range(10_000):
        with run.epoch():
            for step in range(20):
                with run.step(batch_size=4), run.region("forward"):
                    busy(1e-3)
                    run.log(loss=1.0)
            print(epoch, flush=True)
"""


def test_a_killed_loop_leaves_its_samples(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 20:
                process.send_signal(signal.SIGKILL)
                break
    (folder,) = tmp_path.iterdir()
    result = load(folder)
    assert result.status == "aborted"
    assert result.document["recorded"]
    assert len(result.samples()["time[step]"]) >= 20
    assert result.samples()["time[forward]"]
    assert audit([folder]), audit([folder]).findings


def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder cannot be written from the second epoch on, until after the loop."""
    full = False
    write = ResultFolder._write

    def writes(self: ResultFolder, name: str, data: bytes | str) -> None:
        if full:
            raise OutputError(
                f"cannot write {name}: {os.strerror(errno.ENOSPC)}; allowed: a writable folder; remedy: …"
            )
        write(self, name, data)

    monkeypatch.setattr(ResultFolder, "_write", writes)
    monkeypatch.setattr("deep5.recorder.outcome._INTERVAL_NS", 0)
    monkeypatch.setattr("deep5.recorder.outcome._MULTIPLE", 0)
    with d5.record("full", {"training_loss": "< 5"}, out=tmp_path, quiet=True) as run:
        for epoch in range(3):
            full = epoch > 0
            with run.epoch():
                for _ in range(3):
                    with run.step(batch_size=2):
                        run.log(loss=1.0)
    said = capsys.readouterr().err
    assert said.count("the loop continues, and its samples stay in memory") == 1
    assert "the samples are still in memory: run.result writes them" in said
    assert load(run.folder).status == "aborted"
    with pytest.raises(OutputError, match="No space left"):
        _ = run.result
    full = False
    assert run.result.accepted
    assert len(run.result.samples()["training_loss"]) == 9
    assert audit([run.folder]), audit([run.folder]).findings


def test_a_folder_that_cannot_be_made_is_an_error_before_the_loop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another folder"), d5.record("x", out=tmp_path / "file"):
        pass
    with d5.record("next", out=tmp_path, quiet=True) as run, run.epoch(), run.step(batch_size=1):
        busy(1e-4)
    assert run.result
