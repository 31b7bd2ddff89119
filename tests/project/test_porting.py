"""Names of Deep500 are understood, or answered with the new name; docs/how_to/porting.md maps each."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
from command import Command
from deep5.core.deep500 import NAMES, replaced
from deep5.core.errors import OperatorError, RuleError

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "porting.md"

# The tutorial's recipe, with the import of the package renamed.
TUTORIAL = """\
import deep5 as d5
import deep5.frameworks.%s as d5fw
FIXED = {
    'model': 'resnet', 'model_kwarg%s': dict(depth=44), 'dataset': 'cifar10', 'train_sampler': d5.ShuffleSampler,
    'epochs': 1
}
MUTABLE = {
    'batch_size': 64, 'executor': d5fw.from_model, 'executor_kwarg%s': dict(device=d5.CPUDevice()),
    'optimizer': d5.Momentum, 'optimizer_args': (0.1, 0.9),
}
METRICS = [(d5.TestAccuracy(), 93.0)]
"""


def test_the_page_maps_each_name() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE))

    assert {name: rows.get(name) for name in NAMES} == NAMES


def test_each_replacement_exists() -> None:
    for new in NAMES.values():
        for path in re.findall(r"\bd5((?:\.\w+)+)", new):
            found: Any = d5
            for part in path[1:].split("."):
                found = getattr(found, part, None)
            assert found is not None, path


@pytest.mark.parametrize("name", sorted(name for name in NAMES if not hasattr(d5, name)))
def test_an_attribute_of_the_package(name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(replaced(name))):
        getattr(d5, name)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", "onnxruntime", "openvino", "reference"])
def test_an_attribute_of_a_framework(framework: str) -> None:
    package = importlib.import_module(f"deep5.frameworks.{framework}")

    assert "from_model" in package.__all__
    with pytest.raises(AttributeError, match=r"custom_op, deep5 has d5\.framework\(name\)\.operator"):
        _ = package.custom_op


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: d5.networks, "create_model"),
        (lambda: d5.datasets, "load_cifar10"),
        (d5.networks.lenet, "fetch_tensors"),
        (d5.networks.lenet, "feed_tensor"),
        (d5.networks.lenet, "get_params"),
        (d5.SingleRank, "sync_all"),
        (d5.AllReduce, "communication"),
        (d5.AllReduce, "base_optimizer"),
    ],
)
def test_an_attribute_of_an_object(made: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(replaced(name))):
        getattr(made(), name)


def test_other_missing_attributes_are_not_explained() -> None:
    with pytest.raises(AttributeError) as error:
        _ = d5.SingleRank().nothing  # type: ignore[attr-defined]

    assert str(error.value) == "'SingleRank' object has no attribute 'nothing'"


def test_from_model_of_the_reference_is_understood() -> None:
    import deep5.frameworks.reference as d5ref

    executor = d5ref.from_model(d5.networks.mlp(features=4, hidden=3, classes=2))

    assert executor.settings()["device"] == "cpu"


def test_the_tutorial_s_recipe(deep5: Command, tmp_path: Path) -> None:
    Path(tmp_path, "old.py").write_text(TUTORIAL % ("reference", "", ""))
    answer = deep5("check", "old.py")

    assert answer.status == 2
    assert (
        "did you mean 'model_kwargs'? Deep500's 'model_kwarg' is 'model_kwargs' in deep5 (docs/how_to/porting.md)"
        in answer.err
    )

    Path(tmp_path, "new.py").write_text(TUTORIAL % ("reference", "s", "s"))
    assert deep5("check", "new.py").status == 0


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("import deep500 as d5", "import deep5 as d5"),
        ("import deep500.frameworks.pytorch as d5fw", "import deep5 as d5"),
        ("from recipes.recipe import run_recipe", r"d5\.run_recipe"),
    ],
)
def test_an_import_of_the_former_package(deep5: Command, tmp_path: Path, line: str, remedy: str) -> None:
    Path(tmp_path, "old.py").write_text(f"{line}\n")
    answer = deep5("check", "old.py")

    assert answer.status == 2
    assert re.search(rf"old.py:1: .*which Deep500 has and deep5 does not; remedy: .*{remedy}", answer.err)


def test_transformations_of_a_sampler(deep5: Command, tmp_path: Path) -> None:
    text = TUTORIAL % ("reference", "s", "s") + "MUTABLE['train_sampler_kwargs'] = dict(transformations=[])\n"
    Path(tmp_path, "old.py").write_text(text.replace(", 'train_sampler': d5.ShuffleSampler", "").replace(
        "'batch_size': 64", "'batch_size': 64, 'train_sampler': d5.ShuffleSampler"
    ))  # fmt: skip
    answer = deep5("check", "old.py")

    assert answer.status == 2
    assert "for Deep500's 'transformations', deep5 has the key 'train_transforms'" in answer.err


def test_methods_in_the_former_form_are_answered_with_the_new_one() -> None:
    with pytest.raises(
        RuleError, match=r"prepare_param\(self, param_name\) .*allowed: prepare_param\(self, param, state"
    ):
        type("Own", (d5.ThreeStepOptimizer,), {"prepare_param": lambda self, param_name: None})
    with pytest.raises(RuleError, match=r"allowed: new_input\(self, info\)"):
        type("Own", (d5.UpdateRule,), {"new_input": lambda self: None})
    with pytest.raises(RuleError, match=r"allowed: update_rule\(self, grad, param, state\)"):
        type("Own", (d5.UpdateRuleOptimizer,), {"update_rule": lambda self, grad, old_param, param_name: old_param})
    with pytest.raises(OperatorError, match=r"allowed: backward\(self, output_grads, inputs, outputs, needs\)"):
        type("Own", (d5.Operator,), {"backward": lambda self, grads, fwd_inputs, fwd_outputs: grads})
    own = type("Own", (d5.DistributedOptimizer,), {"step": lambda self, inputs: None})
    with pytest.raises(d5.UsageError, match=r"allowed: step\(self, inputs, info.*remedy: docs/how_to/porting\.md"):
        own().wrap(d5.SGD(0.1), d5.SingleRank())
    with pytest.raises(d5.UsageError, match=r"before_optimizer_step is not a hook.*did you mean 'before_step'"):
        type("Own", (d5.Event,), {"before_optimizer_step": lambda self, executor, optimizer, inputs: None})


def test_methods_in_the_present_form_are_accepted() -> None:
    # A class in a former form raises when it is defined.
    prepared = {"prepare_param": lambda self, p, s: p, "update_rule": lambda self, g, p, s: (p, s)}
    assert issubclass(type("Own", (d5.UpdateRule,), prepared), d5.UpdateRule)
    variadic = {"new_input": lambda self, *given: {}, "update_rule": lambda self, *given: given}
    assert issubclass(type("Own", (d5.UpdateRule,), variadic), d5.UpdateRule)
    assert issubclass(type("Own", (d5.Operator,), {"backward": lambda self, *given: given}), d5.Operator)
