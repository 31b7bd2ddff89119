"""Runs on a user's own data: prefetching gives the same training, and a file that changes is noticed."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep5.core.errors import Deep5Error
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.record_files import write_records

RNG = np.random.default_rng(1)
RECIPE = """
import deep5 as d5


def network(seed=0):
    build = d5.NetworkBuilder("linear", seed=seed)
    x, label = build.input("input", ("N", 1, 16)), build.input("label", ("N",), "int64")
    x = build.op("Flatten", x)
    weight = build.parameter("weight", (16, 2), d5.networks.edit.builder.he_normal)
    logits = build.op("MatMul", x, weight)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})


FIXED = {"model": network, "dataset": %r, "dataset_kwargs": %r, "epochs": 3}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "momentum", "optimizer_kwargs": {"lr": 0.1}}
METRICS = [("training_loss", None)]
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))


def audio(folder: Path) -> tuple[str, dict[str, Any]]:
    file: Any
    for label in range(2):
        (folder / "sounds" / str(label)).mkdir(parents=True)
        for number in range(9):
            with wave.open(str(folder / "sounds" / str(label) / f"{number}.wav"), "wb") as file:
                file.setparams((1, 2, 8000, 16, "NONE", ""))
                file.writeframes((RNG.integers(-9000, 9000, 16) + 9000 * label).astype("<i2").tobytes())
    return "audio_folder", {"folder": str(folder / "sounds")}


def records(folder: Path) -> tuple[str, dict[str, Any]]:
    made = [encode_example({"x": RNG.standard_normal(16).tolist(), "y": [n % 2]}) for n in range(20)]
    write_records(folder / "x.tfrecord", made)
    return "tfrecord", {
        "train": str(folder / "x.tfrecord"),
        "features": {"input": "x: float32[1, 16]", "label": "y: int64[]"},
    }


@pytest.mark.parametrize("made", [audio, records])
def test_prefetching_changes_nothing(tmp_path: Path, made: Any) -> None:
    name, arguments = made(tmp_path)
    path = tmp_path / "own.py"
    path.write_text(RECIPE % (name, arguments))
    recipe = load_recipe(str(path))
    plain = execute(recipe, out=tmp_path / "plain")
    ahead = execute(recipe.with_settings({"prefetch": 2}), out=tmp_path / "ahead")
    weights = [(run.folder / "weights.safetensors").read_bytes() for run in (plain, ahead)]
    assert weights[0] == weights[1]


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    name, arguments = audio(tmp_path)
    path = tmp_path / "own.py"
    path.write_text(RECIPE % (name, arguments))
    hashes = []
    for number in range(2):
        hashes.append(execute(load_recipe(str(path)), out=tmp_path / str(number)).document["provenance"]["data"])
        file = tmp_path / "sounds" / "0" / "3.wav"
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert hashes[0] != hashes[1]
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(Deep5Error, match=r"0/3\.wav is no whole WAV file"):
        execute(load_recipe(str(path)), out=tmp_path / "damaged")
