"""`deep5 study` of candidates with ranks: their number for each run, their limits, and scaling."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from command import Command
from deep5.audit.folders import audit
from deep5.compare.studied import load_study
from deep5.core.errors import UsageError
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.result import load
from deep5.results.samples_file import SampleRow
from deep5.results.study.folder import load_study_folder
from deep5.results.study.pictures import study_pictures
from deep5.results.study.scaling import Scaling, ScalingRow, scaling_cells, scaling_of
from deep5.results.study.tradeoffs import TradeOff, synchronous_ones, tradeoff_chart, tradeoffs
from deep5.results.time_to_target import Target
from deep5.study.processors import share_processors
from deep5.study.study import run_study

pytestmark = pytest.mark.usefixtures("warm")

RECIPE = """
import os
import signal
import time
from pathlib import Path

import deep5 as d5

HERE = Path(__file__).parent


class Seen(d5.Event):
    def __init__(self, how: str = "calm") -> None:
        self.how = how

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        if info.step:
            return
        communicator = trainer.communicator
        about = [communicator.size, communicator.rank, os.getpid(), len(os.sched_getaffinity(0))]
        told = " ".join(map(str, [*about, os.environ["OMP_NUM_THREADS"]]))
        (HERE / f"seen-{self.how}-{communicator.size}-{communicator.rank}.txt").write_text(told)
        if self.how == "killed" and communicator.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "broken" and communicator.rank == 1:
            raise ValueError("broken")
        while self.how == "hanging":
            time.sleep(0.01)


