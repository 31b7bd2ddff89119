"""`d5.register`: names of this process, their identity in recipes, and where they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
from deep5.core import plugins, run_time
from deep5.core.errors import UnknownName, UsageError
from deep5.recipe.recipe import Recipe, load_recipe


class Halved(d5.UpdateRule):
    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        return {}

    def update_rule(self, grad: Any, param: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return param - self.lr / 2 * grad, state


class Engine(d5.ONNXEngine):
    name = "own_engine"

    def version(self) -> str:
        return "1"

    def compile(self, model: bytes, *, threads: int) -> Any:
        import onnx
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(onnx.load_from_string(model))
        return lambda inputs: evaluator.run(None, inputs)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(run_time._COMPONENTS)
    yield
    run_time._COMPONENTS.clear()
    run_time._COMPONENTS.update(before)
    plugins.forget_names()


RECIPE = """
import deep5 as d5
{before}
FIXED = {{"model": "mlp", "dataset": "synthetic", "dataset_kwargs": {{"shape": (784,)}}, "epochs": 1,
         "optimizer": {optimizer}}}
MUTABLE = {{"batch_size": 64, "framework": "reference"}}
METRICS = [(d5.TestAccuracy(), None)]
"""
RULE = """
{decorator}
class Rule(d5.UpdateRule):
    hyper = ("lr",)
    def __init__(self, lr=0.1): self.lr = lr
    def init_state(self, param): return {{}}
    def update_rule(self, grad, param, state): return param - {factor} * self.lr * grad, state
