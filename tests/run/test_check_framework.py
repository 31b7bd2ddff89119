"""`deep5 check framework`: every group is reported, also where a back-end is wrong, crashes, or hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deep5.core.errors import MissingDependency, UnknownName, UsageError
from deep5.run.check_framework import check_framework

ENGINES = '''
import os, time
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
import deep5 as d5


class Right(d5.ONNXEngine):
    """ONNX's own evaluator."""

    name = "right"

    def version(self):
        return "7"

    def compile(self, model, *, threads):
        evaluator = ReferenceEvaluator(onnx.load_from_string(model))

        def run(inputs):
            with np.errstate(all="ignore"):
                return evaluator.run(None, inputs)

        return run


class Wrong(Right):
    name = "wrong"

    def compile(self, model, *, threads):
        run = super().compile(model, threads=threads)
        return lambda inputs: [value * 1.01 if value.ndim == 2 else value for value in map(np.asarray, run(inputs))]


class Crashes(Right):
    name = "crashes"

    def compile(self, model, *, threads):
        run = super().compile(model, threads=threads)
        return lambda inputs: os._exit(7) if len(inputs.get("input", ())) == 16_385 else run(inputs)


class Hangs(Right):
    name = "hangs"

    def compile(self, model, *, threads):
        while True:
            time.sleep(1)


class NoConv(Right):
    name = "noconv"

    def compile(self, model, *, threads):
        if b"Conv" in model:
            raise NotImplementedError("no convolutions here")
        return super().compile(model, threads=threads)


class Exits(Right):
    name = "exits"

    def __init__(self, mode=""):
        os._exit(0)


class Half(d5.ONNXEngine):
    name = "half"


number = 3
'''


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    path = tmp_path / "engines.py"
    path.write_text(ENGINES)
    return path


def verdicts(report: object) -> dict[str, str]:
    return {row.check: row.verdict for row in report.rows}  # type: ignore[attr-defined]


def test_a_right_back_end_passes_every_group(engines: Path) -> None:
    report = check_framework(f"{engines}:Right")
    assert report
    assert set(verdicts(report).values()) == {"passed"}
    assert len(report.rows) > 20
    assert report.verdict == f"{engines}:Right 7: passed"
    assert all(row.time_s >= 0 for row in report.rows)


def test_a_wrong_back_end_fails_by_group_and_the_others_run(engines: Path) -> None:
    report = check_framework(f"{engines}:Wrong")
    found = verdicts(report)
    assert not report
    assert found["inference, float32"] == "FAILED"
    assert found["wrong inputs are refused, float32"] == "passed"
    assert "is off by" in next(row.note for row in report.failures if row.check == "inference, float32")


def test_a_crash_ends_one_group_only(engines: Path) -> None:
    report = check_framework(f"{engines}:Crashes")
    assert [row.check for row in report.failures] == ["batch sizes, float32"]
    assert "its process exited with status 7" in report.failures[0].note
    assert verdicts(report)["inference, ResNet"] == "passed"


def test_a_hang_ends_at_the_time_limit(engines: Path) -> None:
    report = check_framework(f"{engines}:Hangs", time_limit_s=0.5)
    assert [(row.check, row.verdict) for row in report.rows] == [("interface", "FAILED")]
    assert "did not finish within 0.5 s; remedy: --time-limit" in report.rows[0].note


def test_an_exit_while_it_starts_is_not_an_answer(engines: Path) -> None:
    report = check_framework(f"{engines}:Exits")
    assert not report
    assert report.rows[0].check == "the start of the framework"


def test_operators_that_it_may_lack_are_not_supported_rather_than_failed(engines: Path) -> None:
    report = check_framework(f"{engines}:NoConv")
    found = verdicts(report)
    assert report
    assert found["inference, convolution"] == found["inference, ResNet"] == "not supported"
    assert found["training, float32"] == "passed"
    assert "5 not supported" in report.verdict


def test_a_registered_name_is_checked() -> None:
    report = check_framework("reference")
    assert report
    assert report.framework == "reference"
    assert {"inference, float64", "inference, float32"} <= verdicts(report).keys()


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("pytroch", UnknownName, "did you mean 'pytorch'"),
        ("pytorch:fast", UsageError, "unknown pytorch mode 'fast'; allowed: compiled, exported"),
        ("nowhere.py:Mine", UsageError, "nowhere.py cannot be read, since it is not there"),
        ("engines.py:Rihgt", UsageError, r"allowed: .*CLASS, of the frameworks in it: .*Right.*did you mean 'Right'"),
        ("engines.py", UsageError, "names only a file"),
        ("engines.py:number", UsageError, "is a int; allowed: a class of d5.Framework"),
        ("engines.py:Half", UsageError, "Half does not define compile, version"),
        ("broken.py:X", UsageError, "broken.py:1: not valid Python"),
        ("lacks.py:X", MissingDependency, "needs the module 'no_such_library'"),
    ],
)
def test_bad_names_are_refused(
    engines: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Exception], message: str
) -> None:
    monkeypatch.chdir(engines.parent)
    Path("broken.py").write_text("class X(:\n")
    Path("lacks.py").write_text("import no_such_library\n")
    with pytest.raises(kind, match=message):
        check_framework(name)


def test_the_command_prints_a_table_or_json(engines: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "deep5", "check", "framework", *words]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=engines.parent)

    shown = command("engines.py:NoConv")
    assert shown.returncode == 0
    assert "inference, convolution" in shown.stdout
    one = "inference, convolution; gradients, convolution; gradients against central differences, convolution; "
    assert one in shown.stdout  # one note for groups with the same reason
    failed = command("engines.py:Crashes", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["passed"] is False
    assert command("engines.py:Right", "--time-limit", "0").returncode == 2
