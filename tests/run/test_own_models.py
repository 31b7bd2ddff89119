"""Models that users have under `model`: ONNX files, modules of PyTorch, Keras and Flax, and JAX functions."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit.folders import audit
from deep5.core.errors import MissingDependency, RecipeError, UsageError
from deep5.core.plugins import framework
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.networks.edit.loss import LOSSES
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.run.assemble import assemble
from deep5.run.check import check_recipe
from deep5.run.execute import execute

TORCH = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3)
        self.register_buffer("scale", torch.full((hidden,), 2.0))

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))) * self.scale)

class Branches(Net):
    def forward(self, x):
        if x.sum() > 0:
            x = 2 * x
        return super().forward(x)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.c.bias.requires_grad_(False)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))

def smoothed(output, label):
    return nn.functional.cross_entropy(output, label, label_smoothing=0.1)
"""
FLAX = """
import jax
import jax.numpy as jnp
from flax import linen, nnx

class Linen(linen.Module):
    hidden: int = 8

    @linen.compact
    def __call__(self, x, train: bool = True):
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(self.hidden)(x))
        return linen.Dense(3)(linen.Dropout(0.1, deterministic=not train)(linen.relu(x)))

class Many(nnx.Module):
    def __init__(self, *, rngs):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(12)])
        self.norm, self.drop = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = x + jnp.tanh(layer(x))
        return self.last(self.drop(self.norm(x)))

class Attends(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        attention = linen.MultiHeadDotProductAttention(2, dropout_rate=0.1)
        return linen.Dense(3)(attention(x[:, None], deterministic=not train)[:, 0])

attends = Attends()

def init(key, x):
    return {"w": jax.random.normal(key, (4, 3)), "b": jnp.zeros(3)}

def apply(parameters, x):
    return x @ parameters["w"] + parameters["b"]

pair = (init, apply)

class Plain(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        self.param("unused", linen.initializers.zeros, (2,))
        return linen.Dense(3)(linen.Dropout(0.0, deterministic=not train)(linen.relu(linen.Dense(8)(x))))

class Tokens(nnx.Module):
    def __init__(self, *, rngs):
        self.table, self.norm = nnx.Embed(5, 8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.last = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.table(x)
        return self.last(nnx.gelu(x + self.attention(self.norm(x))))

@jax.custom_vjp
def straight(x):
    return jnp.round(x)

straight.defvjp(lambda x: (jnp.round(x), None), lambda _, gradient: (gradient,))
rounded = (init, lambda parameters, x: apply(parameters, x + straight(x)))

def by_size(parameters, x):
    if x.shape[0] > 7:
        x = 2 * x
    return apply(parameters, x)

sized = (init, by_size)
stopped = (init, lambda parameters, x: apply(parameters, x) * jax.lax.stop_gradient(parameters["b"].sum()))
sorted_twice = (init, lambda parameters, x: apply(parameters, jnp.fft.fft(x).real))

def smoothed(output, label):
    target = 0.9 * jax.nn.one_hot(label, 3) + 0.1 / 3
    return -(target * jax.nn.log_softmax(output)).sum(-1).mean()
"""
KERAS = """
import keras

def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])

def layered():
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.1), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((4,)), *layers])

def noisy():
    return keras.Sequential([keras.Input((4,)), keras.layers.GaussianNoise(0.1), keras.layers.Dense(3)])

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.a = keras.layers.Dense(3)

    def call(self, x):
        return self.a(x)
"""
SEQUENCES = """
def module(classes):
    from torch import nn

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, classes)

        def forward(self, x):
            return self.table(x).transpose(1, 2)

    return Scores()

def pair(classes):
    import jax

    return lambda key, x: {"w": jax.random.normal(key, (5, classes))}, lambda parameters, x: parameters["w"][x]

def layers(classes):
    import keras

    return keras.Sequential([keras.Input((6,), dtype="int64"), keras.layers.Embedding(5, classes)])
"""
DATA = {"dataset": "synthetic", "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 64, "test": 16}, "epochs": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("torch_nets", TORCH), ("flax_nets", FLAX), ("keras_nets", KERAS)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def recipe(folder: Path, model: Any, framework: str, *, fixed: bool = True, **keys: Any) -> Recipe:
    if isinstance(model, str) and (".py:" in model or model.endswith(".onnx")):
        model = str(folder / model)
    parts = {"model": model, "loss": "cross_entropy", **DATA}
    parts = {key: value for key, value in {**parts, **keys}.items() if value is not None}
    mutable = {"batch_size": 16, "framework": framework, "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.05}}
    return Recipe.make(parts if fixed else {}, mutable if fixed else {**parts, **mutable}, [("test_accuracy", None)])


def run(made: Recipe, folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = execute(made, out=folder / "out", quiet=True).document
    return document


# ONNX files ----------------------------------------------------------------------------------------------------------


def saved(path: Path, *, seed: int = 0) -> Path:
    build = d5.NetworkBuilder("net", seed=seed)
    x = build.input("x.1", ("N", 4))
    build.network(
        {"scores": build.op("Gemm", x, build.parameter("w", (4, 3)), build.parameter("b", (3,), d5.networks.zeros))}
    ).save(path)
    return path


def test_an_onnx_file_is_a_model_and_is_hashed_by_content(folder: Path) -> None:
    saved(folder / "net.onnx")
    found = run(recipe(folder, "net.onnx", "reference"), folder)
    assert found["components"]["model"] == {
        "name": "net", "kind": "ONNX", "form": "a graph", "loss": "cross_entropy",
    }  # fmt: skip
    assert not audit([folder / "out"]).findings
    shutil.copy(folder / "net.onnx", folder / "renamed.onnx")
    saved(folder / "other.onnx", seed=1)
    hashes = [recipe(folder, f"{name}.onnx", "reference").fixed_hash() for name in ("net", "renamed", "other")]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("name", ["pytorch", "jax", "onnxruntime"])
def test_an_onnx_file_trains_alike_everywhere(name: str, folder: Path) -> None:
    saved(folder / "net.onnx")
    documents = [run(recipe(folder, "net.onnx", each), folder) for each in ("reference", name)]
    assert documents[0]["metrics"][0]["value"] == documents[1]["metrics"][0]["value"]
    assert documents[0]["provenance"]["network"] == documents[1]["provenance"]["network"]


def test_a_network_without_a_loss_or_with_two_is_refused_by_check(folder: Path) -> None:
    saved(folder / "net.onnx")
    with pytest.raises(RecipeError, match=r"computes no loss: its outputs are scores; remedy: loss='cross_entropy'"):
        check_recipe(recipe(folder, "net.onnx", "reference", loss=None))
    with pytest.raises(RecipeError, match=r"the model Net has no loss; remedy: loss='cross_entropy'"):
        check_recipe(recipe(folder, "torch_nets.py:Net", "pytorch", loss=None))
    with pytest.raises(RecipeError, match=r"the network computes a loss itself; allowed: one of them"):
        check_recipe(recipe(folder, d5.networks.mlp(features=4, classes=3), "reference"))
    with pytest.raises(RecipeError, match=r"'loss' is 'crossentropy'; allowed: .*; did you mean 'cross_entropy'\?"):
        recipe(folder, "net.onnx", "reference", loss="crossentropy")
    check_recipe(recipe(folder, "net.onnx", "reference"))


def test_a_regression_has_its_loss_and_no_accuracy(folder: Path) -> None:
    saved(folder / "net.onnx")

    def targets() -> d5.Splits:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((64, 4)).astype(np.float32)
        y = (x @ rng.standard_normal((4, 3))).astype(np.float32)
        data = d5.ArrayDataset({"input": x, "label": y})
        return d5.Splits(train=data, test=data)

    made = recipe(folder, "net.onnx", "pytorch", loss="mse", dataset=targets, dataset_kwargs=None, epochs=30)
    result = execute(made, out=folder / "out", quiet=True)
    assert "no classes" in str(result.document["warnings"]) or result.document["metrics"][0]["value"] is None


# Models of the frameworks' libraries ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name", "kind"),
    [
        ("torch_nets.py:Net", "pytorch", "torch.nn.Module"),
        ("flax_nets.py:Linen", "jax", "flax.linen.Module"),
        ("flax_nets.py:Many", "jax", "flax.nnx.Module"),
        ("flax_nets.py:pair", "jax", "JAX functions"),
        ("keras_nets.py:model", "tensorflow", "keras.Model"),
        ("keras_nets.py:Own", "tensorflow", "keras.Model"),
    ],
)
def test_a_model_of_a_library_trains_as_it_is(model: str, name: str, kind: str, folder: Path) -> None:
    made = recipe(folder, model, name, fixed=False)
    check_recipe(made)
    first = run(made, folder)
    described = first["components"]["model"]
    assert (described["kind"], described["form"], described["loss"]) == (kind, "as it is", "cross_entropy")
    again, other = run(made, folder), run(made.with_settings({"seed": 1}), folder)
    key = "trained_weights"
    assert first["provenance"][key] == again["provenance"][key] != other["provenance"][key]
    assert not audit([folder / "out"]).findings


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("torch_nets.py:Net", "pytorch"),
        ("torch_nets.py:Net", "reference"),
        ("flax_nets.py:Linen", "jax"),
        ("flax_nets.py:pair", "jax"),
        ("flax_nets.py:pair", "reference"),
        ("keras_nets.py:model", "tensorflow"),
        ("net.onnx", "onnxruntime"),
        ("a network", "reference"),
    ],
)
def test_too_few_outputs_for_the_labels_are_refused_before_a_run(model: str, name: str, folder: Path) -> None:
    path = saved(folder / "net.onnx")
    given = d5.Network.from_onnx(path) if model == "a network" else model
    more = {**DATA["dataset_kwargs"], "classes": 5}
    made = recipe(folder, given, name, fixed=False, dataset_kwargs=more)
    message = (
        r"'label' of the training sample \d+ is [34]: the network has 3 outputs, the data set 5 classes "
        r"\(labels 0 to 4\); allowed: 0 to 2 .*; remedy: a network of 5 outputs, or "
    )
    for attempt in (check_recipe, lambda recipe: run(recipe, folder)):
        with pytest.raises(RecipeError, match=message):
            attempt(made)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(("model", "name"), [("module", "pytorch"), ("pair", "jax"), ("layers", "tensorflow")])
