"""Runs that are killed at random moments and resumed: bit-identical, with equal metrics and order of batches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
from command import Command
from deep5.audit import audit
from deep5.results.result import load
from deep5.results.store import result_folders
from deep5.training import interruption
from deep5.training.checkpointer import checkpoints
from twins import events, of_run

pytestmark = pytest.mark.usefixtures("warm")

RECIPE = Path(__file__).parents[1] / "support" / "resume_recipe.py"
STEPS = 12 * 14


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "deep5", "run", str(RECIPE), "--checkpoint-every", "20", "--quiet", *words]


def finished(*words: str) -> str:
    done = forked.run(command(*words)[1:], timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


def only(folder: Path) -> Path:
    (found,) = result_folders(folder)
    return found


def killed(out: Path, draw: np.random.Generator, *words: str) -> Path | None:
    """Start or resume a run, and kill it at a random moment; None if it was finished before that."""
    before = checkpoints(only(out) / "checkpoints")[:1] if out.is_dir() else []
    process = subprocess.Popen(command("--out", str(out), *words), stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        # Starting takes a while: the moment is drawn from the time of its first checkpoint.
        while process.poll() is None and time.monotonic() < end:
            if out.is_dir() and result_folders(out):
                now = checkpoints(only(out) / "checkpoints")[:1]
                if now and now != before:
                    break
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.7))
        process.send_signal(signal.SIGKILL)
    finally:
        status = process.wait(60)
    return only(out) if status == -signal.SIGKILL else None


FRAMEWORKS = [
    "reference",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("tensorflow", "jax", "onnxruntime", "openvino")),
    "pytorch",
]


@pytest.mark.daily
@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=pytest.mark.slow) if name == "pytorch" else name for name in FRAMEWORKS]
)
def test_a_run_that_was_killed_at_random_moments_ends_with_the_same_bits(framework: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(zlib.crc32(f"{framework} {os.environ.get('DEEP5_KILLS', '')}".encode()))
    words = ("--framework", framework, "--threads", "1")
    finished("--out", str(tmp_path / "whole"), *words)
    out = tmp_path / "killed"
    resume: tuple[str, ...] = ()
    times = 0
    for _ in range(2):
        folder = killed(out, draw, *words, *resume)
        if folder is None:
            break
        times += 1
        result = load(folder)
        assert (result.status, result.accepted) == ("aborted", None)
        resume = ("--resume", str(folder))
    assert times, "the run was done before it could be killed"
    finished("--out", str(out), *words, *resume)
    whole, folder = only(tmp_path / "whole"), only(out)
    assert of_run(folder) == of_run(whole)
    assert len(of_run(folder)["samples"]["samples.csv"]["training_loss"]) == STEPS
    assert events(folder) == events(whole)
    document = load(folder).document
    assert len(document["resumed"]) == times
    for entry in document["resumed"]:
        # It does not start over: a checkpoint every 20 steps, and the kill came after the first.
        assert entry["step"] >= 20
        assert entry["checkpoint"] == f"step-{entry['step']:010d}.safetensors"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_interrupts_a_run_loses_no_step(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    words = [sys.executable, "-m", "deep5", "run", str(RECIPE), "--quiet"]  # a checkpoint every 30 s: none in time
    with subprocess.Popen([*words, "--out", str(out)], stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not any("epoch_stop" in log.read_text() for log in out.glob("*/events.mllog")):
            time.sleep(0.005)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    folder = only(out)
    assert f"interrupted; what the run left is in {folder}; to resume, add --resume {folder} to the command" in err
    done = len(load(folder).samples()["training_loss"])
    assert 14 <= done < STEPS
    subprocess.run([*words, "--out", str(out), "--resume", str(folder)], timeout=300, check=True)
    subprocess.run([*words, "--out", str(tmp_path / "whole")], timeout=300, check=True)
    whole = only(tmp_path / "whole")
    assert [entry["step"] for entry in load(folder).document["resumed"]] == [done]
    assert of_run(folder) == of_run(whole)
    assert events(folder) == events(whole)


STUCK = """
import signal, time
import deep5 as d5

