"""Recipes: every form of their parts, goals, sizes, settings, and one hash for one meaning."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.canonical import canonical, canonical_hash
from deep5.core.errors import Deep5Error, GoalError, RecipeError, UsageError
from deep5.core.metric import parse_goal
from deep5.core.plugins import load, registered
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.recipe.settings import parse_setting
from deep5.run.assemble import assemble
from deep5.run.check import check_recipe

FIXED: dict[str, Any] = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
    "epochs": 2,
}
MUTABLE: dict[str, Any] = {
    "batch_size": 16,
    "framework": "reference",
    "optimizer": "sgd",
    "optimizer_kwargs": {"lr": 0.1},
}
METRICS = [("test_accuracy", None)]


def recipe(fixed: dict[str, Any] | None = None, mutable: dict[str, Any] | None = None, **more: Any) -> Recipe:
    return Recipe.make({**FIXED, **(fixed or {})}, {**MUTABLE, **(mutable or {})}, more.pop("metrics", METRICS), **more)


def fixed_hash(**fixed: Any) -> str:
    return recipe(fixed).fixed_hash()


class Plain:
    """An object that does not describe itself."""


class Described:
    def __init__(self, value: int) -> None:
        self.value = value

    def describe(self) -> dict[str, Any]:
        return {"value": self.value}


class Counting(d5.Event):
    def __init__(self, by: int = 1) -> None:
        self.by = by


class OwnRule(d5.UpdateRule):
    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, state


def own_network(seed: int = 0) -> Any:
    return d5.networks.mlp(features=4, hidden=8, classes=3, seed=seed)


# -- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed", "mutable"),
    [
        ({}, {}),
        ({"model": d5.networks.mlp}, {}),
        ({"model": own_network, "model_kwargs": {}}, {}),
        ({"model": own_network(), "model_kwargs": {}}, {}),
        ({"train_sampler": "shuffle", "validation_sampler": d5.OrderedSampler}, {}),
        ({}, {"train_sampler": d5.ShuffleSampler, "train_sampler_kwargs": {"seed": 3}}),
        ({}, {"optimizer": d5.SGD}),
        ({}, {"optimizer": d5.Momentum, "optimizer_args": (0.1, 0.9), "optimizer_kwargs": {"nesterov": True}}),
        ({}, {"optimizer": d5.Adam(), "optimizer_kwargs": {}}),
        ({}, {"optimizer": OwnRule}),
        ({}, {"events": "progress_bar"}),
        ({}, {"events": [Counting, Counting(2), "progress_bar"]}),
        ({}, {"events": Counting, "events_args": (5,)}),
        ({}, {"framework": type(d5.framework("reference"))}),
        ({}, {"framework": d5.framework("reference")}),
        ({}, {"device": d5.CPUDevice(), "seed": 7}),
    ],
)
def test_components_are_names_classes_functions_and_objects(fixed: dict[str, Any], mutable: dict[str, Any]) -> None:
    made = recipe(fixed, mutable)
    check_recipe(made)
    parts = assemble(recipe_parts(made))
    assert parts.framework == "reference"
    assert len(parts.splits.train) == 60
    assert parts.executor.network.inputs["input"].shape == ("N", 4)


def test_arguments_reach_their_components() -> None:
    parts = assemble(
        recipe_parts(
            recipe(
                mutable={"optimizer": "momentum", "optimizer_args": (0.25, 0.5), "optimizer_kwargs": {"nesterov": True}}
            )
        )
    )
    assert (parts.optimizer.lr, parts.optimizer.nesterov) == (0.25, True)
    parts = assemble(
        recipe_parts(recipe(mutable={"train_sampler": "shuffle", "train_sampler_kwargs": {"seed": 3}, "seed": 5}))
    )
    assert parts.train_sampler.seed == 3
    assert parts.seeds["run"] == 5
    (event,) = assemble(recipe_parts(recipe(mutable={"events": Counting, "events_args": (5,)}))).events
    assert isinstance(event, Counting)
    assert event.by == 5


def test_executor_instead_of_framework() -> None:
    from deep5.frameworks.reference.framework import Reference

    mutable = {key: value for key, value in MUTABLE.items() if key != "framework"}
    for executor in (Reference, Reference(), Reference().executor, "reference"):
        parts = assemble(
            recipe_parts(Recipe.make(FIXED, {**mutable, "executor": executor, "executor_kwargs": {}}, METRICS))
        )
        assert parts.framework in ("reference", "Reference.executor")


def test_metrics_are_names_classes_and_objects() -> None:
    made = recipe(metrics=[("test_accuracy", 97), [d5.TrainingLoss, "< 2"], (d5.TimeToAccuracy(90), None)])
    assert [(type(metric), str(goal)) for metric, goal in made.metrics] == [
        (d5.TestAccuracy, ">= 97"),
        (d5.TrainingLoss, "< 2"),
        (d5.TimeToAccuracy, "None"),
    ]
    two = [(d5.TimeToAccuracy(90), None), (d5.TimeToAccuracy(95), None)]
    assert len(recipe(metrics=two).metrics) == 2


def test_what_the_caller_passes_never_changes() -> None:
    fixed, mutable = copy.deepcopy(FIXED), copy.deepcopy({**MUTABLE, "events": [Counting], "events_kwargs": {"by": 2}})
    metrics, sizes = [["test_accuracy", ">= 1"]], {"smoke": {"epochs": 1, "model_kwargs": {"hidden": 2}}}
    before = copy.deepcopy((fixed, mutable, metrics, sizes))
    made = Recipe.make(fixed, mutable, metrics, sizes=sizes)
    made.at_size("smoke")
    changed = made.with_settings({"optimizer_kwargs.lr": 0.5, "batch_size": 8})
    assemble(recipe_parts(changed))
    assert (fixed, mutable, metrics, sizes) == before
    # A recipe does not change when its caller's objects do, or when a component changes its arguments.
    hashed = made.fixed_hash()
    fixed["model_kwargs"]["hidden"] = 99
    made.value("model_kwargs")["hidden"] = 98
    assert made.fixed_hash() == hashed


def test_the_tutorials_recipe_is_expressible() -> None:
    made = load_recipe("cifar10_resnet44")
    check_recipe(made)
    described = made.describe()
    assert described["fixed"]["model_kwargs"] == {"depth": 44}
    assert described["fixed"]["train_sampler"] == "shuffle"
    assert described["mutable"]["executor"] == "deep5.frameworks.pytorch.framework:from_model"
    assert described["mutable"]["optimizer_args"] == [0.1, 0.9]
    assert described["metrics"] == [{"metric": "test_accuracy", "goal": ">= 93"}]
    small = made.at_size("smoke").with_settings({"framework": "reference", "optimizer": "momentum"})
    assert small.value("device") == d5.CPUDevice()
    assert "executor" not in small.mutable


# -- goals ------------------------------------------------------------------------------------------------------------

ACCURACY, SECONDS = d5.TestAccuracy(), d5.WallClockTime()


@pytest.mark.parametrize(
    ("metric", "goal", "read"),
    [
        (ACCURACY, 97, ">= 97"),
        (ACCURACY, 97.5, ">= 97.5"),
        (ACCURACY, np.float64(97), ">= 97"),
        (ACCURACY, ">= 97", ">= 97"),
        (ACCURACY, "> 90 %", "> 90"),
        (ACCURACY, ">90%", "> 90"),
        (SECONDS, 60, "<= 60"),
        (SECONDS, "< 60 s", "< 60"),
        (SECONDS, " <= 1e1 ", "<= 10"),
        (SECONDS, None, "None"),
        (SECONDS, "< 60 ms", "< 0.06"),
        (SECONDS, "<= 1.5min", "<= 90"),
        (SECONDS, "< 0.1 h", "< 360"),
        (SECONDS, "< 7 us", "< 7e-06"),
        (SECONDS, "< 1e-999 ms", "< 0"),
        (d5.StepLatency(), "< 1 s", "< 1000"),
        (d5.StepLatency(), "< 0.1 us", "< 0.0001"),
        (d5.PeakMemory(), "< 2 GiB", "< 2048"),
        (d5.PeakMemory(), "< 1048576 B", "< 1"),
        (d5.PeakMemory(), "< 1 GB", "< 953.67431640625"),
        (ACCURACY, "> 100", "> 100"),
        (ACCURACY, 0, ">= 0"),
    ],
)
def test_goals(metric: Any, goal: Any, read: str) -> None:
    assert str(parse_goal(metric, goal)) == read


@pytest.mark.parametrize(
    ("metric", "goal", "message"),
    [
        (ACCURACY, "97", "cannot be read; allowed: a number"),
        (ACCURACY, "== 97", "cannot be read"),
        (ACCURACY, "", "cannot be read"),
        (ACCURACY, ">= inf", "cannot be read"),
        (ACCURACY, ">= nan", "cannot be read"),
        (ACCURACY, ">= 1e999", "is not finite"),
        (ACCURACY, "< 97", "points the wrong way.*higher is better"),
        (SECONDS, ">= 60", "points the wrong way.*lower is better"),
        (SECONDS, "< 60 MiB", "is in 'MiB'; allowed: 's', the metric's unit, or no unit, or h, min, ms, us, ns"),
        (SECONDS, "< 60 %", "is in '%'; allowed: 's'"),
        (SECONDS, "< 1e308 h", "is not finite"),
        (SECONDS, "< 1e999999999 h", "is not finite"),
        (ACCURACY, ">= 101", "is outside the metric's values; allowed: 0 to 100 %"),
        (ACCURACY, -1, "is outside the metric's values"),
        (ACCURACY, True, "is of type bool"),
        (ACCURACY, float("inf"), "is not finite"),
        (ACCURACY, float("nan"), "is not finite"),
        (ACCURACY, [97], "is of type list"),
    ],
)
def test_malformed_goals(metric: Any, goal: Any, message: str) -> None:
    with pytest.raises(GoalError, match=message):
        parse_goal(metric, goal)
    with pytest.raises(RecipeError, match=message):
        recipe(metrics=[(metric, goal)])


# -- one hash for one meaning -----------------------------------------------------------------------------------------


def test_hash_does_not_depend_on_how_the_same_is_written() -> None:
    same = recipe().fixed_hash()
    assert Recipe.make(dict(reversed(FIXED.items())), MUTABLE, METRICS).fixed_hash() == same
    assert fixed_hash(model_kwargs={"classes": 3, "hidden": 8, "features": 4}) == same
    assert fixed_hash(dataset_kwargs={**FIXED["dataset_kwargs"], "shape": [4]}) == same
    assert fixed_hash(dataset_kwargs={**FIXED["dataset_kwargs"], "train": np.int64(60)}) == same
    assert fixed_hash(model=d5.networks.mlp) == same
    assert fixed_hash(train_sampler="shuffle") == fixed_hash(train_sampler=d5.ShuffleSampler)
    one, other = ({"optimizer": rule, "optimizer_kwargs": {}} for rule in ("adam", d5.Adam))
    rest = {key: value for key, value in MUTABLE.items() if not key.startswith("optimizer")}
    assert len({Recipe.make({**FIXED, **part}, rest, METRICS).fixed_hash() for part in (one, other)}) == 1
    rest = {key: value for key, value in MUTABLE.items() if key != "framework"}
    frameworks = ("reference", type(d5.framework("reference")), d5.framework("reference"))
    assert len({Recipe.make({**FIXED, "framework": each}, rest, METRICS).fixed_hash() for each in frameworks}) == 1
    assert fixed_hash(device=d5.CPUDevice()) == fixed_hash(device="cpu")


def test_a_former_name_of_a_component_resolves_and_gives_the_hash() -> None:
    names = ("made_up", "synthetic_files", d5.datasets.synthetic_files)
    written = [recipe({"dataset": each, "dataset_kwargs": {"like": "mnist"}}) for each in names]
    assert len({each.fixed_hash() for each in written}) == 1
    assert [each.describe()["fixed"]["dataset"] for each in written] == ["made_up"] * 3
    assert load("datasets", "made_up") is d5.datasets.made_up is d5.datasets.synthetic_files
    assert "made_up" not in registered("datasets")


def test_hash_does_not_depend_on_the_mutable_part() -> None:
    made = recipe()
    assert made.with_settings({"batch_size": 8, "framework": "pytorch"}).fixed_hash() == made.fixed_hash()


def test_every_change_of_the_fixed_part_changes_the_hash() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"epochs": 3},
        {"model": "lenet", "model_kwargs": {}},
        {"model_kwargs": {**FIXED["model_kwargs"], "hidden": 9}},
        {"model_kwargs": {**FIXED["model_kwargs"], "dtype": "float64"}},
        {"model": own_network, "model_kwargs": {}},
        {"model": own_network(), "model_kwargs": {}},
        {"model": own_network(seed=1), "model_kwargs": {}},
        {"train_sampler": d5.ShuffleSampler},
        {"train_sampler": d5.OrderedSampler},
        {"events": Described(1)},
        {"events": Described(2)},
        {"events": [Counting]},
    ]
    assert len({fixed_hash(**changes) for changes in others}) == len(others)


def test_own_functions_are_hashed_by_source_and_what_they_close_over() -> None:
    def maker(hidden: int) -> Any:
        def network() -> Any:
            return d5.networks.mlp(features=4, hidden=hidden, classes=3)

        return network

    one, two = (canonical(maker(hidden), "model") for hidden in (8, 9))
    assert one["source"] == two["source"]
    assert one != two
    assert canonical(maker(8), "model") == one


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: None, "'model' holds a lambda.*remedy: define a function"),
        (Plain(), r"'model' holds a Plain, which has no canonical form.*describe\(\)"),
        (Plain().__init__, "'model' holds a Plain"),
    ],
)
def test_what_cannot_be_hashed_is_refused_in_the_fixed_part(value: Any, message: str) -> None:
    made = recipe({"model": value, "model_kwargs": {}})
    with pytest.raises(RecipeError, match=message):
        made.fixed_hash()
    with pytest.raises(RecipeError, match=message):
        check_recipe(made)


def test_nested_values_that_cannot_be_hashed_are_refused() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(RecipeError, match=r"'model_kwargs' holds (nan|inf); allowed: finite numbers"):
            fixed_hash(model_kwargs={"features": [value]})
    with pytest.raises(RecipeError, match="'model_kwargs' holds a dict with the key 3; allowed: strings"):
        fixed_hash(model_kwargs={"features": {3: 4}})
    with pytest.raises(RecipeError, match="'model_kwargs' holds a set, which has no canonical form"):
        fixed_hash(model_kwargs={"features": {3}})


def test_mutable_part_is_recorded_whatever_it_holds() -> None:
    described = recipe(
        mutable={"events": [Counting()], "optimizer": lambda: d5.SGD(0.5), "optimizer_kwargs": {}}
    ).describe()
    assert described["mutable"]["events"] == [{"object": "Counting"}]
    assert "<lambda>" in described["mutable"]["optimizer"]["object"]


FILE = """
import deep5 as d5