def test_the_classes_are_on_the_axis_of_the_loss_of_the_library(model: str, name: str, folder: Path) -> None:
    (folder / "by_token.py").write_text(SEQUENCES)

    def check(classes: int) -> None:
        own = {"model_kwargs": {"classes": classes}, "dataset": sequences, "dataset_kwargs": None}
        check_recipe(recipe(folder, f"by_token.py:{model}", name, fixed=False, **own))

    check(5)
    with pytest.raises(RecipeError, match=r"is 4: the network has 4 outputs, the data set 5 classes"):
        check(4)


def test_each_run_trains_a_copy_of_an_object(folder: Path) -> None:
    import torch

    def of(width: int) -> Recipe:
        layers = torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)
        return recipe(folder, torch.nn.Sequential(*layers), "pytorch")

    made = of(8)
    first, again = run(made, folder), run(made, folder)
    for key in ("initial_weights", "trained_weights"):
        assert first["provenance"][key] == again["provenance"][key]
    assert any(
        "the model is an object: its initial weights are those that it has" in each for each in first["warnings"]
    )
    other = recipe(
        folder, torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)), "pytorch"
    )
    assert other.fixed_hash() != made.fixed_hash() == first["recipe"]["hash"]


def test_an_executor_of_flax_computes_what_the_module_does(folder: Path) -> None:
    import jax.numpy as jnp
    from flax import nnx

    parts = assemble(recipe_parts(recipe(folder, "flax_nets.py:Many", "jax", fixed=False)))
    batch = parts.splits.test.batch(np.arange(5))
    found = to_numpy(parts.executor.inference(batch)["logits"])
    from deep5.recipe.file import named_in_file

    module = named_in_file(str(folder / "flax_nets.py:Many"))(rngs=nnx.Rngs(parts.seeds["weights"]))
    module.eval()
    np.testing.assert_allclose(found, module(jnp.asarray(batch["input"])), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["pytorch", "tensorflow", "jax"])