class Stuck(d5.Event):
    def describe(self):
        return {"event": "stuck"}
    def after_step(self, trainer, *_):
        if trainer.step == 5:
            DO

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 40, "test": 9}, "epochs": 4, "events": (Stuck,),
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "sgd"}
METRICS = [(d5.TrainingLoss(), None)]
"""


@pytest.mark.parametrize(
    ("do", "status", "message", "steps"),
    [
        # At the end of the step, with its checkpoint.
        ("signal.raise_signal(signal.SIGINT)", 130, "; to resume, add --resume", [5]),
        # A second signal does not wait; the first does not wait forever.
        ("[signal.raise_signal(signal.SIGINT) for _ in range(2)]", 130, "; to start again there, add --resume", []),
        ("signal.raise_signal(signal.SIGINT), time.sleep(3600)", 130, "; to start again there, add --resume", []),
        # Any error after the signal counts as an interruption; a full disk is reported.
        ("signal.raise_signal(signal.SIGINT), 1 / 0", 130, "; to start again there, add --resume", []),
        (
            "signal.raise_signal(signal.SIGINT), __import__('shutil').rmtree(trainer.listeners.events[-1].folder)",
            3,
            "the run failed: ",
            [],
        ),
    ],
)
def test_an_interruption_waits_for_the_step_and_no_longer(
    do: str, status: int, message: str, steps: list[int], deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "_LIMIT_S", 0.3)
    Path("own.py").write_text(STUCK.replace("DO", do))
    handler = signal.getsignal(signal.SIGINT)
    answer = deep5("run", "own.py", "--quiet")
    assert signal.getsignal(signal.SIGINT) is handler
    assert answer.status == status
    assert message in answer.err
    written = checkpoints(only(Path("results")) / "checkpoints")
    assert [int(path.stem.split("-")[1]) for path in written] == steps


# What may change when a run resumes

SHORT = """
import os
import deep5 as d5

