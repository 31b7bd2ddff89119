"""The command `deep5`, run in the test's own process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deep5.cli import main as cli
from deep5.core import progress


class Answer(NamedTuple):
    """The outcome of a command."""

    status: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def deep5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command, run in this process in its own folder; it reports no progress, unless a test has it report at once.

    Whether a command takes five seconds depends on what else the machine does.
    """
    monkeypatch.chdir(tmp_path)
    if progress.FIRST_S:
        monkeypatch.setattr(progress, "FIRST_S", 1e6)
    before = signal.getsignal(signal.SIGTERM)

    def command(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["deep5", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return Answer(int(stop.value.code or 0), captured.out, captured.err)

    yield command
    signal.signal(signal.SIGTERM, before)
