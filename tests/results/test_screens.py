"""`print` of a run, a comparison or a study fits a screen of 80 columns and 24 lines."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from deep5.core.screen import on_a_screen
from deep5.results.comparison import ComparisonResult, load_comparison
from deep5.results.result import Result, load
from deep5.results.study.record import Study

HONEST = Path(__file__).parents[1] / "audit" / "honest"


def fits(text: str) -> bool:
    lines = text.split("\n")
    return len(lines) < 24 and max(map(len, lines)) <= 80


def only(folder: str) -> Path:
    return next(path.parent for path in sorted((HONEST / folder).rglob("result.json")))


def test_a_result_shows_its_metrics_verdict_and_folder() -> None:
    result = load(only("run"))
    shown = str(result)
    assert fits(shown)
    assert shown.rsplit("\n", maxsplit=1)[-1].endswith(result.folder.name)
    assert all(verdict.label in shown for verdict in result.verdicts)
    assert repr(result).startswith("<Result of ")
    assert len(repr(result)) < 400


def test_what_does_not_fit_is_counted_and_the_verdict_stays() -> None:
    result = load(only("run"))
    document: dict[str, Any] = copy.deepcopy(result.document)
    document["metrics"] = document["metrics"] * 20
    shown = str(Result(folder=result.folder, document=document))
    assert fits(shown)
    assert f"lines; deep5 report {result.folder} shows all" in shown
    assert "accepted" in shown.split("\n… ")[1]


def test_a_comparison_and_a_study_fit() -> None:
    comparison = load_comparison(HONEST / "rigorous")
    assert isinstance(comparison, ComparisonResult)
    assert fits(str(comparison))
    assert "baseline" in str(comparison)
    assert len(repr(comparison)) < 400
    result = load(only("run"))
    study = Study(
        folder=result.folder,
        recipe="digits_lenet",
        hash="",
        size="full",
        seeds=(0, 1),
        settings={"Adam": {}, "momentum": {}},
        runs={"Adam": (result, result), "momentum": (result, result)},
        failures={},
        target=None,
    )
    assert fits(str(study))
    assert "momentum" in str(study)


def test_a_value_without_a_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a dict has no form for a screen; remedy: register a function"):
        on_a_screen({}, "")
