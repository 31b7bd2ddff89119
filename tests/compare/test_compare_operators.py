"""`deep5 compare` of operators: numerics on accelerators, element types of results, and what timed processes load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import deep5.measuring.calibration
from deep5.compare.driver import run_comparison
from deep5.compare.plan import make_plan
from deep5.compare.request import request_of
from deep5.core.errors import UsageError
from deep5.measuring.calibration import Calibration
from deep5.measuring.scheme import CURRENT
from deep5.recipe.recipe import load_recipe
from deep5.results.comparison import load_comparison

# A distribution that registers frameworks: each is the reference, except for what its class states.
FRAMEWORKS = '''
import os
import numpy as np
from deep5.frameworks.reference.framework import Reference


class Same(Reference):
    name = "same"


class Loose(Reference):
    """Says that it rounds to TF32."""

    name = "loose"

    def executor(self, network, **options):
        return self._said(super().executor(network, **options))

    def operator_executor(self, operator, **options):
        return self._said(super().operator_executor(operator, **options))

    def _said(self, made):
        settings = made.settings
        made.settings = lambda: {**settings(), "tf32": True}
        return made


class Half(Reference):
    """Right, but its results are rounded to half precision."""

    name = "half"

    def operator_executor(self, operator, **options):
        made = super().operator_executor(operator, **options)
        inference = made.inference
        made.inference = lambda *inputs: tuple(value.astype(np.float16) for value in inference(*inputs))
        return made


class Elsewhere(Reference):
    """As if it were on an accelerator; writes down what is asked of it."""

    name = "elsewhere"

    def operator_executor(self, operator, *, device="cpu"):
        self._note(str(device))
        return super().operator_executor(operator)

    def set_threads(self, threads):
        self._note("threads")
        super().set_threads(threads)

    def _set_numerics(self, deterministic, tf32):
        self._note(f"deterministic={deterministic} tf32={tf32}")

    def _note(self, what):
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{os.getpid()} {what}\\n")


class Away(Elsewhere):
    name = "away"
'''
RECIPE = """
FIXED = {"operator": "Conv", "shapes": ((1, 3, 12, 12), (4, 3, 3, 3)), **FIXED_TOO}
MUTABLE = {"frameworks": ("reference",), "rounds": 3, **MUTABLE_TOO}
METRICS = []
"""


def recipe_file(folder: Path, *, fixed: dict[str, Any] | None = None, mutable: dict[str, Any] | None = None) -> Path:
    path = folder / "product.py"
    path.write_text(RECIPE.replace("FIXED_TOO", repr(fixed or {})).replace("MUTABLE_TOO", repr(mutable or {})))
    return path


@pytest.fixture(autouse=True)
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet machine's calibration, in the test's own cache: the machine is not under test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    made = Calibration(
        machine=deep5.measuring.calibration.machine_id(),
        threads=1,
        processes={"matrix product": tuple(1 + 0.001 * (number % 7) for number in range(32))},
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        others_share=0.0,
    )
    path = deep5.measuring.calibration._file(made.machine, made.threads)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(made.document()))


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frameworks above, as if installed by a user: in processes started from here on."""
    folder = tmp_path / "installed"
    about = folder / "spoiled-1.dist-info"
    about.mkdir(parents=True)
    (folder / "spoiled.py").write_text(FRAMEWORKS)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: spoiled\nVersion: 1\n")
    names = "".join(f"{name.lower()} = spoiled:{name}\n" for name in ("Same", "Loose", "Half", "Elsewhere", "Away"))
    (about / "entry_points.txt").write_text(f"[deep5.frameworks]\n{names}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


def compared(recipe: str | Path, frameworks: str, folder: Path, *options: str) -> Any:
    """What the command leaves; it runs in its own process."""
    out = folder / "results"
    command = ["compare", str(recipe), "--frameworks", frameworks, "--threads", "1", "--out", str(out), *options]
    done = subprocess.run(
        [sys.executable, "-m", "deep5", *command], capture_output=True, text=True, timeout=300, check=False
    )
    (left,) = out.iterdir() if out.exists() else [None]
    assert left is not None, done.stderr[-2000:]
    return load_comparison(left)


@pytest.mark.slow
def test_a_result_of_another_element_type_is_different_and_tf32_undeclared_fails(
    registered: None, tmp_path: Path
) -> None:
    # Its results are integers, which half precision represents, too: another element type is enough.
    path = recipe_file(tmp_path, fixed={"operator": "Floor", "shapes": ((64, 64),)})
    found = compared(path, "reference,same,half,loose", tmp_path)
    reference, same, half, loose = found.candidates
    assert [reference["status"], same["status"]] == ["timed", "timed"]
    assert half["status"] == "different"
    assert half["reason"] == (
        "none of its results equals the reference's: Floor: its result 0 is float16; allowed: float32"
    )
    assert (loose["status"], loose["observed"]["tf32"]) == ("failed", True)
    # Recipes of operators have no key to declare it: there is no remedy.
    assert loose["reason"] == "it reports that it rounds float32 to TF32; requested: float32"


@pytest.mark.slow
def test_tf32_that_training_does_not_declare_fails_with_a_remedy(registered: None, tmp_path: Path) -> None:
    options = ("--of", "inference", "--size", "smoke", "--steps", "2")
    found = compared("digits_lenet", "reference,same,loose", tmp_path, *options)
    assert [row["status"] for row in found.candidates] == ["timed", "timed", "failed"]
    assert found.candidates[2]["reason"] == (
        "it reports that it rounds float32 to TF32; requested: float32; remedy: tf32=True in the recipe, which allows "
        "it for all candidates"
    )


@pytest.mark.slow
def test_an_accelerator_is_asked_for_numerics_before_anything_starts_it(
    registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the proof's and in the timed processes; the proof's reference runs on the host. Threads may be fixed."""
    monkeypatch.setenv("ASKED", str(tmp_path / "asked.txt"))
    path = recipe_file(tmp_path, fixed={"threads": 1}, mutable={"device": "cuda:0"})
    found = compared(path, "elsewhere,away", tmp_path)
    assert [row["status"] for row in found.candidates] == ["timed", "timed"]
    asked: dict[str, list[str]] = {}
    for line in (tmp_path / "asked.txt").read_text().splitlines():
        process, _, what = line.partition(" ")
        asked.setdefault(process, []).append(what)
    assert len(asked) == 2 * (1 + CURRENT.quick_rounds)
    for told in asked.values():
        assert told[:3] == ["deterministic=True tf32=False", "threads", "cuda:0"]


# What a process reports of PyTorch and of its loaded modules after a job.
_JOB = """
import json, sys
from deep5.compare.operators import JOBS
from deep5.core.errors import Deep5Error
from deep5.recipe.recipe import load_recipe
path, job, framework, device = sys.argv[1:]
recipe = load_recipe(path).with_settings({"frameworks": [framework], "device": device})
try:
    JOBS[job](recipe, {"mode": "quick", "threads": 1}, lambda doing: None, 0.0)
except Deep5Error as error:
    print(error, file=sys.stderr)
told = {"loaded": [name for name in ("onnxruntime", "torch", "jax", "tensorflow") if name in sys.modules]}
if "torch" in sys.modules:
    import torch
    told["tf32"] = [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]
    told["deterministic"] = torch.are_deterministic_algorithms_enabled()
print(json.dumps(told))
"""


def after_job(recipe: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _JOB, str(recipe), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("job", ["prove", pytest.param("time", marks=pytest.mark.slow)])
def test_pytorch_does_not_round_to_tf32_on_an_accelerator(job: str, tmp_path: Path) -> None:
    """As cuDNN would by default; the host's PyTorch stays unchanged. Reading the settings needs no accelerator."""
    path = recipe_file(tmp_path)
    there, here = (after_job(path, job, "pytorch", device) for device in ("cuda:0", "cpu"))
    assert (there["tf32"], there["deterministic"]) == ([False, False], True)
    assert (here["tf32"], here["deterministic"]) == ([True, False], False)


def test_a_timed_process_loads_no_other_framework(tmp_path: Path) -> None:
    path = recipe_file(tmp_path)
    assert after_job(path, "time", "reference", "cpu")["loaded"] == []
    assert after_job(path, "time", "pytorch", "cpu")["loaded"] == ["torch"]


def test_threads_that_a_recipe_fixes_are_neither_set_nor_changed(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, fixed={"threads": 1})
    frameworks = ["reference", "onnxruntime"]
    for asked in (None, 1):
        plan, recipes = make_plan(str(path), frameworks=frameworks, threads=asked)
        request = request_of(plan, recipes["reference"], plan.candidate("reference"), "time")
        assert plan.threads == request["threads"] == 1
        assert load_recipe(path).with_settings(request["settings"]).value("threads") == 1
    with pytest.raises(UsageError, match=r"^--threads 2, but product fixes threads=1; allowed: that, or no --threads$"):
        run_comparison(str(path), frameworks=frameworks, threads=2, out=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_threads_that_a_recipe_does_not_fix_are_set(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, mutable={"threads": 2})
    plan, recipes = make_plan(str(path), frameworks=["reference", "onnxruntime"], threads=1)
    assert request_of(plan, recipes["reference"], plan.candidates[0], "time")["settings"]["threads"] == 1