@pytest.mark.parametrize("column", [False, True])
def test_a_loss_by_name_is_the_same_function_everywhere(loss: str, name: str, column: bool) -> None:
    import importlib

    rng = np.random.default_rng(0)
    width = 1 if column and loss != "cross_entropy" else 3
    scores = rng.standard_normal((5, width)).astype(np.float32)
    label = rng.integers(0, 3, 5) if loss == "cross_entropy" else rng.integers(0, 2, (5, width))
    if width == 1:
        label = label[:, 0]
    build = d5.NetworkBuilder("scores")
    x = build.input("x", ("N", width))
    network = build.network({"logits": build.op("Identity", x)})
    spec = TensorSpec(shape=("N", *label.shape[1:]), dtype="int64")
    executor = framework("reference").executor(network.add_loss("logits", loss, label_spec=spec))
    expected = to_numpy(executor.inference({"x": scores, "label": label})["loss"])
    function = importlib.import_module(f"deep5.frameworks.{name}.own_model")._LOSSES[loss]
    if name == "pytorch":
        import torch

        found = function(torch.from_numpy(scores), torch.from_numpy(label))
    elif name == "tensorflow":
        import tensorflow as tf

        found = function(tf.constant(label), tf.constant(scores))
    else:
        import jax.numpy as jnp

        found = function(jnp.asarray(scores), jnp.asarray(label))
    # One float32 sum of fifteen terms, in another order.
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-6)


