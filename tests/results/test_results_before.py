"""Results that deep5 wrote before its modules moved into packages: commands read them, and an interrupted run resumes.

The folders in `before` were written by deep5 0.1.0 at commit e1d0d34; the study's PNG and HTML pictures are left out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from command import Command
from deep5.results.comparison import load_comparison
from deep5.results.result import load

BEFORE = Path(__file__).parent / "before"
RUN, INTERRUPTED = "small_run-20261125-200305-8666f5", "small_run-20261125-201402-ba8565"
COMPARISON, STUDY = "small_run-compare-20261125-200338-d69df7", "small_run-study-20261125-200319-562b56"
BENCH = "bench_MatMul-20261125-200439-121163"
HASH = "4e491197283f60f072442a0915b8e51c2f958127974ef913284fa092fc50626c"

pytestmark = pytest.mark.daily


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE, tmp_path / "before"))


def test_all_folders_are_listed_with_their_numbers(deep5: Command, before: Path) -> None:
    answer = deep5("results", str(before), "--json")
    assert (answer.status, answer.err) == (0, "")
    rows: dict[str, dict[str, Any]] = {row["folder"]: row for row in json.loads(answer.out)}
    assert {name: (row["kind"], row["status"]) for name, row in rows.items() if "/" not in name} == {
        RUN: ("run", "success"),
        INTERRUPTED: ("run", "aborted"),
        COMPARISON: ("comparison", "success"),
        STUDY: ("study", "success"),
        BENCH: ("run", "success"),
    }
    assert sum(name.startswith(f"{STUDY}/") for name in rows) == 2
    run = rows[RUN]
    assert (run["hash"], run["verdict"]) == (HASH, "accepted")
    assert run["metric.test_accuracy"] == 66.66666666666667
    assert run["metric.training_loss"] == 0.999819540977478
    assert run["metric.wall_clock_time"] == 0.699486968
    assert rows[COMPARISON]["ratio.onnxruntime"] == load_comparison(before / COMPARISON).verdicts[0]["ratio"]


def test_the_report_shows_all_of_them(deep5: Command, before: Path) -> None:
    answer = deep5("report", str(before), "-o", "page.html")
    assert (answer.status, answer.err) == (0, "")
    page = Path("page.html").read_text("utf-8")
    assert "cannot be shown" not in page
    for shown in ("small_run", "bench_MatMul", "66.67", "optimizer=adam", "onnxruntime", "no difference shown"):
        assert shown in page, shown
    assert page.count("<svg") >= 8


@pytest.mark.parametrize(
    ("name", "checks"), [(RUN, 117), (INTERRUPTED, 23), (COMPARISON, 205), (STUDY, 297), (BENCH, 72)]
)
def test_the_audit_finds_nothing_wrong(name: str, checks: int, deep5: Command, before: Path) -> None:
    answer = deep5("audit", str(before / name), "--json")
    assert (answer.status, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert found["findings"] == []
    assert found["checks"] >= checks


def test_an_interrupted_run_resumes_to_the_end_that_it_would_have_had(deep5: Command, before: Path) -> None:
    folder = before / INTERRUPTED
    words = ("--quiet", "--threads", "1", "--out", str(before))
    answer = deep5("run", str(before / "small_run.py"), *words, "--resume", str(folder))
    assert answer.status == 0, answer.err
    result, whole = load(folder), load(before / RUN)
    assert (result.status, result.accepted) == ("success", True)
    assert result.document["recipe"]["hash"] == HASH
    assert [entry["step"] for entry in result.document["resumed"]] == [30]
    assert result.metric("test_accuracy") == whole.metric("test_accuracy")
    losses, before_losses = (own.samples()["training_loss"] for own in (result, whole))
    assert [row.step for row in losses] == [row.step for row in before_losses]
    # The processor that wrote the folders may round differently.
    np.testing.assert_allclose([row.value for row in losses], [row.value for row in before_losses], rtol=1e-5)
    weights, expected = (load_file(own / "weights.safetensors") for own in (folder, before / RUN))
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
