"""`d5.record`: what a recorded loop leaves, and what is on which clock."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit.folders import audit
from deep5.results.result import Result
from recorded_loops import GOALS, busy, loop


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return loop(tmp_path_factory.mktemp("results"))


def test_a_recorded_loop_leaves_a_result_that_the_audit_accepts(recorded: Result) -> None:
    assert recorded
    assert recorded.status == "success"
    assert recorded.accepted
    assert recorded.document["recorded"]["loop"] == "hand-written"
    assert {"seeds", "data", "network"} <= set(recorded.document["recorded"]["unknown"])
    assert not recorded.document["seeds"]
    assert recorded.document["system"]["after"]["host"]
    report = audit([recorded.folder])
    assert report, report.findings
    assert any("cannot know: seeds" in said for said in report.skipped)


def test_values_are_those_of_the_metrics_definitions(recorded: Result) -> None:
    own = {verdict.name: verdict for verdict in recorded.verdicts}
    assert [verdict.name for verdict in recorded.verdicts] == list(GOALS)
    samples = recorded.samples()
    steps, sizes = [s.value for s in samples["time[step]"]], [s.value for s in samples["batch_size"]]
    assert sizes == [8, 8, 8, 5] * 3
    losses = [1 / (step + 1) for step in range(8, 12)]
    assert own["training_loss"].value == pytest.approx(np.average(losses, weights=[8, 8, 8, 5]))
    assert own["test_accuracy"].value == 62.0
    assert own["test_loss"].value == 0.5
    # The first step of each size, 0 and 3, is not in the throughput; the first epoch is not in the latency.
    busy_s = sum(s.value for s in samples["time[epoch]"]) - steps[0] - steps[3]
    assert own["throughput"].value == pytest.approx((sum(sizes) - 8 - 5) / busy_s)
    assert own["step_latency"].value == pytest.approx(1e3 * statistics.median(steps[4:]))
    assert own["wall_clock_time"].value >= sum(steps) + 3 * 2e-4
    assert recorded.document["measurement"]["first_call_s"] == steps[0]
    assert recorded.document["measurement"]["warmups"] == 1


def test_regions_are_samples_and_a_breakdown(recorded: Result) -> None:
    samples = recorded.samples()
    assert [len(samples[f"time[{name}]"]) for name in ("forward", "backward")] == [12, 12]
    assert len(samples["time[between steps: data]"]) == 12
    assert len(samples["time[evaluation: forward]"]) == 3
    assert min(s.value for s in samples["time[backward]"]) >= 5e-4
    parts = [line.split(",")[0] for line in (recorded.folder / "time_breakdown.csv").read_text().splitlines()[1:]]
    assert parts == [
        "steps", "steps: forward", "steps: backward", "steps: other", "data", "evaluation", "evaluation: forward",
        "other", "total",
    ]  # fmt: skip


def test_the_metrics_of_deep5_s_own_trainer_agree(tmp_path: Path) -> None:
    """The same training, run by deep5's trainer within a recording: both clocks give the same numbers."""
    data = d5.datasets.digits(limit=256)
    executor = d5.framework("reference").executor(d5.networks.lenet(), seed=0)

    class Recording(d5.Event):
        def before_epoch(self, trainer: Any, epoch: int) -> None:
            self.epoch = run.epoch()
            self.epoch.__enter__()

        def before_step(self, trainer: Any, info: d5.StepInfo) -> None:
            self.step = run.step(batch_size=info.batch_size)
            self.step.__enter__()

        def after_step(self, trainer: Any, info: d5.StepInfo, outputs: Any, begin_ns: int, end_ns: int) -> None:
            run.log(loss=outputs["loss"])
            self.step.__exit__(None, None, None)

        def before_evaluation(self, trainer: Any, epoch: int) -> None:
            self.evaluation = run.evaluation()
            self.evaluation.__enter__()

        def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
            run.log(loss=scores["loss"], accuracy=scores["accuracy"])
            self.evaluation.__exit__(None, None, None)

        def after_epoch(self, trainer: Any, epoch: int) -> None:
            self.epoch.__exit__(None, None, None)

    names = ("training_loss", "test_loss", "test_accuracy", "wall_clock_time")
    metrics = [d5.TrainingLoss(), d5.TestLoss(), d5.TestAccuracy(), d5.WallClockTime()]
    observers = [metric.observer() for metric in metrics]
    sampler, test = d5.ShuffleSampler(data.train, 64), d5.OrderedSampler(data.test, 256)
    trainer = d5.Trainer(executor, d5.Adam(), sampler, test)
    with d5.record("trainer", dict.fromkeys(names), out=tmp_path, quiet=True) as run:
        trainer.train(2, [*observers, Recording()])
    for observer, name in zip(observers[:3], names, strict=False):
        assert run.result.metric(name) == observer.value()
        own = [(s.value, s.step, s.epoch) for s in run.result.samples()[name]]
        assert own == [(s.value, s.step, s.epoch) for s in observer.samples()]