# Exports -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch:exported", "jax", "onnxruntime", "reference"])
def test_a_module_runs_elsewhere_as_its_export(name: str, folder: Path) -> None:
    own = run(recipe(folder, "torch_nets.py:Net", "pytorch", fixed=False), folder)
    found = run(recipe(folder, "torch_nets.py:Net", name, fixed=False), folder)
    assert found["components"]["model"]["form"].startswith("exported by torch.onnx ")
    assert any("the running variance of norm is that of" in warning for warning in found["warnings"])
    # Four steps of one network, in float32.
    values = [document["metrics"][0]["value"] for document in (own, found)]
    assert values[0] == pytest.approx(values[1], abs=100 / 16)
    assert not audit([folder / "out"]).findings


def test_an_export_says_what_it_changed(folder: Path) -> None:
    found = run(recipe(folder, "torch_nets.py:Tied", "reference", fixed=False), folder)
    changes = found["components"]["model"]["changes"]
    assert changes == [
        "the shared weight a.weight, b.weight is stored once",
        "the parameter unused.weight is not used, or a part of another tensor, and is omitted",
        "the parameter unused.bias is not used, or a part of another tensor, and is omitted",
    ]
    parts = assemble(recipe_parts(recipe(folder, "torch_nets.py:Tied", "reference", fixed=False)))
    assert parts.executor.network.frozen == {"c.bias"}


def test_a_module_with_a_branch_on_values_is_refused_with_its_line(folder: Path) -> None:
    check_recipe(recipe(folder, "torch_nets.py:Branches", "pytorch", fixed=False))
    with pytest.raises(
        RecipeError, match=r"Branches cannot be exported to ONNX at .*torch_nets\.py:16: .*torch\.where"
    ):
        check_recipe(recipe(folder, "torch_nets.py:Branches", "jax", fixed=False))


def test_what_is_printed_while_an_export_fails_is_the_module_s(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "loud.py").write_text(
        "import sys, torch\n"
        "class Loud(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 3)\n"
        "    def forward(self, x):\n"
        "        print('said by the module', file=sys.stderr)\n"
        "        return super().forward(x if x.sum() > 0 else -x)\n"
    )
    with pytest.raises(RecipeError, match="Loud cannot be exported"):
        check_recipe(recipe(folder, "loud.py:Loud", "jax", fixed=False))
    said = capfd.readouterr()
    assert (said.out, {*said.err.splitlines()}) == ("", {"said by the module"})


