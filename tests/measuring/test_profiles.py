"""Performance profiles and time to target: calculated by hand, by their invariances, and from manipulated folders."""

from __future__ import annotations

import copy
import itertools
import json
import math
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import Command
from deep5.core.errors import UsageError
from deep5.measuring.profiles import performance_profiles
from deep5.results.profile_record import profile_studies
from deep5.results.samples_file import SampleRow
from deep5.results.study.folder import StudyFolder, load_study_folder
from deep5.results.time_to_target import Reached, Target, median_to_target, parse_target, summary, time_to_target
from deep5.study.study import run_study

pytestmark = pytest.mark.usefixtures("warm")

INF = math.inf


def test_profiles_by_hand() -> None:
    """Three submissions on four workloads: ties, infinities, one that no submission solved."""
    found = performance_profiles(
        {
            "one": {"a": 10.0, "b": 20.0, "c": 50.0},
            "two": {"a": 3.0, "b": 3.0, "c": INF},
            "three": {"a": INF, "b": 1.0, "c": 4.0},
            "nobody": {"a": INF, "b": INF, "c": INF},
        }
    )
    assert found["a"].ratios == {"one": 1.0, "two": 1.0, "three": INF, "nobody": INF}
    assert found["b"].ratios == {"one": 2.0, "two": 1.0, "three": 1.0, "nobody": INF}
    assert found["c"].ratios == {"one": 5.0, "two": INF, "three": 4.0, "nobody": INF}
    assert [found[name].solved for name in "abc"] == [0.5, 0.75, 0.5]
    # The area from 1 to 4, divided by 3 and by four workloads: a ratio of 2 earns 2 of 3, one of 4 or more nothing.
    assert found["a"].score == pytest.approx(2 / 4)
    assert found["b"].score == pytest.approx((2 / 3 + 1 + 1) / 4)
    assert found["c"].score == 0.0
    assert [found["c"].share(tau) for tau in (1, 3.99, 4, 5, INF)] == [0, 0, 0.25, 0.5, 0.5]
    assert [found["b"].share(tau) for tau in (1, 1.99, 2)] == [0.5, 0.5, 0.75]


def test_a_single_workload_and_a_single_submission() -> None:
    found = performance_profiles({"w": {"a": 2.0, "b": 3.0, "c": INF}})
    assert [found[name].score for name in "abc"] == pytest.approx([1.0, 2.5 / 3, 0.0])
    assert performance_profiles({"w": {"a": 2.0}})["a"].score == 1.0
    # Another limit: 1.5 lies halfway between 1 and 2.
    assert performance_profiles({"w": {"a": 2.0, "b": 3.0}}, limit=2.0)["b"].score == 0.5


def test_times_that_are_none() -> None:
    for times, told in (
        ({}, "a profile without times; allowed: at least one workload"),
        ({"w": {}}, "a profile without times"),
        ({"w": {"a": math.nan}}, "'a' took nan on 'w'; allowed: a number above zero"),
        ({"w": {"a": 0.0}}, "'a' took 0.0 on 'w'"),
        ({"w": {"a": -1.0}}, "allowed: a number above zero, or infinity"),
        ({"w": {"a": 1.0}, "v": {"a": 1.0, "b": 1.0}}, "'b' has a time for some workloads only"),
    ):
        with pytest.raises(UsageError, match=told):
            performance_profiles(times)
    for limit in (1.0, math.nan, INF, 0.5):
        with pytest.raises(UsageError, match=r"the limit of a profile is .*; allowed: a number above 1, such as 4"):
            performance_profiles({"w": {"a": 1.0}}, limit)


TIMES = st.one_of(st.just(INF), st.floats(1e-3, 1e6))
TABLES = st.integers(1, 4).flatmap(
    lambda count: st.lists(st.lists(TIMES, min_size=count, max_size=count), min_size=1, max_size=5)
)


def named(table: list[list[float]]) -> dict[str, dict[str, float]]:
    return {f"w{i}": {f"s{j}": time for j, time in enumerate(row)} for i, row in enumerate(table)}


