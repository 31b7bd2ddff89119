"""Vowels by CTC: the smoke size learns on every framework, and its result passes the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from deep5.audit import audit
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute

NAME = "speech_vowels"


@pytest.mark.parametrize(
    "framework",
    ["pytorch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "onnxruntime", "tensorflow"))],
)
def test_the_smoke_size_learns(framework: str, tmp_path: Path) -> None:
    recipe = load_recipe(NAME).at_size("smoke").with_settings({"framework": framework, "threads": 1})
    result = execute(recipe, out=tmp_path)
    assert result.status == "success"
    losses = [row.value for row in result.samples()["training_loss"]]
    assert losses[-1] < losses[0]
    assert len(result.samples()["label_error_rate"]) == recipe.fixed["epochs"]


def test_the_goal_is_far_from_random_vowels() -> None:
    """About 80 %, which the tests of the data set measure."""
    assert str(load_recipe(NAME).metrics[0][1]) == "<= 20"


@pytest.mark.slow
def test_the_audit_finds_nothing(tmp_path: Path) -> None:
    result = execute(load_recipe(NAME).at_size("smoke").with_settings({"threads": 1}), out=tmp_path)
    assert not audit([result.folder]).findings