def test_a_function_is_a_loss_of_its_framework(folder: Path) -> None:
    own = run(
        recipe(folder, "torch_nets.py:Net", "pytorch", fixed=False, loss=str(folder / "torch_nets.py:smoothed")), folder
    )
    elsewhere = run(
        recipe(folder, "torch_nets.py:Net", "reference", fixed=False, loss=str(folder / "torch_nets.py:smoothed")),
        folder,
    )
    assert own["metrics"][0]["value"] == pytest.approx(elsewhere["metrics"][0]["value"], abs=100 / 16)
    saved(folder / "net.onnx")
    with pytest.raises(RecipeError, match="'loss' is a function, and the model is a graph"):
        check_recipe(recipe(folder, "net.onnx", "pytorch", fixed=False, loss=str(folder / "torch_nets.py:smoothed")))


@pytest.mark.parametrize(
    ("model", "name"),
    [("model", "tensorflow:exported"), ("model", "jax"), ("layered", "pytorch"), ("layered", "reference")],
)
def test_a_keras_model_runs_elsewhere_as_its_export(model: str, name: str, folder: Path) -> None:
    own = run(recipe(folder, f"keras_nets.py:{model}", "tensorflow", fixed=False), folder)
    found = run(recipe(folder, f"keras_nets.py:{model}", name, fixed=False), folder)
    assert found["components"]["model"]["form"].startswith("exported by tf2onnx ")
    assert own["metrics"][0]["value"] == pytest.approx(found["metrics"][0]["value"], abs=100 / 16)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Plain", "jax:exported"),
        ("Plain", "onnxruntime"),
        ("Plain", "reference"),
        ("pair", "pytorch"),
        ("Linen", "reference"),
        ("Many", "onnxruntime"),
    ],
)
def test_a_jax_model_runs_elsewhere_as_its_export(model: str, name: str, folder: Path) -> None:
    own = run(recipe(folder, f"flax_nets.py:{model}", "jax", fixed=False), folder)
    found = run(recipe(folder, f"flax_nets.py:{model}", name, fixed=False), folder)
    assert found["components"]["model"]["form"].startswith("exported by jax2onnx ")
    changes = ["the parameter unused is not used, and is omitted"] if model == "Plain" else []
    assert found["components"]["model"]["changes"] == changes
    assert own["metrics"][0]["value"] == pytest.approx(found["metrics"][0]["value"], abs=100 / 16)
    assert not audit([folder / "out"]).findings


def sequences() -> d5.Splits:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (64, 6))
    data = d5.ArrayDataset({"input": x, "label": np.roll(x, 1, axis=1)})
    return d5.Splits(train=data, test=data)


def test_the_export_of_a_jax_model_computes_what_the_model_does(folder: Path) -> None:
    for model, loss, data in (
        ("Tokens", "cross_entropy", {"dataset": sequences, "dataset_kwargs": None}),
        ("pair", str(folder / "flax_nets.py:smoothed"), {}),
    ):
        steps = []
        for name in ("jax", "jax:exported", "reference"):
            made = recipe(folder, f"flax_nets.py:{model}", name, fixed=False, loss=loss, **data)
            parts = assemble(recipe_parts(made))
            batch = parts.splits.test.batch(np.arange(5))
            outputs = parts.executor.inference_and_backprop(batch)
            gradients = parts.executor.gradients()
            steps.append({name: to_numpy(value) for name, value in {**outputs, **gradients}.items()})
        for other in steps[1:]:
            assert other.keys() == steps[0].keys()
            for name, value in steps[0].items():
                np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_what_a_jax_model_cannot_export_is_named_with_its_line(folder: Path) -> None:
    def refused(model: str, match: str) -> None:
        check_recipe(recipe(folder, f"flax_nets.py:{model}", "jax", fixed=False))
        with pytest.raises(RecipeError, match=match):
            check_recipe(recipe(folder, f"flax_nets.py:{model}", "reference", fixed=False))

    line = {name: 1 + FLAX.split("\n").index(name) for name in FLAX.split("\n")}
    refused(
        "attends", r"Attends computes another function in training than in evaluation, beyond dropout and batch norm"
    )
    at = line["    if x.shape[0] > 7:"]
    refused("sized", rf"by_size cannot be exported to ONNX at .*flax_nets\.py:{at}: .*batches of any size")
    stopped = next(number for text, number in line.items() if text.startswith("stopped"))
    refused("stopped", rf"stops a gradient at .*flax_nets\.py:{stopped} .*; remedy: run it as it is on jax")
    found = run(recipe(folder, "flax_nets.py:rounded", "reference", fixed=False), folder)
    assert found["components"]["model"]["changes"] == [
        "the derivative that straight defines (jax.custom_vjp) is that of ONNX's operators"
    ]