def network(seed=0):
    return d5.networks.mlp(features=4, hidden=8, classes=3, seed=seed)

class Rule(d5.UpdateRule):
    hyper = ("lr",)
    def __init__(self, lr=0.1): self.lr = lr
    def update_rule(self, grad, param, state): return param - self.lr * grad, state

FIXED = {
    "model": network, "dataset": "synthetic",
    "dataset_kwargs": {"test": 30, "shape": (4,), "classes": 3, "train": 60},
    "epochs": 1, "optimizer": Rule, "optimizer_kwargs": {"lr": 0.5},
}
MUTABLE = {"batch_size": 16, "framework": "reference"}
METRICS = [(d5.TestAccuracy(), None)]
if __name__ == "__main__":
    from deep5.recipe.recipe import Recipe
    print(Recipe.make(FIXED, MUTABLE, METRICS).fixed_hash())
"""


def test_hash_is_the_same_in_every_process_and_however_the_file_is_run(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FILE)
    here = load_recipe(file).fixed_hash()
    assert load_recipe(file).fixed_hash() == here
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, str(file)], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here
    file.write_text(FILE.replace("self.lr * grad", "self.lr * grad * 2"))
    assert load_recipe(file).fixed_hash() != here


def test_a_file_component_is_hashed_by_what_the_file_holds(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("Rule = 1\n")
    made = recipe({"train_sampler": "rule.py:Rule"}, path=tmp_path / "own.py", source=b"")
    before = made.fixed_hash()
    (tmp_path / "rule.py").write_text("Rule = 2\n")
    assert made.fixed_hash() != before


@pytest.mark.parametrize(
    "fixed",
    [
        {"schedules": {"lr": "parts.py:PART"}},
        {"batch_size": "parts.py:PART"},
        {"parameter_groups": "parts.py:PART"},
        {"train_transforms": ["parts.py:PART"]},
    ],
)
def test_what_a_file_holds_is_hashed_wherever_it_is_named(
    fixed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the recipe, whatever the working directory is."""
    (tmp_path / "sub").mkdir()
    part = tmp_path / "sub" / "parts.py"
    mutable = {name: value for name, value in MUTABLE.items() if name not in fixed}
    made = Recipe.make({**FIXED, **fixed}, mutable, METRICS, path=tmp_path / "sub" / "own.py", source=b"")
    hashes = []
    for content in ("PART = 1\n", "PART = 2\n"):
        part.write_text(content)
        for folder in (tmp_path, tmp_path / "sub"):
            monkeypatch.chdir(folder)
            hashes.append(made.fixed_hash())
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]