class Ends(d5.Event):
    def describe(self):
        return {"event": "ends"}
    def after_all(self, trainer):
        if trainer.step == 37 and os.path.exists("end-it"):
            raise RuntimeError("ended")

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 40, "test": 9}, "epochs": 4, "events": (Ends,),
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}}
METRICS = [(d5.TestAccuracy(), ">= 0"), (d5.TrainingLoss(), None)]
"""


@pytest.fixture
def ended(deep5: Command) -> Path:
    """The folder of a run that failed after nine tenths, with its recipe beside it."""
    Path("own.py").write_text(SHORT)
    Path("end-it").touch()
    answer = deep5("run", "own.py", "--quiet", "--checkpoint-every", "6")
    assert answer.status == 3
    folder = only(Path("results"))
    assert f"the run failed: RuntimeError: ended; what it left is in {folder.absolute()}" in answer.err
    assert f"to resume, add --resume {folder.absolute()} to the command" in answer.err
    Path("end-it").unlink()
    return folder


def test_a_run_that_failed_at_nine_tenths_does_a_tenth(ended: Path, deep5: Command) -> None:
    answer = deep5("run", "own.py", "--json", "--quiet", "--resume", str(ended), "--checkpoint-every", "6")
    assert answer.status == 0
    document = json.loads(answer.out)
    (entry,) = document["resumed"]
    assert entry["step"] == 36  # of 40
    assert document["status"] == "success"
    assert [row.step for row in load(ended).samples()["training_loss"]] == list(range(40))
    assert document["checkpoints"]["written"] == 0  # the run ends within the next six steps
    whole = json.loads(deep5("run", "own.py", "--json", "--quiet", "--out", "whole").out)
    assert document["provenance"]["trained_weights"] == whole["provenance"]["trained_weights"]
    # Not requested there.
    assert not (only(Path("whole")) / "checkpoints").exists()
    assert sorted(path.name for path in (ended / "checkpoints").iterdir())


def test_a_finished_run_is_shown_as_it_is(ended: Path, deep5: Command) -> None:
    assert deep5("run", "own.py", "--quiet", "--resume", str(ended)).status == 0
    before = (ended / "result.json").read_bytes()
    answer = deep5("run", "own.py", "--json", "--resume", str(ended))
    assert (answer.status, json.loads(answer.out)["status"]) == (0, "success")
    assert "the run is finished; nothing was run" in deep5("run", "own.py", "--resume", str(ended)).err
    # With another recipe or other settings it would be mistaken for theirs.
    for words, message in (
        (("own.py", "--seed", "1"), "got 1; remedy: --seed 0"),
        (("digits_lenet",), "of the recipe"),
    ):
        answer = deep5("run", *words, "--resume", str(ended))
        assert answer.status == 2
        assert message in answer.err
    assert (ended / "result.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", "1"), "has 'seed': 0, got 1; remedy: --seed 0"),
        (("--set", "batch_size=5"), "has 'batch_size': 4, got 5"),
        (("--set", "optimizer_kwargs.lr=0.5"), 'has \'optimizer_kwargs\': {"lr": 0.01}, got {"lr": 0.5}'),
        (("--set", "clip_norm=1.0"), "has 'clip_norm': nothing, got 1.0"),
        (("--framework", "pytorch"), 'has \'framework\': "reference", got "pytorch"'),
    ],
)
def test_other_settings_are_refused_by_name(words: tuple[str, ...], message: str, ended: Path, deep5: Command) -> None:
    before = (ended / "result.json").read_bytes()
    answer = deep5("run", "own.py", "--quiet", "--resume", str(ended), *words)
    assert answer.status == 2
    assert message in answer.err
    assert (ended / "result.json").read_bytes() == before


def test_another_recipe_is_refused(ended: Path, deep5: Command) -> None:
    Path("own.py").write_text(SHORT.replace('"epochs": 4', '"epochs": 5'))
    answer = deep5("run", "own.py", "--quiet", "--resume", str(ended))
    assert answer.status == 2
    assert "has 'epochs': 4, got 5; remedy: the original recipe" in answer.err
    Path("other.py").write_text(SHORT)
    answer = deep5("run", "other.py", "--quiet", "--resume", str(ended))
    assert "is of the recipe 'own', got 'other'; remedy: the original recipe" in answer.err
    answer = deep5("run", "digits_lenet", "--size", "smoke", "--quiet", "--resume", "nowhere")
    assert answer.status == 2
    assert "nowhere is not a result folder" in answer.err


@contextmanager
def altered(folder: Path) -> Iterator[dict[str, Any]]:
    """The document of a result, which is written again after the block."""
    document = json.loads((folder / "result.json").read_text())
    yield document
    (folder / "result.json").write_text(json.dumps(document))


def test_other_data_are_refused(ended: Path, deep5: Command) -> None:
    with altered(ended) as document:
        document["provenance"]["data"] = "0" * 64
    answer = deep5("run", "own.py", "--quiet", "--resume", str(ended))
    assert answer.status == 2
    assert "started with other content under 'data': its hash was 000" in answer.err


def test_other_threads_versions_and_files_are_said(ended: Path, deep5: Command) -> None:
    with altered(ended) as document:
        document["threads"]["framework"] = 64
        document["software"]["packages"]["numpy"] = "1.0"
        document["software"]["environment_variables"]["OMP_DYNAMIC"] = "true"
    Path("own.py").write_text(SHORT + "# another line\n")
    answer = deep5("run", "own.py", "--json", "--resume", str(ended))
    assert answer.status == 0
    told = json.loads(answer.out)["warnings"]
    for what in (
        "other threads: 64 before",
        'another numpy: "1.0" before',
        "another recipe file: ",
        'another value of OMP_DYNAMIC: "true" before, nothing now',
    ):
        (sentence,) = [warning for warning in told if f"the run was resumed with {what}" in warning]
        assert "it may not be bit-identical" in sentence


def test_another_environment_is_reported_whatever_differs(ended: Path, deep5: Command) -> None:
    """The audit requires a warning: the hash of the environment also covers memory, cores and unlisted packages."""
    with altered(ended) as document:
        document["provenance"]["environment"] = "0" * 64
    answer = deep5("run", "own.py", "--json", "--resume", str(ended))
    assert answer.status == 0
    assert any("the run was resumed with another" in warning for warning in json.loads(answer.out)["warnings"])


def test_a_truncated_checkpoint_is_passed_over_and_said(ended: Path, deep5: Command) -> None:
    last, earlier = checkpoints(ended / "checkpoints")
    last.write_bytes(last.read_bytes()[:100])
    answer = deep5("run", "own.py", "--resume", str(ended))
    assert answer.status == 0
    assert f"warning: the checkpoint {last.absolute()} is truncated or damaged" in answer.err
    assert load(ended).document["resumed"][0]["checkpoint"] == earlier.name


def test_where_no_checkpoint_can_be_read_nothing_is_lost(ended: Path, deep5: Command) -> None:
    for path in checkpoints(ended / "checkpoints"):
        path.write_bytes(b"x")
    before = (ended / "result.json").read_bytes()
    answer = deep5("run", "own.py", "--resume", str(ended))
    assert answer.status == 2
    assert "is truncated or damaged" in answer.err
    assert (ended / "result.json").read_bytes() == before


def test_a_checkpoint_of_another_run_is_refused(ended: Path, deep5: Command) -> None:
    Path("end-it").touch()
    deep5("run", "own.py", "--quiet", "--checkpoint-every", "6", "--out", "others")
    theirs = only(Path("others"))
    for path in checkpoints(ended / "checkpoints"):
        path.unlink()
    (theirs / "checkpoints" / "step-0000000036.safetensors").rename(ended / "checkpoints/step-0000000036.safetensors")
    answer = deep5("run", "own.py", "--quiet", "--resume", str(ended))
    assert answer.status == 2
    assert f"is of the run '{theirs.name}'; allowed: of '{ended.name}'" in answer.err


@pytest.mark.parametrize(
    "metrics", ["[(d5.TestAccuracy(), '>= 1'), (d5.TrainingLoss(), None)]", "[(d5.TopK(2), None)]"]
)
def test_other_metrics_are_refused(metrics: str, ended: Path, deep5: Command) -> None:
    """A metric's state belongs to its parameters; and a goal is declared before the run."""
    Path("own.py").write_text(SHORT.partition("METRICS")[0] + f"METRICS = {metrics}\n")
    answer = deep5("run", "own.py", "--quiet", "--resume", str(ended))
    assert answer.status == 2
    assert "has other metrics or goals" in answer.err
    assert "remedy: the original METRICS" in answer.err


