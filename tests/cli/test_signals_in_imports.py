"""A signal that arrives while an extension module is initialized, in C++ that may lose an exception or end of it."""

from __future__ import annotations

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
