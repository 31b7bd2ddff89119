"""A recipe is resolved once, and only one place tests its kind: the choice of its workload."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from deep5.core.errors import UsageError
from deep5.recipe.experiment import Experiment
from deep5.recipe.keys import CODE, COLLECTIVES, OPERATORS, SERVING, TRAINING
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.run.choice import workload_of
from deep5.run.code import Code
from deep5.run.collectives import Collectives
from deep5.run.operators import Operators
from deep5.run.serving import Serving
from deep5.run.training import Training
from deep5.run.workload import Options, Workload
from deep5.training.checkpointer import Checkpointer

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = {
    "digits_lenet": (TRAINING, Training),
    "deepbench_gemm": (OPERATORS, Operators),
    "distributed_collectives": (COLLECTIVES, Collectives),
    "overhead_trainer": (CODE, Code),
    "serving_digits": (SERVING, Serving),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_kind_of_a_recipe_chooses_its_workload(name: str) -> None:
    kind, expected = CHOSEN[name]
    recipe = load_recipe(name).at_size("smoke")
    workload = workload_of(Experiment.of(recipe))
    assert recipe.kind is kind
    assert type(workload) is expected
    assert bool(workload.compared) != bool(workload.compares)
    assert isinstance(workload.check(), list)


@pytest.mark.parametrize("name", [name for name, (_, made) in CHOSEN.items() if made is not Training])
def test_what_trains_nothing_is_not_resumed(name: str, tmp_path: Path) -> None:
    workload = workload_of(Experiment.of(load_recipe(name).at_size("smoke")))
    with pytest.raises(UsageError, match="trains nothing; allowed: neither --resume nor --checkpoint-every"):
        workload.resume(tmp_path, Options(out=tmp_path))
    with pytest.raises(UsageError, match="trains nothing; allowed: neither --resume nor --checkpoint-every"):
        workload.run(Options(out=tmp_path, checkpointer=Checkpointer(every_steps=1)))
    assert not list(tmp_path.iterdir())


def test_an_experiment_has_each_key_its_default_and_the_hashes() -> None:
    recipe = load_recipe("digits_lenet").with_settings({"optimizer": "momentum"})
    experiment = Experiment.of(recipe)
    assert experiment.values.keys() == experiment.parts.keys() == TRAINING.keys.keys()
    assert (experiment.values["optimizer"], experiment.values["prefetch"]) == ("momentum", 0)
    assert (experiment.parts["epochs"].stated, experiment.parts["prefetch"].stated) == (True, False)
    assert experiment.document["hash"] == recipe.fixed_hash()
    assert experiment.source_hash == recipe.source_hash()
    with pytest.raises(FrozenInstanceError):
        experiment.size = "smoke"  # type: ignore[misc]


def test_a_part_makes_its_object_and_says_where_it_stands() -> None:
    recipe = load_recipe("digits_lenet")
    part = Experiment.of(recipe).parts["model"]
    network = part.made(seed=0)
    assert network.inputs["input"].shape == ("N", 1, 28, 28)
    assert re.fullmatch(r".*digits_lenet\.py:\d+: ", part.where)
    assert part.kwargs == {"activation": "tanh", "pooling": "average"}


def test_the_kind_is_asked_for_in_one_place() -> None:
    """Only the table of keys and the choice name the kinds; no code looks at a kind's name."""
    kinds = {"TRAINING", "CODE", "OPERATORS", "COLLECTIVES"}
    askers = set()
    for path in sorted((ROOT / "deep5").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "deep5.recipe.keys":
                if kinds & {alias.name for alias in node.names}:
                    askers.add(str(path.relative_to(ROOT)))
            elif isinstance(node, ast.Attribute) and node.attr == "name":
                assert not (isinstance(node.value, ast.Attribute) and node.value.attr == "kind"), (
                    f"{path}:{node.lineno}"
                )
    assert askers == {"deep5/run/choice.py"}
    assert not {"timing", "operators", "collectives", "trains"} & set(dir(Recipe))
    assert issubclass(Training, Workload)


def test_a_run_asks_its_recipe_nothing() -> None:
    """A running workload reads the values of the experiment; it never accesses the recipe."""
    script = ROOT / "tests" / "support" / "call_pairs.py"
    found = subprocess.run(
        [sys.executable, str(script), "reference", "--list"], capture_output=True, text=True, timeout=300, check=True
    )
    pairs = [line.split(" -> ") for line in found.stdout.splitlines() if " -> " in line]
    assert any(caller.startswith("deep5/run/train.py:") for caller, _ in pairs)
    back = [
        pair for pair in pairs if pair[0].startswith("deep5/run/") and pair[1].startswith("deep5/recipe/recipe.py:")
    ]
    assert back == []