def test_what_was_warned_of_is_in_the_result_of_a_run_that_goes_on(deep5: Command) -> None:
    ends = "        os._exit(9) if trainer.step == 37 and os.path.exists('end-it') else None\n"
    text = SHORT.partition("        if trainer.step == 37")[0] + ends + "\nFIXED" + SHORT.partition("FIXED")[2]
    Path("own.py").write_text(text.replace('"adam"', '"sgd"').replace('"lr": 0.01', '"lr": 1e38'))
    Path("end-it").touch()
    words = (sys.executable, "-m", "deep5", "run", "own.py", "--quiet", "--checkpoint-every", "6")
    assert subprocess.run(words, check=False, timeout=120).returncode == 9
    Path("end-it").unlink()
    folder = only(Path("results"))
    assert load(folder).document["warnings"] == []  # it was killed before it could write
    deep5("run", "own.py", "--quiet", "--checkpoint-every", "6", "--resume", str(folder))
    deep5("run", "own.py", "--quiet", "--checkpoint-every", "6", "--out", "whole")
    assert load(folder).document["warnings"] == load(only(Path("whole"))).document["warnings"] != []


def test_without_a_checkpoint_it_begins_again_and_says_so(deep5: Command) -> None:
    Path("own.py").write_text(SHORT)
    Path("end-it").touch()
    assert deep5("run", "own.py", "--quiet", "--checkpoint-every", "never").status == 3
    folder = only(Path("results"))
    Path("end-it").unlink()
    answer = deep5("run", "own.py", "--resume", str(folder))
    assert answer.status == 0
    assert "warning: the run was interrupted before its first checkpoint: it starts again" in answer.err
    document = load(folder).document
    assert (document["resumed"][0]["step"], document["resumed"][0]["checkpoint"]) == (0, None)
    assert [row.step for row in load(folder).samples()["training_loss"]] == list(range(40))
    lines = (folder / "events.mllog").read_text()
    assert lines.count("run_start") == 1