@settings(max_examples=150, deadline=None)
@given(TABLES, st.integers(0, 4), st.integers(-20, 20))
def test_invariances(table: list[list[float]], place: int, power: int) -> None:
    """No score depends on the unit of a workload, on the order, or on submissions slower than the limit."""
    times = named(table)
    found = performance_profiles(times)
    scaled = copy.deepcopy(times)
    own = scaled[f"w{place % len(table)}"]
    own.update({name: time * 2.0**power for name, time in own.items()})  # a power of two is exact
    assert performance_profiles(scaled) == found
    turned = {w: dict(reversed(row.items())) for w, row in reversed(times.items())}
    assert {name: profile.score for name, profile in performance_profiles(turned).items()} == {
        name: profile.score for name, profile in found.items()
    }
    with_last = {w: {**row, "last": INF} for w, row in times.items()}
    assert {name: p for name, p in performance_profiles(with_last).items() if name != "last"} == found
    for profile in found.values():
        assert 0 <= profile.score <= profile.share(4.0) <= profile.solved <= 1
        shares = [profile.share(tau) for tau in (1.0, 1.5, 2.0, 4.0, 100.0)]
        assert shares == sorted(shares)
        # The closed form is the integral of the step function: summed between its steps.
        steps = sorted({1.0, 4.0, *(r for r in profile.ratios.values() if r < 4)})
        area = sum((b - a) * profile.share(a) for a, b in itertools.pairwise(steps))
        assert profile.score == pytest.approx(area / 3, abs=1e-9)
    for row in times.values():  # some submission is the best on each solved workload
        if any(map(math.isfinite, row.values())):
            assert min(row, key=lambda name: row[name]) in {n for n, p in found.items() if 1.0 in p.ratios.values()}


