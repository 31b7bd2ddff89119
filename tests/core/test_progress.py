"""Progress: when it appears, what it says, and when it stays silent."""

from __future__ import annotations

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deep5.core import compiler, progress
from deep5.core.progress import (
    Ongoing,
    ProgressLine,
    Reporter,
    Steps,
    counting,
    silenced,
    tracked,
    waiting,
)
from deep5.core.quantities import size


class Clock:
    """Seconds, as a test sets them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_say_count_and_time_left() -> None:
    clock = Clock()
    lines: list[Any] = []
    steps = Steps(4, lines.append, clock=clock)

    steps.say("first")
    clock.now += 30
    steps.advance()
    steps.say("second")
    clock.now += 600
    steps.advance(2)
    steps.say("last")

    assert lines == ["first (0 of 4)", "second (1 of 4, about 2 min left)", "last (3 of 4, about 4 min left)"]
    assert [(line.done, line.total, line.left) for line in lines[1:]] == [
        (1, 4, "about 2 min left"),
        (3, 4, "about 4 min left"),
    ]


def test_what_may_end_early_has_an_upper_bound() -> None:
    clock = Clock()
    lines: list[Any] = []
    steps = Steps(3, lines.append, at_most=True, clock=clock)
    clock.now += 10
    steps.advance()
    steps.say("round 2")

    assert lines == ["round 2 (1 of 3, at most 20 s left)"]


def reported(seconds: list[float], capsys: pytest.CaptureFixture[str], **options: bool) -> list[str]:
    """What a reporter prints where there is no terminal, if a step begins at each of these seconds."""
    clock = Clock()
    begin = clock.now
    with Reporter(clock=clock, **options) as tell:
        steps = Steps(len(seconds), tell, clock=clock)
        for number, second in enumerate(seconds):
            clock.now = begin + second
            steps.say(f"step {number}")
            steps.advance()
    return capsys.readouterr().err.splitlines()


def test_nothing_appears_within_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported([0, 1, 2, 4.9], capsys) == []


def test_without_a_terminal_there_is_a_line_per_minute(capsys: pytest.CaptureFixture[str]) -> None:
    lines = reported([0, 5, 6, 30, 64, 66, 100, 130], capsys)

    assert [line.partition(" (")[0] for line in lines] == ["step 1", "step 5", "step 7"]
    assert lines[1] == "step 5 (5 of 8, about 40 s left)"


def test_a_quiet_command_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported([0, 70], capsys, quiet=True) == []
    with silenced():
        assert reported([0, 70], capsys) == []
    assert reported([0, 70], capsys) != []


def test_a_line_without_a_count_is_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as tell:
        tell("proof: \x1b[31mpytorch")

    assert capsys.readouterr().err == "proof: \\x1b[31mpytorch\n"


def test_a_terminal_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, terminal = Clock(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Reporter(clock=clock) as tell:
        steps = Steps(4, tell, clock=clock)
        steps.say("[first]")
        assert terminal.getvalue() == ""
        clock.now += 8
        steps.advance(2)
        steps.say("[third]")
        assert "━" in terminal.getvalue()
        assert "[third] (2 of 4, about 8 s left)" in terminal.getvalue()
        tell("a line above the bar")
    assert "a line above the bar" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K") or "\x1b[?25h" in terminal.getvalue()


def test_a_wait_is_reported_with_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with waiting("compiling own.cpp", 120, clock=clock) as look:
        for _ in range(8):
            clock.now += 1
            look(())

    assert capsys.readouterr().err == "compiling own.cpp (5 s so far, at most 2 min left)\n"


@pytest.mark.skipif(compiler.compiler() is None, reason="there is no C compiler")
def test_a_long_compilation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = tmp_path / "cc"
    slow.write_text(f'#!/bin/sh\nsleep 0.5\nexec {compiler.compiler()} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(progress, "FIRST_S", 0.2)

    compiler.load_library("int deep5_slow(void) { return 3; }\n", what="a slow kernel")

    assert "compiling a slow kernel (0 s so far, at most 2 min left)" in capsys.readouterr().err


def test_a_line_is_a_string() -> None:
    lines: list[str] = []
    Steps(1, lines.append).say("x")

    assert isinstance(lines[0], ProgressLine)
    assert lines[0] == "x (0 of 1)"


def test_items_are_counted_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    for _ in tracked(["a", "b", "c", "d"], "reading files", 4, clock=clock):
        clock.now += 4

    assert capsys.readouterr().err == "reading files (2 of 4, about 8 s left)\n"


def test_amounts_are_counted_from_several_threads(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with counting("hashing", 3 << 20, shown=size, clock=clock) as advance, ThreadPoolExecutor(2) as pool:
        list(pool.map(advance, [1 << 20] * 2))
        clock.now += 6
        advance(0)

    assert capsys.readouterr().err == "hashing (2 MiB of 3 MiB, about 3 s left)\n"


def reports() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "deep5-progress"]


def test_a_call_without_steps_is_reported_while_it_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    with Ongoing("compiling") as report:
        (thread,) = reports()
        text = ""
        while not text:
            text = capsys.readouterr().err
        report.end()
        assert not thread.is_alive()
    assert not reports()
    assert text == "compiling (0 s so far)\n"
    assert capsys.readouterr().err == ""  # the next line is a minute later


def test_a_short_call_without_steps_prints_nothing_and_leaves_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Ongoing("compiling"):
        raise KeyboardInterrupt
    with silenced(), Ongoing("compiling"):
        assert not reports()
    assert not reports()
    assert capsys.readouterr().err == ""


def test_a_bar_within_another_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, terminal = Clock(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Reporter(clock=clock) as outer:
        clock.now += 6
        outer(progress.spent("outer", 6))
        assert outer.shows_bar
        with Reporter(clock=clock) as inner:
            clock.now += 6
            inner(progress.spent("inner", 6))
            assert (outer.shows_bar, inner.shows_bar) == (False, True)
            clock.now += 6
            outer(progress.spent("outer", 18))
            assert (outer.shows_bar, inner.shows_bar) == (False, True)
        clock.now += 6
        outer(progress.spent("outer", 24))
        assert outer.shows_bar
    text = terminal.getvalue()
    assert "outer (24 s so far)" in text
    assert "outer (18 s so far)" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 3