# Exits immediately, as if killed, at the step that a file names.
KILLED = """
import os
from pathlib import Path
import deep5 as d5

class Ends(d5.Event):
    def describe(self):
        return {"event": "ends"}
    def after_all(self, trainer):
        at = Path("end-at")
        if at.exists() and trainer.step == int(at.read_text()):
            os._exit(9)

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 42, "test": 9}, "epochs": 4,
    "events": (Ends(), d5.Checkpointer(every_steps=6)),
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}}
METRICS = [
    (d5.TestAccuracy(), None), (d5.TrainingLoss(), None), (d5.StepLatency(), None), (d5.Throughput(), None),
    (d5.WallClockTime(), None),
]
"""
ALONE: tuple[str, ...] = ()
TWO, THREE = (("--ranks", ranks, "--launcher", "threads") for ranks in ("2", "3"))


def killed_at(*steps: int, words: tuple[str, ...], out: str = "results") -> Path:
    """The folder of a run of KILLED that was killed at these steps, and resumed in between."""
    Path("own.py").write_text(KILLED)
    own: tuple[str, ...] = (*words, "--quiet", "--out", out)
    for step in steps:
        Path("end-at").write_text(str(step))
        done = forked.run(["-m", "deep5", "run", "own.py", *own])
        assert done.returncode == 9, f"status {done.returncode}: {done.stderr}"
        own = (*words, "--quiet", "--resume", str(only(Path(out))))
    Path("end-at").unlink()
    return only(Path(out))


