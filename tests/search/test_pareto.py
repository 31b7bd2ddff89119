"""Trials that no other one beats in value and size: an architecture search over a recipe's network."""

import json
import math

import pytest
from safetensors.numpy import load_file

from deep5.core.errors import UsageError
from deep5.results.sweep.pareto import pareto_front
from deep5.results.sweep.record import Sweep, load_sweep

RECIPE = '''
"""A network whose architecture is searched."""

import deep5 as d5

FIXED = {
    "dataset": "synthetic", "dataset_kwargs": {"shape": (16,), "classes": 4, "train": 400, "test": 100},
}
MUTABLE = {
    "model": "mlp", "model_kwargs": {"features": 16, "hidden": 16, "classes": 4},
    "framework": "reference", "batch_size": 50, "optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}, "epochs": 1,
}
METRICS = [(d5.TestLoss(), None)]
'''


@pytest.fixture
def swept(tmp_path, deep5):
    recipe = tmp_path / "small.py"
    recipe.write_text(RECIPE)
    words = ["sweep", str(recipe), "--goal", "test_loss", "--sampler", "grid", "--out", str(tmp_path / "out")]
    words += [
        "--param",
        "model_kwargs.hidden=choice(2, 8, 32, 64)",
        "--param",
        "optimizer_kwargs.lr=choice(0.01, 1e-5)",
    ]
    answer = deep5(*words, "--quiet")
    assert answer.status == 0, answer.err
    [folder] = (tmp_path / "out").iterdir()
    return load_sweep(folder)


def test_the_front_follows_from_the_networks(swept, deep5):
    sizes = {}
    for trial in swept.trials:
        weights = load_file(swept.folder / trial.run / "weights.safetensors")
        # Of layers without convolutions, each weight of a matrix is used once.
        macs = sum(own.size for own in weights.values() if own.ndim == 2)
        sizes[trial.number] = (trial.value, sum(own.size for own in weights.values()), macs)
    front = {
        number
        for number, own in sizes.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in sizes.values())
    }
    found = pareto_front(swept)
    assert {own.trial.number for own in found} == front
    assert 1 < len(front) < 8
    for own in found:
        assert (own.trial.value, own.parameters, own.macs) == sizes[own.trial.number]
    assert [own.trial.value for own in found] == sorted(own.trial.value for own in found)
    shown = deep5("show", "sweep", str(swept.folder), "--pareto")
    assert f"{len(front)} of 8 finished trials" in shown.out
    rows = json.loads(deep5("show", "sweep", str(swept.folder), "--pareto", "--json").out)
    assert [row["number"] for row in rows] == [own.trial.number for own in found]


def test_what_has_no_front_is_refused(swept, deep5):
    empty = Sweep(folder=swept.folder, document=swept.document, trials=[])
    with pytest.raises(UsageError, match=r"no trial of .* has a value"):
        pareto_front(empty)
    (swept.folder / swept.trials[0].run / "network.onnx").unlink()
    with pytest.raises(UsageError, match=r"the network of the trial 0 cannot be read: .*allowed: runs that left"):
        pareto_front(swept)
    answer = deep5("show", "sweep", str(swept.folder), str(swept.folder), "--pareto")
    assert "allowed: one sweep" in answer.err
    assert math.isfinite(swept.best.value)
