"""A run that reports a time warns on a busy machine, and of more threads than free processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import deep5 as d5
from command import Command
from deep5.audit.folders import audit
from deep5.core.metric import Goal, parse_goal
from deep5.results.result import load
from deep5.run.load import load_warnings, timed_goals, timed_metrics

RECIPE = """\
import time
import deep5 as d5

class Slowly(d5.Event):
    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        time.sleep(0.1)

FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
    "epochs": 3,
}
MUTABLE = {"batch_size": 16, "framework": "reference", "optimizer": "sgd", "events": Slowly, "threads": 1}
METRICS = [("test_accuracy", None), ("wall_clock_time", GOAL)]
"""


@contextmanager
def busy() -> Iterator[None]:
    """Another program on every processor that this process may use."""
    count = len(os.sched_getaffinity(0))
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("goal", ["'< 600 s'", "None"], ids=["with a goal", "without a goal"])
def test_a_run_that_reports_a_time_warns_on_a_busy_machine(goal: str, deep5: Command, tmp_path: Path) -> None:
    # The programs are started by this process: as its children they would not count as others of a run in it.
    (tmp_path / "own.py").write_text(RECIPE.replace("GOAL", goal))
    (tmp_path / "free.py").write_text(RECIPE.replace(', ("wall_clock_time", GOAL)', ""))
    command = [sys.executable, "-m", "deep5", "run", "--json", "--quiet"]
    with busy():
        found = {}
        for name in ("own", "free"):
            done = subprocess.run(
                [*command, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
            )
            found[name] = json.loads(done.stdout)
    (warning,) = [said for said in found["own"]["warnings"] if "other programs" in said]
    assert "so wall_clock_time is not that of a quiet machine; remedy: " in warning
    assert found["own"]["resources"]["others_share"] > 0.3
    # Where no time is reported there is nothing to doubt.
    assert not [said for said in found["free"]["warnings"] if "other programs" in said]
    assert audit([str(tmp_path / "results")])

    folder = Path(found["own"]["folder"])
    document = json.loads((folder / "result.json").read_text())
    document["warnings"].remove(warning)
    (folder / "result.json").write_text(json.dumps(document))
    (finding,) = audit([str(folder)]).findings
    assert "of the processors during a run that reports wall_clock_time; allowed: a warning" in str(finding)
    # A result of an older version states no load, and is not accused.
    del document["resources"]["others_share"]
    (folder / "result.json").write_text(json.dumps(document))
    assert audit([str(folder)])
    assert load(folder).status == "success"


@pytest.mark.parametrize(
    ("goals", "share", "processors", "threads", "said"),
    [
        (["a"], 0.04, 2, 2, ()),
        (["a"], 0.05, 2, 1, ("other programs took 5 % of the processors, so a is not that of",)),
        (["a", "b"], 0.05, 2, 1, ("so a, b are not those of a quiet machine",)),
        ([], 0.9, 2, 1, ()),
        ([], None, 2, 2, ()),
        ([], None, 2, 3, ("had 3 threads on 2 processors, where threads wait for each other; remedy: --threads 2",)),
        (["a"], 0.5, 2, 2, ("took 50 %", "had 2 threads on 1 free processor of 2, where threads wait")),
        ([], 0.5, 2, 2, ()),
        ([], 0.24, 2, 2, ()),
        ([], 1.0, 8, None, ()),
        (["a"], 1.0, 8, 4, ("took 100 %", "had 4 threads on 1 free processor of 8")),
    ],
)  # fmt: skip
def test_warnings(
    goals: list[str], share: float | None, processors: int, threads: int | None, said: tuple[str, ...]
) -> None:
    found = load_warnings(goals, share, processors, threads)
    assert len(found) == len(said)
    assert all(part in whole for part, whole in zip(said, found, strict=True))


def test_only_goals_for_times_count() -> None:
    goal: Goal | None = parse_goal(d5.WallClockTime(), "< 5 s")
    assert timed_goals([(d5.WallClockTime(), None), (d5.TestAccuracy(), goal)]) == []
    assert timed_goals([(d5.WallClockTime(), goal)]) == ["wall_clock_time"]
    reported = timed_metrics([(d5.Throughput(), None), (d5.TestAccuracy(), None), (d5.StepLatency(), None)])
    assert reported == ["throughput", "step_latency"]


def test_without_a_goal_the_load_is_reported_and_threads_that_wait_are_not() -> None:
    (found,) = load_warnings([], 0.5, 2, 2, ["throughput", "step_latency"])
    assert "took 50 % of the processors, so throughput, step_latency are not those of a quiet machine" in found
    assert load_warnings([], 0.04, 2, 2, ["throughput"]) == []


def test_more_threads_than_processors_are_reported(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE.replace("GOAL", "None"))
    many = len(os.sched_getaffinity(0)) + 1
    answer = deep5("run", "own.py", "--set", f"threads={many}", "--json", "--quiet")
    assert any(f"the run had {many} threads on " in said for said in json.loads(answer.out)["warnings"])
