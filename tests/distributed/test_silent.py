"""What a watching process sees of ranks that do not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from deep5.distributed.launch import silent
from deep5.distributed.launch.silent import StoppedRanks, state_of


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that sleep."""
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def until(process: subprocess.Popen[bytes], status: str) -> None:
    deadline = time.monotonic() + 60
    while psutil.Process(process.pid).status() != status:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_states_in_words(processes: list[subprocess.Popen[bytes]]) -> None:
    first = processes[0]
    until(first, psutil.STATUS_SLEEPING)
    assert state_of(first.pid) == "sleeping"
    first.send_signal(signal.SIGSTOP)
    until(first, psutil.STATUS_STOPPED)
    assert state_of(first.pid) == "stopped"
    first.kill()
    first.wait()
    assert state_of(first.pid) == "gone"


def test_only_ranks_that_are_stopped_without_a_break_are_named(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(silent, "monotonic", lambda: clock[0])
    watch, those = StoppedRanks(), {rank: (each.pid,) for rank, each in enumerate(processes)}

    def after(seconds: float) -> dict[int, float]:
        clock[0] += seconds
        return watch.look(those, 60.0)

    assert after(0.0) == {}
    processes[1].send_signal(signal.SIGSTOP)
    until(processes[1], psutil.STATUS_STOPPED)
    assert [after(1.0), after(50.0), after(3.9)] == [{}, {}, {}]
    assert after(0.2) == {1: pytest.approx(54.1)}
    processes[0].send_signal(signal.SIGSTOP)
    until(processes[0], psutil.STATUS_STOPPED)
    assert after(1.0) == {0: 0.0, 1: pytest.approx(55.1)}
    for each in processes:
        each.send_signal(signal.SIGCONT)
        until(each, psutil.STATUS_SLEEPING)
    assert after(1.0) == {}
    processes[1].send_signal(signal.SIGSTOP)
    until(processes[1], psutil.STATUS_STOPPED)
    assert [after(1.0), after(53.0)] == [{}, {}]