def test_medians_and_intervals_hold_infinities() -> None:
    assert median_to_target([3.0, INF, 1.0]) == 3.0
    assert median_to_target([3.0, INF]) == INF
    reached = {seed: Reached(seconds=float(seed + 1), epochs=1.0, steps=9.0) for seed in range(5)}
    assert summary(reached)["seconds"]["interval"] is None  # five are not enough
    reached[5] = Reached.never("diverged: nan")
    told = summary(reached)
    assert told["seconds"]["values"] == {"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0, "4": 5.0, "5": "inf"}
    assert told["seconds"]["median"] == 3.5
    assert told["seconds"]["interval"] == {"low": 1.0, "high": "inf", "confidence": 0.95}
    assert told["reasons"] == {"5": "diverged: nan"}
    json.dumps(told, allow_nan=False)


def test_targets_are_read() -> None:
    assert parse_target("accuracy=97") == Target(metric="test_accuracy", goal=97.0, origin="asked")
    assert parse_target("loss=0.3").met(0.3)
    assert not parse_target("loss=0.3").met(math.nan)
    assert not parse_target("accuracy=97").met(math.nan)
    for text in ("97", "accuracy", "accuracy=x", "accuracy=nan", "f1=3", "=3", ""):
        with pytest.raises(UsageError, match=r"cannot read the target .*allowed: accuracy=97"):
            parse_target(text)
    for text in ("accuracy=101", "accuracy=0", "accuracy=-1", "loss=inf", "loss=0"):
        with pytest.raises(UsageError, match=r"the target .*allowed: accuracy=97 .above 0, up to 100 %"):
            parse_target(text)


def run(
    values: list[float],
    *,
    losses: list[float] | None = None,
    status: str = "success",
    reasons: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    step: int = 10,
    name: str = "test_accuracy",
) -> Any:
    """The part of a result that profiles read: one evaluation per second."""

    def rows(metric: str, own: list[float]) -> list[SampleRow]:
        return [
            SampleRow(metric=metric, index=i, value=v, unit="", step=step * (i + 1), epoch=i + 1, time_s=i + 1.0)
            for i, v in enumerate(own)
        ]

    samples = {name: rows(name, values), "training_loss": rows("training_loss", losses or [1.0])}
    names = list(samples)
    return SimpleNamespace(
        folder="somewhere",
        status=status,
        reasons=reasons,
        samples=lambda: samples,
        verdicts=[SimpleNamespace(name=metric, label=metric) for metric in names],
        document={
            "warnings": list(warnings),
            "metrics": [{"name": metric, "parameters": {}, "value": 1.0, "missing": None} for metric in names],
        },
    )


def test_time_to_target_by_hand() -> None:
    target = Target(metric="test_accuracy", goal=90.0)
    assert time_to_target(run([50, 90, 80, 95]), target) == Reached(seconds=2.0, epochs=2.0, steps=20.0)
    never = time_to_target(run([50, 89.9]), target)
    assert (never.seconds, never.epochs, never.steps) == (INF, INF, INF)
    assert never.reason == "did not reach a test accuracy of at least 90 %"
    loss = Target(metric="test_loss", goal=0.5)
    assert time_to_target(run([0.9, math.nan, 0.5], name="test_accuracy"), target).reason
    assert time_to_target(run([0.9, 0.6, 0.5], name="test_loss"), loss).epochs == 3.0


def test_what_went_wrong_is_infinite_whatever_it_had_reached() -> None:
    target = Target(metric="test_accuracy", goal=90.0)
    told = "the training loss is nan at step 3 of epoch 1, counted from 0; it is of batch 3 of the epoch"
    for broken, reason in (
        (run([95], losses=[1.0, math.nan]), "diverged: training_loss is nan at step 20; it had reached the target"),
        (run([50], losses=[INF]), "diverged: training_loss is inf at step 10"),
        (run([95], warnings=(told,)), "diverged: the training loss is nan at step 3 of epoch 1, counted from 0; it"),
        (run([50], reasons=(f"stopped: {told}",)), "diverged: the training loss is nan at step 3"),
        (run([95], status="failed", reasons=("out of memory",)), "failed: out of memory"),
        (run([95], status="aborted", reasons=("interrupted",)), "aborted: interrupted"),
    ):
        found = time_to_target(broken, target)
        assert (found.seconds, found.epochs, found.steps) == (INF, INF, INF)
        assert found.reason is not None
        assert found.reason.startswith(reason)
    with pytest.raises(UsageError, match=r"somewhere has no evaluations of test_accuracy; allowed: .*d5.TestAccuracy"):
        time_to_target(run([1.0], name="test_loss"), target)
    damaged = run([95])
    damaged.samples()["test_accuracy"][0] = SampleRow(
        metric="test_accuracy", index=0, value=95.0, unit="%", step=1, epoch=1, time_s=math.nan
    )
    with pytest.raises(UsageError, match="after nan s, 1 epochs and 1 steps; allowed: numbers above zero"):
        time_to_target(damaged, target)


def study(recipe: str, times: dict[str, list[float]], **changes: Any) -> StudyFolder:
    given: dict[str, Any] = {
        "folder": Path(recipe),
        "recipe": recipe,
        "hash": recipe,
        "size": "full",
        "division": "closed",
        "target": Target(metric="test_accuracy", goal=90.0),
        "settings": {name: {"optimizer": name} for name in times},
        "reached": {
            name: {seed: Reached(seconds=t, epochs=t, steps=10 * t) for seed, t in enumerate(own)}
            for name, own in times.items()
        },
        "runs": sum(map(len, times.values())),
        "process_per_run": True,
        **changes,
    }
    return StudyFolder(**given)


def test_studies_side_by_side() -> None:
    five = [1.0, 2.0, 3.0, 4.0, 5.0]
    one = study("one", {"a": five, "b": [2 * t for t in five], "extra": five})
    two = study("two", {"b": [1.0] * 5, "a": [INF, 8.0, INF, INF, 1.0]})
    record = profile_studies([one, two])
    assert record.times == {"one": {"a": 3.0, "b": 6.0}, "two": {"a": INF, "b": 1.0}}
    assert list(record.profiles) == ["b", "a"]  # the best first
    assert record.profiles["b"].score == pytest.approx((2 / 3 + 1) / 2)
    assert record.left_out == {"extra": "no candidate of two"}
    assert record.open == []
    document = record.document()
    assert document["division"] == "closed"
    assert document["submissions"]["a"]["times"] == {"one": 3.0, "two": "inf"}
    json.dumps(document, allow_nan=False)
    gone = study("gone", {"a": [1.0], "b": [1.0]})
    gone.reached["b"][0] = Reached.never("failed:\x1b" + "x" * 500)  # type: ignore[index]
    assert profile_studies([gone]).notes[0] == f"gone, b: 1 of 1 infinite: failed: {'x' * 192}…"
    # A ratio has no unit.
    assert profile_studies([one, two], "steps").profiles == record.profiles
    with pytest.raises(UsageError, match="got by='joules'; allowed: seconds, epochs, steps"):
        profile_studies([one, two], "joules")


def test_what_does_not_compare_is_refused_or_called_open() -> None:
    times = {"a": [1.0], "b": [2.0]}
    one = study("one", times)
    for other, told in (
        (study("one", times, hash="x"), "are of one recipe .one, one., which would count twice"),
        (study("copy", times, hash="one"), "are of one recipe .one, copy."),
        (study("two", {"a": [1.0], "c": [1.0]}), "1 candidates are in all studies .one: a, b; two: a, c."),
    ):
        with pytest.raises(UsageError, match=told):
            profile_studies([one, other])
    with pytest.raises(UsageError, match="no study; allowed"):
        profile_studies([])
    for other, told in (
        (study("two", times, size="smoke", division="open"), "two ran at size 'smoke', not full"),
        (study("two", times, division="open"), "two has runs that changed the recipe's fixed part"),
        (study("two", times, division="open", runs=0), "two has no finished run"),
        (
            study("two", times, target=parse_target("accuracy=50")),
            "the target of two, a test accuracy of at least 50 %",
        ),
        (study("two", times, settings={"a": {"optimizer": "x"}, "b": {"optimizer": "b"}}), "it was tuned by workload"),
    ):
        record = profile_studies([one, other])
        assert len(record.open) == 1
        assert told in record.open[0]
        assert record.document()["division"] == "open"
    # A candidate that never reached its target counts as not tuned.
    failed = {"a": [INF], "b": [INF]}
    lost = profile_studies([study("one", failed), study("two", failed, settings={"a": {}, "b": {"optimizer": "b"}})])
    assert lost.open == ["a has other settings in one study than in another"]
    lonely = profile_studies([study("one", {"a": [INF], "b": [INF]})])
    assert any("no candidate reached the target of one" in note for note in lonely.notes)
    assert any("one workload says little" in note for note in lonely.notes)
    assert any("one has 1 seed:" in note for note in lonely.notes)
    assert not any("one process" in note for note in lonely.notes)
    older = study("two", times, process_per_run=False)
    assert any("the runs of two shared one process" in note for note in profile_studies([one, older]).notes)
    assert not any("one process" in note for note in profile_studies([one, older], "steps").notes)


def test_seconds_of_several_machines_do_not_compare() -> None:
    times = {"a": [1.0], "b": [2.0]}
    one, two = study("one", times, environments=["x"]), study("two", times, environments=["x"])
    assert profile_studies([one, two]).open == []
    elsewhere = study("two", times, environments=["y"])
    (told,) = profile_studies([one, elsewhere]).open
    assert told.startswith("the seconds are of 2 environments (machine and software)")
    assert profile_studies([one, elsewhere]).document()["division"] == "open"
    mixed = study("two", times, environments=["x", "y"])
    with pytest.raises(UsageError, match=r"two are of 2 environments .*whose seconds do not compare; .*--by epochs"):
        profile_studies([one, mixed])
    for by in ("epochs", "steps"):
        for other in (elsewhere, mixed):
            assert profile_studies([one, other], by).open == []


RECIPE = """
import deep5 as d5
SAMPLES = {{"shape": (784,), "train": {train}, "test": 30}}
FIXED = {{"model": "mlp", "dataset": "synthetic", "dataset_kwargs": SAMPLES, "epochs": 2}}
MUTABLE = {{"batch_size": 20, "framework": "reference", "optimizer": "sgd", "optimizer_kwargs": {{"lr": 0.01}}}}
METRICS = [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None), (d5.TimeToAccuracy(1), None)]
STUDY = {{"calm": {{"optimizer_kwargs": {{"lr": 0.001}}}}, "wild": {{"optimizer_kwargs": {{"lr": 1e38}}}}}}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two real studies of two recipes; one candidate diverges."""
    base = tmp_path_factory.mktemp("studies")
    made = []
    for name, train, seeds in (("first", 60, (0, 1)), ("second", 40, (0,))):
        file = base / f"{name}.py"
        file.write_text(RECIPE.format(train=train))
        made.append(run_study(file, seeds=seeds, out=base / "out").folder)
    return made


@pytest.mark.slow
def test_real_folders(folders: list[Path]) -> None:
    read = [load_study_folder(folder) for folder in folders]
    assert read[0].environments == read[1].environments
    assert len(read[0].environments) == 1
    assert [own.recipe for own in read] == ["first", "second"]
    assert all(own.division == "closed" and own.target.origin == "recipe" for own in read)
    for own, folder in zip(read, folders, strict=True):
        # The study's own summary says the same.
        document = json.loads((folder / "study.json").read_text())
        for name, reached in own.reached.items():
            assert document["candidates"][name]["time_to_target"] == summary(reached)
        assert all(math.isfinite(reached.seconds) for reached in own.reached["calm"].values())
        assert all(str(reached.reason).startswith("diverged: ") for reached in own.reached["wild"].values())
    record = profile_studies(read, "epochs")
    assert list(record.profiles) == ["calm", "wild"]
    assert (record.profiles["calm"].score, record.profiles["wild"].score) == (1.0, 0.0)
    assert record.open == []


def test_the_command_draws(folders: list[Path], deep5: Command, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    names = list(map(str, folders))
    answer = deep5("profile", *names, "-o", str(tmp_path / "drawn"), "--by", "epochs")
    assert answer.status == 0, answer.err
    assert "calm" in answer.out
    assert "not reached" in answer.out
    made = tmp_path / "drawn"
    assert {path.name for path in made.iterdir()} == {"profile.json", "profile.svg", "profile.png"}
    picture = ET.fromstring((made / "profile.svg").read_text())  # noqa: S314 - made a moment ago
    text = "".join(picture.itertext())
    for told in ("calm: 1.00", "wild: 0.00", "share of workloads", "epochs to target", "2 workloads"):
        assert told in text
    answer = deep5("profile", *names, "--json", "--by", "epochs")
    assert json.loads(answer.out) == json.loads((made / "profile.json").read_text())
    answer = deep5("profile", *names, "--log", "-o", str(tmp_path / "log"), "--limit", "16", "--json")
    assert answer.status == 0, answer.err


def test_wrong_usage(folders: list[Path], deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, told in (
        ((), "Missing argument"),
        (("nowhere",), "nowhere holds no study.json; allowed: a folder that 'deep5 study' wrote"),
        ((str(folders[0]), str(folders[0])), "are of one recipe"),
        ((*map(str, folders), "-o", str(folders[0])), "holds a study; allowed: a folder without other results"),
        ((str(folders[0]), "--by", "joules"), "'joules' is not one of 'seconds', 'epochs', 'steps'"),
        ((str(folders[0]), "--limit", "1"), "the limit of a profile is 1.0"),
        ((str(folders[0]), "--limit", "nan"), "the limit of a profile is nan"),
        ((str(folders[0]), "-o", str(tmp_path / "file")), "cannot write into"),
    ):
        answer = deep5("profile", *arguments)
        assert answer.status == 2, answer
        assert told in answer.err
        assert "Traceback" not in answer.err


def broken(folder: Path, to: Path, change: Any) -> Path:
    shutil.copytree(folder, to)
    document = json.loads((to / "study.json").read_text())
    change(document)
    (to / "study.json").write_text(json.dumps(document))
    return to


def test_an_older_study_is_read(folders: list[Path], tmp_path: Path) -> None:
    """study.json without version, hash, seeds and target; the runs state them."""

    def older(document: dict[str, Any]) -> None:
        for key in ("schema_version", "hash", "finished", "seeds", "target", "process_per_run"):
            del document[key]
        for own in document["candidates"].values():
            del own["time_to_target"]

    new, old = load_study_folder(folders[0]), load_study_folder(broken(folders[0], tmp_path / "old", older))
    assert (old.recipe, old.hash, old.size, old.target) == (new.recipe, new.hash, new.size, new.target)
    assert old.reached == new.reached
    assert (old.process_per_run, new.process_per_run) == (False, True)

    def interrupted(document: dict[str, Any]) -> None:
        older(document)
        document["notes"] = ["the study was interrupted"]

    with pytest.raises(UsageError, match="is not finished; allowed: a study with all its runs; remedy: a new one"):
        load_study_folder(broken(folders[0], tmp_path / "interrupted", interrupted))


def test_a_declared_seed_without_a_run_is_infinite(folders: list[Path], tmp_path: Path) -> None:
    def dropped(document: dict[str, Any]) -> None:
        document["candidates"]["calm"]["runs"].pop()
        document["candidates"]["calm"]["failures"] = ["seed 1: the machine went down"]
        document["candidates"]["wild"]["runs"].pop(0)

    read = load_study_folder(broken(folders[0], tmp_path / "dropped", dropped))
    assert read.reached["calm"][1] == Reached.never("failed: the machine went down")
    assert read.reached["wild"][0] == Reached.never("no run of this seed")


def test_a_seed_of_many_digits_is_kept_whole(folders: list[Path], tmp_path: Path) -> None:
    seeds = [10**20 + 1, 10**20 + 2]

    def failed(document: dict[str, Any]) -> None:
        document["seeds"] = [*document["seeds"], *seeds]
        document["candidates"]["calm"]["failures"] = [f"seed {seed}: of {seed}" for seed in seeds]

    read = load_study_folder(broken(folders[0], tmp_path / "failed", failed))
    assert [read.reached["calm"][seed].reason for seed in seeds] == [f"failed: of {seed}" for seed in seeds]


def test_a_number_beyond_any_float_is_refused(folders: list[Path], tmp_path: Path, deep5: Command) -> None:
    """JSON and CSV allow integers with any number of digits."""
    inside = json.loads((folders[0] / "study.json").read_text())["candidates"]["calm"]["runs"][0]
    large = 10**400

    def value(document: dict[str, Any]) -> None:
        document["metrics"][0]["value"] = large

    def goal(document: dict[str, Any]) -> None:
        next(row for row in document["metrics"] if row["name"] == "time_to_accuracy")["parameters"]["target"] = large

    for name, change in (("value", value), ("goal", goal)):
        copy = broken(folders[0], tmp_path / name, lambda document: None)
        document = json.loads((copy / inside / "result.json").read_text())
        change(document)
        (copy / inside / "result.json").write_text(json.dumps(document))
    copy = broken(folders[0], tmp_path / "step", lambda document: None)
    header, *lines = (copy / inside / "samples.csv").read_text().splitlines()
    place = header.split(",").index("step")
    cells = [line.split(",") for line in lines]
    for own in cells:
        own[place] = str(large) if own[place] else ""
    (copy / inside / "samples.csv").write_text("\n".join([header, *map(",".join, cells)]) + "\n")
    for name, told in (("value", "is too large"), ("goal", "is too large"), ("step", "allowed: numbers above zero")):
        answer = deep5("profile", str(tmp_path / name), str(folders[1]))
        assert (answer.status, "unexpected" in answer.err) == (2, False), answer.err
        assert told in answer.err


def test_folders_that_lie(folders: list[Path], tmp_path: Path) -> None:
    first, second = folders
    inside = json.loads((first / "study.json").read_text())["candidates"]["calm"]["runs"]

    def at(*place: str, value: Any) -> Any:
        def change(document: dict[str, Any]) -> None:
            for key in place[:-1]:
                document = document[key]
            document[place[-1]] = value

        return change

    outside = f"../{second.name}/" + json.loads((second / "study.json").read_text())["candidates"]["calm"]["runs"][0]
    cases = [
        (at("candidates", "calm", "runs", value=[path]), told)
        for path, told in (
            (outside, "allowed: a result folder within the study's own folder"),
            (str(second / "runs"), "within the study's own folder"),
            ("", "within the study's own folder"),
            (".", "within the study's own folder"),
            ("runs/../../..", "within the study's own folder"),
            ("runs/a\0b", "which is not a path"),
            ("runs/none", "is not a result folder"),
            (3, "allowed: a list of strings"),
        )
    ]
    cases += [
        (at("candidates", "calm", "runs", value=[inside[0], inside[0]]), "two runs of 'calm' have the seed 0"),
        (at("candidates", "calm", "runs", value="runs"), "allowed: a list of strings"),
        (at("candidates", "calm", "failures", value={}), "failures of 'calm' is {}; allowed: a list of strings"),
        (at("candidates", "calm", value=[]), "the candidate 'calm' is .*; allowed: an object"),
        (at("candidates", value={}), "has no candidates"),
        (at("candidates", "\x1b[31m", value={}), "has the name .*allowed: printable characters"),
        (at("candidates", value=None), "candidates is None; allowed: an object"),
        (at("finished", value=False), "is not finished; allowed: a study with all its runs"),
        (at("seeds", value=[0]), "the seeds are .0., and there are runs of .0, 1.; allowed: each declared once"),
        (at("seeds", value=[0, 0, 1]), "allowed: each declared once"),
        (at("seeds", value=[]), "allowed: each declared once"),
        (at("seeds", value=[0, 1, True]), "allowed: each declared once"),
        (at("target", value={"metric": "test_accuracy", "goal": "inf"}), "the target .*allowed: accuracy=97"),
        (at("target", value={"metric": ["x"], "goal": 3}), "the target .*allowed: accuracy=97"),
        (at("target", value=3), "target is 3; allowed: an object"),
        (at("recipe", value="other"), "holds runs whose recipe differs: first, other"),
        (at("hash", value="0"), "holds runs whose hash differs"),
        (at("size", value=3), "size is 3; allowed: a string"),
        (at("schema_version", value="9"), "is of schema version '9'; allowed: '2', or none"),
        (at("finished", value=False), "remedy: the same command with --resume .*/"),
        (
            at("candidates", "calm", "failures", value=["seed 1: broken"]),
            "the seed 1 of 'calm' has a run and a failure",
        ),
        (at("candidates", "calm", "failures", value=["it broke"]), "is 'it broke'; allowed: 'seed N: why'"),
        (
            at("candidates", "calm", "failures", value=[f"seed {'9' * 41}: broken"]),
            "is 'seed 999.*; allowed: 'seed N: why'",
        ),
        (
            at("target", value={"metric": "test_loss", "goal": 10**400}),
            "holds a number that is too large .*; allowed: the range of a float",
        ),
    ]
    for number, (change, told) in enumerate(cases):
        with pytest.raises(UsageError, match=told):
            load_study_folder(broken(first, tmp_path / str(number), change))
    damaged = broken(first, tmp_path / "damaged", lambda document: None)
    for text in ('{"a": NaN}', "[" * 100_000, "{", "\udc80"):
        (damaged / "study.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(UsageError, match="is truncated or not JSON"):
            load_study_folder(damaged)
    (damaged / "study.json").write_text("[]")
    with pytest.raises(UsageError, match="allowed: an object"):
        load_study_folder(damaged)
    (damaged / "study.json").unlink()
    (damaged / "study.json").mkdir()
    with pytest.raises(UsageError, match="is not a plain file"):
        load_study_folder(damaged)


def test_a_link_out_of_the_folder_is_not_followed(folders: list[Path], tmp_path: Path) -> None:
    inside = json.loads((folders[0] / "study.json").read_text())["candidates"]["calm"]["runs"][0]
    whole = broken(folders[0], tmp_path / "whole", lambda document: None)
    shutil.rmtree(whole / inside)
    (whole / inside).symlink_to(folders[0] / inside)
    one = broken(folders[0], tmp_path / "one", lambda document: None)
    (one / inside / "samples.csv").unlink()
    (one / inside / "samples.csv").symlink_to(folders[0] / inside / "samples.csv")
    for folder in (whole, one):
        with pytest.raises(UsageError, match="is a link; allowed: files in the folder itself"):
            load_study_folder(folder)
    gone = broken(folders[0], tmp_path / "gone", lambda document: None)
    (gone / inside / "samples.csv").unlink()
    with pytest.raises(UsageError, match="and has no samples of it; allowed: a complete folder"):
        load_study_folder(gone)


def test_the_widths_and_colours_tell_lines_apart() -> None:
    pytest.importorskip("altair")
    from deep5.results.charts.profile import profile_chart

    table = np.random.default_rng(0).uniform(1, 5, (6, 14)).tolist()
    made = profile_chart(performance_profiles(named(table)), "six workloads")
    layers = json.loads(made.to_json())["layer"]
    widths = [layer["mark"]["strokeWidth"] for layer in layers]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 14
    looks = zip(*(layers[0]["encoding"][key]["scale"]["range"] for key in ("color", "strokeDash")), strict=True)
    assert len({(colour, tuple(dash)) for colour, dash in looks}) == 14
    with pytest.raises(UsageError, match="no profiles to draw"):
        profile_chart({})
