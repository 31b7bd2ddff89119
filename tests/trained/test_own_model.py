"""`deep5 evaluate` and `deep5 predict` of a run of a model in place of a recipe, which runs as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deep5.core.errors import UsageError
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.trained.evaluate import evaluate_result
from deep5.trained.predict import predict_files

MODELS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Flatten(), nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
"""
DATA = {
    "dataset_kwargs.shape": (4,),
    "dataset_kwargs.classes": 3,
    "dataset_kwargs.train": 60,
    "dataset_kwargs.test": 20,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_model_is_the_recipe_of_its_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = execute(load_recipe("models.py:Net").with_settings(DATA), out=folder / "out", quiet=True)
    assert not (run.folder / "network.onnx").exists()
    with pytest.raises(UsageError, match=r"remedy: --recipe with the recipe that makes it, or with the FILE\.py:NAME"):
        evaluate_result(run.folder)
    found = evaluate_result(run.folder, recipe="models.py:Net")
    assert found.same is True
    assert found.recorded["accuracy"] == pytest.approx(found.accuracy)
    with pytest.raises(UsageError, match=r"--framework jax, but .* holds no network\.onnx; allowed: pytorch, its own"):
        evaluate_result(run.folder, recipe="models.py:Net", framework="jax")
    np.save("samples.npy", np.eye(4, dtype=np.float32))
    monkeypatch.chdir("/")  # the same file, by another path
    predicted, notes = predict_files(run.folder, [folder / "samples.npy"], recipe=folder / "models.py:Net")
    assert len(predicted) == 4
    assert notes == ()


def test_the_arguments_of_the_run_are_those_of_the_model(folder: Path) -> None:
    recipe = load_recipe("models.py:Net").with_settings({**DATA, "model_kwargs.width": 5})
    run = execute(recipe, out=folder / "out", quiet=True)
    assert evaluate_result(run.folder, recipe="models.py:Net").samples == 20


def test_a_model_whose_file_changed_is_noted(folder: Path) -> None:
    run = execute(load_recipe("models.py:Net").with_settings(DATA), out=folder / "out", quiet=True)
    assert (run.folder / "model.py").read_text() == MODELS
    (folder / "models.py").write_text(f"# The same code.\n{MODELS}")
    _, notes = predict_files(run.folder, [], recipe="models.py:Net")
    assert notes == ("the model's file was changed since the run; its fixed part is the same",)