FIXED = {
    "model": "mlp",
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (784,), "train": 60, "test": 30},
    "epochs": 2,
}
MUTABLE = {
    "batch_size": 20,
    "framework": "reference",
    "optimizer": "adam",
    "precision": "float64",
    "events": [Seen()],
    "threads": 1,
}
METRICS = [
    (d5.TestAccuracy(), None),
    (d5.TrainingLoss(), None),
    (d5.Throughput(), None),
    (d5.CommunicationVolume(), None),
]
STUDY = {
    "one": {"ranks": 1},
    "two": {"ranks": 2},
    "killed": {"ranks": 2, "events": [Seen("killed")]},
    "broken": {"ranks": 2, "events": [Seen("broken")]},
    "hanging": {"ranks": 2, "events": [Seen("hanging")]},
}
"""

HERE = len(os.sched_getaffinity(0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shared.py"
    path.write_text(RECIPE)
    return path


def seen(folder: Path, how: str, ranks: int) -> list[list[int]]:
    """Ranks, rank, process, processors and threads, as every rank of a run recorded them."""
    paths = sorted(folder.glob(f"seen-{how}-{ranks}-*.txt"))
    return [[int(word) for word in path.read_text().split()] for path in paths]


def test_each_run_has_the_ranks_of_its_candidate(file: Path, tmp_path: Path) -> None:
    study = run_study(file, only="one,two,killed,broken", seeds=(0,), out=tmp_path / "out")
    (one,), (two,) = study.runs["one"], study.runs["two"]
    assert [run.document["ranks"] for run in (one, two)] == [1, 2]
    assert two.document["level"] == 3
    # The same function: sums of as many parts in another order, after six steps of Adam in float64.
    assert two.metric("training_loss") == pytest.approx(one.metric("training_loss"), rel=1e-9)
    # All runs may use as many processors as the candidate with the most ranks, one per thread.
    for how, ranks in (("calm", 1), ("calm", 2), ("killed", 2)):
        found = seen(tmp_path, how, ranks)
        assert [about[:2] for about in found] == [[ranks, rank] for rank in range(ranks)]
        assert {tuple(about[3:]) for about in found} == {(min(2, HERE), 1)}
        assert not any(psutil.pid_exists(about[2]) for about in found)
    (killed,), (broken,) = study.failures["killed"], study.failures["broken"]
    assert killed.startswith("seed 0: the run failed: rank 1 of 2 was terminated by signal 9 (SIGKILL) from outside")
    assert "ValueError: broken" in broken
    assert study.finished
    document = json.loads((study.folder / "study.json").read_text())
    (scaling,) = document["scaling"]
    assert (scaling["kind"], [row["candidate"] for row in scaling["rows"]]) == ("strong", ["one", "two"])
    throughput = [run.metric("throughput") for run in (one, two)]
    assert [row["throughput"] for row in scaling["rows"]] == throughput
    assert scaling["rows"][1]["efficiency"] == pytest.approx(throughput[1] / throughput[0] / 2)  # type: ignore[operator]
    assert scaling["rows"][1]["shared"] is (HERE < 2)
    # The launcher does not change the environment; failures are reported, and nothing is dropped.
    assert [str(finding) for finding in audit([study.folder]).findings] == []
    assert len({run.document["provenance"]["environment"] for run in (one, two)}) == 1
    document["scaling"][0]["rows"][1]["efficiency"] = 1.25
    (study.folder / "study.json").write_text(json.dumps(document))
    assert ["scaling" in str(finding) for finding in audit([study.folder]).findings] == [True]


def test_ranks_that_hang_are_ended_at_the_limit_and_leave_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    study = run_study(file, only="hanging", seeds=(0,), out=tmp_path / "out", time_limit_s=20.0)
    (told,) = study.failures["hanging"]
    assert told.startswith("seed 0: it did not finish within 20 s; remedy: --time-limit")
    found = seen(tmp_path, "hanging", 2)
    assert len(found) == 2
    assert not any(_lives(about[2]) for about in found)
    assert not [path.name for path in scratch.iterdir() if path.name.startswith("deep5-")]


def _lives(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_study_of_ranks_that_was_interrupted_goes_on(file: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def once(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt

    threads = {"launcher": "threads"}
    with pytest.raises(KeyboardInterrupt, match="to resume, add --resume"):
        run_study(file, only="one,two", seeds=(0,), common=threads, out=tmp_path / "out", tell=once)
    (folder,) = (tmp_path / "out").iterdir()
    study = run_study(file, only="one,two", seeds=(0,), common=threads, resume=folder, tell=told.append)
    names = [line.partition(" (")[0] for line in told]
    assert (len(names), names[1]) == (3, names[2])  # finished runs were not repeated
    assert [len(own) for own in study.runs.values()] == [1, 1]
    (two,) = study.runs["two"]
    assert (two.document["ranks"], two.document["recipe"]["mutable"]["launcher"]) == (2, "threads")
    assert [str(finding) for finding in audit([folder]).findings] == []


def test_the_command_starts_ranks_for_all_candidates(file: Path, tmp_path: Path, deep5: Command) -> None:
    file.write_text(RECIPE.partition("STUDY = ")[0] + "METRICS += [(d5.TimeToAccuracy(1), None)]\n")
    words = ["study", str(file), "--vary", "compression=top_k,half_precision", "--seeds", "1", "--ranks", "2"]
    answer = deep5(*words, "--launcher", "threads", "--out", str(tmp_path / "out"), "--json")
    assert answer.status == 0, answer.err
    document = json.loads(answer.out)
    folder = Path(document["folder"])
    for own in document["candidates"].values():
        assert own["settings"]["ranks"] == 2
        assert [load(folder / run).document["ranks"] for run in own["runs"]] == [2]
        assert own["metrics"]["communication_volume"]["mean"] > 0
    assert document["scaling"] == []  # a single number of ranks shows no scaling
    assert load_study_folder(folder).runs == 2
    answer = deep5("study", str(file), "--vary", "ranks=1,2", "--ranks", "2")
    assert (answer.status, "'ranks' is set for all and by the candidate" in answer.err) == (2, True)
    answer = deep5("study", str(file), "--vary", "ranks=0,2")
    assert (answer.status, "an integer of at least 1" in answer.err) == (2, True)


# How the processors are shared


def recipes(file: Path, **settings: Mapping[str, Any]) -> dict[str, Recipe]:
    recipe = load_recipe(file)
    return {name: recipe.with_settings(own) for name, own in settings.items()}


def test_ranks_share_the_processors_of_the_largest_candidate(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    shares = share_processors(recipes(file, one={"ranks": 1}, two={"ranks": 2}))
    assert (shares.threads, shares.processors, shares.notes) == (1, {"one": 2, "two": 2}, ())
    shares = share_processors(recipes(file, one={"ranks": 1, "threads": 3}, two={"ranks": 2, "threads": 2}))
    assert (shares.threads, shares.processors, shares.notes) == (3, {"one": 4, "two": 4}, ())
    shares = share_processors(recipes(file, one={}, many={"ranks": 8}))
    assert (shares.threads, shares.processors, shares.most) == (1, {"one": 4, "many": 4}, 4)
    assert shares.notes == ("many: 8 ranks share 4 processors, so their times say nothing about a scheme",)
    with pytest.raises(UsageError, match="5 threads; allowed: at most 4, the processors of this process"):
        share_processors(recipes(file, two={"ranks": 2, "threads": 5}))
    # At the same time, or on other machines, each has what it needs.
    shares = share_processors(recipes(file, one={}, two={"ranks": 2, "threads": 2}), together=False)
    assert (shares.threads, shares.processors, shares.notes) == (2, {"one": 1, "two": 4}, ())
    shares = share_processors(recipes(file, one={}, many={"ranks": 8, "threads": 2}), together=False, here=False)
    assert (shares.processors, shares.notes) == ({"one": 1, "many": 16}, ())


def test_threads_that_nobody_asks_for_are_the_share_of_the_largest_number_of_ranks(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    file.write_text(RECIPE.replace('    "threads": 1,\n', ""))
    shares = share_processors(recipes(file, one={"ranks": 1}, four={"ranks": 4}))
    # One rank has two threads as well: with eight the ranks would not be comparable.
    assert (shares.threads, shares.processors) == (2, {"one": 8, "four": 8})
    shares = share_processors(recipes(file, alone={}))
    assert (shares.threads, shares.processors) == (8, {"alone": 8})


def test_ranks_of_ranks_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("SIZE", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with pytest.raises(UsageError, match="started this process as rank 1 of 3; allowed: deep5 study by itself"):
        share_processors(recipes(file, two={"ranks": 2}))
    assert share_processors(recipes(file, alone={})).processors == {"alone": 1}


# Scaling, computed by hand


def result(ranks: int, throughput: float, seed: int = 0, processors: int = 8, **parts: Any) -> Any:
    """The parts of a run that scaling uses."""
    recipe = {"fixed": {"model": "lenet"}, "mutable": {"batch_size": 64, "ranks": ranks, "seed": seed, **parts}}
    return SimpleNamespace(
        verdicts=(SimpleNamespace(name="throughput", value=throughput),),
        document={
            "recipe": recipe,
            "ranks": ranks,
            "seeds": {"run": seed},
            "threads": {"framework": 1},
            "system": {"before": {"affinity": list(range(processors))}},
        },
    )


def only(found: Sequence[Scaling]) -> Scaling:
    (scaling,) = found
    return scaling


def test_strong_scaling_by_hand() -> None:
    runs = {"4": [result(4, 2000.0)], "1": [result(1, 1000.0)], "2": [result(2, 1600.0)]}
    scaling = only(scaling_of(runs))
    assert scaling.kind == "strong"
    assert [row.ranks for row in scaling.rows] == [1, 2, 4]
    assert [row.speedup for row in scaling.rows] == pytest.approx([1, 1.6, 2])
    assert [row.efficiency for row in scaling.rows] == pytest.approx([1, 0.8, 0.5])
    assert [row.step_s for row in scaling.rows] == pytest.approx([0.064, 0.04, 0.032])
    assert scaling.rows[0].serial_fraction is None
    # Karp and Flatt: (1/1.6 - 1/2) / (1 - 1/2), (1/2 - 1/4) / (1 - 1/4).
    assert [row.serial_fraction for row in scaling.rows[1:]] == pytest.approx([0.25, 1 / 3])
    assert scaling.title == "strong scaling, 64 samples a step for all ranks, against 1"
    heads, rows = scaling_cells(scaling)
    assert heads[-1] == "serial fraction"
    assert rows[1] == ["2", "2", "40", "1600", "1.6", "80.0", "0.250"]


def test_weak_scaling_by_hand() -> None:
    runs = {
        "1": [result(1, 1000.0, batch_size=32)],
        "4": [result(4, 2000.0, batch_size=128)],
        "other": [result(2, 9.0, batch_size=100)],
    }
    scaling = only(scaling_of(runs))
    assert (scaling.kind, [row.candidate for row in scaling.rows]) == ("weak", ["1", "4"])
    # T(1) = 32 ms, T(4) = 64 ms: T(1) / T(4) = 0.5, and 4 T(1) / T(4) = 2.
    assert scaling.rows[1].efficiency == pytest.approx(0.032 / 0.064)
    assert scaling.rows[1].speedup == pytest.approx(2)
    assert scaling.rows[1].serial_fraction is None
    assert scaling.title == "weak scaling, 32 samples a step for each rank, against 1"


def test_both_kinds_and_other_work_are_told_apart() -> None:
    runs = {
        "1": [result(1, 1000.0)],
        "2": [result(2, 1500.0)],
        "2 of 128": [result(2, 1800.0, batch_size=128)],
        "gossip 2": [result(2, 1000.0, scheme="gossip")],
        "gossip 4": [result(4, 1000.0, scheme="gossip")],
        "grows": [result(2, 1.0, batch_size={"object": "GrowingBatches"})],
    }
    found = {(own.kind, tuple(row.candidate for row in own.rows)): own for own in scaling_of(runs)}
    assert set(found) == {
        ("strong", ("1", "2")), ("weak", ("1", "2 of 128")), ("strong", ("gossip 2", "gossip 4")),
    }  # fmt: skip
    gossip = found["strong", ("gossip 2", "gossip 4")]
    assert gossip.rows[1].efficiency == pytest.approx(0.5)  # relative to two ranks: twice as many
    assert gossip.rows[1].serial_fraction is None
    # Other learning rates do not count as other work, unless two candidates differ only in them.
    rates = {"1": [result(1, 9.0, optimizer_kwargs={"lr": 1})], "2": [result(2, 9.0, optimizer_kwargs={"lr": 2})]}
    assert len(scaling_of(rates)) == 1
    assert scaling_of({**rates, "2 again": [result(2, 9.0, optimizer_kwargs={"lr": 3})]}) == []
    assert scaling_of({}) == []
    assert scaling_of({"1": [result(1, 1.0)], "none": []}) == []


def test_seeds_are_pairs_and_six_of_them_have_an_interval() -> None:
    ones, twos = (1000.0, 500.0, 1000.0, 2000.0, 1000.0, 1000.0), (1500.0, 800.0, 1600.0, 3400.0, 1800.0, 1900.0)
    runs = {
        "1": [result(1, value, seed) for seed, value in enumerate(ones)],
        "2": [result(2, value, seed) for seed, value in enumerate(twos)],
    }
    row = only(scaling_of(runs)).rows[1]
    # Ratios of pairs: 1.5, 1.6, 1.6, 1.7, 1.8, 1.9.
    assert row.speedup == pytest.approx(1.65)
    assert row.interval is not None
    assert (row.interval.low, row.interval.high) == (pytest.approx(0.75), pytest.approx(0.95))
    assert row.seeds == (0, 1, 2, 3, 4, 5)
    runs["1"] = runs["1"][1:]
    scaling = only(scaling_of(runs))
    assert (scaling.rows[1].interval, scaling.rows[1].seeds) == (None, (1, 2, 3, 4, 5))
    assert scaling.rows[1].ends == (pytest.approx(0.8), pytest.approx(0.95))
    assert scaling.notes() == ["fewer than six seeds: the smallest and largest values are shown instead of an interval"]
    assert scaling_cells(scaling)[1][1][5] == "85.0 (80.0 … 95.0)"


def test_ranks_that_share_processors_claim_nothing() -> None:
    runs = {str(ranks): [result(ranks, 1000.0, processors=2)] for ranks in (1, 2, 4, 8)}
    scaling = only(scaling_of(runs))
    assert [row.shared for row in scaling.rows] == [False, False, True, True]
    assert scaling.notes()[0] == "4, 8: ranks shared 2 processors, so their efficiency says nothing about the scheme"
    assert scaling.document()["notes"] == scaling.notes()
    assert json.loads(json.dumps(scaling.document(), allow_nan=False)) == scaling.document()


def test_the_picture_has_what_is_ideal_and_what_is_shared() -> None:
    pytest.importorskip("vl_convert")
    from deep5.results.study.scaling_chart import scaling_chart

    scalings = scaling_of({str(ranks): [result(ranks, 100.0 * ranks**0.5, processors=2)] for ranks in (1, 2, 4)})
    spec = json.loads(scaling_chart(scalings, "a title").to_json())
    assert [panel["layer"][0]["mark"]["strokeDash"] for panel in spec["vconcat"]] == [[4, 3], [4, 3]]
    assert "ranks shared 2 processors" in " ".join(spec["title"]["subtitle"])
    drawn = [point["efficiency"] for point in spec["vconcat"][1]["layer"][1]["data"]["values"]]
    assert drawn == pytest.approx([100, 100 / math.sqrt(2), 50])
    with pytest.raises(UsageError, match="no scaling to draw"):
        scaling_chart([])


# Trade-offs of schemes


def traded(cost: float | None, accuracy: float, seconds: float, ranks: int = 2) -> Any:
    """The parts of a run that the pictures of trade-offs use; it reached 90 % after this many seconds."""
    row = {"metric": "test_accuracy", "index": 0, "value": accuracy, "unit": "%", "step": 10, "epoch": 1}
    verdicts = {"communication_volume": cost, "test_accuracy": accuracy}
    return SimpleNamespace(
        folder="somewhere",
        status="success",
        reasons=(),
        verdicts=[SimpleNamespace(name=name, label=name, value=value) for name, value in verdicts.items()],
        samples=lambda: {"test_accuracy": [SampleRow(**row, time_s=seconds)]},
        document={
            "ranks": ranks,
            "warnings": [],
            "metrics": [{"name": name, "parameters": {}, "value": 1.0, "missing": None} for name in verdicts],
        },
    )


def test_what_was_paid_and_what_was_got_by_hand() -> None:
    target = Target(metric="test_accuracy", goal=90.0)
    runs = {
        "none": [traded(4000.0, 95.0, 2.0), traded(4000.0, 97.0, 4.0)],
        "small": [traded(100.0, 91.0, 6.0), traded(300.0, 50.0, 1.0)],
        "without": [traded(None, 99.0, 1.0)],
    }
    none, small = tradeoffs(runs, "communication_volume", target)
    assert none == TradeOff("none", 4000.0, 96.0, 95.0, 97.0, 3.0, 2.0, 4.0, 2)
    assert small == TradeOff("small", 200.0, 70.5, 50.0, 91.0, math.inf, 6.0, 6.0, 2)
    assert tradeoffs(runs, "staleness", target) == []
    assert tradeoffs({"none": runs["none"], "as much": runs["none"]}, "communication_volume", target) == []
    assert tradeoffs({**runs, "more": [traded(1.0, 1.0, 1.0, ranks=4)]}, "communication_volume", target) == []


def test_the_picture_of_a_trade_names_who_did_not_get_there() -> None:
    pytest.importorskip("vl_convert")
    target = Target(metric="test_accuracy", goal=90.0)
    runs = {"none": [traded(4000.0, 95.0, 2.0)], "small": [traded(100.0, 50.0, 6.0)]}
    points = tradeoffs(runs, "communication_volume", target)
    spec = json.loads(tradeoff_chart(points, "communication_volume", "a title", target).to_json())
    drawn = [[value["candidate"] for value in panel["data"]["values"]] for panel in spec["vconcat"]]
    assert drawn == [["none", "small"], ["none"]]
    assert "did not reach a test accuracy of at least 90 %: small" in " ".join(spec["title"]["subtitle"])
    with pytest.raises(UsageError, match="no points to draw"):
        tradeoff_chart([], "staleness", "", None)


def stale(staleness: float | None, scheme: str, seconds: float = 1.0) -> Any:
    """A run with a mean staleness, or without one, of a scheme."""
    run = traded(None, 95.0, seconds)
    if staleness is not None:
        run.verdicts.append(SimpleNamespace(name="staleness", label="staleness", value=staleness))
    run.document["components"] = {"optimizer": {"scheme": scheme}}
    run.document["recipe"] = {"name": "demo", "size": "smoke", "division": "open", "fixed": {}, "mutable": {}}
    run.document["status"] = "success"
    return run


def test_a_synchronous_scheme_is_a_line_in_the_picture_of_staleness() -> None:
    pytest.importorskip("vl_convert")
    target = Target(metric="test_accuracy", goal=90.0)
    runs = {
        "in step": [stale(None, "AllReduce", 2.0)],
        "bound 4": [stale(1.5, "StaleSynchronous")],
        "asynchronous": [stale(3.0, "Asynchronous")],
        "gossip": [stale(None, "Gossip")],
    }
    across = synchronous_ones(runs, target)
    assert [(own.candidate, own.cost, own.seconds) for own in across] == [("in step", 0.0, 2.0)]
    spec = json.loads(
        tradeoff_chart(tradeoffs(runs, "staleness", target), "staleness", "t", target, "", across).to_json()
    )
    for panel in spec["vconcat"]:
        (line,) = [layer for layer in panel["layer"] if layer["mark"].get("strokeDash")]
        (name,) = [layer for layer in panel["layer"] if layer["encoding"].get("text", {}).get("field") == "said"]
        assert "x" not in line["encoding"]  # across the whole width
        data = name.get("data") or line.get("data") or panel.get("data")
        values = spec["datasets"][data["name"]] if "name" in data else data["values"]
        assert [value["said"] for value in values] == ["in step (0)"]
    # Points in the picture are points in the legend, not line strokes.
    assert spec["vconcat"][0]["layer"][1]["encoding"]["color"]["legend"]["symbolType"] == "circle"


def test_a_picture_of_a_study_says_its_size_division_and_load() -> None:
    pytest.importorskip("vl_convert")
    runs = {"bound 4": [stale(1.5, "StaleSynchronous")], "asynchronous": [stale(3.0, "Asynchronous")]}
    notes = ["other programs took up to 40 % of the processors in 2 runs; remedy: a quiet machine", "another note"]
    drawn, _ = study_pictures("demo", runs, 1, None, notes)
    said = " ".join(re.findall(r">([^<>]+)<", drawn["staleness.svg"].decode()))
    assert "size smoke; open division; other programs took up to 40 % of the processors in 2 runs" in said
    assert "another note" not in said


def test_what_is_not_drawn_without_its_packages_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    runs = {"bound 4": [stale(1.5, "StaleSynchronous")], "asynchronous": [stale(3.0, "Asynchronous")]}
    drawn, missing = study_pictures("demo", runs, 1, Target(metric="test_accuracy", goal=90.0))
    assert drawn == {}
    (told,) = [note for note in missing if "deep5[report]" in note]
    assert "accuracy.svg, accuracy_time.svg" in told
    assert "staleness.svg" in told
    assert "then 'deep5 report' on this folder draws" in told


def test_a_row_says_when_its_ranks_share() -> None:
    row = ScalingRow(
        candidate="a", ranks=2, batch_size=64, throughput=1.0, step_s=64.0, speedup=1.0, efficiency=0.5, interval=None,
        ends=(0.5, 0.5), serial_fraction=None, seeds=(0,), threads=2, processors=3,
    )  # fmt: skip
    assert row.shared is True


# The recipes

RECIPES = Path(__file__).parents[2] / "recipes" / "distributed"
STUDIES = {
    "scaling_strong": "2 ranks",
    "scaling_weak": "2 ranks",
    "staleness_study": "bound 4",
    "compression_study": "top 1 %",
}


@pytest.mark.parametrize("name", STUDIES)
def test_the_studies_can_be_read(name: str) -> None:
    for size in ("full", "smoke"):
        recipe, candidates = load_study(RECIPES / f"{name}.py", size)
        assert recipe.ranks is not None
        assert STUDIES[name] in candidates
        made = [recipe.with_settings(own) for own in candidates.values()]
        assert len({json.dumps(own.describe()["mutable"], sort_keys=True) for own in made}) == len(made)


def test_the_scaling_recipes_scale_what_they_say() -> None:
    for size in ("full", "smoke"):
        strong, weak = (load_study(RECIPES / f"scaling_{kind}.py", size) for kind in ("strong", "weak"))
        assert {strong[0].with_settings(own).value("batch_size") for own in strong[1].values()} in ({256}, {64})
        each = [weak[0].with_settings(own) for own in weak[1].values()]
        assert {own.value("batch_size") / (own.ranks or 0) for own in each} == {64.0}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in STUDIES])
def test_a_study_at_its_smoke_size(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    study = run_study(RECIPES / f"{name}.py", size="smoke", seeds=(0,), out=tmp_path)
    assert not any(study.failures.values())
    for own, runs in study.runs.items():
        ranks = study.settings[own].get("ranks", load_recipe(RECIPES / f"{name}.py").ranks)
        assert [run.document["ranks"] for run in runs] == [ranks]
        volume = runs[0].metric("communication_volume")
        assert (volume is None) == (ranks == 1)
    assert [own.kind for own in study.scaling] == ([name.removeprefix("scaling_")] if "scaling" in name else [])
    drawn = {path.stem for path in study.folder.glob("*.svg")} - {"accuracy", "accuracy_time", "loss"}
    assert drawn == {
        "staleness_study": {"staleness", "communication_volume"},
        "compression_study": {"communication_volume"},
    }.get(name, {"scaling"})
