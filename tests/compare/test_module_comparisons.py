"""Comparisons of a module with its export: it takes part as it is, and must be proved to train like its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from torch import nn

from deep5.audit.folders import audit
from deep5.compare.driver import run_comparison
from deep5.compare.plan import make_plan
from deep5.compare.proof import ProofRow, inference_rows, training_rows
from deep5.core.errors import Deep5Error
from deep5.recipe.recipe import load_recipe

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(torch.tanh(0.7 * self.norm(self.a(x))))

class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2

class Wrong(Net):
    def forward(self, x):
        return self.b(Halved.apply(self.norm(self.a(x))))

class Noisy(Net):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)

class Rows(Net):
    def forward(self, x):
        return nn.functional.dropout1d(super().forward(x), 0.5, self.training)

class Scaled(Net):
    def forward(self, x):
        return super().forward(x * (1 + torch.rand_like(x)) if self.training else x)

class Always(Net):
    def forward(self, x):
        return super().forward(x * (1 + torch.rand_like(x)))

class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.rise, self.drop, self.classes = nn.Conv1d(1, 8, 1), nn.Dropout1d(0.4), nn.Linear(32, 3)

    def forward(self, x):
        return self.classes(torch.tanh(self.drop(self.rise(x.unsqueeze(1)))).flatten(1))

class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.drop, self.last = nn.Dropout(0.1), nn.Dropout(0.3, inplace=True)

    def forward(self, x):
        return super().forward(self.drop(x)) + torch.tanh(self.last(self.b(self.a(x))))

class Swapped(Dropping):
    def forward(self, x):
        if torch.compiler.is_exporting():
            return super().forward(x)
        return super().forward(self.drop(x))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rise = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.classes = nn.Linear(8, 3)

    def forward(self, x):
        return self.classes(self.layer(self.rise(x.unsqueeze(-1))).mean(1))
"""
KERAS = """
import keras
import tensorflow as tf
from keras import layers

def model():
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(3)])

def norms():
    return keras.Sequential([
        keras.Input((6, 6, 2)), layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.9, epsilon=1e-4, scale=False), layers.ReLU(), layers.Conv2D(4, 3),
        layers.BatchNormalization(center=False), layers.ReLU(), layers.Flatten(), layers.Dense(3),
    ])

def branches():
    x = keras.Input((6, 6, 2))
    a = layers.SpatialDropout2D(0.3)(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x)))
    b = layers.Dropout(0.2)(layers.Conv2D(4, 1)(x))
    y = layers.GlobalAveragePooling2D()(layers.Add()([b, a]))
    return keras.Model(x, layers.Dense(3)(layers.Dropout(0.5)(y)))

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop, self.b = (
            layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.25), layers.Dense(3)
        )

    def call(self, x, training=None):
        x = keras.ops.tanh(self.norm(self.a(x), training=training))
        return self.b(self.drop(x, training=training))

class Swapped(Own):
    def call(self, x, training=None):
        return super().call(x if _exports() else self.drop(x, training=training), training=training)

class Wrong(Own):
    def call(self, x, training=None):
        x = self.norm(self.a(x), training=training)
        return self.b(x if _exports() else halved(x))

def _exports():
    import traceback
    return any(frame.filename.endswith("own_export.py") for frame in traceback.extract_stack())

@tf.custom_gradient
def halved(x):
    return x, lambda gradient: gradient / 2
"""
JAX = """
import jax
import jax.numpy as jnp
from flax import linen, nnx

class Net(linen.Module):
    width: int = 8

    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.LayerNorm()(linen.Dense(self.width)(x)))
        return linen.Dense(3)(0.7 * jax.nn.softmax(x))

class Images(nnx.Module):
    def __init__(self, *, rngs):
        self.a, self.b = nnx.Conv(1, 4, (3, 3), rngs=rngs), nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.a(x)), (2, 2), (2, 2))
        return self.b(nnx.avg_pool(x, (2, 2), (2, 2), "SAME").reshape(x.shape[0], -1))

class Trained(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.relu(linen.BatchNorm(not train, momentum=0.9, use_scale=False)(linen.Conv(4, (3, 3))(x)))
        x = linen.Dropout(0.3, broadcast_dims=(1, 2))(x, deterministic=not train)
        x = linen.BatchNorm(not train, use_bias=False)(linen.Conv(4, (3, 3))(linen.Dropout(0.2)(x, not train)))
        return linen.Dense(3)(linen.Dropout(0.5, deterministic=not train)(x.mean((1, 2))))

class Dropping(nnx.Module):
    def __init__(self, *, rngs):
        self.a, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.drop, self.b = nnx.Dropout(0.25, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.b(self.drop(jnp.tanh(self.norm(self.a(x)))))

class Swapped(Dropping):
    def __call__(self, x):
        import traceback
        exports = any(frame.filename.endswith("own_export.py") for frame in traceback.extract_stack())
        return super().__call__(x if exports else self.drop(x))

@jax.custom_vjp
def halved(x):
    return jnp.tanh(x)

halved.defvjp(lambda x: (jnp.tanh(x), x), lambda x, gradient: (gradient / 2,))

def init(key, x):
    return {"a": {"w": jax.random.normal(key, (4, 8))}, "b": {"w": jax.random.normal(key, (8, 3)), "b": jnp.ones(3)}}

def apply(parameters, x):
    return halved(x @ parameters["a"]["w"]) @ parameters["b"]["w"] + parameters["b"]["b"]

wrong = (init, apply)
"""
DROPOUT = nn.functional.dropout
SETTINGS = {"dataset_kwargs.shape": (4,), "dataset_kwargs.classes": 3, "threads": 1}


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "keras_nets.py").write_text(KERAS)
    (tmp_path / "jax_nets.py").write_text(JAX)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def proof(
    model: str, name: str, folder: Path, kind: str = "training", *, shape: tuple[int, ...] = (4,)
) -> list[ProofRow]:
    """The rows of a candidate's proof, by the jobs that its processes run."""
    from deep5.compare import inference, training

    jobs: Any = {"training": training, "inference": inference}[kind].JOBS
    settings = {key: value for key, value in SETTINGS.items() if key != "threads" or not name.startswith("tensorflow")}
    made = load_recipe(model).with_settings({**settings, "dataset_kwargs.shape": shape, "framework": name})
    request = {"steps": 12, "waypoints": str(folder / "waypoints.safetensors")}
    answer, right = jobs["reference"](made, request, lambda what: None, 0.0)
    save_file({key: np.asarray(value, order="C") for key, value in right.items()}, request["waypoints"])
    own, found = jobs["prove"](made, request, lambda what: None, 0.0)
    own_framework = {"nets.py": "pytorch", "keras_nets.py": "tensorflow", "jax_nets.py": "jax"}[model.partition(":")[0]]
    assert own["itself"] is (name == own_framework)
    assert answer["provenance"] == own["provenance"]
    if kind == "inference":
        return inference_rows(name, right, found, itself=own["itself"])
    return training_rows(name, right, found, smooth=answer["smooth"], itself=own["itself"])[0]


