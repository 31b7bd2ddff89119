"""Determinism and TF32: set through one interface, and what was set is the framework's own setting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
from deep5.errors import RecipeError, UsageError
from deep5.plugins import registered
from deep5.recipe import Recipe
from deep5.run import execute
from deep5.tensors import Device

# Each ends with what the framework itself says, after (deterministic, tf32) of (True, False), then, where the process
# can, of (False, True). In a process of its own: it is the process's setting.
ASKED = {
    "pytorch": """
import torch
def told():
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    return torch.are_deterministic_algorithms_enabled(), *[kind.fp32_precision for kind in kinds]
framework.set_numerics(deterministic=True, tf32=False)
print(*told())
framework.set_numerics(deterministic=False, tf32=True)
print(*told())
""",
    "tensorflow": """
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled
framework.set_numerics(deterministic=False, tf32=True)
print(is_op_determinism_enabled(), tf.config.experimental.tensor_float_32_execution_enabled())
framework.set_numerics(deterministic=True, tf32=False)
print(is_op_determinism_enabled(), tf.config.experimental.tensor_float_32_execution_enabled())
try:
    framework.set_numerics(deterministic=False, tf32=True)
except UsageError as error:
    print("refused", "a new process" in str(error), tf.config.experimental.tensor_float_32_execution_enabled())
""",
    "jax": """
import jax, os
framework.set_numerics(deterministic=False, tf32=True)
print(os.environ.get("XLA_FLAGS"), jax.config.jax_default_matmul_precision)
framework.set_numerics(deterministic=True, tf32=False)
print(os.environ["XLA_FLAGS"], jax.config.jax_default_matmul_precision)
framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()
try:
    framework.set_numerics(deterministic=False, tf32=True)
except UsageError as error:
    told = "XLA_FLAGS=--xla_gpu_deterministic_ops=false" in str(error)
    print("refused", told, jax.config.jax_default_matmul_precision)
""",
    "onnxruntime": """
from deep5.frameworks.onnxruntime.session import make_session, providers
for asked in ({"deterministic": True, "tf32": False}, {"deterministic": False, "tf32": True}):
    framework.set_numerics(**asked)
    print(*framework.numerics)
""",
}
TOLD = {
    "pytorch": ["True ieee ieee ieee", "False tf32 tf32 tf32"],
    "tensorflow": ["False True", "True False", "refused True False"],
    "jax": ["None tensorfloat32", "--xla_gpu_deterministic_ops=true highest", "refused True highest"],
    "onnxruntime": ["True False", "False True"],
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for_is_what_the_framework_says(name: str) -> None:
    start = f"import deep5 as d5\nfrom deep5.errors import UsageError\nframework = d5.framework({name!r})\n"
    # On the host the same bits come again whatever was asked for, in float32.
    end = """
settings = framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()
print(settings["deterministic"], settings["tf32"])
"""
    done = subprocess.run(
        [sys.executable, "-c", start + ASKED[name] + end], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [*TOLD[name], "True False"]


@pytest.mark.parametrize("name", sorted(registered("frameworks")))
@pytest.mark.parametrize("asked", [{"deterministic": 1, "tf32": False}, {"deterministic": True, "tf32": "no"}])
def test_what_is_no_bool_is_refused(name: str, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="allowed: True or False"):
        d5.framework(name).set_numerics(**asked)


# -- in a recipe ------------------------------------------------------------------------------------------------------


def recipe(**fixed: Any) -> Recipe:
    samples = {"train": 32, "test": 16, "shape": (4,), "classes": 2}
    return Recipe.make(
        {
            "model": "mlp",
            "model_kwargs": {"features": 4, "hidden": 2, "classes": 2},
            "dataset": "synthetic",
            "dataset_kwargs": samples,
            "epochs": 1,
            "batch_size": 16,
            "optimizer": "sgd",
            **fixed,
        },
        {},
        [("training_loss", None)],
    )


def test_a_recipe_reads_back_what_it_asks_for(tmp_path: Path) -> None:
    for asked in ({}, {"deterministic": True, "tf32": False}, {"deterministic": False, "tf32": True}):
        found = execute(recipe(framework="reference", **asked), out=tmp_path).document
        assert found["numerics"] == {"dtype": "float32", "tf32": False, "deterministic": True}
        assert not found["warnings"]
    with pytest.raises(RecipeError, match="'tf32' is 'yes'; allowed: True or False"):
        recipe(framework="reference", tf32="yes")


def test_an_executor_that_does_otherwise_is_warned_of(tmp_path: Path) -> None:
    from deep5.frameworks.reference.executor import ReferenceExecutor

    class Loose(ReferenceExecutor):
        def settings(self) -> dict[str, Any]:
            return {**super().settings(), "deterministic": False, "tf32": True}

    def made(network: Any, *, device: Any, seed: int) -> Any:
        return Loose(network, d5.framework("reference"), device=Device(), seed=seed)

    first, second = execute(recipe(executor=made), out=tmp_path).document["warnings"]
    assert "asked for the same bits again and" in first
    assert "rounds products to TF32" in second
    assert not execute(recipe(executor=made, deterministic=False, tf32=True), out=tmp_path).document["warnings"]
