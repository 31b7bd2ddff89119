"""`deep5 evaluate`: evaluates the network again and compares with the record; executes no code in the folder."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from rich.console import Console

import deep5 as d5
from command import Command
from deep5.cli import main as cli
from deep5.cli.evaluate import evaluate_command
from deep5.core.errors import UsageError
from deep5.trained.evaluate import evaluate_result
from deep5.training.scores import confusion

FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 784, "hidden": 24, "classes": 10},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (784,), "train": 120, "test": 50},
    "epochs": 2,
}
MUTABLE = {"batch_size": 32, "framework": "reference", "optimizer": "adam"}
METRICS = [(d5.TestAccuracy(), None), (d5.TestLoss(), None), (d5.TopK(5), None), (d5.ConfusionMatrix(), None)]


@pytest.fixture(scope="module", autouse=True)
def command() -> None:
    if "evaluate" not in cli._cli.commands:
        assert isinstance(cli._cli, click.Group)
        cli._cli.add_command(evaluate_command(cli.errors))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(d5.run_recipe(FIXED, MUTABLE, METRICS, out=tmp_path_factory.mktemp("out"), quiet=True).folder)


@pytest.fixture
def copy(result: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(result, tmp_path / "copy"))


def change(folder: Path, **parts: Any) -> None:
    """Change the recipe's fixed part in result.json."""
    document = json.loads((folder / "result.json").read_text())
    document["recipe"]["fixed"] |= parts
    (folder / "result.json").write_text(json.dumps(document))


def test_what_the_run_had_recorded_is_found_again(result: Path) -> None:
    found, recorded = evaluate_result(result), d5_metrics(result)
    assert found.same is True
    assert found.accuracy == recorded["test_accuracy"]
    assert found.loss == recorded["test_loss"]
    assert found.top_5 == recorded["top_k"]
    assert (found.samples, found.split, found.same_data, found.notes) == (50, "test", True, ())
    assert found.matrix.sum() == 50
    assert 100 * np.trace(found.matrix) / 50 == found.accuracy


def d5_metrics(folder: Path) -> dict[str, float]:
    return {row["name"]: row["value"] for row in json.loads((folder / "result.json").read_text())["metrics"]}


def test_an_average_of_torch_s_own_is_what_is_stored(tmp_path: Path) -> None:
    """Its optimizer averages, instead of a step of the executor."""
    mutable = MUTABLE | {"framework": "pytorch", "optimizer": "native:averaged_sgd", "optimizer_kwargs": {"lr": 0.5}}
    folder = Path(d5.run_recipe(FIXED, mutable, METRICS, out=tmp_path, quiet=True).folder)
    found, recorded = evaluate_result(folder), d5_metrics(folder)
    assert found.loss == pytest.approx(recorded["test_loss"], rel=1e-5)
    assert found.accuracy == recorded["test_accuracy"]


def test_the_numbers_are_those_of_a_forward_pass(result: Path) -> None:
    """With NumPy, from the weights in the folder."""
    from safetensors.numpy import load_file

    weights = load_file(result / "weights.safetensors")
    data = d5.datasets.synthetic(shape=(784,), train=120, test=50).test.batch(np.arange(50))
    x = data["input"]
    layers = sorted({name.rpartition(".")[0] for name in weights})
    for number, layer in enumerate(layers):
        w, b = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        x = x @ w.T + b
        x = np.tanh(x) if number < len(layers) - 1 else x
    found = evaluate_result(result)
    assert found.accuracy == 100 * np.mean(x.argmax(axis=1) == data["label"])
    assert np.array_equal(found.matrix, confusion(x, data["label"]))
    shifted = x - x.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(50), data["label"]]
    assert found.loss == pytest.approx(losses.mean(), rel=1e-5)  # float32, summed in another order


def test_the_training_set_is_compared_with_nothing(result: Path) -> None:
    found = evaluate_result(result, split="train")
    assert (found.samples, found.same, dict(found.recorded)) == (120, None, {})


def test_another_framework_gives_the_same_classes(result: Path) -> None:
    pytest.importorskip("onnxruntime")
    other = evaluate_result(result, framework="onnxruntime")
    assert other.framework.startswith("onnxruntime ")
    assert np.array_equal(other.matrix, evaluate_result(result).matrix)