@pytest.mark.parametrize("kind", ["training", "inference"])
@pytest.mark.parametrize("name", ["pytorch", "pytorch:exported", "jax"])
def test_a_module_is_proved_equal_to_its_export(name: str, kind: str, nets: Path) -> None:
    rows = proof("nets.py:Net", name, nets, kind)
    assert rows
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]
    itself = {row.what for row in rows if row.what.endswith(", of the model itself")}
    double = {row.what for row in rows if "float64" in row.what.removesuffix(" at a float64 state")}
    assert itself == (double if name == "pytorch" else set())
    assert double


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("model", "tensorflow"),
        ("norms", "tensorflow"),
        ("Own", "tensorflow"),
        pytest.param("Own", "tensorflow:exported", marks=pytest.mark.slow),
        pytest.param("branches", "tensorflow", marks=pytest.mark.slow),
        *(
            pytest.param(model, name, marks=pytest.mark.slow)
            for model in ("model", "norms", "branches")
            for name in ("tensorflow:exported", "jax", "onnxruntime")
        ),
    ],
)
def test_a_keras_model_is_proved_equal_to_its_export(model: str, name: str, nets: Path) -> None:
    shape = (6, 6, 2) if model in ("norms", "branches") else (4,)
    rows = proof(f"keras_nets.py:{model}", name, nets, shape=shape)
    assert {row.part for row in rows} >= {"b", "c"}
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]


def test_a_keras_model_that_trains_otherwise_than_its_export_is_found(nets: Path) -> None:
    wrong = {row.what for row in proof("keras_nets.py:Wrong", "tensorflow", nets) if not row.passed}
    assert "gradients at a float64 state" in wrong
    assert not proof("keras_nets.py:Swapped", "tensorflow", nets)


