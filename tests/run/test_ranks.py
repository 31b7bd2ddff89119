"""`deep5 run --ranks`: several processes write one result; lost ranks; resuming with another number of ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from command import Command
from deep5.results.result import load
from deep5.results.samples_file import read_samples
from deep5.results.store import result_folders
from deep5.training.checkpointer import checkpoints
from ranks import mpi_launcher, ranks_of, under_mpi

pytestmark = pytest.mark.usefixtures("warm")

RECIPE = """
import deep5 as d5

FIXED = {
    "model": "lenet",
    "model_kwargs": {"activation": "tanh", "pooling": "average"},
    "dataset": "digits",
    "dataset_kwargs": {"size": 28, "limit": 330},
    "epochs": 3,
    "precision": "float64",
}
MUTABLE = {"batch_size": 50, "framework": "reference", "optimizer": "adam", "events": (), "seed": 3}
METRICS = [
    (d5.TestAccuracy(), ">= 20 %"),
    (d5.TrainingLoss(), None),
    (d5.Throughput(), None),
    (d5.PeakMemory(), None),
    (d5.CommunicationVolume(), None),
    (d5.CommunicationShare(), None),
    (d5.LoadImbalance(), None),
]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "shared_batches.py"
    path.write_text(RECIPE)
    return path


def run(recipe: Path, out: Path, *words: str, timeout_s: float = 180.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deep5", "run", str(recipe), "--out", str(out), *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def only(out: Path) -> Path:
    (found,) = result_folders(out)
    return found


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "weights.safetensors")


def values(folder: Path) -> dict[str, Any]:
    return {row["name"]: row["value"] for row in load(folder).document["metrics"]}


@pytest.mark.daily
@pytest.mark.parametrize(
    "launched",
    [(("mpiexec", 2),), pytest.param((("torchrun", 2), ("mpiexec", 3), ("threads", 4)), marks=pytest.mark.slow)],
    ids=["two", "more"],
)
def test_two_processes_do_what_one_does(recipe: Path, tmp_path: Path, launched: Sequence[tuple[str, int]]) -> None:
    recipe.write_text(RECIPE.replace('"reference"', '"pytorch"'))
    alone = run(recipe, tmp_path / "one", "--json", "--quiet")
    assert alone.returncode == 0, alone.stderr
    one = only(tmp_path / "one")
    for launcher, ranks in launched:
        out = tmp_path / f"{launcher}-{ranks}"
        done = run(recipe, out, "--ranks", str(ranks), "--launcher", launcher, "--json", "--quiet")
        assert done.returncode == 0, done.stderr
        # Standard output is a single JSON document, although several processes ran.
        assert json.loads(done.stdout)["ranks"] == ranks
        many, result = only(out), load(only(out))
        assert (result.document["level"], result.document["ranks"]) == (3, ranks)
        # Sums of as many parts in another order: rounding of float64 after 21 steps of Adam, far below 1e-9.
        for name, value in weights(one).items():
            np.testing.assert_allclose(weights(many)[name], value, rtol=1e-9, atol=1e-12)
        assert values(many)["test_accuracy"] == values(one)["test_accuracy"]
        assert values(many)["training_loss"] == pytest.approx(values(one)["training_loss"], rel=1e-9)
        assert result.document["provenance"]["batch_order"] == load(one).document["provenance"]["batch_order"]
        everyone = json.loads((many / "ranks.json").read_text())
        assert [rank["rank"] for rank in everyone] == list(range(ranks))
        # 21 steps of a buffer of all parameters in float64, of every rank; too few for the check of every 100 steps.
        parameters = sum(value.size for value in weights(one).values())
        assert values(many)["communication_volume"] == ranks * 21 * parameters * 8
        assert 0 < values(many)["communication_share"] < 100
        assert values(many)["load_imbalance"] >= 0
        for rank in range(1, ranks):
            samples = read_samples(many / f"samples-rank-{rank}.csv")
            assert len(samples["training_loss"]) == 21
            assert [row.value for row in samples["test_accuracy"]] == [
                row.value for row in read_samples(many / "samples.csv")["test_accuracy"]
            ]
    assert values(one)["communication_volume"] is None