def test_another_data_set(result: Path) -> None:
    arguments = {"shape": (784,), "train": 10, "test": 30, "data_seed": 1}
    found = evaluate_result(result, data="synthetic", arguments=arguments)
    assert (found.samples, found.same, found.same_data) == (30, None, False)
    with pytest.raises(UsageError, match="--set is for the data set of --data"):
        evaluate_result(result, arguments=arguments)
    with pytest.raises(UsageError, match=r"unknown data set 'sythetic'.*did you mean 'synthetic'"):
        evaluate_result(result, data="sythetic")
    with pytest.raises(UsageError, match="data set and network do not fit"):
        evaluate_result(result, data="synthetic", arguments={"shape": (3,)})


def test_other_data_is_said_and_not_compared(copy: Path) -> None:
    change(copy, dataset_kwargs={"shape": [784], "train": 120, "test": 50, "data_seed": 7})
    found = evaluate_result(copy)
    assert (found.same_data, found.same) == (False, None)


def test_the_run_s_own_data_by_name_are_recognized_and_compared(result: Path) -> None:
    found = evaluate_result(result, data="synthetic", arguments=FIXED["dataset_kwargs"])
    assert (found.same_data, found.same) == (True, True)


def test_another_split_of_the_same_samples_is_other_data(copy: Path) -> None:
    document = json.loads((copy / "result.json").read_text())
    document["provenance"]["split"] = "0" * 64
    (copy / "result.json").write_text(json.dumps(document))
    assert evaluate_result(copy).same_data is False


def test_data_hashed_by_another_rule_are_unknown(copy: Path) -> None:
    """As those of image folders before their bytes were hashed."""
    document = json.loads((copy / "result.json").read_text())
    document["provenance"]["data"] = "0" * 64
    (copy / "result.json").write_text(json.dumps(document))
    described = json.loads((copy / "dataset.json").read_text())
    (copy / "dataset.json").write_text(json.dumps({**described, "hash": "names of the files"}))
    found = evaluate_result(copy)
    assert (found.same_data, found.same) == (None, True)
    assert "whether the data are those of the run is unknown: the run's hash" in found.notes[-1]


def test_data_without_a_recorded_hash_are_unknown(copy: Path) -> None:
    document = json.loads((copy / "result.json").read_text())
    document["provenance"]["data"] = None
    (copy / "result.json").write_text(json.dumps(document))
    assert evaluate_result(copy).notes[-1].endswith("the run did not record the hash of its data")