def test_goals_are_those_of_a_recipe(tmp_path: Path) -> None:
    result = loop(tmp_path, [(d5.TestAccuracy(), ">= 99 %"), ("epochs_to_accuracy", None)][:1])
    assert not result
    assert result.reasons == ("test_accuracy did not meet its goal",)
    result = loop(tmp_path, [(d5.TimeToAccuracy(61), "< 60 s"), (d5.EpochsToAccuracy(61), None), (d5.Cost(2.0), None)])
    assert result
    assert result.metric("epochs_to_accuracy") == 2.0
    assert audit([result.folder])


def test_an_evaluation_may_follow_its_epoch(tmp_path: Path) -> None:
    with d5.record("after", {"throughput": None, "test_accuracy": None, "wall_clock_time": None}, out=tmp_path) as run:
        for epoch in range(2):
            with run.epoch(), run.step(batch_size=4):
                busy(1e-3)
            with run.evaluation():
                busy(2e-2)
            run.log(accuracy=epoch)
    assert run.result.metric("wall_clock_time") > 4e-2
    assert run.result.metric("throughput") > 4 / 2e-2
    assert [s.epoch for s in run.result.samples()["test_accuracy"]] == [1, 2]
    assert audit([run.folder]), audit([run.folder]).findings


def test_evaluations_within_an_epoch_are_not_in_the_throughput(tmp_path: Path) -> None:
    with d5.record("within", {"throughput": None, "test_accuracy": None}, out=tmp_path, quiet=True) as run, run.epoch():
        for _ in range(4):
            with run.step(batch_size=4):
                busy(1e-3)
            with run.evaluation():
                busy(1e-2)
                run.log(accuracy=70)
    assert run.result.metric("throughput") > 4 / 5e-3
    assert audit([run.folder]), audit([run.folder]).findings


def test_mean_losses_weigh_the_steps_since_the_last_one(tmp_path: Path) -> None:
    with d5.record("means", {"training_loss": None}, out=tmp_path, quiet=True) as run, run.epoch():
        for step in range(5):
            with run.step(batch_size=2 + step):
                pass
            if step in (1, 4):
                run.log(loss=step)
    assert run.result.metric("training_loss") == (1 * (2 + 3) + 4 * (4 + 5 + 6)) / 20
    # In a process in which JAX is loaded, the recorder says that it waited for no device.
    assert not [each for each in run.result.document["warnings"] if not each.startswith("no array was given")]
    assert audit([run.folder]), audit([run.folder]).findings


def test_losses_of_some_steps_are_said(tmp_path: Path) -> None:
    with d5.record("some", {"training_loss": None}, out=tmp_path, quiet=True) as run, run.epoch():
        for step in range(9):
            with run.step(batch_size=2):
                if step % 4 == 0:
                    run.log(loss=step)
    assert any("3 of 9 steps" in warning for warning in run.result.document["warnings"])
    assert audit([run.folder])


def test_many_steps_are_flushed(tmp_path: Path) -> None:
    steps = 9_000  # more than twice the buffer
    with d5.record("many", None, out=tmp_path, quiet=True) as run, run.epoch():
        for step in range(steps):
            with run.step(batch_size=1), run.region("all"):
                pass
            if step % 4096 == 4095:
                run.log(loss=step)
    assert [s.step for s in run.result.samples()["time[all]"]] == list(range(steps))
    assert len(run.result.samples()["training_loss"]) == 2
    assert audit([run.folder]), audit([run.folder]).findings


def test_regions_allocate_nothing_that_stays(tmp_path: Path) -> None:
    import tracemalloc

    with d5.record("memory", None, out=tmp_path, quiet=True) as run, run.epoch():

        def steps(count: int) -> None:
            for _ in range(count):
                with run.step(batch_size=8):
                    with run.region("forward"):
                        pass
                    with run.region("backward"):
                        pass

        # From one place in the buffer of 4096 steps to the same place two buffers later.
        tracemalloc.start()
        steps(4_096 + 100)
        before = tracemalloc.take_snapshot()
        steps(2 * 4_096)
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
    own = [stat for stat in after.compare_to(before, "filename") if stat.traceback[0].filename.endswith("spans.py")]
    # Integers that replaced earlier ones: not 8192 of anything.
    assert sum(stat.size_diff for stat in own) < 2_000, own
    assert sum(stat.count_diff for stat in own) < 30, own


def test_a_result_is_listed_reported_signed_and_exported(recorded: Result, tmp_path: Path, deep5: Any) -> None:
    folder = str(recorded.folder)
    assert len(d5.results.load(folder)) == 1
    listed = deep5("results", str(recorded.folder.parent))
    assert listed.status == 0
    assert "loop" in listed.out
    page = tmp_path / "report.html"
    assert deep5("report", folder, "-o", str(page)).status == 0
    assert "steps: forward" in page.read_text()
    for form in ("csv", "mllog"):
        done = deep5("export", folder, "--format", form, "-o", str(tmp_path / form))
        assert done.status == 0, done.err
