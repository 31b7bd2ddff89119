"""Runs: the contents of a result folder, bit-identical repetition with a seed, and the remains of failed runs."""

from __future__ import annotations

import ast
import copy
import csv
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.canonical import canonical_hash
from deep5.core.errors import MissingDependency, RecipeError, RunFailed
from deep5.core.metric import Observer
from deep5.core.plugins import registered
from deep5.measuring.environment import default_threads
from deep5.networks import resnet
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.mllog import read_mllog
from deep5.results.result import Result, load
from deep5.results.schema import schema
from deep5.results.store import result_folders
from deep5.run.execute import execute
from deep5.run.record import _scope
from deep5.trained.evaluate import evaluate_result
from deep5.training.datasets.uci_digits import digits

pytestmark = pytest.mark.usefixtures("warm")

VALIDATOR = jsonschema.Draft202012Validator(schema())
EACH = pytest.mark.parametrize("framework", ["reference", "pytorch"])

FIXED: dict[str, Any] = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
    "epochs": 3,
}
MUTABLE: dict[str, Any] = {
    "batch_size": 16,
    "framework": "reference",
    "optimizer": "sgd",
    "optimizer_kwargs": {"lr": 0.1},
}
METRICS = [("test_accuracy", None), ("training_loss", None), ("step_latency", None)]


def recipe(mutable: dict[str, Any] | None = None, *, metrics: Any = METRICS, **fixed: Any) -> Recipe:
    return Recipe.make({**FIXED, **fixed}, {**MUTABLE, **(mutable or {})}, metrics)


def losses(result: Result) -> list[float]:
    return [row.value for row in result.samples()["training_loss"]]


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    VALIDATOR.validate(found)
    return found


