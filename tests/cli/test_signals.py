"""A signal at the start of a program, while an extension module of C++ is initialized, or at the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# The first event within the initialization of onnx's extension module sends the signal.
COMMAND = """
import os, signal, sys

number, busy, sent = getattr(signal, sys.argv.pop(1)), [], []


def hook(event, given):
    if busy or sent:
        return
    busy.append(event)
    frame = sys._getframe(1)
    while frame is not None:
        code, module = frame.f_code, str(frame.f_locals.get("module"))
        if code.co_qualname == "ExtensionFileLoader.exec_module" and "onnx" in module:
            sent.append(event)
            os.kill(os.getpid(), number)
            sum(range(100))
            break
        frame = frame.f_back
    busy.clear()


sys.addaudithook(hook)
from deep5.cli.main import main

try:
    main()
finally:
    os.write(2, b"sent once" if len(sent) == 1 else b"not sent")
"""


@pytest.mark.parametrize(
    ("number", "reason"), [("SIGTERM", "ended by SIGTERM"), ("SIGHUP", "ended by SIGHUP"), ("SIGINT", "interrupted")]
)
def test_it_ends_the_command_afterwards(number: str, reason: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, number, "run", "digits_lenet", "--size", "smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, f"deep5: {reason}\nsent once")


# What C calls after the interpreter has ended, whose handlers of signals are then those of the system.
AT_EXIT = """
#include <signal.h>
#include <stdlib.h>
static int chosen;
static void send(void) { raise(chosen); }
void send_at_exit(int number) { chosen = number; atexit(send); }
"""
COMMAND_AT_EXIT = """
import ctypes, signal, sys

ctypes.CDLL(sys.argv.pop(1)).send_at_exit(getattr(signal, sys.argv.pop(1)))
from deep5.cli.main import main

main()
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_while_the_program_ends_changes_no_status(number: str, tmp_path: Path) -> None:
    (tmp_path / "send.c").write_text(AT_EXIT)
    library = str(tmp_path / "send.so")
    subprocess.run(
        [str(shutil.which("cc")), "-shared", "-fPIC", "-o", library, str(tmp_path / "send.c")], check=True, timeout=60
    )
    command = [sys.executable, "-c", COMMAND_AT_EXIT, library, number, "list", "metrics"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step_latency" in done.stdout


# Sends the signal when a module is about to be imported.
AT_IMPORT = """
import os, runpy, signal, sys

module, program = sys.argv[1:3]
sys.argv = [program, *sys.argv[3:]]
sent = []


def hook(event, given):
    if event == "import" and given[0] == module and not sent:
        sent.append(event)
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(100))


sys.addaudithook(hook)
try:
    runpy.run_module(program, run_name="__main__")
finally:
    os.write(2, b"sent" if sent else b"not sent")
"""


@pytest.mark.parametrize(
    ("program", "module", "words", "printed"),
    [
        ("deep5", "click", ("list", "metrics"), "deep5: interrupted\n"),
        # The process that started the ranks says so.
        ("deep5.bench.collective.rank", "numpy", ("plan.json", "times.json"), ""),
    ],
)
def test_an_interruption_while_a_program_is_imported(
    program: str, module: str, words: tuple[str, ...], printed: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", AT_IMPORT, module, program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, f"{printed}sent")