def test_other_weights_are_said(copy: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(copy / "weights.safetensors")
    save_file({name: value * 0 for name, value in weights.items()}, copy / "weights.safetensors")
    found = evaluate_result(copy)
    assert "the weights in the folder are not those that the run wrote" in found.notes[0]
    assert found.same is False
    assert found.accuracy == 10.0  # all of one class, out of ten in turn


# No code in the folder is executed


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\ndef data(**given): ...\n")
    return tmp_path / "trap.py"


@pytest.mark.parametrize("key", ["dataset", "validation_sampler", "test_transforms"])
def test_a_file_that_a_result_names_is_not_loaded(key: str, copy: Path, trap: Path) -> None:
    change(copy, **{key: f"{trap}:data"})
    with pytest.raises(UsageError, match=f"'{key}' of this result is .*, which is none of the registered"):
        evaluate_result(copy)
    change(copy, **{key: {"object": "data", "file": "0" * 64}})
    with pytest.raises(UsageError, match="remedy: --recipe with the recipe's file"):
        evaluate_result(copy)
    assert not (trap.parent / "sprung").exists()


def test_the_recipe_in_the_folder_is_not_run(copy: Path, trap: Path) -> None:
    shutil.copy(trap, copy / "recipe.py")
    assert evaluate_result(copy).same is True
    assert not (trap.parent / "sprung").exists()


OWN = """
import deep5 as d5

def own(*, test=40):
    return d5.datasets.synthetic(shape=(784,), train=60, test=test)

FIXED = {
    "model": "mlp",
    "dataset": own,
    "dataset_kwargs": {"test": 40},
    "epochs": 1,
}
MUTABLE = {"batch_size": 20, "framework": "reference", "optimizer": "sgd"}
METRICS = [(d5.TestAccuracy(), None)]
"""


def test_a_data_set_of_the_recipes_own_needs_the_recipe(tmp_path: Path) -> None:
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    file = tmp_path / "own.py"
    file.write_text(OWN)
    folder = execute(load_recipe(file), out=tmp_path / "out").folder
    with pytest.raises(UsageError, match="remedy: --recipe with the recipe's file, which is 'own' in the result"):
        evaluate_result(folder)
    found = evaluate_result(folder, recipe=file)
    assert (found.samples, found.same, found.notes) == (40, True, ())
    file.write_text(OWN + "# changed\n")
    assert "the recipe's file was changed since the run" in evaluate_result(folder, recipe=file).notes[0]
    file.write_text(OWN.replace('"test": 40', '"test": 41'))
    with pytest.raises(UsageError, match="allowed: the recipe of the run, as it was"):
        evaluate_result(folder, recipe=file)


def test_a_result_with_a_hash_of_the_first_rule_is_evaluated_with_its_recipe(tmp_path: Path, deep5: Command) -> None:
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    file = tmp_path / "own.py"
    file.write_text(OWN)
    recipe = load_recipe(file)
    folder = execute(recipe, out=tmp_path / "out", quiet=True).folder
    document = json.loads((folder / "result.json").read_text())
    document["recipe"] |= recipe.by_first_rule()
    del document["recipe"]["content"], document["recipe"]["hash_version"]
    (folder / "result.json").write_text(json.dumps(document))
    assert evaluate_result(folder, recipe=file).same is True
    assert json.loads(deep5("audit", str(folder), "--json").out)["findings"] == []
    # By text: a comment in the function changes the hash of the first rule, and not the present one.
    file.write_text(OWN.replace("def own(*, test=40):", "def own(*, test=40):  # samples"))
    assert load_recipe(file).fixed_hash() == recipe.fixed_hash()
    with pytest.raises(UsageError, match="allowed: the recipe of the run, as it was"):
        evaluate_result(folder, recipe=file)


def test_a_recipe_with_transforms_is_evaluated_with_them(tmp_path: Path) -> None:
    from deep5.training.transforms import Normalise

    fixed = {**FIXED, "test_transforms": [Normalise(0.5, 2.0)], "train_transforms": [Normalise(0.5, 2.0)]}
    fixed |= {"model": "lenet", "model_kwargs": {}, "dataset_kwargs": {"train": 60, "test": 40}}
    run = d5.run_recipe(fixed, MUTABLE, [(d5.TestLoss(), None)], out=tmp_path, quiet=True)
    found = evaluate_result(run.folder)
    assert found.loss == run.metric("test_loss")


SET = """
import numpy as np
import deep5 as d5

def own():
    return d5.datasets.synthetic(train=60, test=40)

def darker(inputs, ids, epoch):
    return {**inputs, "input": inputs["input"] * np.float32(0.25)}

FIXED = {"model": "lenet", "dataset": own, "epochs": 1}
MUTABLE = {
    "batch_size": 20,
    "framework": "reference",
    "optimizer": "sgd",
    "test_transforms": d5.Normalise(0.5, 2.0),
}
METRICS = [(d5.TestLoss(), None)]
"""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"test_transforms": "cutout", "test_transforms_kwargs.size": 8},
        {"test_transforms": []},
        {"test_transforms": "cutout", "test_transforms_args": [8], "validation_sampler": "shuffle"},
    ],
    ids=["own", "cutout", "none", "sampler"],
)
def test_what_a_run_had_set_is_set_again(settings: dict[str, Any], tmp_path: Path) -> None:
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    file = tmp_path / "own.py"
    file.write_text(SET)
    run = execute(load_recipe(file).with_settings(settings), out=tmp_path / "out")
    found = evaluate_result(run.folder, recipe=file)
    assert found.loss == run.metric("test_loss")
    # The same data in another way: transforms and sampler are the run's, with and without the recipe.
    given = {"data": "synthetic", "arguments": {"train": 60, "test": 40}}
    assert evaluate_result(run.folder, **given, recipe=file).loss == found.loss  # type: ignore[arg-type]
    assert evaluate_result(run.folder, **given).loss == found.loss  # type: ignore[arg-type]


