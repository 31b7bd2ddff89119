"""Networks of the user's own code: the same initial weights at one seed, or a result that says so."""

from __future__ import annotations

# ruff: noqa: S311 - the generators that users draw from
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep5.core.seeds import derive_seed
from deep5.networks.module_state import attributes_of
from deep5.recipe.generators import seeded_call
from deep5.recipe.own_network import Digest, digest_of
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute

RECIPE = """
import itertools
import random
import time

import numpy as np

import deep5 as d5

COUNT = itertools.count()

def own():
    net = d5.networks.mlp(features=4, hidden=8, classes=3)
    return net.with_values({{name: {draw} for name, value in net.parameters().items()}})

FIXED = {{"model": own, "dataset": "synthetic", "epochs": 1,
         "dataset_kwargs": {{"shape": (4,), "classes": 3, "train": 32, "test": 8}}}}
MUTABLE = {{"batch_size": 16, "framework": "reference", "optimizer": "sgd", "optimizer_kwargs": {{"lr": 0.1}}}}
METRICS = [("test_accuracy", None)]
"""
DRAWS = {
    "numpy": "np.random.standard_normal(value.shape).astype(value.dtype)",
    "python": "np.full_like(value, random.random())",
}
CHANGING = {
    "a counter": "np.full_like(value, next(COUNT))",
    "the time": "np.full_like(value, time.perf_counter_ns() % 1000003)",
    "the system": "np.random.default_rng().standard_normal(value.shape).astype(value.dtype)",
}
ANOTHER = "is another one each time, with one seed"


def recipe(folder: Path, draw: str) -> Path:
    path = folder / "own.py"
    path.write_text(RECIPE.format(draw=draw))
    return path


def run(path: Path, **settings: Any) -> dict[str, Any]:
    made = load_recipe(path).with_settings(settings)
    document: dict[str, Any] = execute(made, out=path.parent / "out", quiet=True).document
    return document


@pytest.mark.parametrize("draw", DRAWS)
def test_code_that_draws_from_global_generators_has_one_network_at_one_seed(draw: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, DRAWS[draw])
    random.seed(5)
    first = run(path, seed=3)
    random.seed(6)
    np.random.seed(6)  # noqa: NPY002
    again, other = run(path, seed=3), run(path, seed=4)
    weights = [own["provenance"]["initial_weights"] for own in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert len({own["recipe"]["hash"] for own in (first, again, other)}) == 1
    assert not any(ANOTHER in warning for own in (first, again, other) for warning in own["warnings"])
    content = first["recipe"]["content"]
    assert content["network"]["weights"] == run(path)["provenance"]["initial_weights"], "the weights of seed 0"


@pytest.mark.parametrize("draw", CHANGING)
def test_a_network_that_cannot_be_repeated_is_reported(draw: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, CHANGING[draw])
    first, again = run(path), run(path)
    assert all(any(ANOTHER in warning for warning in own["warnings"]) for own in (first, again))
    weights = [own["provenance"]["initial_weights"] for own in (first, again)]
    assert (weights[0] != weights[1]) is (draw != "a counter"), "a counter begins again where the file is loaded again"
    assert first["recipe"]["content"]["network"]["weights"] is None
    assert first["recipe"]["hash"] == again["recipe"]["hash"]


def test_a_network_of_the_mutable_part_is_reported_too(tmp_path: Path) -> None:
    text = (
        RECIPE.format(draw=CHANGING["a counter"])
        .replace('"model": own, ', "")
        .replace("MUTABLE = {", 'MUTABLE = {"model": own, ')
    )
    path = tmp_path / "own.py"
    path.write_text(text)
    document = run(path)
    assert any(ANOTHER in warning for warning in document["warnings"])
    assert document["recipe"]["content"] is None


def test_the_states_of_generators_are_restored() -> None:
    torch = pytest.importorskip("torch")
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    drawn = [seeded_call(seed, lambda: (random.random(), np.random.rand(), torch.rand(1).item())) for seed in (7, 7, 8)]  # noqa: NPY002
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected  # noqa: NPY002


@pytest.mark.slow
def test_weights_of_tensorflow_and_keras_are_seeded() -> None:
    tensorflow, keras = pytest.importorskip("tensorflow"), pytest.importorskip("keras")

    def drawn() -> Any:
        model = keras.Sequential([keras.layers.Dense(3)])
        model.build((None, 4))
        return {"keras": model.get_weights(), "tensorflow": [tensorflow.random.normal([3]).numpy()]}

    one, two, other = (digest_of(seeded_call(seed, drawn)) for seed in (1, 1, 2))
    assert one is not None
    assert other is not None
    assert one == two
    assert one.weights != other.weights


def test_states_are_restored_after_an_error() -> None:
    random.seed(2)
    expected = random.random()
    random.seed(2)

    def fails() -> None:
        random.random()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        seeded_call(0, fails)
    assert random.random() == expected


def test_modules_of_frameworks_and_arrays_have_digests() -> None:
    torch = pytest.importorskip("torch")

    def module(bias: bool = True) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=bias), torch.nn.ReLU())

    one, two, other = (digest_of(seeded_call(seed, module)) for seed in (1, 1, 2))
    assert one is not None
    assert other is not None
    assert one == two != other
    assert one.structure == other.structure
    wider = digest_of(module(False))
    assert wider is not None
    assert wider.structure != one.structure
    tree = {"dense": {"kernel": np.ones((2, 3)), "rate": 0.1}, "list": [np.zeros(2)]}
    found = digest_of(tree)
    assert isinstance(found, Digest)
    assert found == digest_of({**tree, "list": [np.zeros(2)]})
    assert found != digest_of({**tree, "list": [np.ones(2)]})
    assert found != digest_of({**tree, "dense": {**tree["dense"], "rate": 0.2}})
    assert digest_of(object()) is None
    assert digest_of({"only": "settings"}) is None


