"""Functions that tests run in child processes, most of them ill-behaved."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def repeat(value: Any) -> Any:
    """Answer the argument."""
    return value


def noisy(value: Any) -> Any:
    """Answer the argument between lines that are neither JSON nor UTF-8."""
    os.write(1, b'{"a": \xff\xfe\0\n')
    os.write(2, b"]]] \xc3\n")
    return value


def surroundings() -> list[Any]:
    """What it reads from standard input, a variable, whether it leads its process group, and how it finds modules."""
    return [sys.stdin.read(), os.environ.get("DEEP5_TEST"), os.getpgrp() == os.getpid(), sys.path]


def hang(place: str) -> None:
    """Write the process ID to a file, and never end."""
    Path(place).write_text(str(os.getpid()))
    time.sleep(600)


def stop(status: int) -> None:
    """Print three lines, and exit; a negative status is a signal."""
    os.write(2, b"one\ntwo\n---\nthree\nfour\n")
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def fail() -> None:
    """Raise an error."""
    raise ZeroDivisionError("by nothing")


def unwritable() -> object:
    """Answer what JSON cannot hold."""
    return object()


def flood(handle: int) -> None:
    """Print without end."""
    block = b"x" * 65535 + b"\n"
    while True:
        os.write(handle, block)


def leave(place: str, own_session: bool, ends: bool) -> None:
    """Start a process that never ends and holds the output open; write its ID to a file."""
    left = subprocess.Popen(SLEEP, start_new_session=own_session)
    Path(place).write_text(str(left.pid))
    if not ends:
        time.sleep(600)


def steps(count: int, ends: bool, tell: Callable[[str], object]) -> int:
    """Report some steps."""
    for number in range(count):
        tell(f"step {number}\nof {count}")
    if not ends:
        time.sleep(600)
    return count


def chatter(tell: Callable[[str], object]) -> None:
    """Report without end."""
    while True:
        tell("the same")


def received(tell: Callable[[str], object]) -> None:
    """Report how many bytes standard input holds."""
    tell(f"{len(sys.stdin.buffer.read())} bytes")


def joined(*words: Any) -> None:
    """Print the arguments."""
    sys.stdout.write(f"{words}\n")
