"""The recipe of an agent: it learns to balance, and refuses what separates acting from learning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deep5.audit import audit
from deep5.compare.training import assembled, first_batches, hash_of
from deep5.core.errors import RecipeError
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.report.curves import accuracy_drawing, return_drawing
from deep5.run.execute import execute

RECIPES = ("reinforcement_reinforce", "reinforcement_dqn")
FRAMEWORKS = ("pytorch", "tensorflow", "jax", "onnxruntime")


def replaced(recipe: Recipe, given: dict[str, Any]) -> Recipe:
    """The recipe with other values, also of fixed parts."""
    fixed, mutable = dict(recipe.fixed), dict(recipe.mutable)
    for key, value in given.items():
        (mutable if key in mutable else fixed)[key] = value
    return replace(recipe, fixed=fixed, mutable=mutable)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    "framework", ["reference", *(pytest.param(name, marks=pytest.mark.slow) for name in FRAMEWORKS)]
)
def test_a_small_agent_runs_on_each_framework(name: str, framework: str, tmp_path: Path) -> None:
    recipe = replaced(load_recipe(name).at_size("smoke"), {"framework": framework})
    result: Any = execute(recipe, out=tmp_path, quiet=True)
    assert result.status == "success"
    assert 8 <= result.metric("mean_return") <= 500
    returns = (result.folder / "returns.csv").read_text().splitlines()
    assert len(returns) == 101
    assert not audit([result.folder]).findings


def test_the_return_is_drawn_against_the_epoch(tmp_path: Path) -> None:
    result: Any = execute(load_recipe("reinforcement_reinforce").at_size("smoke"), out=tmp_path, quiet=True)
    found = return_drawing({"reinforce": [result]})
    assert found is not None
    chart = json.loads(found.chart.to_json())
    (line,) = chart["layer"]
    assert line["encoding"]["x"]["field"] == "epoch"
    rows = [(row["epoch"], row["value"]) for row in chart["data"]["values"]]
    assert rows == [(row.epoch, row.value) for row in result.samples()["mean_return"]]
    assert [epoch for epoch, _ in rows] == [1, 2]
    assert accuracy_drawing({"reinforce": [result]}) is None


def test_reinforce_learns_to_balance(tmp_path: Path) -> None:
    recipe = replaced(load_recipe("reinforcement_reinforce"), {"epochs": 3})
    result: Any = execute(recipe, out=tmp_path, quiet=True)
    # Uniformly drawn actions reach 22; three of eight epochs reach several hundred with each of five seeds.
    assert result.metric("mean_return") > 100


@pytest.mark.parametrize("name", RECIPES)
def test_a_comparison_gives_each_framework_the_same_first_batches(name: str) -> None:
    """The targets of a replay memory have the values of a network, which each framework rounds in its own way."""
    recipe = load_recipe(name).at_size("smoke")
    first, second = (
        hash_of(first_batches(assembled(replaced(recipe, {"framework": framework})), 3))
        for framework in ("reference", "pytorch")
    )
    assert first == second


@pytest.mark.slow
def test_deep_q_learning_learns_to_balance(tmp_path: Path) -> None:
    recipe = replaced(load_recipe("reinforcement_dqn"), {"epochs": 2})
    result: Any = execute(recipe, out=tmp_path, quiet=True)
    # Two of ten epochs reach several hundred.
    assert result.metric("mean_return") > 100


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "onnxruntime"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_full_size_reaches_its_goal(name: str, framework: str, tmp_path: Path) -> None:
    result: Any = execute(replaced(load_recipe(name), {"framework": framework}), out=tmp_path, quiet=True)
    assert result.metric("mean_return") >= 475


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefetch": 2}, "'prefetch' is 2, and batches that an agent plays cannot be prepared"),
        ({"accumulate": 2}, "'accumulate' is 2, and an agent learns from each batch"),
        ({"train_sampler": "shuffle", "train_sampler_kwargs": {}}, "allowed: .*environment|Environment"),
        ({"test_transforms": ["flip"], "validation_sampler": "ordered"}, "allowed: none of an environment"),
        ({"validation_sampler": "ordered"}, "got Environment as a data set; .*'validation_sampler': None"),
        ({"model_kwargs": {"features": 3}}, "data set and network do not fit: samples 'input'"),
        ({"model_kwargs": {"actions": 3}}, "has 2 actions; remedy: model_kwargs"),
        ({"dataset_kwargs": {"name": "Pole-v7"}}, "the environment 'Pole-v7' cannot be made"),
    ],
)
def test_what_an_agent_cannot_do(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        execute(replaced(load_recipe("reinforcement_reinforce").at_size("smoke"), given), out=tmp_path, quiet=True)