def keras_models() -> dict[str, Any]:
    import keras

    layers = keras.layers

    class Scaled(keras.Model):  # type: ignore[misc]
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.dense, self.scale = layers.Dense(3), scale

        def call(self, x: Any) -> Any:
            return self.dense(x) * self.scale

    def chain(activation: str = "relu") -> Any:
        return keras.Sequential(
            [layers.Input((4,)), layers.Dense(8, activation=activation), layers.Softmax(), layers.Dense(3)]
        )

    def graph(swapped: bool = False) -> Any:
        fed = keras.Input((4,))
        parts = [layers.Dense(4, activation=name)(fed) for name in ("softmax", "relu")]
        made = layers.Softmax()(parts[0] - parts[1] if swapped else parts[1] - parts[0])
        return keras.Model(fed, layers.Bidirectional(layers.LSTM(2))(layers.Reshape((2, 2))(made)))

    def own(scale: float = 2.0) -> Any:
        model = Scaled(scale)
        model(np.ones((1, 4), np.float32))
        return model

    return {"chain": (chain, "tanh"), "graph": (graph, True), "own": (own, 3.0)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain", "graph", "own"])
def test_a_keras_model_has_one_structure_although_keras_numbers_its_names(kind: str) -> None:
    pytest.importorskip("keras")
    made, other = keras_models()[kind]
    one, two = (digest_of(seeded_call(1, made)) for _ in range(2))
    assert one is not None
    assert one == two
    if kind != "own":
        changed = digest_of(seeded_call(1, lambda: made(other)))
        assert changed is not None
        assert changed.structure != one.structure


@pytest.mark.slow
def test_attributes_of_a_keras_layer_are_in_its_digest() -> None:
    pytest.importorskip("keras")
    made, other = keras_models()["own"]
    one, two = (digest_of(seeded_call(1, functools.partial(made, scale))) for scale in (2.0, other))
    assert one is not None
    assert two is not None
    assert one.document() != two.document()
    assert (one.structure, one.weights) == (two.structure, two.weights)


MODULE = """
import dataclasses
import functools
import itertools
import os
import time
from pathlib import Path

import torch

import deep5 as d5
from deep5.frameworks.pytorch import from_module

SCALE = float(os.environ["SCALE"])
COUNT = itertools.count()

@dataclasses.dataclass
class Settings:
    scale: float

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 3)
        self.place = Path(__file__).parent
        self.here = os.path.dirname(__file__)
        {attribute}

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

def own(seed=0):
    return Scaled()

def run_on(module, seed=0):
    inputs = {{"input": d5.TensorSpec(shape=("N", 4)), "label": d5.TensorSpec(shape=("N",), dtype="int64")}}
    return from_module(module, torch.nn.functional.cross_entropy, inputs=inputs, seed=seed)

FIXED = {{"model": own, "executor": run_on, "dataset": "synthetic", "epochs": 1,
         "dataset_kwargs": {{"shape": (4,), "classes": 3, "train": 32, "test": 8}}}}
MUTABLE = {{"batch_size": 16, "optimizer": "sgd", "optimizer_kwargs": {{"lr": 0.1}}}}
METRICS = [("training_loss", None)]
"""
ATTRIBUTES = {
    "a number": "self.scale = SCALE",
    "a private one": "self._scale = SCALE",
    "a submodule's": "self.first.scale = SCALE",
    "a string": "self.kind = f'scaled by {SCALE}'",
    "a bool": "self.scaled = SCALE > 1",
    "a tensor": "self.t = torch.full((16,), SCALE)",
    "tensors in containers": "self.parts = {'a': [torch.full((16,), SCALE)], 'b': ()}",
    "a buffer that is not saved": "self.register_buffer('t', torch.full((16,), SCALE), persistent=False)",
    "settings": "self.settings = Settings(SCALE)",
    "a function": "self.activation = torch.nn.functional.relu if SCALE > 1 else torch.nn.functional.gelu",
    "a function with arguments": "self.activation = functools.partial(torch.nn.functional.leaky_relu, slope=SCALE)",
    "a module that is not registered": "self.parts = [torch.nn.Linear(2, 2).requires_grad_(SCALE > 1)]",
    "a frozen layer": "self.first.requires_grad_(SCALE > 1)",
    "what a layer does not print": "self.pool = torch.nn.AvgPool2d(2, count_include_pad=SCALE > 1)",
    "an attribute of the class": "type(self).scale = SCALE",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_module_are_in_its_hash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    found = []
    for place, scale in (("a", "1"), ("b", "7"), ("c", "1")):
        path = tmp_path / place / "own.py"
        path.parent.mkdir()
        path.write_text(MODULE.format(attribute=ATTRIBUTES[name]))
        monkeypatch.setenv("SCALE", scale)
        found.append(load_recipe(path).fixed_hash())
    assert found[0] != found[1]
    assert found[0] == found[2], "in another folder"


def test_attributes_of_a_module_are_in_the_hash_of_the_network_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "own.py"
    path.write_text(MODULE.format(attribute="self.t = torch.full((16,), SCALE)"))
    networks = []
    for scale in ("1", "7", "1"):
        monkeypatch.setenv("SCALE", scale)
        networks.append(run(path)["provenance"]["network"])
    assert networks[0] == networks[2] != networks[1]


@pytest.mark.parametrize("value", ["next(COUNT)", "time.perf_counter()", "str(object())", "object()"])
def test_a_value_that_differs_each_time_leaves_the_rest_in_the_hash(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "own.py"
    found = []
    for scale in ("1", "7"):
        path.write_text(MODULE.format(attribute=f"self.scale, self.value = SCALE, {value}"))
        monkeypatch.setenv("SCALE", scale)
        first, again = load_recipe(path), load_recipe(path)
        assert first.fixed_hash() == again.fixed_hash()
        assert first.content is not None
        assert first.content["network"]["structure"] is not None
        found.append(first.fixed_hash())
    assert found[0] != found[1]
    warned = any(ANOTHER in warning for warning in run(path)["warnings"])
    assert warned is ("object" not in value), "an address is no difference"


def test_layers_of_pytorch_that_print_their_settings_keep_their_hashes() -> None:
    torch = pytest.importorskip("torch")
    layers = [
        torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        torch.nn.BatchNorm2d(4, eps=1e-3),
        torch.nn.LSTM(3, 4, bias=False, bidirectional=True),
        torch.nn.GELU("tanh"),
        torch.nn.MaxPool2d(2),
        torch.nn.Dropout(0.1),
        torch.nn.Hardswish(),
        torch.nn.CrossEntropyLoss(),
    ]
    assert attributes_of(torch.nn.Sequential(*layers)) == {}


TORCH = """
import deep5 as d5
{top}

def own(seed=0):
    import torch
    net = d5.networks.mlp(features=4, hidden=8, classes=3)
    return net.with_values({{name: torch.randn(*value.shape).numpy() for name, value in net.parameters().items()}})

FIXED = {{"model": own, "dataset": "synthetic", "epochs": 1,
         "dataset_kwargs": {{"shape": (4,), "classes": 3, "train": 32, "test": 8}}}}
MUTABLE = {{"batch_size": 16, "framework": "reference", "optimizer": "sgd", "optimizer_kwargs": {{"lr": 0.1}}}}
METRICS = [("test_accuracy", None)]
"""


def test_a_library_that_the_function_loads_is_seeded_too(tmp_path: Path) -> None:
    import subprocess
    import sys

    pytest.importorskip("torch")
    hashes = []
    for number, top in enumerate(("", "import torch")):
        path = tmp_path / f"own{number}.py"
        path.write_text(TORCH.format(top=top))
        code = (
            "import sys; from deep5.recipe.recipe import load_recipe; assert ('torch' in sys.modules) is False;"
            "print(load_recipe(sys.argv[1]).content['network'])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        hashes.append(done.stdout)
    assert hashes[0] == hashes[1]
    assert load_recipe(path).content["network"]["weights"] in hashes[0]  # type: ignore[index]
    seeds = [derive_seed(seed, "weights") for seed in (0, 1)]
    first, other = (digest_of(seeded_call(seed, load_recipe(path).fixed["model"])) for seed in seeds)
    assert first is not None
    assert other is not None
    assert first.weights in hashes[0]
    assert first.weights != other.weights


NATIVE = """
import torch
from torch import nn

import deep5 as d5

INPUTS = {{"input": d5.TensorSpec(shape=("N", 4)), "label": d5.TensorSpec(shape=("N",), dtype="int64")}}

def module():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def own():
    return {made}

def run_on(network, *, device):
    from deep5.frameworks.pytorch.native import from_module
    return from_module({run}, torch.nn.functional.cross_entropy, inputs=INPUTS)

FIXED = {{"model": own, "dataset": "synthetic", "epochs": 1,
         "dataset_kwargs": {{"shape": (4,), "classes": 3, "train": 32, "test": 8}}}}
MUTABLE = {{"batch_size": 16, "executor": run_on, "optimizer": "sgd", "optimizer_kwargs": {{"lr": 0.1}}}}
METRICS = [("training_loss", None)]
"""


@pytest.mark.parametrize(("made", "run_of"), [("module()", "network"), ("'a network'", "module()")])
def test_a_module_of_pytorch_has_one_set_of_weights_at_one_seed(made: str, run_of: str, tmp_path: Path) -> None:
    """Drawn where the model is created, or where its executor is."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "own.py"
    path.write_text(NATIVE.format(made=made, run=run_of))
    torch.manual_seed(1)
    first = run(path, seed=3)
    torch.manual_seed(2)
    again, other = run(path, seed=3), run(path, seed=4)
    weights = [own["provenance"]["initial_weights"] for own in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert len({own["recipe"]["hash"] for own in (first, again, other)}) == 1
    assert (first["recipe"]["content"]["network"] is not None) is (made == "module()")
    assert not any(ANOTHER in warning for warning in first["warnings"])