def test_canonical_hash_of_a_known_value() -> None:
    assert canonical_hash({"b": (1, 2.5), "a": None}) == canonical_hash({"a": None, "b": [1, 2.5]})
    assert canonical_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


# -- settings and sizes -----------------------------------------------------------------------------------------------


def test_settings_change_the_mutable_part_only() -> None:
    made = recipe()
    changed = made.with_settings({"batch_size": 8, "optimizer_kwargs.lr": 0.5, "seed": 3, "device": "cpu"})
    assert changed.fixed == made.fixed
    assert changed.value("optimizer_kwargs") == {"lr": 0.5}
    assert changed.division == made.division == "closed"
    assert made.value("batch_size") == 16


@pytest.mark.parametrize("key", ["validation_sampler", "validation_sampler_kwargs.x", "test_transforms", "init"])
def test_what_a_network_is_judged_by_is_not_changed_in_silence(key: str) -> None:
    """Easier samples than the recipe's, or trained weights, make it another benchmark: "open"."""
    value: Any = {"test_transforms": [], "init": "trained.onnx"}.get(key, "there.py:Easy")
    assert recipe().with_settings({key: value}).division == "open"
    if "." not in key:
        assert recipe(mutable={key: value}).with_settings({key: value}).division == "closed"


def test_a_setting_that_a_schedule_would_undo_is_refused() -> None:
    made = recipe(mutable={"schedules": {"lr": d5.Cosine(0.1)}})
    with pytest.raises(UsageError, match=r"got optimizer_kwargs\.lr, but 'lr' has a schedule .*: schedules\.lr=…"):
        made.with_settings({"optimizer_kwargs.lr": 0.5})
    assert made.with_settings({"optimizer_kwargs.lr": 0.5, "schedules": {}}).value("optimizer_kwargs") == {"lr": 0.5}
    assert made.with_settings({"optimizer_kwargs.momentum": 0.5}).value("optimizer_kwargs")["momentum"] == 0.5