@pytest.mark.parametrize(
    ("steps", "words", "after"),
    [
        ((15,), ALONE, ALONE),
        ((15, 27), ALONE, ALONE),
        ((27, 27), ALONE, ALONE),
        ((3,), ALONE, ALONE),
        ((15, 27), TWO, TWO),
        pytest.param((3,), TWO, TWO, marks=pytest.mark.slow),
        ((15,), TWO, THREE),
    ],
)
def test_the_first_call_of_a_run_that_was_killed_is_that_of_its_first_step(
    steps: tuple[int, ...], words: tuple[str, ...], after: tuple[str, ...], deep5: Command
) -> None:
    """A resumed process has its own first call, which is a warm-up; if it starts over, it is the first call."""
    folder = killed_at(*steps, words=words)
    answer = deep5("run", "own.py", "--quiet", *after, "--resume", str(folder))
    assert answer.status == 0, answer.err
    document = load(folder).document
    assert [entry["step"] for entry in document["resumed"]] == [step // 6 * 6 for step in steps]
    told = document["measurement"]
    latencies = [row.value / 1e3 for row in load(folder).samples()["step_latency"]]
    # Both come from one reading in nanoseconds.
    assert told["first_call_s"] == pytest.approx(latencies[0], rel=1e-12)
    begins = [entry["step"] for entry in document["resumed"] if entry["step"]]
    if after == words:
        # Eleven steps per epoch, of four samples and the last of two: each size is a warm-up in every process.
        lasts = [min(step for step in (10, 21, 32, 43) if step >= begin) for begin in (0, *begins)]
        warm = {*begins, *lasts} - {0}
        assert told["warmups"] == len(warm)
        assert told["warm_up_s"] == pytest.approx(sum(latencies[step] for step in warm), rel=1e-9)
    assert [str(finding) for finding in audit([folder]).findings] == []
    document["measurement"]["first_call_s"] *= 0.5
    (folder / "result.json").write_text(json.dumps(document))
    (finding,) = audit([folder]).findings
    assert "the first call, by the first step; stored" in str(finding)


def test_a_run_that_begins_again_forgets_what_it_measured(deep5: Command) -> None:
    """It failed, so it could record the first call of a step that it repeats."""
    Path("own.py").write_text(KILLED.replace("os._exit(9)", "1 / 0"))
    Path("end-at").write_text("15")
    words = ("run", "own.py", "--quiet", "--checkpoint-every", "never")
    answer = deep5(*words)
    assert (answer.status, "add --resume" in answer.err) == (3, False)  # unchanged it would fail again
    Path("end-at").unlink()
    folder = only(Path("results"))
    assert deep5(*words, "--resume", str(folder)).status == 0
    assert load(folder).document["measurement"]["warmups"] == 1
    assert [str(finding) for finding in audit([folder]).findings] == []


def test_a_run_that_was_interrupted_before_a_checkpoint_begins_again_as_it_says(deep5: Command) -> None:
    Path("own.py").write_text(KILLED.replace("os._exit(9)", "raise KeyboardInterrupt"))
    Path("end-at").write_text("3")
    answer = deep5("run", "own.py", "--quiet", "--checkpoint-every", "never")
    folder = only(Path("results"))
    told = f"interrupted; what the run left is in {folder.absolute()}; to start again there, add "
    assert answer.status == 130
    assert told in answer.err
    words = answer.err.partition(told)[2].removesuffix(" to the command\n").split(" ")
    Path("end-at").unlink()
    assert deep5("run", "own.py", "--quiet", "--checkpoint-every", "never", *words).status == 0
    assert load(folder).status == "success"


def test_what_is_true_of_all_ranks_is_warned_of_once(deep5: Command) -> None:
    folder = killed_at(15, words=TWO)
    copied = {words: Path(shutil.copytree(folder, f"{words[1]}/{folder.name}")) for words in (THREE, ("--ranks", "1"))}
    for words, sentence in (
        (THREE, "2 ranks wrote the checkpoint and 3 ranks resume from it: "),
        (("--ranks", "1"), "2 ranks wrote the checkpoint and 1 rank resumes from it: "),
    ):
        answer = deep5("run", "own.py", *words, "--resume", str(copied[words]))
        assert answer.status == 0, answer.err
        assert answer.err.count(sentence) == 1
        assert [sentence in told for told in load(copied[words]).document["warnings"]].count(True) == 1


@pytest.mark.parametrize("torn", [0, 1])
def test_which_part_of_a_checkpoint_cannot_be_read_is_told_by_who_knows(torn: int, deep5: Command) -> None:
    folder = killed_at(15, words=TWO)
    path = folder / "checkpoints" / f"step-0000000012{'.rank-1' if torn else ''}.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    assert deep5("run", "own.py", *TWO, "--resume", str(folder)).status == 0
    document = load(folder).document
    assert [entry["step"] for entry in document["resumed"]] == [6]
    own, *others = [told for told in document["warnings"] if "the one before it is tried" in told]
    told = f"the checkpoint {path.absolute()} is truncated or damaged"
    if torn:
        assert own.startswith("another rank cannot read its part of step-0000000012.safetensors")
        assert [other.startswith(f"rank 1: {told}") for other in others] == [True]
    else:
        assert own.startswith(told)
        assert others == []


@pytest.mark.parametrize("words", [(), ("--set", "compression=top_k")])
def test_what_ranks_wrote_is_for_ranks_of_any_number(words: tuple[str, ...], deep5: Command) -> None:
    folder = killed_at(15, words=(*TWO, *words))
    before = (folder / "result.json").read_bytes()
    answer = deep5("run", "own.py", "--quiet", *words, "--resume", str(folder))
    assert answer.status == 2
    assert "2 ranks wrote the checkpoint" in answer.err
    assert "remedy: --ranks 2, or --ranks 1, or any other number" in answer.err
    assert (folder / "result.json").read_bytes() == before


def test_ranks_that_are_threads_write_their_parts_where_how_often_is_asked_for(deep5: Command) -> None:
    folder = killed_at(15, words=(*TWO, "--checkpoint-every", "4"))
    parts = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.suffix == ".safetensors")
    assert [name for name in parts if "0012" in name] == [
        "step-0000000012.rank-1.safetensors",
        "step-0000000012.safetensors",
    ]
    answer = deep5("run", "own.py", "--quiet", *TWO, "--checkpoint-every", "4", "--resume", str(folder))
    assert answer.status == 0, answer.err
    assert [entry["step"] for entry in load(folder).document["resumed"]] == [12]