def test_what_a_run_had_set_and_nobody_can_make_is_refused(tmp_path: Path) -> None:
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    file = tmp_path / "own.py"
    file.write_text(SET)
    run = execute(load_recipe(file).with_settings({"test_transforms": f"{file}:darker"}), out=tmp_path / "out")
    with pytest.raises(
        UsageError, match=r"'test_transforms' of this result is .*; remedy: a file that refers to it instead"
    ):
        evaluate_result(run.folder, recipe=file)
    with pytest.raises(UsageError, match=r"'test_transforms' of this result is .*remedy: --recipe"):
        evaluate_result(run.folder, data="synthetic", arguments={"train": 60, "test": 40})
    # The recipe with the settings written into it.
    other = tmp_path / "other.py"
    other.write_text(SET.replace("d5.Normalise(0.5, 2.0)", f"{str(file) + ':darker'!r}"))
    found = evaluate_result(run.folder, recipe=other)
    assert found.loss == run.metric("test_loss")


# A result without a network, and the command


def test_results_that_cannot_be_evaluated(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a result folder: it holds no result\.json"):
        evaluate_result(tmp_path)
    with pytest.raises(UsageError, match="split 'all'; allowed: 'test', 'train'"):
        evaluate_result(copy, split="all")
    (copy / "network.onnx").unlink()
    with pytest.raises(UsageError, match=r"holds no network\.onnx: the network was native code; remedy: --recipe"):
        evaluate_result(copy)
    (copy / "weights.safetensors").unlink()
    with pytest.raises(UsageError, match="holds no trained network: the run has the status 'success'"):
        evaluate_result(copy)


def test_a_damaged_network(copy: Path, deep5: Command) -> None:
    (copy / "network.onnx").write_bytes((copy / "network.onnx").read_bytes()[:200])
    answer = deep5("evaluate", str(copy))
    assert answer.status in (2, 3)
    assert "network.onnx" in answer.err
    assert "Traceback" not in answer.err


def test_the_command(result: Path, deep5: Command) -> None:
    answer = deep5("evaluate", str(result))
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == str(result)
    assert lines[1].startswith("50 test samples of synthetic, reference ")
    assert [line.split()[0] for line in lines[2:5]] == ["accuracy", "top_5", "loss"]
    assert all(line.endswith("as the run recorded") for line in lines[2:5])
    assert sum(line.endswith(" %") for line in lines[7:]) == 10  # the recalls
    document = json.loads(deep5("evaluate", str(result), "--json", "--split", "train").out)
    assert (document["samples"], document["same"], document["recorded"]) == (120, None, {})
    assert np.sum(document["confusion"]) == 120
    answer = deep5("evaluate", str(result), "--data", "synthetic", "--set", "shape=[784]", "--set", "test=7")
    assert "7 test samples of synthetic" in answer.out
    answer = deep5("evaluate", str(result), "--split", "both")
    assert (answer.status, answer.out) == (2, "")


NAMED = """
import numpy as np
from deep5.training.dataset import ArrayDataset, Splits

def animals():
    draw = np.random.default_rng(0)
    part = ArrayDataset({"input": draw.standard_normal((40, 784)).astype(np.float32), "label": np.arange(40) % 10})
    return Splits(train=part, test=part, description={"classes": [f"animal {number}" for number in range(10)]})
"""


def test_classes_have_their_names(result: Path, deep5: Command) -> None:
    Path("named.py").write_text(NAMED)
    names = [f"animal {number}" for number in range(10)]
    answer = deep5("evaluate", str(result), "--data", "named.py:animals")
    rows = answer.out.splitlines()[-10:]
    assert [row.split("  ")[-1] for row in rows] == names
    assert all(re.fullmatch(rf" +{number} [\d ]+ [\d.]+ %  animal {number}", row) for number, row in enumerate(rows))
    assert json.loads(deep5("evaluate", str(result), "--data", "named.py:animals", "--json").out)["classes"] == names
    assert json.loads(deep5("evaluate", str(result), "--json").out)["classes"] == [None] * 10


def test_what_is_most_confused_of_many_classes_has_its_names(result: Path) -> None:
    matrix = np.zeros((30, 31), np.int64)
    matrix[3, 17], matrix[4, 4], matrix[29, 0] = 5, 9, 7
    found = replace(evaluate_result(result), matrix=matrix, names={3: "cat", 17: "dog"})
    console = Console(record=True, width=100, file=io.StringIO())
    found.print(console)
    assert [line.split() for line in console.export_text().splitlines()[-2:]] == [
        ["29", "0", "7"],
        ["3", "17", "5", "cat", "dog"],
    ]