@pytest.mark.parametrize("key", ["epochs", "model", "model_kwargs", "model_kwargs.hidden", "dataset_args"])
def test_fixed_parts_are_refused_by_name(key: str) -> None:
    with pytest.raises(
        UsageError, match=rf"'{key.partition('.')[0]}' is fixed by the recipe 'recipe'.*remedy: copy"
    ) as caught:
        recipe().with_settings({key: 1})
    assert "optimizer, " in str(caught.value)
    assert "optimizer_kwargs" not in str(caught.value)  # each component with _args and _kwargs


def test_arguments_of_a_fixed_component_are_fixed_unless_said_otherwise() -> None:
    fixed = {key: value for key, value in FIXED.items() if key != "dataset_kwargs"}
    with pytest.raises(UsageError, match="'dataset_kwargs' is fixed"):
        Recipe.make(fixed, MUTABLE, METRICS).with_settings({"dataset_kwargs.train": 10})
    open_ = Recipe.make(fixed, {**MUTABLE, "dataset_kwargs": {"train": 20}}, METRICS)
    assert open_.with_settings({"dataset_kwargs.train": 10}).value("dataset_kwargs") == {"train": 10}


def test_a_new_component_does_not_get_the_old_ones_arguments() -> None:
    made = recipe(mutable={"optimizer": "momentum", "optimizer_args": (0.1,), "optimizer_kwargs": {"nesterov": True}})
    same = made.with_settings({"optimizer": "momentum"})  # as --vary optimizer=adam,momentum does for one of them
    assert (same.value("optimizer_args"), same.value("optimizer_kwargs")) == ((0.1,), {"nesterov": True})
    for order in (("optimizer", "optimizer_kwargs.lr"), ("optimizer_kwargs.lr", "optimizer")):
        values = {"optimizer": "adam", "optimizer_kwargs.lr": 0.5}
        changed = made.with_settings({key: values[key] for key in order})
        assert (changed.value("optimizer_args"), changed.value("optimizer_kwargs")) == ((), {"lr": 0.5})


