"""Recipes that train networks of float16 and bfloat16: both ways of `master_weights`, resumed, and in the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import Command
from deep5.results.result import load
from deep5.results.store import result_folders
from deep5.training.checkpoint_file import read_checkpoint
from deep5.training.checkpointer import checkpoints

RECIPE = """
import os
import deep5 as d5

def network(*, dtype="float16", seed=0):
    build = d5.NetworkBuilder("short", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("Tanh", build.op("Gemm", x, build.parameter("first", (6, 4)), transB=1))
    logits = build.op("Gemm", x, build.parameter("last", (3, 6)), transB=1)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})

class Ends(d5.Event):
    def describe(self):
        return {"event": "ends"}
    def after_all(self, trainer):
        if trainer.step == 17 and os.path.exists("end-it"):
            raise RuntimeError("ended")

FIXED = {
    "model": network, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 40, "test": 9}, "epochs": 2, "events": (Ends,),
}
MUTABLE = {
    "batch_size": 4, "framework": "reference", "model_kwargs": {"dtype": "float16"}, "optimizer": "momentum",
    "optimizer_kwargs": {"lr": 0.125}, "loss_scale": 8.0, "master_weights": True,
}
METRICS = [(d5.TestAccuracy(), ">= 0"), (d5.TrainingLoss(), None)]
"""


def only(folder: Path) -> Path:
    (found,) = result_folders(folder)
    return found


def trained(folder: Path) -> Any:
    return load(folder).document["provenance"]["trained_weights"]


def found(tree: Any) -> list[np.ndarray]:
    """The master weights in the tree of a checkpoint."""
    if not isinstance(tree, dict):
        return []
    own = [value for key, value in tree.items() if str(key).startswith("master_weight/")]
    return own + [value for inner in tree.values() for value in found(inner)]


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "framework",
    ["reference", "pytorch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tensorflow", "jax"))],
)
def test_a_short_network_trains_resumes_and_is_described(
    framework: str, dtype: str, master: bool, deep5: Command
) -> None:
    Path("own.py").write_text(RECIPE)
    words = ("own.py", "--quiet", "--framework", framework, "--set", f"model_kwargs.dtype={dtype}")
    words += ("--set", f"master_weights={master}", "--checkpoint-every", "6")
    assert deep5("check", *words[:1]).status == 0
    whole = deep5("run", *words, "--out", "whole", "--json")
    assert whole.status == 0, whole.err
    Path("end-it").touch()
    assert deep5("run", *words).status == 3
    Path("end-it").unlink()
    folder = only(Path("results"))
    masters = found(read_checkpoint(checkpoints(folder / "checkpoints")[0])[0])
    assert [value.dtype for value in masters] == [np.dtype(np.float32)] * (2 if master else 0)
    again = deep5("run", *words, "--resume", str(folder), "--json")
    assert again.status == 0, again.err
    document = json.loads(again.out)
    assert [entry["step"] for entry in document["resumed"]] == [12]
    assert trained(folder) == trained(only(Path("whole")))
    rows = load(folder).samples()["training_loss"]
    assert [row.value for row in rows] == [row.value for row in load(only(Path("whole"))).samples()["training_loss"]]
    assert rows[-1].value < rows[0].value
    # The result states it.
    used = "float32" if master else dtype
    described = document["components"]["optimizer"]
    assert (described["master_weights"], described["update_dtype"]) == (master, used)
    assert document["numerics"]["update_dtype"] == used
    assert document["numerics"]["dtype"] == dtype


OWN = """
import torch

class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3).half()

    def forward(self, x):
        return self.fc(x)

def own_step(lr=0.1):
    import deep5 as d5

    class Own(d5.StepOptimizer):
        def bind(self, executor, loss="loss"):
            self.executor = executor

        def step(self, inputs, info):
            return self.executor.inference(inputs)

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    return Own()
"""
IN_FLOAT16 = "are computed in float16 without a loss scale: those below 6e-8 become zero; remedy: "


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (("loss_scale=None",), f"the gradients of 2 of 2 parameters (first, last) {IN_FLOAT16}loss_scale='dynamic'"),
        (("loss_scale=None", "model_kwargs.dtype=bfloat16"), None),
        (("loss_scale='dynamic'",), None),
        (("loss_scale=None", "precision=float32"), None),
        (("loss_scale=None", "model_kwargs.dtype=float32", "precision=float16"), "of 2 of 2 parameters (first, last)"),
        (
            ("loss_scale=None", "master_weights=None", "framework=pytorch", "optimizer=native:sgd"),
            f"{IN_FLOAT16}an update rule with loss_scale='dynamic' (--set loss_scale=dynamic), or bfloat16",
        ),
        (("loss_scale=None", "master_weights=None", "optimizer=model.py:own_step"), None),
    ],
)
def test_float16_without_a_loss_scale_is_warned_of(
    settings: tuple[str, ...], warning: str | None, deep5: Command
) -> None:
    Path("model.py").write_text(OWN)
    Path("own.py").write_text(RECIPE.replace("METRICS", "MUTABLE |= FIXED\nFIXED = {}\nMETRICS"))
    words = ("own.py", *(word for setting in settings for word in ("--set", setting)))
    run = deep5("run", *words)
    assert run.status == 0, run.err
    checked = deep5("check", *words).out
    warned = [each for each in load(only(Path("results"))).document["warnings"] if "float16" in each]
    for told in (" ".join(warned), run.out, checked):
        assert ("without a loss scale" in told) == (warning is not None)
    assert warning is None or warning in warned[0]


def test_a_module_of_float16_is_warned_of_without_a_loss_scale(deep5: Command) -> None:
    Path("model.py").write_text(OWN)
    words = ("run", "model.py:Half", "--set", "dataset_kwargs={'shape': (4,), 'classes': 3}", "--json")
    (warning,) = (each for each in json.loads(deep5(*words).out)["warnings"] if "float16" in each)
    assert warning.startswith(f"the gradients of 2 of 2 parameters (fc.weight, fc.bias) {IN_FLOAT16}")
    scaled = json.loads(deep5(*words, "--set", "loss_scale=1024").out)
    assert not any("float16" in each for each in scaled["warnings"])


def test_a_back_end_without_short_types_names_the_key(deep5: Command) -> None:
    Path("own.py").write_text(RECIPE.replace('"framework": "reference"', '"framework": "onnxruntime"'))
    remedy = "allowed: float32; remedy: precision='float32' in the recipe (--set precision=float32)"
    for precision in ("bfloat16", "float16"):
        refused = deep5("run", "own.py", "--set", f"precision={precision}")
        assert refused.status == 2
        assert refused.err.startswith(
            f"deep5: --set precision={precision} (own.py:25): 'framework': onnxruntime cannot"
        )
        assert remedy in refused.err
    assert "deep5: own.py:25: 'framework': onnxruntime cannot" in (own := deep5("run", "own.py")).err
    assert remedy in own.err
    assert deep5("run", "own.py", "--set", "precision=float32").status == 0