def start(recipe: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "deep5", "run", str(recipe), "--out", str(out), "--quiet", *words],
        stderr=subprocess.PIPE,
        text=True,
    )


def until_checkpoint(process: subprocess.Popen[str], out: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if out.is_dir() and result_folders(out) and checkpoints(only(out) / "checkpoints"):
            return
        time.sleep(0.01)
    pytest.fail(f"no checkpoint in two minutes: {process.communicate(timeout=10)}")


@pytest.mark.daily
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_is_named_and_the_run_goes_on_to_the_same_bits(recipe: Path, tmp_path: Path, victim: int) -> None:
    long = ("--ranks", "2", "--checkpoint-every", "4", "--set", "epochs=12")
    recipe.write_text(RECIPE.replace('"epochs": 3,', "").replace('"seed": 3', '"seed": 3, "epochs": 3'))
    whole = run(recipe, tmp_path / "whole", "--quiet", *long)
    assert whole.returncode == 0, whole.stderr
    process = start(recipe, tmp_path / "cut", *long)
    until_checkpoint(process, tmp_path / "cut")
    children = psutil.Process(process.pid).children(recursive=True)
    ranks_of(process.pid)[victim].send_signal(signal.SIGKILL)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"rank {victim} of 2 was terminated by signal 9 (SIGKILL)" in told
    assert f"--resume {only(tmp_path / 'cut')}" in told
    assert told.count("\n") == 1
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    left = load(only(tmp_path / "cut"))
    assert left.status == "failed"
    assert left.document["reasons"] == [f"rank {victim} of 2 was terminated by signal 9 (SIGKILL) from outside"]
    again = run(recipe, tmp_path / "cut", "--quiet", *long, "--resume", str(only(tmp_path / "cut")))
    assert again.returncode == 0, again.stderr
    before, after = weights(only(tmp_path / "whole")), weights(only(tmp_path / "cut"))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_interrupted_run_goes_on_with_another_number_of_ranks(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace('"epochs": 3,', "").replace('"seed": 3', '"seed": 3, "epochs": 12'))
    alone = run(recipe, tmp_path / "one", "--quiet")
    assert alone.returncode == 0, alone.stderr
    process = start(recipe, tmp_path / "cut", "--ranks", "2", "--checkpoint-every", "4")
    until_checkpoint(process, tmp_path / "cut")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    folder = only(tmp_path / "cut")
    assert (
        told
        == f"deep5: interrupted; what the run left is in {folder}; to resume, add --resume {folder} to the command\n"
    )
    plain = run(recipe, tmp_path / "cut", "--quiet", "--resume", str(folder))
    assert plain.returncode == 2
    assert "2 ranks wrote the checkpoint" in plain.stderr
    assert "--ranks 2, or --ranks 1" in plain.stderr
    more = run(recipe, tmp_path / "cut", "--resume", str(folder), "--ranks", "3", "--checkpoint-every", "4")
    assert more.returncode == 0, more.stderr
    assert "2 ranks wrote the checkpoint and 3 ranks resume from it: the bits may differ" in more.stderr
    # All three ranks report it; the result contains it once.
    assert sum("3 ranks resume from it" in each for each in load(folder).document["warnings"]) == 1
    one, three = weights(only(tmp_path / "one")), weights(folder)
    # As above, over 84 steps.
    for name in one:
        np.testing.assert_allclose(three[name], one[name], rtol=1e-8, atol=1e-11)


def test_ranks_under_a_launcher_of_ones_own_find_themselves(recipe: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deep5", "run", str(recipe), "--out", str(tmp_path / "own"), "--json", "--quiet"]
    done = subprocess.run(
        [*mpi_launcher(2), *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
    assert load(only(tmp_path / "own")).accepted


def test_a_rank_that_is_held_up_shows_in_the_load(recipe: Path, tmp_path: Path) -> None:
    # LeNet's steps take about 10 ms here: a rank that takes 200 ms more works nearly twice as long as the mean of both.
    recipe.write_text(RECIPE.replace('"epochs": 3', '"epochs": 1'))
    events = tmp_path / "slow.py"
    events.write_text("from deep5.distributed.slow_rank import SlowRank\nslow = SlowRank(rank=1, delay_ms=200)\n")
    done = run(recipe, tmp_path / "slow", "--quiet", "--ranks", "2", "--set", f"events={events}:slow")
    assert done.returncode == 0, done.stderr
    assert values(only(tmp_path / "slow"))["load_imbalance"] > 25
    folder = only(tmp_path / "slow")
    shares = [read_samples(folder / name)["communication_share"] for name in ("samples.csv", "samples-rank-1.csv")]
    first, second = (float(np.median([row.value for row in rows])) for rows in shares)
    # The first rank waits for the second one, step by step, and not vice versa.
    assert first > 60
    assert second < first - 20


def test_wrong_use_is_told_in_a_line(recipe: Path, deep5: Command) -> None:
    for words, told in (
        (("--ranks", "0"), "an integer of at least 1"),
        (("--launcher", "mpiexec"), "--launcher mpiexec without --ranks"),
        (("--ranks", "100000"), "100000 ranks on this machine"),
        (("--ranks", "100000", "--launcher", "torchrun"), "100000 ranks on this machine"),
        (("--ranks", "100000", "--launcher", "threads"), "100000 ranks on this machine"),
        (("--ranks", "16", "--launcher", "threads", "--set", "batch_size=10"), "16 ranks"),
        (("--ranks", "2", "--launcher", "threads", "--set", "scheme=all_reduse"), "did you mean 'all_reduce'"),
        (("--ranks", "2", "--launcher", "slurm"), "slurm"),
    ):
        status, out, err = deep5("run", str(recipe), *words)
        assert status == 2, err
        assert told in err, err
        assert not out
    status, _, err = deep5("run", "overhead_trainer", "--size", "smoke", "--ranks", "2")
    assert (status, "neither candidate nor baseline takes them" in err) == (2, True)


def test_ranks_with_other_settings_are_refused_on_every_rank(recipe: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deep5", "run", str(recipe), "--out", str(tmp_path / "mixed"), "--quiet", "--seed"]
    done = subprocess.run(
        [*mpi_launcher(1), *command, "3", ":", "-n", "1", *command, "4"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "the ranks differ in the settings: seed: 3 on rank 0, 4 on rank 1; allowed: the same" in done.stderr
    assert not result_folders(tmp_path / "mixed") if (tmp_path / "mixed").is_dir() else True


SCHEMES = """
import os
from deep5.distributed.schemes.base import DistributedOptimizer


class _Fails(DistributedOptimizer):
    consistent = True

    def __init__(self):
        super().__init__(timeout_s=600.0)

    def step(self, inputs, info):
        outputs = self.backprop(inputs, info)
        if info.step == 3:
            self.fail(self.communicator.rank)
        self.apply(self.mean(self.gradients(), info), info)
        return outputs


class Raises(_Fails):
    def fail(self, rank):
        if rank == 1:
            raise ValueError("my own bug")


class AllRaise(_Fails):
    def fail(self, rank):
        raise ValueError("my own bug")


class Aborts(_Fails):
    def fail(self, rank):
        if rank == 1:
            os.abort()
"""


@pytest.mark.parametrize(
    ("launcher", "scheme", "who"),
    [
        ("mpiexec", "Raises", "rank 1 of 2: "),
        pytest.param("torchrun", "Raises", "rank 1 of 2: ", marks=pytest.mark.slow),
        ("threads", "Raises", "rank 1 of 2: "),
        ("threads", "AllRaise", ""),
    ],
)
def test_a_rank_that_fails_by_itself_is_named_and_shown(
    recipe: Path, tmp_path: Path, launcher: str, scheme: str, who: str
) -> None:
    (tmp_path / "schemes.py").write_text(SCHEMES)
    words = ("--ranks", "2", "--launcher", launcher, "--set", f"scheme={tmp_path / 'schemes.py'}:{scheme}")
    done = run(recipe, tmp_path / "out", "--quiet", "--debug", *words)
    folder = only(tmp_path / "out")
    assert done.returncode == 3
    *trace, told = done.stderr.splitlines()
    left = f"what it left is in {folder}; remedy: --debug shows where"
    assert told == f"deep5: the run failed: {who}ValueError: my own bug; {left}"
    # The traceback shows the line once, although it is from another process.
    assert sum('raise ValueError("my own bug")' in line for line in trace) == 1
    assert load(folder).document["reasons"] == [f"{who}ValueError: my own bug"]


LATE = """
import time

import deep5 as d5


class Late(d5.Event):
    def before_step(self, trainer, info):
        if trainer.communicator.rank == trainer.communicator.size - 1 and info.step == 5:
            time.sleep(600)


late = Late()
"""


@pytest.mark.parametrize("launcher", ["mpiexec", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_rank_that_is_late_is_not_said_to_be_lost(recipe: Path, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "late.py").write_text(LATE)
    words = ("--set", f"events={tmp_path / 'late.py'}:late", "--set", "scheme_kwargs.timeout_s=3")
    words = ("--ranks", "2", "--launcher", launcher, "--set", "scheme=all_reduce", *words)
    done = run(recipe, tmp_path / "out", "--quiet", *words)
    assert done.returncode == 3
    assert "all_reduce was not finished" in done.stderr
    assert "within 3 s" in done.stderr
    (reason,) = load(only(tmp_path / "out")).document["reasons"]
    assert "all_reduce was not finished" in reason


def test_what_a_rank_does_to_itself_is_not_from_outside(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "schemes.py").write_text(SCHEMES)
    words = ("--ranks", "2", "--launcher", "torchrun", "--set", f"scheme={tmp_path / 'schemes.py'}:Aborts")
    done = run(recipe, tmp_path / "out", "--quiet", *words)
    assert done.returncode == 3
    assert "the run failed: rank 1 of 2 was ended by signal 6 (SIGABRT); what it left" in done.stderr
    assert "remedy: every rank has to call the same collectives in the same order" in done.stderr
    assert load(only(tmp_path / "out")).document["reasons"] == ["rank 1 of 2 was ended by signal 6 (SIGABRT)"]


def test_a_rank_that_fails_ends_the_job_of_a_launcher_of_ones_own(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "schemes.py").write_text(SCHEMES)
    words = ("run", str(recipe), "--out", str(tmp_path / "own"), "--quiet")
    scheme = ("--set", f"scheme={tmp_path / 'schemes.py'}:Raises")
    # The other rank would wait for 600 s.
    ended = under_mpi("from deep5.cli.main import main\nmain()", 2, *words, *scheme, timeout_s=90.0)
    assert ended.status == 3
    assert "deep5: the run failed: rank 1 of 2: ValueError: my own bug; what it left" in ended.errors


def test_a_loss_that_is_no_number_stops_all_ranks_at_one_step(recipe: Path, tmp_path: Path) -> None:
    diverging = (
        RECIPE.replace('"tanh"', '"relu"')
        .replace('"precision": "float64",', "")
        .replace('"epochs": 3', '"epochs": 200')
    )
    recipe.write_text(
        diverging.replace('"adam"', '"sgd", "optimizer_kwargs": {"lr": 1e30}').replace(
            '"events": ()', '"events": ("stop_on_nan",)'
        )
    )
    done = run(recipe, tmp_path / "nan", "--quiet", "--ranks", "2")
    assert done.returncode == 1, done.stderr
    folder = only(tmp_path / "nan")
    result = load(folder)
    assert result.status == "success"
    assert any("stopped: " in reason for reason in result.document["reasons"]), result.document["reasons"]
    steps = [rank["steps"] for rank in json.loads((folder / "ranks.json").read_text())]
    assert steps[0] == steps[1] < 1400
