"""Runs on users' own data that are killed after a checkpoint and resumed: the same bits in the same order."""

from __future__ import annotations

import csv
import io
import tarfile
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
from command import Command
from deep5.audit import audit
from deep5.results.result import load
from deep5.results.store import result_folders
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.record_files import write_records
from twins import events, of_run

pytestmark = pytest.mark.usefixtures("warm")

SAMPLES, FEATURES = 40, 12
RNG = np.random.default_rng(5)
RECIPE = """
import os
from pathlib import Path
import deep5 as d5


class Killed(d5.Event):
    def describe(self):
        return {"event": "killed"}

    def after_all(self, trainer):
        at = Path("end-at")
        if at.exists() and trainer.step == int(at.read_text()):
            os.kill(os.getpid(), 9)


def network(seed=0):
    build = d5.NetworkBuilder("linear", seed=seed)
    x, label = build.input("input", ("N", *SHAPE), DTYPE), build.input("label", ("N",), "int64")
    x = build.op("Flatten", build.op("Cast", x, to=1))
    weight = build.parameter("weight", (12, 2), d5.networks.edit.builder.he_normal)
    logits = build.op("MatMul", x, weight)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})


FIXED = {
    "model": MODEL, "dataset": DATASET, "dataset_kwargs": ARGUMENTS, "epochs": 3,
    **SAMPLERS,
    "events": (Killed(), d5.Checkpointer(every_steps=4)),
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}}
METRICS = [("training_loss", None), ("test_accuracy", None)]
"""
Given = dict[str, Any]


def table() -> Given:
    with Path("t.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*(f"x{n}" for n in range(FEATURES)), "y"])
        rows.writerows([[*RNG.standard_normal(FEATURES).tolist(), f"c{n % 2}"] for n in range(SAMPLES)])
    return {"DATASET": "table", "ARGUMENTS": {"path": "t.csv", "target": "y"}, "SHAPE": (FEATURES,)}


def audio_folder() -> Given:
    file: Any
    for number in range(SAMPLES):
        folder = Path("sounds", str(number % 2))
        folder.mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, FEATURES, "NONE", ""))
            file.writeframes(RNG.integers(-9000, 9000, FEATURES).astype("<i2").tobytes())
    return {"DATASET": "audio_folder", "ARGUMENTS": {"folder": "sounds"}, "SHAPE": (1, FEATURES)}


def text() -> Given:
    Path("t.txt").write_text("the cat sat on the mat.\n" * 16, encoding="utf-8")
    model = {"name": "gpt", "vocabulary": 14, "length": 8, "width": 8, "heads": 2, "layers": 1}
    return {"DATASET": "text", "ARGUMENTS": {"path": "t.txt", "length": 8}, "MODEL": model}


def text_folder() -> Given:
    for number in range(SAMPLES):
        folder = Path("texts", f"c{number % 2}")
        folder.mkdir(parents=True, exist_ok=True)
        words = " ".join(RNG.choice(["red", "green", "blue"], FEATURES))
        (folder / f"{number}.txt").write_text(words, encoding="utf-8")
    arguments = {"folder": "texts", "length": FEATURES}
    return {"DATASET": "text_folder", "ARGUMENTS": arguments, "SHAPE": (FEATURES,), "DTYPE": "int64"}


def tfrecord() -> Given:
    made = [encode_example({"x": RNG.standard_normal(FEATURES).tolist(), "y": [n % 2]}) for n in range(SAMPLES)]
    write_records(Path("x.tfrecord"), made)
    features = {"input": f"x: float32[{FEATURES}]", "label": "y: int64[]"}
    return {"DATASET": "tfrecord", "ARGUMENTS": {"train": "x.tfrecord", "features": features}, "SHAPE": (FEATURES,)}


def tfrecord_stream() -> Given:
    given = tfrecord()
    arguments = {**given["ARGUMENTS"], "stream": True, "test": "x.tfrecord"}
    return {**given, "ARGUMENTS": arguments, "SAMPLERS": {"train_sampler": "stream", "validation_sampler": "stream"}}


def webdataset() -> Given:
    with tarfile.open("x.tar", "w") as archive:
        for number in range(SAMPLES):
            array = io.BytesIO()
            np.save(array, RNG.standard_normal(FEATURES).astype(np.float32))
            for ending, content in (("npy", array.getvalue()), ("cls", str(number % 2).encode())):
                entry = tarfile.TarInfo(f"{number:03d}.{ending}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    arguments = {"train": "x.tar", "parts": {"input": "npy", "label": "cls"}}
    return {"DATASET": "webdataset", "ARGUMENTS": arguments, "SHAPE": (FEATURES,)}


def hugging_face() -> Given:
    datasets = pytest.importorskip("datasets")
    columns = {"x": RNG.standard_normal((SAMPLES, FEATURES)).tolist(), "y": [n % 2 for n in range(SAMPLES)]}
    datasets.Dataset.from_dict(columns).save_to_disk("hf")
    arguments = {"data": "hf", "columns": {"input": "x", "label": "y"}}
    return {"DATASET": "hugging_face", "ARGUMENTS": arguments, "SHAPE": (FEATURES,)}


def written(given: Given) -> None:
    """The recipe for a data set."""
    model = given.pop("MODEL", None)
    values = {"SHAPE": (FEATURES,), "DTYPE": "float32", "SAMPLERS": {}, **given}
    body = RECIPE
    if model is not None:
        name = model.pop("name")
        body = body.replace('"model": MODEL', f'"model": {name!r}, "model_kwargs": {model!r}')
    body = body.replace('"model": MODEL', '"model": network')
    for key, value in values.items():
        body = body.replace(key, repr(value))
    Path("own.py").write_text(body, encoding="utf-8")


MAKERS = (table, audio_folder, text, text_folder, tfrecord, tfrecord_stream, webdataset, hugging_face)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_run_that_was_killed_ends_with_the_same_bits(make: Callable[[], Given], deep5: Command) -> None:
    written(make())
    whole = deep5("run", "own.py", "--quiet", "--out", "whole")
    assert whole.status == 0, whole.err
    Path("end-at").write_text("15")
    done = forked.run(["-m", "deep5", "run", "own.py", "--quiet", "--out", "killed"])
    assert done.returncode == -9, done.stderr
    Path("end-at").unlink()
    (folder,) = result_folders(Path("killed"))
    answer = deep5("run", "own.py", "--quiet", "--resume", str(folder))
    assert answer.status == 0, answer.err
    (other,) = result_folders(Path("whole"))
    assert [entry["step"] for entry in load(folder).document["resumed"]] == [12]  # not from the start
    assert of_run(folder) == of_run(other)
    # A stream has no indices; the losses depend on its order.
    assert bool(of_run(folder)["provenance"]["batch_order"]) == (make is not tfrecord_stream)
    assert events(folder) == events(other)
    assert not audit([folder, other]).findings