def test_a_copy_by_another_name_is_refused_until_it_has_the_name(ended: Path, deep5: Command) -> None:
    copied = Path(shutil.copytree(ended, Path("copies") / "copy-of-it"))
    words = ("run", "own.py", "--quiet", "--resume")
    for without in (False, True):  # checkpoints, which contain the name of their run
        if without:
            shutil.rmtree(copied / "checkpoints")
        before = (copied / "result.json").read_bytes()
        answer = deep5(*words, str(copied))
        assert answer.status == 2
        assert f"{copied} of the run '{ended.name}' was renamed or copied; allowed: " in answer.err
        assert f"remedy: rename it to {ended.name}" in answer.err
        assert (copied / "result.json").read_bytes() == before
    again = copied.rename(copied.with_name(ended.name))
    assert deep5(*words, str(again)).status == 0


def test_two_runs_in_one_folder_are_refused(ended: Path, deep5: Command) -> None:
    from deep5.results.folder import ResultFolder

    held = ResultFolder.open(ended)
    answer = deep5("run", "own.py", "--quiet", "--resume", str(ended))
    assert answer.status == 2
    assert f"a run still writes to {ended.absolute()}; allowed: one run at a time" in answer.err
    held.close()
    assert deep5("run", "own.py", "--quiet", "--resume", str(ended)).status == 0


def test_a_full_disk_loses_nothing(deep5: Command, tmp_path: Path) -> None:
    # A limit on file size fails like a full disk: in the middle of the first file that is too large.
    large = SHORT.replace('"hidden": 3', '"hidden": 3000')
    Path("own.py").write_text(large)
    program = """
import resource, signal, sys
from deep5.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
sys.argv = ["deep5", "run", "own.py", "--quiet", "--checkpoint-every", "6"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "the checkpoint" in done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    folder = only(Path("results"))
    assert load(folder).status == "failed"
    assert [row.step for row in load(folder).samples()["training_loss"]] == list(range(6))
    assert deep5("run", "own.py", "--quiet", "--resume", str(folder)).status == 0
    whole = deep5("run", "own.py", "--quiet", "--out", "whole", "--json")
    trained = json.loads(whole.out)["provenance"]["trained_weights"]
    assert load(folder).document["provenance"]["trained_weights"] == trained


@pytest.mark.parametrize("every", ["0", "-3", "1.5", "often", "s", "nans", "-1s", ""])
def test_how_often_that_is_no_number(every: str, deep5: Command) -> None:
    answer = deep5("run", "digits_lenet", "--size", "smoke", "--checkpoint-every", every)
    assert answer.status == 2
    assert (
        f"--checkpoint-every {every!r}; allowed: an integer number of steps such as 500, seconds such as 60s"
        in answer.err
    )


@pytest.mark.parametrize("words", [("--resume", "folder"), ("--checkpoint-every", "5")])
def test_what_times_cannot_go_on(words: tuple[str, ...], deep5: Command) -> None:
    answer = deep5("run", "overhead_sgd_small", *words)
    assert answer.status == 2
    assert "trains nothing; allowed: neither --resume nor --checkpoint-every" in answer.err


def test_a_recipe_says_itself_how_often(deep5: Command) -> None:
    own = SHORT.replace("(Ends,)", '(Ends, d5.Checkpointer(every_steps=15, keep=5, best="loss"))')
    Path("own.py").write_text(own)
    assert deep5("run", "own.py", "--quiet").status == 0
    folder = only(Path("results")) / "checkpoints"
    # The recipe requests them.
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors",
        "step-0000000015.safetensors",
        "step-0000000030.safetensors",
    ]