"""


def written(path: Path, before: str, optimizer: str) -> Recipe:
    path.write_text(RECIPE.format(before=before, optimizer=optimizer))
    return load_recipe(str(path))


def test_both_forms_register_and_the_name_is_listed() -> None:
    assert d5.register("optimizers", "halved", Halved) is Halved
    assert d5.register("frameworks", "own_engine")(Engine) is Engine
    assert plugins.load("optimizers", "halved") is Halved
    assert isinstance(d5.framework("own_engine"), Engine)
    from deep5.cli.list import listing

    assert "halved" in [row["name"] for row in listing("optimizers")]


def test_a_definition_that_runs_again_replaces_and_another_is_refused() -> None:
    again = type("Halved", (Halved,), {"__module__": Halved.__module__, "__qualname__": "Halved"})
    d5.register("optimizers", "halved", Halved)
    d5.register("optimizers", "halved", Halved)
    d5.register("optimizers", "halved", again)
    assert plugins.load("optimizers", "halved") is again
    with pytest.raises(UsageError, match=r"'halved' is registered already, as .*Halved, and would be .*Adam; "):
        d5.register("optimizers", "halved", d5.Adam)
    with pytest.raises(UsageError, match=r"the optimizer 'adam' exists already, as 'deep5.training.rules.adam:Adam'"):
        d5.register("optimizers", "adam", Halved)


@pytest.mark.parametrize("kind", sorted(plugins.KINDS))
def test_every_kind_takes_its_component_and_refuses_a_number(kind: str) -> None:
    import deep5.recipes.digits_lenet as module

    operator = type("Twice", (d5.Operator,), {"specs": None, "forward": None, "backward": None})
    metric = type("Own", (d5.Metric,), {})
    given = {"recipes": module, "frameworks": Engine, "operators": operator, "metrics": metric}
    given["events"] = type("Own", (d5.Event,), {})
    component = given.get(kind, Halved)
    name = {"operators": "org.example.Twice", "frameworks": "own_engine"}.get(kind, "own_name")
    d5.register(kind, name, component)
    assert plugins.load(kind, name) is component
    with pytest.raises(UsageError, match="allowed: "):
        d5.register(kind, "org.example.other", 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("framework", "x", Engine), "unknown kind of component 'framework'.*did you mean 'frameworks'"),
        (("frameworks", "a b", Engine), "got 'a b' as the name of a framework; allowed: letters"),
        (("frameworks", "own:mode", Engine), "allowed: letters"),
        (("frameworks", "", Engine), "allowed: letters"),
        (("frameworks", 3, Engine), "got 3 as the name"),
        (("frameworks", "other", Engine), "has the attribute name = 'own_engine'; allowed: the name under which"),
        (("frameworks", "own_engine", Halved), "allowed: a class of d5.Framework"),
        (("operators", "Twice", Engine), "allowed: a class of d5.Operator"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((UsageError, UnknownName), match=message):
        d5.register(*arguments)


def test_a_name_is_hashed_as_its_component(tmp_path: Path) -> None:
    """As if the object were in FIXED: a change of its code changes the hash, and the name does not matter."""
    decorated = '@d5.register("optimizers", "ruled")'
    path = tmp_path / "recipe.py"
    by_name = written(path, RULE.format(decorator=decorated, factor="0.5"), '"ruled"').fixed_hash()
    by_object = written(path, RULE.format(decorator=decorated, factor="0.5"), "Rule").fixed_hash()
    assert by_name == by_object
    assert written(path, RULE.format(decorator=decorated, factor="0.25"), '"ruled"').fixed_hash() != by_name
    assert written(path, "", '"adam"').fixed_hash() != by_name


def test_components_of_libraries_and_arguments_are_part_of_the_hash(tmp_path: Path) -> None:
    before = 'import functools\nd5.register("optimizers", "ruled{0}", functools.partial(d5.SGD, lr={1}))'
    first = written(tmp_path / "a.py", before.format("1", "0.1"), '"ruled1"').fixed_hash()
    second = written(tmp_path / "b.py", before.format("2", "0.2"), '"ruled2"').fixed_hash()
    third = written(tmp_path / "c.py", before.format("3", "0.1"), '"ruled3"').fixed_hash()
    assert first == third != second


def test_other_processes_know_only_what_the_recipe_registers(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    before = RULE.format(decorator='@d5.register("optimizers", "ruled")', factor="0.5")
    written(path, before, '"ruled"')
    from deep5.recipe.register import check_reachable

    check_reachable(load_recipe(str(path)))
    d5.register("frameworks", "own_engine", Engine)
    remedy = rf"registered only in this process, and others are started; .*remedy: {Path(__file__)}:Engine"
    with pytest.raises(UsageError, match=remedy):
        d5.run_comparison("digits_lenet", frameworks=["own_engine", "reference"])
    with pytest.raises(UsageError, match=remedy):
        check_reachable(load_recipe(str(path)).with_settings({"framework": "own_engine"}))
    from deep5.bench.measure import measure
    from deep5.bench.plan import Plan

    with pytest.raises(UsageError, match=remedy):
        measure(Plan(operator="MatMul", shapes=((2, 2), (2, 2)), frameworks=("own_engine",), mode="rigorous"))
    from deep5.run.check_framework import check_framework

    with pytest.raises(UsageError, match=remedy):
        check_framework("own_engine")


def test_a_recipe_runs_with_what_it_registers(tmp_path: Path) -> None:
    result = d5.run_recipe(
        {"model": "mlp", "dataset": "synthetic", "dataset_kwargs": {"shape": (784,)}, "epochs": 1},
        {"batch_size": 512, "framework": d5.register("frameworks", "own_engine", Engine).name, "optimizer": "sgd"},
        [(d5.TestAccuracy(), None)],
        out=tmp_path,
        quiet=True,
    )
    assert result.document["framework"]["name"] == "own_engine"


def test_a_file_brings_a_framework_to_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.cli.bench_operator import ready_recipe
    from deep5.recipe.experiment import Experiment
    from deep5.run.operators import time_operators

    (tmp_path / "engine.py").write_text(
        "import onnx\nfrom onnx.reference import ReferenceEvaluator\nimport deep5 as d5\n\n\n"
        "class Own(d5.ONNXEngine):\n    name = 'own'\n\n    def version(self):\n        return '1'\n\n"
        "    def compile(self, model, *, threads):\n"
        "        evaluator = ReferenceEvaluator(onnx.load_from_string(model))\n"
        "        return lambda inputs: evaluator.run(None, inputs)\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = ready_recipe("MatMul", frameworks="engine.py:Own,reference", shapes=("4x4", "4x4"), rigorous=False)
    result = time_operators(Experiment.of(recipe), tmp_path / "results", quiet=True)
    rows = result.document["components"]["plan"]["frameworks"]
    assert rows == ["engine.py:Own", "reference"]
    wrong = ready_recipe("MatMul", frameworks="engine.py:Onw", shapes=("4x4", "4x4"), rigorous=False)
    with pytest.raises(UsageError, match=r"engine.py has no 'Onw'.*did you mean 'Own'"):
        time_operators(Experiment.of(wrong), tmp_path / "results", quiet=True)
