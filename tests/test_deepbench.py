"""DeepBench's recipes: what they leave out, on which frameworks they run, and with how many threads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deep5.bench import measure as measuring
from deep5.bench.plan import Plan, workloads
from deep5.bench.record import OPERATORS, check_operators, plan_of
from deep5.errors import UsageError
from deep5.operators import problems
from deep5.operators.roofline import Roofline, numpy_roofline
from deep5.plugins import registered
from deep5.recipe import load_recipe
from deep5.recipe_keys import WORKLOAD
from deep5.recipes.deepbench import MUTABLE
from deep5.run import execute

RECIPES = ("deepbench_conv", "deepbench_gemm", "deepbench_rnn")
FRAMEWORKS = MUTABLE["frameworks"]
DOCS = Path(__file__).parent.parent / "docs" / "operators.md"


@pytest.fixture
def quick_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's peak alone: those of six frameworks take seconds, and no share is judged here."""

    def numpy_alone(plan: Plan, names: Any) -> Roofline:
        return numpy_roofline(plan.threads, plan.dtype)

    monkeypatch.setattr(measuring, "peaks", numpy_alone)


@pytest.mark.parametrize("name", [*RECIPES, "convolution_algorithms", "layer_batches", "matmul_batches"])
def test_what_is_timed_cannot_change_in_a_closed_run(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.division == "closed"
    assert not WORKLOAD & recipe.mutable.keys()
    assert recipe.with_settings({"take": 6}).division == "open"
    if name in RECIPES:
        assert check_operators(recipe.with_settings({"uses": "inference_server", "take": 1})), "whatever its box is of"
        with pytest.raises(UsageError, match="'limit_gflop' is fixed by the recipe"):
            recipe.with_settings({"limit_gflop": 0.3})


def test_every_back_end_is_in_every_recipe() -> None:
    assert set(FRAMEWORKS) == set(registered("frameworks"))
    for name in RECIPES:
        plan = plan_of(load_recipe(name))
        assert plan.frameworks == FRAMEWORKS
        assert plan.bare is not None


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_limit_leaves_is_what_the_guide_says(name: str) -> None:
    recipe = load_recipe(name)
    works, left_out = workloads(plan_of(recipe))
    told = f"{len(works)} of {len(works) + len(left_out)}"
    assert all("(limit_gflop=10)" in entry["reason"] for entry in left_out)
    assert f"{told} problems and directions would be run" in check_operators(recipe)[0]
    assert f"`{name}` {told}" in " ".join(DOCS.read_text().split())
    whole = plan_of(recipe.at_size("whole"))
    assert not any("limit_gflop" in entry["reason"] for entry in workloads(whole)[1])
    smoke = plan_of(recipe.at_size("smoke"))
    assert len(workloads(smoke)[0]) <= 3, "a smoke size stays quick"


def test_recurrent_layers_run_forward_and_backward_on_every_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_peaks: None
) -> None:
    cells = ("vanilla", "lstm", "gru")
    rows = [{"use": "training", "hidden": 8, "batch": 2, "timesteps": 2, "cell": cell} for cell in cells]
    monkeypatch.setattr(problems, "problem_rows", lambda table: rows)
    monkeypatch.setattr(measuring, "_WARM_UP_S", 0.01)
    recipe = load_recipe("deepbench_rnn").with_settings({"rounds": 1, "pictures": False})
    # What is written by hand is held to these in test_problems.
    result = execute(replace(recipe, fixed={**recipe.fixed, "bare": None, "box": None}), out=tmp_path, quiet=True)
    told = json.loads((result.folder / OPERATORS).read_text())
    assert told["left_out"] == []
    assert {(row["title"].split()[0], row["direction"], row["candidate"]) for row in told["rows"]} == {
        (cell, direction, framework)
        for cell in cells
        for direction in ("forward", "backward")
        for framework in FRAMEWORKS
    }
    assert result.metric("operator_coverage") == 100


def test_deep5_and_bare_have_the_same_threads_on_every_framework(quick_peaks: None) -> None:
    """A product that several threads would share: nobody keeps more than one processor busy."""
    given = replace(plan_of(load_recipe("deepbench_gemm")), take=1, limit_gflop=1.0, rounds=7)
    found = measuring.measure_here(given)
    busy = {series["candidate"]: series["processors"] for series in found["series"]}
    assert set(busy) == {label for name in FRAMEWORKS for label in (name, f"{name} (bare)")}, found["left_out"]
    # Time of processors over time of the clock: 1 where one thread computes, whatever else runs on the machine.
    assert max(busy.values()) < 1.3, busy
    assert found["warnings"] == []
    assert {settings["threads"] for settings in found["settings"].values()} == {1}