@pytest.mark.parametrize(("model", "name"), [("keras_nets.py:Own", "tensorflow"), ("jax_nets.py:Dropping", "jax")])
def test_a_timed_model_with_dropout_trains_as_its_export_when_it_gets_the_masks(
    model: str, name: str, nets: Path
) -> None:
    from deep5.compare import training
    from deep5.compare.witness import not_trained
    from deep5.training.trainer import Trainer

    settings = {
        "dataset_kwargs.shape": (4,),
        "dataset_kwargs.classes": 3,
        "dataset_kwargs.train": 64,
        "framework": name,
    }
    made = load_recipe(model).with_settings(settings)
    parts = training.assembled(made)
    trainer = Trainer(parts.executor, parts.optimizer, parts.train_sampler, seed=parts.seeds["noise"])
    trainer.train(1)
    batches, make = training.first_batches(parts, 3), training._maker(training.of_reference(made), "reference")
    assert "gives the loss" in str(not_trained(trainer, batches, make))
    assert training._draw_as_export(parts, parts.executor)
    assert not_trained(trainer, batches, make) is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Net", "jax"),
        ("Net", "jax:exported"),
        ("Net", "onnxruntime"),
        ("Images", "jax"),
        ("Images", "pytorch"),
        ("Dropping", "jax"),
        pytest.param("Trained", "jax", marks=pytest.mark.slow),
        pytest.param("Dropping", "jax:exported", marks=pytest.mark.slow),
        pytest.param("Trained", "onnxruntime", marks=pytest.mark.slow),
        pytest.param("Net", "pytorch", marks=pytest.mark.slow),
        pytest.param("Net", "tensorflow", marks=pytest.mark.slow),
        pytest.param("Images", "onnxruntime", marks=pytest.mark.slow),
        pytest.param("Images", "tensorflow", marks=pytest.mark.slow),
    ],
)
def test_a_flax_module_is_proved_equal_to_its_export(model: str, name: str, nets: Path) -> None:
    rows = proof(f"jax_nets.py:{model}", name, nets, shape=(7, 7, 1) if model in ("Images", "Trained") else (4,))
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]
    itself = {row.what for row in rows if row.what.endswith(", of the model itself")}
    assert bool(itself) is (name == "jax")


def test_a_jax_function_with_a_wrong_derivative_is_found(nets: Path) -> None:
    wrong = {row.what for row in proof("jax_nets.py:wrong", "jax", nets) if not row.passed}
    assert "gradients in float64 at a float64 state, of the model itself" in wrong
    assert all(row.passed for row in proof("jax_nets.py:wrong", "jax:exported", nets))
    assert not proof("jax_nets.py:Swapped", "jax", nets)


def test_a_module_that_trains_otherwise_than_its_export_is_found(nets: Path) -> None:
    wrong = {row.what for row in proof("nets.py:Wrong", "pytorch", nets) if not row.passed}
    assert "gradients in float64 at a float64 state, of the model itself" in wrong
    assert all(row.passed for row in proof("nets.py:Wrong", "pytorch:exported", nets))


@pytest.mark.parametrize("model", ["Noisy", "Dropping", "Channels", "Block"])
def test_a_module_with_dropout_is_proved_with_the_masks_of_its_export(model: str, nets: Path) -> None:
    for name in ("pytorch", "pytorch:exported"):
        rows = proof(f"nets.py:{model}", name, nets)
        assert {row.part for row in rows} >= {"a", "b", "c"}
        assert all(row.passed for row in rows), [row for row in rows if not row.passed]
    assert nn.functional.dropout is DROPOUT


def test_a_module_that_drops_other_elements_than_its_export_is_not_compared(nets: Path) -> None:
    assert not proof("nets.py:Swapped", "pytorch", nets)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("Rows", "dropout of channels of .*, where the channels are the first axis.*remedy: torch.nn.Dropout"),
        ("Scaled", r"draws random numbers in training only \(RandomUniformLike\).*remedy: torch.nn.Dropout"),
        ("Always", "draws random numbers from the stream of its library.*remedy: compare the exports"),
    ],
)
def test_a_module_that_draws_other_random_numbers_is_not_compared(model: str, why: str, nets: Path) -> None:
    with pytest.raises(Deep5Error, match=why):
        proof(f"nets.py:{model}", "pytorch", nets)


def test_the_framework_of_a_module_takes_part_twice(nets: Path) -> None:
    plan, _ = make_plan("nets.py:Net", frameworks=["jax", "pytorch"], settings={"dataset_kwargs.shape": [4]})
    assert [candidate.label for candidate in plan.candidates] == ["jax", "pytorch", "pytorch:exported"]
    plan, _ = make_plan("nets.py:Net", frameworks=["pytorch:exported", "pytorch"])
    assert [candidate.label for candidate in plan.candidates] == ["pytorch:exported", "pytorch"]
    plan, _ = make_plan("digits_lenet", frameworks=["jax", "pytorch"])
    assert len(plan.candidates) == 2


@pytest.mark.slow
def test_a_comparison_of_a_module_has_a_verdict_and_passes_the_audit(nets: Path) -> None:
    settings = {"dataset_kwargs.shape": [4], "dataset_kwargs.classes": 3}
    done = run_comparison("nets.py:Net", frameworks=["pytorch", "reference"], settings=settings, out=nets / "out")
    assert [row["status"] for row in done.document["candidates"]] == ["timed"] * 3
    assert any("the export of Net: the running variance" in warning for warning in done.document["warnings"])
    assert not audit([done.folder]).findings
    # The tolerance of a model as it is, for a candidate that is none.
    document = json.loads((done.folder / "comparison.json").read_text())
    for row in document["equivalence"]:
        if row["candidate"] == "reference" and row["what"] == "losses in float64, free-running":
            row |= {"what": row["what"] + ", of the model itself", "allowed": 1e-5}
    (done.folder / "comparison.json").write_text(json.dumps(document))
    found = [finding.what for finding in audit([done.folder]).findings]
    assert any("the tolerance of a library's model as it is" in what for what in found), found