@pytest.mark.parametrize("key", ["compression_kwargs", "compression_args", "gradient_modifier_kwargs"])
def test_arguments_of_what_is_not_there_are_refused(key: str) -> None:
    given: Any = (0.1,) if key.endswith("_args") else {"ratio": 0.1}
    with pytest.raises(
        RecipeError, match=f"'{key}' is .*, but '{key.rpartition('_')[0]}' is not set; allowed: only with"
    ):
        recipe(mutable={key: given})
    assert recipe(mutable={key: type(given)()}).value(key) == type(given)()
    named = recipe(mutable={"scheme": "all_reduce", "compression": "top_k", "compression_kwargs": {"ratio": 0.1}})
    assert recipe(mutable={"scheme_kwargs": {"timeout_s": 3}}).value("scheme") is None  # all-reduce
    assert named.with_settings({"compression": None}).value("compression_kwargs") == {}


def test_framework_takes_the_executors_place_and_its_device() -> None:
    mutable = {key: value for key, value in MUTABLE.items() if key != "framework"}
    made = Recipe.make(FIXED, {**mutable, "executor": "reference", "executor_kwargs": {"device": "cpu"}}, METRICS)
    changed = made.with_settings({"framework": "pytorch"})
    assert "executor" not in changed.mutable
    assert changed.value("device") == "cpu"
    assert made.with_settings({"device": "cuda"}).value("executor_kwargs") == {}
    fixed = Recipe.make({**FIXED, "executor": "reference"}, mutable, METRICS)
    with pytest.raises(UsageError, match="'executor' is fixed"):
        fixed.with_settings({"framework": "pytorch"})
    with pytest.raises(UsageError, match="both set"):
        made.with_settings({"framework": "pytorch", "executor": "reference"})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("batchsize", "unknown key 'batchsize'; allowed: .*did you mean 'batch_size'"),
        ("batch_size.x", "unknown key 'batch_size.x'"),
        ("optimizer_kwargs.", "unknown key 'optimizer_kwargs.'"),
        ("", "unknown key ''"),
    ],
)
def test_unknown_settings(key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe().with_settings({key: 1})


def test_sizes() -> None:
    made = recipe(metrics=[("test_accuracy", 50)], sizes={"smoke": {"epochs": 1, "batch_size": 8}})
    small = made.at_size("smoke")
    assert (small.fixed["epochs"], small.mutable["batch_size"]) == (1, 8)
    assert small.metrics[0][1] is None
    assert (made.division, small.division) == ("closed", "open")
    assert small.fixed_hash() != made.fixed_hash()
    assert made.at_size("full") is made
    # Arguments that the recipe leaves mutable stay mutable.
    mutable = {"dataset_kwargs": {**FIXED["dataset_kwargs"], "limit": 9}}
    fixed = {name: value for name, value in FIXED.items() if name != "dataset_kwargs"}
    own = Recipe.make(fixed, {**MUTABLE, **mutable}, METRICS, sizes={"smoke": {"dataset_kwargs": {"train": 6}}})
    at_smoke = own.at_size("smoke")
    assert "dataset_kwargs" not in at_smoke.fixed
    assert at_smoke.with_settings({"dataset_kwargs.train": 7}).value("dataset_kwargs") == {"train": 7}
    judged = recipe(sizes={"smoke": {"metrics": [("test_accuracy", 10)]}}).at_size("smoke")
    assert str(judged.metrics[0][1]) == ">= 10"
    with pytest.raises(UsageError, match="has no size 'smok'; allowed: full, smoke; did you mean 'smoke'"):
        made.at_size("smok")


def test_parse_setting() -> None:
    assert parse_setting("device=cuda:1") == ("device", "cuda:1")
    assert parse_setting("a = (1, 2)") == ("a", (1, 2))
    assert parse_setting("a=None") == ("a", None)
    assert parse_setting("a=b=c") == ("a", "b=c")
    assert parse_setting("a=") == ("a", "")


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_python_reads_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("EPOCHS = 4\n")
    file = tmp_path / "own.py"
    file.write_bytes(
        b"\xef\xbb\xbfimport dataclasses\r\nfrom neighbour import EPOCHS\r\n"
        b"@dataclasses.dataclass\r\nclass Held:\r\n    value: int = 3\r\n"
        b"ANNOTATION = Held.__annotations__['value']\r\n"
        + f"FIXED: dict = {FIXED | {'epochs': 0}!r}\r\nFIXED['epochs'] = EPOCHS\r\n".encode()
        + f"MUTABLE = {MUTABLE!r}\r\nMETRICS = {METRICS!r}\r\n".encode()
    )
    made = load_recipe(file)
    assert made.value("epochs") == 4
    assert made.source == file.read_bytes()
    assert made.where("epochs") == f"{file}:7: "
    assert str(tmp_path) not in sys.path
    sys.modules.pop("neighbour")


def test_lines_of_nested_parts(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        f"FIXED = {FIXED!r}\nMUTABLE = {MUTABLE!r}\nMETRICS = [\n  ('test_accuracy', 1),\n  ('training_los', 1)]\n"
    )
    with pytest.raises(RecipeError, match=rf"{file}:5: unknown metric 'training_los'.*did you mean 'training_loss'"):
        load_recipe(file)
    file.write_text(f"FIXED = {FIXED!r}\nMUTABLE = {MUTABLE!r}\nMETRICS = [('parts/own.py:Own', 1)]\n")
    with pytest.raises(
        RecipeError, match=r"a metric's name, class or object; remedy: from own import Own, and Own\(\)"
    ):
        load_recipe(file)
    file.write_text(f"FIXED = {FIXED!r}\nMUTABLE = {MUTABLE!r}\nMETRICS = []\nSIZES = {{'s':\n  {{'epochs':\n  0}}}}\n")
    with pytest.raises(RecipeError, match=rf"{file}:5: 'epochs' is 0; allowed: an integer of at least 1"):
        load_recipe(file)


def test_settings_are_not_blamed_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(f"FIXED = {FIXED!r}\nMUTABLE = {MUTABLE!r}\nMETRICS = []\n")
    with pytest.raises(Deep5Error, match=r"^'batch_size' is 'ten'"):
        load_recipe(file).with_settings({"batch_size": "ten"})


@pytest.mark.parametrize("name", ["cifar10_resnet44", "digits_lenet"])
def test_shipped_recipes_are_valid_at_every_size(name: str) -> None:
    made = load_recipe(name)
    for size in ("full", *made.sizes):
        check_recipe(made.at_size(size))
    assert "smoke" in made.sizes


def test_an_argument_is_suggested_from_the_components_that_the_settings_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit('was run')\nclass A:\n    def __init__(self, shade): ...\n")
    fixed = {key: value for key, value in FIXED.items() if not key.startswith("dataset")}
    open_ = Recipe.make(fixed, {**MUTABLE, "dataset": "synthetic"}, METRICS)
    for dataset, key in (("table", "path"), ("own.py:A", "shade")):
        with pytest.raises(UsageError, match=rf"unknown key '{key}'; .*did you mean 'dataset_kwargs\.{key}'\?"):
            open_.with_settings({"dataset": dataset, key: "X"})


def test_an_entry_within_an_argument_is_set() -> None:
    fixed = {key: value for key, value in FIXED.items() if not key.startswith("dataset")}
    open_ = Recipe.make(fixed, {**MUTABLE, "dataset": "arrays"}, METRICS)
    made = open_.with_settings({"dataset_kwargs.train.input": "x.npy", "dataset_kwargs.train.label": "y.npy"})
    assert made.value("dataset_kwargs") == {"train": {"input": "x.npy", "label": "y.npy"}}
    with pytest.raises(UsageError, match=r"unknown key 'dataset_kwargs\.\.input'"):
        open_.with_settings({"dataset_kwargs..input": 1})