def test_what_has_no_export_runs_on_its_own_framework_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RecipeError, match=r"another function in training than in evaluation, beyond dropout and batch n"
    ):
        check_recipe(recipe(folder, "keras_nets.py:noisy", "reference", fixed=False))

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingDependency, match=r"needs the package 'tf2onnx', .*remedy: pip install tf2onnx"):
        check_recipe(recipe(folder, "keras_nets.py:model", "reference", fixed=False))
    with pytest.raises(MissingDependency, match=r"needs the package 'jax2onnx', .*remedy: pip install 'deep5\[jax-exp"):
        check_recipe(recipe(folder, "flax_nets.py:pair", "reference", fixed=False))
    remedy = r"needs the package 'onnxscript', .*remedy: pip install 'deep5\[pytorch\]', or run the module as it is"
    with pytest.raises(MissingDependency, match=remedy):
        check_recipe(recipe(folder, "torch_nets.py:Net", "reference", fixed=False))
    check_recipe(recipe(folder, "torch_nets.py:Net", "pytorch", fixed=False))


# A model in place of a recipe ----------------------------------------------------------------------------------------


def test_a_model_in_place_of_a_recipe_is_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    saved(folder / "net.onnx")
    settings = {"dataset_kwargs.shape": (4,), "dataset_kwargs.classes": 3}
    made = load_recipe("torch_nets.py:Net").with_settings(settings)
    assert (made.name, made.value("framework"), made.value("loss")) == ("Net", "pytorch", "cross_entropy")
    check_recipe(made)
    file = load_recipe("net.onnx")
    assert (file.value("framework"), file.value("dataset_kwargs")) == ("onnxruntime", {"shape": (4,), "classes": 3})
    check_recipe(file)
    with pytest.raises(RecipeError, match=r"has no 'Nett'; allowed: .*did you mean 'Net'\?"):
        load_recipe("torch_nets.py:Nett")
    with pytest.raises(RecipeError, match=r"the model no\.onnx is not there; allowed: an ONNX file, FILE\.py:NAME"):
        load_recipe("no.onnx")


def test_arguments_of_a_model_in_place_of_a_recipe_are_part_of_its_identity(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    plain = load_recipe("torch_nets.py:Net")
    wide = plain.with_settings({"model_kwargs.hidden": 12, "batch_size": 8})
    assert wide.fixed == {"model": "torch_nets.py:Net", "model_kwargs": {"hidden": 12}}
    assert wide.value("batch_size") == 8
    assert wide.content is not None
    assert plain.content is not None
    assert wide.content["network"] != plain.content["network"]
    assert wide.with_settings({"model_kwargs": {}}).content == plain.content
    with pytest.raises(RecipeError, match=r"'model_kwargs' is 3; allowed: a dict of keyword arguments"):
        plain.with_settings({"model_kwargs": 3})
    with pytest.raises(
        UsageError, match=r"'model' is 'torch_nets\.py:Net', which is given in place of a recipe; allow"
    ):
        plain.with_settings({"model": "mlp"})
    with pytest.raises(UsageError, match=r"'metrics' cannot be set; .* METRICS; remedy: METRICS = "):
        plain.with_settings({"metrics": []})


def test_a_model_in_place_of_a_recipe_may_need_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "needs.py").write_text(
        "from torch import nn\n\ndef net(hidden):\n"
        "    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))\n"
    )
    made = load_recipe("needs.py:net")
    with pytest.raises(RecipeError, match=r"missing a required argument: 'hidden'"):
        check_recipe(made)
    set_ = made.with_settings({"model_kwargs.hidden": 6, "dataset_kwargs": {"shape": (4,), "classes": 3}})
    assert set_.value("framework") == "pytorch"
    check_recipe(set_)


def test_a_file_of_models_is_no_recipe_and_its_models_are_named(folder: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"has no FIXED .*; remedy: \S+torch_nets\.py:Net or \S+torch_nets\.py:Branches"
    ):
        load_recipe(folder / "torch_nets.py")
