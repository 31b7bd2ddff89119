"""The progress of a training run: its first step, and epochs that take long; on a pseudo-terminal and without one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from deep5.core.events import StepInfo
from deep5.training import progress as bars

# The first step is as slow as a compilation, and the times of the reports are scaled down with it. The step after the
# first one counts the threads that report.
PROGRAM = """
import sys, threading, time
sys.path[:0] = {tests!r}
import deep5 as d5
from deep5.core import progress
from deep5.training import progress as bars
from test_trainer import Batches, Fixed

progress.FIRST_S, progress._LOOK_S, bars._LINES_NS = {first_s}, 0.05, {lines_ns}


class Slow(Fixed):
    def step(self, inputs, info):
        self.seconds = 0.6 if info.step == 0 else 0.02
        if info.step == 1:
            print("threads", [each.name for each in threading.enumerate() if "progress" in each.name], flush=True)
        if info.step == {fails_at}:
            raise KeyboardInterrupt
        return super().step(inputs, info)


fake = Slow(0)
print("ready", flush=True)
try:
    d5.Trainer(fake, fake, Batches(10)).train(1, [d5.ProgressBar()])
except KeyboardInterrupt:
    print("interrupted", [each.name for each in threading.enumerate() if "progress" in each.name], flush=True)
"""


def program(first_s: float = 0.2, lines_ns: int = 60_000_000_000, fails_at: int = -1) -> list[str]:
    here = [str(Path(__file__).parent), *sys.path]
    return [sys.executable, "-c", PROGRAM.format(tests=here, first_s=first_s, lines_ns=lines_ns, fails_at=fails_at)]


def on_terminal(command: list[str]) -> str:
    """What a command prints on a pseudo-terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment) as process:
        os.close(child)
        text = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:  # the child has closed its side
                break
            text += piece
    os.close(parent)
    assert process.returncode == 0
    return text.decode()


def test_the_first_step_is_reported_on_a_terminal_and_no_thread_remains() -> None:
    text = on_terminal(program())
    assert "first step, with what it compiles (0 s so far)" in text
    assert "threads []" in text
    last = text.rindex("first step, with what it compiles")
    assert re.search(r"step \d+/10", text[last:])
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2  # of the report, and of the bar


def test_an_interruption_in_the_first_step_restores_the_terminal() -> None:
    text = on_terminal(program(fails_at=0, first_s=0.0))
    assert "interrupted []" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")


def without_terminal(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "threads []" in done.stdout
    return done.stderr.splitlines()


def test_a_short_first_step_prints_nothing() -> None:
    lines = without_terminal(program(first_s=30))
    assert len(lines) == 1
    assert lines[0].startswith("epoch 1/1  step 10  loss 0.2500")


def test_a_long_first_step_is_reported_once_a_minute_without_a_terminal() -> None:
    first, last = without_terminal(program())
    assert first == "first step, with what it compiles (0 s so far)"
    assert last.startswith("epoch 1/1  step 10")


def test_a_long_epoch_has_lines_without_a_terminal() -> None:
    lines = without_terminal(program(first_s=30, lines_ns=50_000_000))
    assert len(lines) >= 2
    assert all(re.match(r"epoch 1/1  step \d+  loss 0\.2500 .* s left", line) for line in lines)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_run_reports_no_first_step(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from deep5.core import progress

    with progress.silenced(quiet), progress.Ongoing("first step") as report:
        assert (report._thread is None) == quiet
    assert capsys.readouterr().err == ""


def rates(monkeypatch: pytest.MonkeyPatch, lines_ns: int = 60_000_000_000) -> list[str]:
    """The rates of an epoch with a slow first step, of a second one, and of a third with one step of a new size."""
    monkeypatch.setattr(bars, "_LINES_NS", lines_ns)
    clock = SimpleNamespace(now=1)
    monkeypatch.setattr(bars, "perf_counter_ns", lambda: clock.now)
    out = StringIO()
    bar = bars.ProgressBar(console=Console(file=out, width=200))
    dataset = SimpleNamespace(step=0, epoch=0, epochs=3, loss="loss", scores={}, accumulate=1, batch=0)
    trainer: Any = dataset
    monkeypatch.setattr(bars, "_total_steps", lambda _: None)
    bar.before_training(trainer)
    for epoch, steps in enumerate(([(10, 8.0), (10, 0.5), (10, 0.5)], [(10, 0.25), (10, 0.25)], [(7, 3.0)])):
        bar.before_epoch(trainer, epoch)
        for size, seconds in steps:
            begin = clock.now
            clock.now += int(seconds * 1e9)
            trainer.step += 1
            bar.after_step(trainer, StepInfo(step=trainer.step, epoch=epoch, batch_size=size), {}, begin, clock.now)
        bar.before_evaluation(trainer, epoch)
        clock.now += 5_000_000_000
        bar.after_evaluation(trainer, epoch, {})
        bar.after_epoch(trainer, epoch)
    bar.after_training(trainer)
    return re.findall(r"(\S+) samples/s", out.getvalue())


def test_the_rate_is_of_the_epoch_without_first_steps_and_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last epoch has only the first step of its batch size: the rate is that of the epoch before.
    assert rates(monkeypatch) == ["20", "40", "40"]


def test_the_rate_of_a_line_within_an_epoch_is_since_the_previous_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # A line after each step but the first of the run, which is printed before a rate is known, and one per epoch.
    assert rates(monkeypatch, lines_ns=1) == ["-", "20", "20", "20", "40", "40", "40", "40", "40"]
