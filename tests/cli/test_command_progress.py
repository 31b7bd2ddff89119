"""Commands report progress on standard error: with and without a terminal, not if they are quiet, never in JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import Command
from deep5.core import progress

OPERATOR = """\
import numpy as np
import deep5 as d5


class Twice(d5.Operator):
    def specs(self, x):
        return [x]

    def forward(self, x):
        return 2 * x

    def backward(self, grad_outputs, inputs, outputs):
        return [2 * grad_outputs[0]]
"""
CODE = """\
import time


def work(steps=1):
    return lambda: time.sleep(0.001)


FIXED = {"candidate": work, "baseline": work}
MUTABLE = {"rounds": 5, "steps": 1}
METRICS = []
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, one and two."""
    root = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "deep5", "run", "digits_lenet", "--size", "smoke", "--framework", "reference"]
    subprocess.run([*command, "--set", "seed=1", "--quiet", "--out", str(root / "made")], check=False, timeout=120)
    (folder,) = (root / "made").iterdir()
    shutil.copytree(folder, root / "all" / "one")
    shutil.copytree(folder, root / "all" / "two")
    return root / "all"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress appears at once instead of after five seconds."""
    monkeypatch.setattr(progress, "FIRST_S", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("evaluate", "{}/one", "--json"), r"evaluating batches \(1 of 2, about \d+ s left\)"),
        (("predict", "{}/one", "x.npy", "x.npy", "--json"), r"predicting files \(1 of 2, about \d+ s left\)"),
        (("results", "list", "{}", "--rebuild", "--json"), r"reading the results in \S+ \(1 of 2, about \d+ s left\)"),
        (("results", "pack", "{}/one"), r"packing \S+\.zip \(1 of \d+, about \d+ s left\)"),
        (("export", "{}", "--format", "csv", "-o", "out"), r"exporting results \(1 of 2, about \d+ s left\)"),
        (("audit", "{}", "--json"), r"audit: \S+ \(0 of 2\)"),
        (("report", "{}/one"), r"drawing the report \(0 s so far\)"),
        (("check", "operator", "own.py:Twice", "--json"), r"checking Twice \(0 s so far\)"),
        (("run", "code.py", "--json"), r"timing rounds \(1 of 5, about \d+ s left\)"),
        (
            ("bench", "collective", "--launcher", "threads", "--sizes", "1K,4K", "--rounds", "1", "--json"),
            r"timing collectives: sizes \(0 of 2\)",
        ),
    ],
)
def test_without_a_terminal(deep5: Command, results: Path, words: tuple[str, ...], reported: str) -> None:
    import numpy as np

    np.save("x.npy", np.zeros((1, 28, 28), np.float32))
    Path("own.py").write_text(OPERATOR)
    Path("code.py").write_text(CODE)

    answer = deep5(*(word.format(results) for word in words))

    assert re.search(f"^{reported}$", answer.err, re.MULTILINE), answer.err
    assert "\x1b" not in answer.err
    if "--json" in words:
        json.loads(answer.out)


@pytest.mark.usefixtures("at_once")
def test_a_quiet_command_reports_nothing(deep5: Command, results: Path) -> None:
    Path("code.py").write_text(CODE)

    assert deep5("audit", str(results), "--quiet").err == ""
    assert deep5("run", "code.py", "--quiet").err == ""


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("evaluate", "{}/one"), "evaluating batches (1 of 2, about "),
        (("results", "pack", "{}/one"), "packing "),
        (("run", "code.py"), "timing rounds (1 of 5, about "),
    ],
)
def test_on_a_terminal(results: Path, tmp_path: Path, words: tuple[str, ...], reported: str) -> None:
    (tmp_path / "code.py").write_text(CODE)
    source = (
        "import sys; from deep5.core import progress; progress.FIRST_S = progress._REDRAW_S = 0.0; "
        "from deep5.cli.main import main; main()"
    )
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "30"}
    command = [sys.executable, "-c", source, *(word.format(results) for word in words)]
    with subprocess.Popen(
        command, stdin=child, stdout=subprocess.PIPE, stderr=child, env=environment, cwd=tmp_path
    ) as process:
        os.close(child)
        text = b""
        while True:
            try:
                text += os.read(parent, 65536)
            except OSError:  # the child has closed its side
                break
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(parent)
    shown = text.decode()
    assert reported in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0
    assert b"\x1b" not in out
    assert "Traceback" not in shown
