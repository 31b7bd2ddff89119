"""Determinism and TF32: set through one interface; the framework itself reports the same setting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

import deep5 as d5
from deep5.core.errors import RecipeError, UsageError
from deep5.core.plugins import registered
from deep5.core.tensors import Device
from deep5.frameworks.reference.framework import Reference
from deep5.recipe.recipe import Recipe
from deep5.run.execute import execute

FLAG = "--xla_gpu_deterministic_ops"
# Each program ends with the framework's own report, after (deterministic, tf32) of (True, False), then, if the process
# can, of (False, True). In a separate process, since the setting is per process.
ASKED = {
    "pytorch": """
import torch
from deep5.frameworks.pytorch.numerics import deterministic, tf32
def told():
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn)
    own = torch.are_deterministic_algorithms_enabled(), *[kind.allow_tf32 for kind in kinds]
    assert (deterministic(), tf32()) == (own[0], any(own[1:]))
    return *own, torch.get_float32_matmul_precision()
print(tf32())
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
framework.set_numerics(deterministic=False, tf32=True)
print(os.environ["XLA_FLAGS"], jax.config.jax_default_matmul_precision)
framework.set_numerics(deterministic=True, tf32=False)
# Where there is a graphics processor, it is too late.
from types import SimpleNamespace
host, jax.devices = jax.devices, lambda *_: [SimpleNamespace(platform="gpu")]
try:
    framework.set_numerics(deterministic=False, tf32=True)
except UsageError as error:
    told = "XLA_FLAGS=--xla_gpu_deterministic_ops=false" in str(error)
    print("refused", told, jax.config.jax_default_matmul_precision)
jax.devices = host
""",
}
TOLD = {
    "pytorch": ["True", "True False False highest", "False True True high"],  # first, as cuDNN has it
    "tensorflow": ["False True", "True False", "refused True False"],
    "jax": ["None tensorfloat32", f"{FLAG}=true highest", f"{FLAG}=true tensorfloat32", "refused True highest"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for_is_what_the_framework_says(name: str) -> None:
    start = f"import deep5 as d5\nfrom deep5.core.errors import UsageError\nframework = d5.framework({name!r})\n"
    # On the CPU float32 results repeat bit-identically with any setting.
    end = """
settings = framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()
print(settings["deterministic"], settings["tf32"])
"""
    variables = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", start + ASKED[name] + end],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=variables,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [*TOLD[name], "True False"]


def test_sessions_of_onnxruntime_get_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of a session on a GPU; there is no GPU here to create it."""
    import onnxruntime

    from deep5.frameworks.onnxruntime.framework import Numerics
    from deep5.frameworks.onnxruntime.session import make_session

    made: list[tuple[Any, Any]] = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda model, options, providers, **_: made.append((options.use_deterministic_compute, providers)),
    )
    for numerics in (Numerics(), Numerics(deterministic=False, tf32=True)):
        make_session(b"", 1, Device(kind="cuda", index=0), numerics=numerics)
        make_session(b"", 1, Device(), numerics=numerics)
    (first, (cuda,)), (host, _), (second, (short,)), (host_again, _) = made
    assert (first, cuda[1]["use_tf32"], second, short[1]["use_tf32"]) == (True, "0", False, "1")
    assert (host, host_again) == (True, True)


@pytest.mark.parametrize(
    ("flags", "later", "told"),
    [
        (f"{FLAG}", "", True),
        (f"{FLAG}=1", "", True),
        (f"{FLAG}=true {FLAG}=false", "", False),
        (f"{FLAG}=false {FLAG}=true", "", True),
        ("", f"{FLAG}=true", False),  # flags set after the start are ignored
    ],
)
def test_jax_is_as_deterministic_as_the_flags_that_xla_has_read(flags: str, later: str, told: bool) -> None:
    code = """
import os, sys
import deep5 as d5
from deep5.frameworks.jax.settings import find_device, read_settings
find_device(d5.core.tensors.Device())
os.environ["XLA_FLAGS"] = sys.argv[1] or os.environ["XLA_FLAGS"]
print(read_settings(d5.core.tensors.Device(kind="cuda", index=0))["deterministic"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, later],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    assert done.stdout == f"{told}\n", done.stderr[-2000:]


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
    assert "requested bit-identical repetition and" in first
    assert "rounds products to TF32" in second
    assert not execute(recipe(executor=made, deterministic=False, tf32=True), out=tmp_path).document["warnings"]


class Elsewhere(Reference):
    """The reference, pretending to be on a GPU: records the calls of a run to its framework, in order."""

    asked: ClassVar[list[Any]] = []
    started = False

    def executor(self, network: Any, *, device: Any = "cpu", seed: int = 0) -> Any:
        self.asked.append(str(device))
        return super().executor(network, seed=seed)

    def set_threads(self, threads: int) -> None:
        self.asked.append("threads")

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:
        self.asked.append((deterministic, tf32))
        if self.started:
            raise UsageError("it has started")


def test_an_accelerator_is_asked_before_anything_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elsewhere, "asked", [])
    execute(recipe(framework=Elsewhere, device="cuda:0"), out=tmp_path)
    execute(recipe(framework=Elsewhere, device="cuda:0", deterministic=False, tf32=True), out=tmp_path)
    execute(recipe(framework=Elsewhere), out=tmp_path)
    assert Elsewhere.asked == [
        *((True, False), "threads", "cuda:0"),
        *((False, True), "threads", "cuda:0"),
        *("threads", "cpu"),
    ]


def test_numerics_that_can_no_longer_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elsewhere, "started", True)
    found = execute(recipe(framework=Elsewhere, device="cuda:0"), out=tmp_path).document
    assert found["warnings"] == ["the numerics are not the default: it has started"]
    with pytest.raises(RecipeError, match="'tf32': it has started"):
        execute(recipe(framework=Elsewhere, device="cuda:0", tf32=True), out=tmp_path)


def test_the_device_of_an_executor_is_what_numerics_are_set_for() -> None:
    """Also when it is passed with the executor, as in the tutorial's recipes."""
    from deep5.recipe.experiment import recipe_parts
    from deep5.recipe.recipe import Recipe
    from deep5.run.assemble_executor import written_numerics

    fixed = {"model": "mlp", "dataset": "synthetic", "epochs": 1}
    for device, asked in ((d5.GPUDevice(), ["deterministic"]), (d5.CPUDevice(), [])):
        mutable = {"executor": "reference", "executor_kwargs": {"device": device}, "optimizer": "sgd", "batch_size": 1}
        made = Recipe.make(fixed, {**mutable, "deterministic": False, "tf32": True}, [])
        assert written_numerics(recipe_parts(made)) == asked


def test_numerics_of_an_executor_that_is_named_by_its_function(tmp_path: Path) -> None:
    def own(network: Any) -> Any:
        executor = d5.framework("reference").executor(network)
        monkey = {**executor.settings(), "framework": "mine"}
        executor.settings = lambda: monkey
        return executor

    with pytest.raises(RecipeError, match=r"'tf32' cannot be set for the executor of <function .*; remedy: set it in"):
        execute(recipe(executor=own, device="cuda:0", tf32=True), out=tmp_path)