@pytest.fixture(scope="module", params=["reference", "pytorch"])
def smoke(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """`digits_lenet` at its smoke size on each framework."""
    made = load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": request.param})
    return execute(made, out=tmp_path_factory.mktemp("results"))


# -- what a folder holds ----------------------------------------------------------------------------------------------


def test_result_is_valid_and_complete(smoke: Result) -> None:
    found = document(smoke.folder)
    assert (found["status"], found["accepted"], smoke.division) == ("success", None, "open")
    made = load_recipe("digits_lenet").at_size("smoke")
    assert found["recipe"]["hash"] == made.fixed_hash()
    assert found["provenance"].pop("init") is None
    for name, value in found["provenance"].items():
        assert value is not None, name
        assert len(value) == 64, name
    assert found["provenance"]["recipe_source"] == hashlib.sha256(made.source or b"").hexdigest()
    for key in ("clock", "scope", "mode", "processes", "first_call_s"):
        assert found["measurement"][key], key
    assert [row["name"] for row in found["metrics"]] == [metric.name for metric, _ in made.metrics]
    for row in found["metrics"]:
        assert "clock" in row["scope"], row
        assert row["value"] is not None
        assert row["passed"] is None
        assert row["samples"] > 0
    assert found["resources"]["wall_time_s"] > 0
    assert found["system"]["before"]["host"] == found["system"]["after"]["host"]
    assert {"run", "weights", "order", "noise"} == set(found["seeds"])


def test_every_step_is_in_the_samples(smoke: Result) -> None:
    with (smoke.folder / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for metric in ("training_loss", "step_latency"):
        own = [row for row in rows if row["metric"] == metric]
        assert [int(row["step"]) for row in own] == list(range(10))  # 320 samples by 64, twice
        assert [int(row["epoch"]) for row in own] == [0] * 5 + [1] * 5
    assert smoke.metric("training_loss") == pytest.approx(np.mean(losses(smoke)[5:]))


def test_summaries_and_mllog_agree_with_the_samples(smoke: Result) -> None:
    accuracies = [row.value for row in smoke.samples()["test_accuracy"]]
    assert accuracies[-1] == smoke.metric("test_accuracy")
    logged = read_mllog(smoke.folder / "events.mllog")
    shares = [event.value for event in logged if event.key == "eval_accuracy"]
    assert [100 * share for share in shares] == pytest.approx(accuracies)


def test_network_is_the_trained_one(smoke: Result) -> None:
    onnx.checker.check_model(onnx.load(smoke.folder / "network.onnx"), full_check=True)
    network = d5.Network.from_onnx(smoke.folder / "network.onnx")
    test = digits().test
    samples = test.batch(np.arange(len(test)))
    outputs = d5.framework("reference").executor(network).inference(samples)
    right = d5.to_numpy(outputs["logits"]).argmax(axis=-1) == samples["label"]
    # One sample may be so close to a boundary that another framework classifies it differently.
    assert abs(100 * right.mean() - (smoke.metric("test_accuracy") or 0)) <= 100 / len(test) + 1e-9


def test_recipe_copy_is_the_file_byte_for_byte(smoke: Result) -> None:
    path = load_recipe("digits_lenet").path
    assert path is not None
    assert (smoke.folder / "recipe.py").read_bytes() == path.read_bytes()


def test_recipe_copy_keeps_line_ends_and_encoding(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    content = (
        f"# -*- coding: latin-1 -*-\r\n# caf\xe9\r\nFIXED = {FIXED!r}\r\nMUTABLE = {MUTABLE!r}\r\nMETRICS = []\r\n"
    )
    file.write_bytes(content.encode("latin-1"))
    result = execute(load_recipe(file), out=tmp_path / "out")
    assert (result.folder / "recipe.py").read_bytes() == file.read_bytes()
    assert result.document["provenance"]["recipe_source"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_nothing_in_a_folder_is_pickled_or_hidden(smoke: Result) -> None:
    names = {entry.name for entry in smoke.folder.iterdir()}
    assert names == {
        "dataset.json",
        "environment.json",
        "events.mllog",
        "network.onnx",
        "origin.json",
        "recipe.py",
        "result.json",
        "samples.csv",
        "weights.safetensors",
    }
    for name in ("dataset.json", "environment.json", "result.json"):
        json.loads((smoke.folder / name).read_text())
    for entry in smoke.folder.iterdir():
        assert not entry.read_bytes().startswith((b"\x80", b"PK\x03\x04")), entry  # pickle, torch.save, npz
    ast.parse((smoke.folder / "recipe.py").read_text())


# -- weights out and in -----------------------------------------------------------------------------------------------


def test_trained_weights_start_another_run(tmp_path: Path) -> None:
    first = execute(recipe(), out=tmp_path)
    hashes = first.document["provenance"]
    for name in ("weights.safetensors", "network.onnx"):
        file = first.folder / name
        # Without any update, the run stores the weights that it loaded.
        again = execute(recipe({"init": str(file), "optimizer_kwargs": {"lr": 0.0}}), out=tmp_path)
        found = again.document["provenance"]
        assert found["initial_weights"] == found["trained_weights"] == hashes["trained_weights"]
        assert found["init"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert again.document["recipe"]["mutable"]["init"] == {"file": found["init"]}
        assert again.metric("test_accuracy") == first.metric("test_accuracy")
        assert again.division == "closed"  # the recipe itself sets them
    network = d5.Network.from_onnx(first.folder / "network.onnx")
    assert network.weights_hash() == hashes["trained_weights"] != hashes["initial_weights"]
    assert network.with_weights(first.folder / "weights.safetensors").weights_hash() == hashes["trained_weights"]


def test_weights_that_the_recipe_does_not_mention_open_the_run(tmp_path: Path) -> None:
    first = execute(recipe(), out=tmp_path)
    given = recipe().with_settings({"init": str(first.folder / "weights.safetensors")})
    assert (recipe().division, given.division) == ("closed", "open")
    assert given.fixed_hash() == recipe().fixed_hash()
    assert execute(given, out=tmp_path).division == "open"


def test_weights_in_the_fixed_part_are_hashed_by_what_they_hold(tmp_path: Path) -> None:
    first, second = (execute(recipe({"seed": seed}), out=tmp_path).folder / "weights.safetensors" for seed in (1, 2))
    copied = tmp_path / "elsewhere.safetensors"
    copied.write_bytes(first.read_bytes())
    hashes = [recipe(init=str(file)).fixed_hash() for file in (first, copied, second)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    wide = execute(recipe(model_kwargs={"features": 4, "hidden": 9, "classes": 3}), out=tmp_path / "wide")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes((wide.folder / "weights.safetensors").read_bytes()[:-3])
    for file, message in (
        (wide.folder / "weights.safetensors", r"'init': the weights in .* do not fit the network: .*'fc1.weight'"),
        (torn, r"'init': the file .*torn.safetensors cannot be read as safetensors"),
        (tmp_path / "none.onnx", r"the file of weights .*none.onnx is not there; allowed: a .safetensors or an .onnx"),
    ):
        with pytest.raises(RecipeError, match=message) as caught:
            execute(recipe({"init": str(file)}), out=tmp_path / "out")
        assert "\n" not in str(caught.value)
    for value in ("weights.npz", 3, Path("w.onnx")):
        with pytest.raises(
            RecipeError, match=r"'init' is .*; allowed: a file of weights, NAME\.safetensors or NAME\.onnx"
        ):
            recipe({"init": value})
    assert not (tmp_path / "out").exists()


# JAX last: once it runs, it warns of every fork, and others fork when they are imported.
@pytest.mark.parametrize("framework", sorted(registered("frameworks"), key=lambda name: (name == "jax", name)))
def test_what_one_framework_trained_runs_on_another(framework: str, tmp_path: Path) -> None:
    try:
        made = d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    network = resnet(depth=8, seed=1)
    rng = np.random.default_rng(3)
    batch = {"input": rng.standard_normal((4, 3, 32, 32)).astype(np.float32), "label": np.arange(4)}
    run = made.executor(network)
    step = run.train_step(d5.Momentum(lr=0.01))
    for number in range(2):
        step(batch, d5.StepInfo(step=number, batch_size=4))
    trained = run.export()
    trained.save(tmp_path / "trained.onnx")
    trained.save_weights(tmp_path / "trained.safetensors")
    want = d5.to_numpy(run.inference(batch)["logits"])
    others = [made, d5.framework("pytorch" if framework != "pytorch" else "reference")]
    for network in (
        d5.Network.from_onnx(tmp_path / "trained.onnx"),
        resnet(depth=8, seed=2).with_weights(tmp_path / "trained.safetensors"),
    ):
        assert network.weights_hash() == trained.weights_hash()
        for other in others:
            got = d5.to_numpy(other.executor(network).inference(batch)["logits"])
            # Eight float32 convolutions by two libraries.
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


# JAX last, as above; its only mode compiles.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "optimizer"),
    [
        ("pytorch:compiled", "native:sgd"),
        ("pytorch:compiled", "accelegrad"),
        ("tensorflow:xla", "accelegrad"),
        ("jax", "accelegrad"),
    ],
)
def test_a_compiled_mode_says_what_its_first_call_took(framework: str, optimizer: str, tmp_path: Path) -> None:
    settings = {"optimizer": optimizer, "framework": framework, "optimizer_kwargs": {"lr": 0.1}}
    result = execute(recipe(settings), out=tmp_path)
    assert result.document["framework"]["name"] == framework
    measurement = result.document["measurement"]
    # Compiling takes tenths of a second or more, a step less than a millisecond; if torch finds the compiled code in
    # its cache it still reads it.
    assert measurement["first_call_s"] > 20 * (result.metric("step_latency") or 0) / 1e3
    # It is the first of the samples, and does not affect the metric above.
    first = result.samples()["step_latency"][0].value
    assert first == pytest.approx(measurement["first_call_s"] * 1e3)


def test_a_mode_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"unknown pytorch mode 'fast'; .* 'pytorch:compiled'"):
        execute(recipe({"framework": "pytorch:fast"}), out=tmp_path)


# -- how long ---------------------------------------------------------------------------------------------------------


class Late:
    """Trains nothing; sleeps in two steps, as a compiler would."""

    def bind(self, executor: Any) -> None:
        self._executor = executor

    def step(self, inputs: Any, info: Any) -> Any:
        time.sleep({0: 0.3, 3: 0.2}.get(info.step, 0.0))
        return self._executor.inference(inputs)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_first_call_and_warm_up_are_numbers_of_their_own(tmp_path: Path) -> None:
    """60 samples by 16: the first step has 16, and the first of 12 is the other one that is not steady state."""
    result = execute(recipe({"optimizer": Late, "optimizer_kwargs": {}}, epochs=1), out=tmp_path)
    measurement = result.document["measurement"]
    assert measurement["first_call_s"] >= 0.3
    assert measurement["warm_up_s"] >= 0.2
    assert measurement["warmups"] == 1
    # The two remaining steps did not sleep; ten times their duration on an idle core.
    assert (result.metric("step_latency") or 0) < 100


def test_the_first_calls_of_evaluation_are_numbers_of_their_own(tmp_path: Path) -> None:
    """300 samples are evaluated by 256, then 44."""
    data = {**FIXED["dataset_kwargs"], "test": 300}
    measurement = execute(recipe(dataset_kwargs=data), out=tmp_path).document["measurement"]
    assert measurement["evaluation_first_call_s"] > 0
    assert measurement["evaluation_warm_up_s"] > 0
    assert measurement["evaluation_warmups"] == 1
    measurement = execute(recipe(), out=tmp_path).document["measurement"]
    assert (measurement["evaluation_warm_up_s"], measurement["evaluation_warmups"]) == (0.0, 0)


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No environment variable sets the number; each framework's own is restored afterwards."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    made = [d5.framework(name) for name in ("reference", "pytorch")]
    network = d5.networks.mlp(features=2, hidden=2, classes=2)
    before = [framework.executor(network).settings()["threads"] for framework in made]
    yield
    for framework, number in zip(made, before, strict=True):
        framework.set_threads(number)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "onnxruntime", "openvino"])
def test_a_run_has_the_threads_that_it_asks_for(
    framework: str, threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        d5.framework(framework).set_threads(1)
    except MissingDependency as error:
        pytest.skip(str(error))
    cores = default_threads(d5.framework(framework).thread_variable)
    for number in (1, cores):
        found = execute(recipe({"framework": framework, "threads": number}), out=tmp_path).document
        assert (found["threads"]["asked"], found["threads"]["framework"]) == (number, number)
        assert not [said for said in found["warnings"] if "other programs" not in said]
    # If the recipe does not set it: one per physical core, or the value of OMP_NUM_THREADS; the same everywhere.
    d5.framework(framework).set_threads(1)
    found = execute(recipe({"framework": framework}), out=tmp_path).document
    assert found["threads"]["asked"] == found["threads"]["framework"] == cores
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = execute(recipe({"framework": framework}), out=tmp_path).document
    assert found["threads"]["asked"] == found["threads"]["framework"] == 1


def test_threads_of_an_executor_that_is_named_by_its_function(threads: None, tmp_path: Path) -> None:
    from deep5.frameworks.pytorch import from_model

    def own(network: Any, *, device: Any, seed: int) -> Any:
        return from_model(network, device=device, seed=seed)

    def renamed(network: Any) -> Any:
        executor: Any = d5.framework("reference").executor(network)
        told = {**executor.settings(), "framework": "mine"}
        executor.settings = lambda: told
        return executor

    for made in (from_model, own):
        executor = {key: value for key, value in MUTABLE.items() if key != "framework"}
        run = Recipe.make(FIXED, {**executor, "executor": made, "threads": 1}, METRICS)
        found = execute(run, out=tmp_path).document["threads"]
        assert (found["asked"], found["framework"]) == (1, 1)
    # Its threads are unknown and not controlled, unless the recipe sets a number.
    executor = {key: value for key, value in MUTABLE.items() if key != "framework"}
    found = execute(Recipe.make(FIXED, {**executor, "executor": renamed}, METRICS), out=tmp_path).document["threads"]
    assert found["asked"] is None
    with pytest.raises(RecipeError, match=r"'threads' cannot be set for the executor of <function .*; remedy: set"):
        execute(Recipe.make(FIXED, {**executor, "executor": renamed, "threads": 1}, METRICS), out=tmp_path)


@pytest.mark.parametrize(("framework", "variable"), [("tensorflow", "TF_NUM_INTRAOP_THREADS"), ("jax", "PJRT_NPROC")])
def test_frameworks_that_fix_their_threads_when_they_start(framework: str, variable: str, tmp_path: Path) -> None:
    """In a new process, the same number; after the framework has started, an error or a warning in the result."""
    pytest.importorskip(framework)
    program = f"""
import os
import sys
import deep5 as d5
from deep5.core.errors import RecipeError
from deep5.recipe.recipe import Recipe
from deep5.run.execute import execute

def run(**more):
    made = Recipe.make({FIXED!r}, {{**{MUTABLE!r}, "framework": {framework!r}, **more}}, {METRICS!r})
    found = execute(made, out=sys.argv[1], quiet=True).document
    found["warnings"] = [said for said in found["warnings"] if "other programs" not in said]
    return found

first = run()
assert first["threads"]["asked"] == first["threads"]["framework"] == 1, first["threads"]
assert not first["warnings"], first["warnings"]
os.environ["OMP_NUM_THREADS"] = "2"
second = run()
assert (second["threads"]["asked"], second["threads"]["framework"]) == (2, 1), second["threads"]
(warning,) = second["warnings"]
assert warning.startswith("the number of threads is not the default: got 2 threads"), warning
try:
    run(threads=2)
except RecipeError as error:
    assert str(error).startswith("'threads': got 2 threads"), error
else:
    raise AssertionError("no error")
os.environ[{variable!r}] = "2"
third = run()
assert third["threads"]["asked"] is None, third["threads"]
assert not third["warnings"], third["warnings"]
"""
    environment = {name: value for name, value in os.environ.items() if name != variable}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=True,
    )


# -- repeatable -------------------------------------------------------------------------------------------------------


@EACH
def test_a_seed_repeats_a_run_bit_for_bit_and_another_does_not(framework: str, tmp_path: Path) -> None:
    runs = [
        execute(recipe({"framework": framework, "seed": seed, "optimizer": "adam"}), out=tmp_path) for seed in (1, 1, 2)
    ]
    first, again, other = map(losses, runs)
    assert len(first) == 12
    assert first == again
    assert first[0] != other[0]
    hashes = [run.document["provenance"] for run in runs]
    assert hashes[0] == hashes[1]
    for name in ("initial_weights", "batch_order"):
        assert hashes[0][name] != hashes[2][name]
    for name in ("data", "split", "network"):
        assert hashes[0][name] == hashes[2][name]
    assert len({run.document["recipe"]["hash"] for run in runs}) == 1


def test_what_the_caller_passes_is_unchanged_by_a_run(tmp_path: Path) -> None:
    fixed, mutable = copy.deepcopy(FIXED), copy.deepcopy({**MUTABLE, "events": ["progress_bar"]})
    metrics: list[Any] = [["test_accuracy", None], (d5.TimeToAccuracy(50), None)]
    before = copy.deepcopy((fixed, mutable, metrics))
    result = d5.run_recipe(fixed, mutable, metrics, out=tmp_path, quiet=True)
    assert result
    assert (fixed, mutable, metrics) == before


def test_the_hash_is_of_the_recipe_and_not_of_what_a_component_made_of_it(tmp_path: Path) -> None:
    def network(sizes: list[int]) -> Any:
        features, hidden, classes = sizes
        sizes.clear()
        return d5.networks.mlp(features=features, hidden=hidden, classes=classes)

    made = recipe(model=network, model_kwargs={"sizes": [4, 8, 3]})
    result = execute(made, out=tmp_path)
    assert result.document["recipe"]["fixed"]["model_kwargs"] == {"sizes": [4, 8, 3]}
    assert result.document["recipe"]["hash"] == made.fixed_hash()


def test_data_hash_covers_the_test_set(tmp_path: Path) -> None:
    made = recipe()
    data = made.value("dataset_kwargs")
    hashes = [
        execute(recipe(dataset_kwargs={**data, "test": test}), out=tmp_path).document["provenance"]["data"]
        for test in (30, 33)
    ]
    assert hashes[0] != hashes[1]


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_verdicts(tmp_path: Path) -> None:
    met = execute(recipe(metrics=[("test_accuracy", 0), ("training_loss", None)]), out=tmp_path)
    assert (met.accepted, bool(met), met.division) == (True, True, "closed")
    assert [verdict.word for verdict in met.verdicts] == ["passed", "reported"]
    missed = execute(recipe(metrics=[("test_accuracy", "> 100")]), out=tmp_path)
    assert (missed.accepted, bool(missed), missed.status) == (False, False, "success")
    assert missed.reasons == ("test_accuracy did not meet its goal",)


def test_metrics_that_differ_in_parameters_keep_their_samples_apart(tmp_path: Path) -> None:
    two = [(d5.TimeToAccuracy(1), None), (d5.TimeToAccuracy(100), None)]
    result = execute(recipe(metrics=two), out=tmp_path)
    assert set(result.samples()) == {"time_to_accuracy[target=1.0]", "time_to_accuracy[target=100.0]"}


def test_a_recipe_that_is_run_twice_writes_checkpoints_twice(tmp_path: Path) -> None:
    twice = recipe(events=[d5.Checkpointer(every_steps=2, best="accuracy")])
    found = []
    for _ in range(2):
        result = execute(twice, out=tmp_path, quiet=True)
        names = {path.name for path in (result.folder / "checkpoints").iterdir()}
        found.append((names, result.document["checkpoints"]["written"]))
    assert found[0] == found[1]
    assert "best.safetensors" in found[0][0]
    assert result.document["components"]["events"][-1]["event"] == "checkpointer"


def test_how_often_is_said_elsewhere_and_the_rest_by_the_recipe(tmp_path: Path) -> None:
    made = recipe(events=[d5.Checkpointer(every_steps=1, keep=1, best="loss")])
    result = execute(made, out=tmp_path, quiet=True, checkpointer=d5.Checkpointer(every_steps=1000))
    assert [path.name for path in (result.folder / "checkpoints").iterdir()] == ["best.safetensors"]
    with pytest.raises(RecipeError, match="2 of 'events' are a Checkpointer; allowed: one"):
        execute(recipe(events=[d5.Checkpointer(), d5.Checkpointer(best="loss")]), out=tmp_path)


PIECES = """
import numpy as np
import deep5 as d5
from deep5.training.dataset import ArrayDataset, Splits

def network(*, seed=0):
    build = d5.NetworkBuilder("pieces", seed=seed)
    x, label = build.input("input", ("N", 5, 3)), build.input("label", ("N", 5), "int64")
    logits = build.op("MatMul", x, build.parameter("w", (3, 3)))
    classes_second = build.op("Transpose", logits, perm=(0, 2, 1))
    loss = build.op("SoftmaxCrossEntropyLoss", classes_second, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})

def several():
    draw = np.random.default_rng(0)
    part = ArrayDataset(
        {"input": draw.standard_normal((11, 5, 3)).astype(np.float32), "label": draw.integers(0, 3, (11, 5))}
    )
    return Splits(train=part, test=part, description={})

def one_hot():
    parts = several().test.batch(np.arange(11))
    label = np.eye(3, dtype=np.float32)[parts["label"][:, 0]]
    part = ArrayDataset({"input": parts["input"][:, 0].copy(), "label": label})
    return Splits(train=part, test=part, description={})

FIXED = {"model": network, "dataset": several, "epochs": 1}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "sgd"}
METRICS = [
    (metric, None)
    for metric in (
        d5.TestAccuracy(), d5.TimeToAccuracy(50), d5.EpochsToAccuracy(50), d5.GeneralisationGap(),
        d5.FinalTestAccuracy(),
    )
]
"""


def test_of_several_labels_a_sample_each_counts_once(tmp_path: Path) -> None:
    (tmp_path / "pieces.py").write_text(PIECES + "METRICS.append((d5.TopK(1), None))\n")
    result = execute(load_recipe(tmp_path / "pieces.py"), out=tmp_path)
    data = load_recipe(tmp_path / "pieces.py").value("dataset")().test.batch(np.arange(11))
    executor = d5.framework("reference").executor(d5.Network.from_onnx(result.folder / "network.onnx"))
    share = 100 * np.mean(np.asarray(executor.inference(data)["logits"]).argmax(axis=-1) == data["label"])
    for name in ("test_accuracy", "final_test_accuracy", "top_k"):
        assert result.metric(name) == pytest.approx(share)
    judged = evaluate_result(result.folder, data=f"{tmp_path / 'pieces.py'}:several")
    assert (judged.accuracy, judged.samples) == (pytest.approx(share), 11)


def test_where_labels_are_no_classes_there_is_no_accuracy_and_that_is_told(tmp_path: Path) -> None:
    size = '{"features": 3, "hidden": 4, "classes": 3, "loss": "mse"}'
    changed = f'FIXED |= {{"model": "mlp", "model_kwargs": {size}, "dataset": one_hot}}\n'
    (tmp_path / "pieces.py").write_text(PIECES + changed)
    result = execute(load_recipe(tmp_path / "pieces.py"), out=tmp_path)
    assert {verdict.value for verdict in result.verdicts} == {None}
    assert all("the labels are not classes" in (verdict.missing or "") for verdict in result.verdicts)
    (tmp_path / "stops.py").write_text(PIECES + changed + 'FIXED["events"] = (d5.StopAtAccuracy(90),)\n')
    with pytest.raises(RunFailed, match=r"StopAtAccuracy: there is no accuracy: the labels are not classes"):
        execute(load_recipe(tmp_path / "stops.py"), out=tmp_path)


def test_files_of_two_metrics_never_replace_each_other(tmp_path: Path) -> None:
    class Words(Observer):
        def __init__(self, files: dict[str, bytes | str]) -> None:
            self._files = files

        def samples(self) -> list[Any]:
            return []

        def value(self) -> None:
            return None

        def files(self) -> dict[str, bytes | str]:
            return self._files

    class Told(d5.Metric):
        name, unit, direction = "told", "", "higher"

        def __init__(self, word: str | None, file: str = "told.csv") -> None:
            self.file, self.word = file, word

        def observer(self) -> Observer:
            return Words({} if self.word is None else {self.file: self.word})

    class Other(Told):
        name = "other"

    class Third(Told):
        name = "third"

    class Fourth(Told):
        name = "fourth"

    metrics = [
        *(Told("first"), Told("second"), Told(None), Told("fourth")),
        *(Other("other"), Other("other's second")),
        *(Third("third", file="told-4.csv"), Third("third's second", file="told.csv")),
        *(Third("third's third", file="told"), Third("third's fourth", file="told-third.csv")),
        Fourth("no run's own", file="network.onnx"),
    ]
    result = execute(recipe(metrics=[(metric, None) for metric in metrics]), out=tmp_path)
    assert {path.name: path.read_text() for path in result.folder.glob("told*")} == {
        "told.csv": "first",
        "told-2.csv": "second",
        # Numbered by the recipe: the third has no file.
        "told-4.csv": "fourth",
        "told-other.csv": "other",
        "told-other-2.csv": "other's second",
        "told-4-third.csv": "third",
        "told-third-2.csv": "third's second",
        "told-3": "third's third",
        "told-third-4.csv": "third's fourth",
    }
    assert (result.folder / "network-fourth.onnx").read_text() == "no run's own"
    d5.Network.from_onnx(result.folder / "network.onnx")


def test_own_metric_without_a_word_on_the_clock(tmp_path: Path) -> None:
    class Steps(d5.Metric):
        """Steps done."""

        name, unit, direction = "steps", "", "higher"

        def observer(self) -> Observer:
            return StepCount()

    class StepCount(Observer):
        steps = 0

        def after_step(self, trainer: Any, *rest: Any) -> None:
            self.steps = trainer.step

        def value(self) -> float:
            return self.steps

        def samples(self) -> list[Any]:
            return []

    result = execute(recipe(metrics=[(Steps, 12)]), out=tmp_path)
    assert result.metric("steps") == 12
    assert result.document["metrics"][0]["scope"] == "the metric does not say what is on the clock"


@pytest.mark.parametrize("section", ["Args:\n        power: Any.", "References:\n        A paper.", ">>> Steps().name"])
def test_the_scope_of_a_metric_ends_at_the_next_section(section: str) -> None:
    stated = f"Steps done.\n\n    Nothing is on a clock. Every step\n    counts.\n\n    {section}\n    "
    body = {"name": "steps", "unit": "", "direction": "higher", "observer": lambda self: None, "__doc__": stated}
    assert _scope(type("Steps", (d5.Metric,), body)()) == "Nothing is on a clock. Every step counts."


@pytest.mark.parametrize("name", sorted(registered("metrics")))
def test_the_scope_of_each_metric_is_prose(name: str) -> None:
    from deep5.core.plugins import load as component

    assert not {">>>", "Args:", "References:"} & {*_scope(object.__new__(component("metrics", name))).split()}


# -- ending badly -----------------------------------------------------------------------------------------------------


class Raising(d5.Event):
    def __init__(self, error: BaseException, at: int = 5) -> None:
        self.error, self.at = error, at

    def after_step(self, trainer: Any, info: d5.StepInfo, *rest: Any) -> None:
        if info.step == self.at:
            raise self.error


@pytest.mark.parametrize(
    ("error", "status", "raised", "message"),
    [
        (
            ValueError("boom"),
            "failed",
            RunFailed,
            "the run failed: ValueError: boom; what it left is in .*remedy: --debug",
        ),
        (d5.Deep5Error("bad"), "failed", RunFailed, "the run failed: bad; what it left is in "),
        (KeyboardInterrupt(), "aborted", KeyboardInterrupt, "interrupted; what the run left is in "),
    ],
)
def test_an_event_that_raises(
    error: BaseException, status: str, raised: type[BaseException], message: str, tmp_path: Path
) -> None:
    with pytest.raises(raised, match=message) as caught:
        execute(recipe({"events": [Raising(error)]}), out=tmp_path)
    (folder,) = result_folders(tmp_path)
    assert str(folder) in str(caught.value)
    found = document(folder)
    assert (found["status"], found["accepted"]) == (status, None)
    assert [row["value"] is not None for row in found["metrics"]] == [True, True, True]
    assert load(folder).verdicts[0].word == "reported"
    assert len(losses(load(folder))) >= 4  # earlier measurements are kept
    assert not (folder / "network.onnx").exists()


def test_an_observer_that_cannot_be_read_does_not_hide_why_the_run_failed(tmp_path: Path) -> None:
    class Unreadable(Observer):
        def samples(self) -> list[Any]:
            raise ArithmeticError("no samples")

        def value(self) -> None:
            return None

    class Broken(d5.Metric):
        name, unit, direction = "broken", "", "higher"

        def observer(self) -> Observer:
            return Unreadable()

    with pytest.raises(RunFailed, match="boom"):
        execute(recipe({"events": [Raising(ValueError("boom"))]}, metrics=[(Broken, None)]), out=tmp_path)
    found = document(next(iter(result_folders(tmp_path))))
    assert found["reasons"][0] == "ValueError: boom"
    assert found["reasons"][1] == "its samples are not complete: ArithmeticError: no samples"


@pytest.mark.parametrize(
    ("observer", "says"), [(Observer, "created no observer: TypeError"), (dict, "returned a dict as its observer")]
)
def test_a_metric_that_gives_no_observer(observer: Any, says: str, tmp_path: Path) -> None:
    class Broken(d5.Metric):
        name, unit, direction = "broken", "", "higher"

        def observer(self) -> Observer:
            made: Observer = observer()
            return made

    with pytest.raises(RecipeError, match=f"the metric 'broken' {says}"):
        execute(recipe(metrics=[(Broken, None)]), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.results import folder as module

    written = module.write_atomically

    def full(path: Path, data: bytes | str) -> None:
        if path.name == "samples.csv":
            raise OSError(28, "No space left on device")
        written(path, data)

    monkeypatch.setattr(module, "write_atomically", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*free some space"):
        execute(recipe(), out=tmp_path)
    assert document(next(iter(result_folders(tmp_path))))["status"] == "failed"


def test_stopping_is_no_failure(tmp_path: Path) -> None:
    result = execute(recipe({"events": [Raising(d5.StopTraining("enough"))]}), out=tmp_path)
    assert (result.status, result.reasons) == ("success", ("stopped: enough",))


@pytest.mark.filterwarnings("ignore:.*(overflow|invalid value|divide by zero).*:RuntimeWarning")
@EACH
def test_a_diverged_run_counts(framework: str, tmp_path: Path) -> None:
    goals = [("training_loss", "< 10"), (d5.TimeToAccuracy(100), None), ("test_accuracy", None)]
    result = execute(recipe({"framework": framework, "optimizer_kwargs": {"lr": 3e38}}, metrics=goals), out=tmp_path)
    found = document(result.folder)
    assert found["metrics"][0]["value"] in ("nan", "inf")
    assert found["metrics"][1]["value"] == "inf"
    assert (result.status, result.accepted) == ("success", False)
    assert not all(map(math.isfinite, losses(result)))
    first = next(index for index, loss in enumerate(losses(result)) if not math.isfinite(loss))
    (warning,) = found["warnings"]
    assert warning.startswith(f"the training loss is {losses(result)[first]} at step {first} of epoch {first // 4}")


def next_class(inputs: Any, ids: Any, epoch: int) -> dict[str, Any]:
    return {**inputs, "label": inputs["label"] + 1}


# JAX last, as above. The others refuse such a label: their runs fail, and report the label.
@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "tensorflow:xla", "jax"])
def test_a_label_that_is_no_class_is_told(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(framework.partition(":")[0].replace("reference", "numpy").replace("pytorch", "torch"))
    # Labels in memory are checked before the run; those that a transform computes are detected during it.
    shifted = {"train_transforms": [next_class], "test_transforms": [next_class]}
    made = recipe({"framework": framework, **shifted}, metrics=[("training_loss", "< 100")])
    if framework in ("tensorflow:xla", "jax"):
        result = execute(made, out=tmp_path)
        (warning,) = document(result.folder)["warnings"]
        assert warning.startswith("the training loss is nan at step 0 of epoch 0, counted from 0; ")
        assert f"deep5: warning: {warning}\n" in capsys.readouterr().err
        assert (result.accepted, result.verdicts[0].word) == (False, "FAILED")
        execute(made, out=tmp_path, quiet=True)
        assert "warning" not in capsys.readouterr().err
    else:
        with pytest.raises(RunFailed, match="label"):
            execute(made, out=tmp_path)


def test_what_is_not_finite_stands_in_the_result_of_a_run_that_fails_later(tmp_path: Path) -> None:
    class Lost(Late):
        def step(self, inputs: Any, info: Any) -> Any:
            return {**super().step(inputs, info), "loss": np.float32(np.inf)}

    changes = {"optimizer": Lost, "optimizer_kwargs": {}, "events": [Raising(ValueError("boom"))]}
    with pytest.raises(RunFailed):
        execute(recipe(changes), out=tmp_path)
    found = document(result_folders(tmp_path)[0])
    assert (found["status"], len(found["warnings"])) == ("failed", 1)


# -- a recipe's own rule ----------------------------------------------------------------------------------------------

OWN = f"""
import deep5 as d5

class Sign(d5.UpdateRule):
    hyper = ("lr",)

    def __init__(self, lr: float = 0.01) -> None:
        self.lr = lr

    def update_rule(self, grad, param, state):
        xp = d5.array_namespace(param)
        return param - self.lr * xp.sign(grad), state

FIXED = {FIXED!r}
MUTABLE = {{**{MUTABLE!r}, "optimizer": Sign, "optimizer_kwargs": {{"lr": 0.02}}}}
METRICS = [("test_accuracy", 0), ("training_loss", None)]
SIZES = {{"smoke": {{"epochs": 1}}}}
if __name__ == "__main__":
    import copy, sys
    before = copy.deepcopy((FIXED, MUTABLE, METRICS))
    accepted = d5.run_recipe(FIXED, MUTABLE, METRICS)
    assert (FIXED, MUTABLE, METRICS) == before
    accepted or exit(1)
"""


@EACH
def test_a_recipes_own_rule(framework: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    result = execute(load_recipe(file).with_settings({"framework": framework}), out=tmp_path / "out")
    assert result.accepted
    assert losses(result)[-1] < losses(result)[0]
    assert result.document["recipe"]["mutable"]["optimizer"]["object"] == "Sign"
    assert result.document["components"]["optimizer"]["kernel"] in ("c", "numpy")
    assert set(result.document["threads"]) == {"asked", "framework", "pools"}


def test_both_frameworks_follow_one_rule(tmp_path: Path) -> None:
    runs = [execute(recipe({"framework": name}, epochs=5), out=tmp_path) for name in ("reference", "pytorch")]
    np.testing.assert_allclose(losses(runs[0]), losses(runs[1]), rtol=1e-4)


# -- as a program -----------------------------------------------------------------------------------------------------


def script(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, file.name], cwd=file.parent, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_recipe_is_a_program(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    done = script(file)
    assert done.returncode == 0, done.stderr
    assert "accepted (closed; success)" in done.stdout
    (folder,) = result_folders(tmp_path / "results")
    found = document(folder)
    assert found["recipe"]["name"] == "own"
    assert found["recipe"]["hash"] == load_recipe(file).fixed_hash()
    assert (folder / "recipe.py").read_bytes() == file.read_bytes()

    file.write_text(OWN.replace('("test_accuracy", 0)', '("test_accuracy", "> 100")'))
    done = script(file)
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 0)
    assert "not accepted" in done.stdout


def test_a_program_that_cannot_run_says_why(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("'epochs': 3", "'epochs': 0"))
    done = script(file)
    assert done.returncode == 2
    assert done.stderr.startswith(f"deep5: {file}:14: 'epochs' is 0; allowed: an integer")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_other_code_gets_the_exception(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'epochs' is 0"):
        d5.run_recipe({**FIXED, "epochs": 0}, MUTABLE, METRICS, out=tmp_path)


def test_run_recipe_takes_sizes_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = d5.run_recipe(
        FIXED,
        MUTABLE,
        METRICS,
        sizes={"smoke": {"epochs": 1}},
        size="smoke",
        settings={"batch_size": 30},
        out=tmp_path,
    )
    assert len(losses(result)) == 2
    captured = capsys.readouterr()
    assert "test_accuracy" in captured.out
    assert "epoch 1/1" in captured.err


# -- timing recipes ---------------------------------------------------------------------------------------------------


def busy(*, steps: int, us: float = 0.0) -> Any:
    def work() -> None:
        for _ in range(steps):
            end = time.perf_counter() + us / 1e6
            while time.perf_counter() < end:
                pass

    return work


def test_a_recipe_that_times(tmp_path: Path) -> None:
    timed = {"candidate": busy, "candidate_kwargs": {"us": 40.0}, "baseline": busy, "baseline_kwargs": {"us": 20.0}}
    made = Recipe.make({**timed, "steps": 20, "rounds": 8}, {}, [("overhead", "< 1 us"), ("slowdown", None)])
    result = execute(made, out=tmp_path)
    document(result.folder)
    assert result.accepted is False
    samples = result.samples()
    for name in ("candidate_time", "baseline_time", "baseline_again_time", "overhead", "slowdown"):
        assert len(samples[name]) == 8, name


# -- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.daily
def test_a_kill_at_any_moment_leaves_a_true_folder_or_none(tmp_path: Path) -> None:
    """All imports are done when the run starts: the kill hits the run and not the imports."""
    out = tmp_path / "out"
    program = f"""
import sys
from deep5.measuring.environment import describe_system
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
describe_system()
recipe = load_recipe("digits_lenet").at_size(sys.argv[1]).with_settings({{"framework": "reference"}})
import deep5.run.assemble, deep5.run.record, deep5.run.train, deep5.training.trainer
deep5.run.assemble.assemble(recipe_parts(recipe))
print("ready", flush=True)
execute(recipe, out={str(out)!r}, quiet=True)
print("done", flush=True)
sys.stdin.read()
"""
    rng = random.Random(5)  # noqa: S311 - moments, not secrets
    statuses = []
    for size, latest in [("smoke", 0.15), ("full", 1.5)] * 4:
        before = set(out.iterdir()) if out.exists() else set()
        with subprocess.Popen(
            [sys.executable, "-c", program, size], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.0, latest))
            child.send_signal(signal.SIGKILL)
            ended = child.stdout.read() == "done\n"
        left = [folder for folder in set(out.iterdir() if out.exists() else ()) - before if folder.name[0] != "."]
        for folder in left:
            found = document(folder)
            VALIDATOR.validate(load(folder).document)
            load(folder).samples()
            assert found["status"] == "success" if ended else found["status"] in ("aborted", "success")
            if found["status"] == "success":
                assert (folder / "network.onnx").exists()
        statuses += [document(folder)["status"] for folder in left] or ["none"]
    assert "aborted" in statuses, statuses


def test_hash_of_data_is_a_hash_of_hashes() -> None:
    parts = digits(limit=20)
    both = [parts.train.content_hash(), parts.test.content_hash()]
    assert canonical_hash(both) != canonical_hash(both[::-1])
