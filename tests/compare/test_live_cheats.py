"""Frameworks that cheat while they are timed, through the real command; docs/results/red_team.md lists them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import deep5.measuring.calibration
from cheats import LIVE, LiveCheat, register
from deep5.measuring.calibration import Calibration
from deep5.results.comparison import load_comparison

OPERATOR = """
FIXED = {"operator": "MatMul", "shapes": ((256, 256), (256, 256))}
MUTABLE = {"frameworks": ("reference",), "rounds": 3}
METRICS = []
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheats as if installed by a user, and a quiet machine's calibration: the machine is not under test."""
    path = os.pathsep.join(filter(None, (register(tmp_path / "installed"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    made = Calibration(
        machine=deep5.measuring.calibration.machine_id(),
        threads=1,
        processes={"matrix product": tuple(1 + 0.001 * (number % 7) for number in range(32))},
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        others_share=0.0,
    )
    file = deep5.measuring.calibration._file(made.machine, made.threads)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(made.document()))


def compared(cheats: Sequence[LiveCheat], folder: Path) -> list[dict[str, Any]]:
    """The candidates of a comparison: the reference, the same under another name, and the cheats."""
    (kind,) = {cheat.kind for cheat in cheats}
    recipe = folder / "product.py"
    recipe.write_text(OPERATOR)
    names = ",".join(("reference", "honest", *(cheat.name for cheat in cheats)))
    of = () if kind == "operators" else ("--of", kind, "--size", "smoke", "--steps", "5")
    recipe_name = str(recipe) if kind == "operators" else "digits_lenet"
    out = folder / "results"
    words = ["compare", recipe_name, "--frameworks", names, "--threads", "1", "--out", str(out), *of]
    done = subprocess.run(
        [sys.executable, "-m", "deep5", *words], capture_output=True, text=True, timeout=1200, check=False
    )
    (left,) = out.iterdir() if out.exists() else [None]
    assert left is not None, done.stderr[-2000:]
    return [dict(row) for row in load_comparison(left).candidates]


def check(cheats: Sequence[LiveCheat], folder: Path) -> None:
    reference, honest, *found = compared(cheats, folder)
    assert [reference["status"], honest["status"]] == ["timed", "timed"], (reference["reason"], honest["reason"])
    wrong = [
        f"{cheat.name}: {row['status']}, {row['reason']}"
        for cheat, row in zip(cheats, found, strict=True)
        if row["status"] != cheat.status or cheat.said not in str(row["reason"])
    ]
    assert not wrong, "\n".join(wrong)


def test_a_framework_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    out = tmp_path / "results"
    names = ("--frameworks", "reference,honest,quitting,leaving")
    words = ["compare", "digits_lenet", *names, "--threads", "1", "--out", str(out), "--size", "smoke", "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "deep5", *words], capture_output=True, text=True, timeout=600, check=False
    )
    (left,) = out.iterdir()
    reference, honest, quitting, leaving = load_comparison(left).candidates
    assert [reference["status"], honest["status"]] == ["timed", "timed"]
    assert [quitting["status"], leaving["status"]] == ["failed", "failed"]
    assert "exit(0) ends a program instead of reporting an error" in quitting["reason"]
    assert leaving["reason"] == "it exited with status 0 in the assembly, without an answer"
    assert done.returncode == 0  # the others are compared, and the reasons are reported
    assert quitting["reason"] in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr


@pytest.mark.daily
def test_a_training_that_stops_and_a_replaced_clock_are_caught(tmp_path: Path) -> None:
    check([cheat for cheat in LIVE if cheat.name in ("stopping", "patched")], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "inference", "operators"])
def test_what_cheats_while_it_is_timed_is_caught(kind: str, tmp_path: Path) -> None:
    check([cheat for cheat in LIVE if cheat.kind == kind], tmp_path)
