"""A metric's values in a file that grows during a run."""

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.recipe.experiment import Experiment
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.result import load
from deep5.run.choice import workload_of
from deep5.run.curve import CURVE
from deep5.run.execute import run_alone
from deep5.run.workload import Options
from deep5.training.checkpointer import Checkpointer

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 8, "hidden": 8, "classes": 3},
    "dataset": "synthetic", "dataset_kwargs": {"shape": (8,), "classes": 3, "train": 60, "test": 30}, "epochs": 4,
}  # fmt: skip
MUTABLE = {"framework": "reference", "batch_size": 20, "optimizer": "adam"}


def _run(out, follow, metrics, resume=None, **more):
    recipe = Recipe.make({**FIXED, **more}, MUTABLE, metrics)
    options = Options(out=out, quiet=True, follow=follow, checkpointer=Checkpointer(every_steps=1, keep=20))
    return run_alone(workload_of(Experiment.of(recipe)), options, resume)


def _curve(folder):
    return [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]


def test_one_line_per_epoch_with_the_value_so_far(tmp_path):
    result = _run(tmp_path, "test_loss", [(d5.TestLoss(), None)])
    lines = _curve(result.folder)
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 3), (2, 6), (3, 9), (4, 12)]
    assert lines[-1]["value"] == result.metric("test_loss")


def test_a_metric_by_its_label_where_a_recipe_has_several_of_that_name(tmp_path):
    metrics = [(d5.TimeToAccuracy(target), None) for target in (1, 100)]
    result = _run(tmp_path, "time_to_accuracy[target=100.0]", metrics)
    assert [line["value"] for line in _curve(result.folder)] == ["inf"] * 4
    with pytest.raises(UsageError, match=r"'time_to_accuracy' is not one .*allowed: time_to_accuracy\[target=1.0\]"):
        _run(tmp_path, "time_to_accuracy", metrics)


def test_a_resumed_run_has_each_epoch_once_with_the_same_values(tmp_path):
    whole = _run(tmp_path / "whole", "training_loss", [(d5.TrainingLoss(), None)])

    class Killed(d5.Event):
        def after_step(self, trainer, info, outputs, begin_ns, end_ns):
            if info.step == 7:
                raise KeyboardInterrupt

    recipe = Recipe.make(FIXED, MUTABLE, [(d5.TrainingLoss(), None)])
    options = Options(
        out=tmp_path / "left", quiet=True, follow="training_loss", checkpointer=Checkpointer(every_steps=4, keep=20)
    )
    workload = workload_of(Experiment.of(recipe))
    with pytest.raises(KeyboardInterrupt):
        run_alone(workload, replace(options, events=(Killed(),)))
    [folder] = (tmp_path / "left").iterdir()
    assert len(_curve(folder)) == 2
    # The checkpoint before the last: its epoch is done again.
    for path in sorted((folder / "checkpoints").glob("step-*"))[1:]:
        path.unlink()
    resumed = run_alone(workload, options, folder)
    assert _curve(resumed.folder) == _curve(whole.folder)


def test_a_recipe_that_trains_nothing_refuses_it(tmp_path):
    recipe = load_recipe("overhead_adam_large").at_size("smoke")
    with pytest.raises(UsageError, match="nor --follow"):
        run_alone(workload_of(Experiment.of(recipe)), Options(out=tmp_path, quiet=True, follow="test_loss"))


def test_the_command_writes_while_it_runs_and_is_killed(tmp_path):
    command = [
        sys.executable, "-m", "deep5", "run", "digits_lenet", "--quiet", "--follow", "test_accuracy",
        "--out", str(tmp_path), "--set", "framework=reference",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 120
        while not [*tmp_path.glob(f"*/{CURVE}")] and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    [folder] = tmp_path.iterdir()
    first = _curve(folder)[0]
    assert first["epoch"] == 1
    assert 0 < first["value"] <= 100
    assert math.isfinite(first["value"])
    assert load(folder).status == "aborted"
