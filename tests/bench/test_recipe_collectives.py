"""Recipes that time collectives: real ranks, the metrics, and an audit of honest and of doctored results."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.audit import audit
from deep5.bench.collective.plan import CollectivePlan
from deep5.core.communicator import Communicator
from deep5.core.errors import RecipeError, UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.recipe.experiment import Experiment
from deep5.recipe.keys import COLLECTIVES
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.recipes.distributed import collectives
from deep5.results.report.collect import collect
from deep5.results.report.page import report_page
from deep5.results.result import Result
from deep5.results.samples_file import read_samples
from deep5.results.store import result_folders
from deep5.run.collectives import Collectives
from deep5.run.execute import execute, execute_as_rank
from deep5.run.ranks import run_with_ranks

pytestmark = pytest.mark.usefixtures("warm")

NAME = "distributed_collectives"
FIXED = {"collective": "all_reduce", "sizes": "64,4K", "algorithms": "ring,library", "rounds": 6, "launcher": "threads"}
METRICS = [(d5.RightResults(), 100), (d5.BusBandwidth("ring"), None), (d5.CollectiveLatency("ring"), None)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the shipped recipe printed at its smallest size, run by two processes, and its folder."""
    out = tmp_path_factory.mktemp("ran")
    command = [sys.executable, "-m", "deep5", "run", NAME, "--size", "smoke", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=out)
    assert done.returncode == 0, done.stderr
    (folder,) = result_folders(out)
    return json.loads(done.stdout), folder


def run(out: Path, fixed: dict[str, Any] | None = None, metrics: list[Any] | None = None) -> Result:
    """A recipe run by threads of this process."""
    recipe = Recipe.make({**FIXED, **(fixed or {})}, {"seed": 3}, metrics or METRICS, name="threads")
    result, _ = run_with_ranks(recipe, None, None, [], out=out, quiet=True)
    assert result is not None
    return result


def of_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


# By real ranks


def test_two_ranks_leave_every_time_and_a_verdict(ran: tuple[dict[str, Any], Path]) -> None:
    shown, folder = ran
    assert (shown["level"], shown["ranks"], shown["accepted"], shown["status"]) == (3, 2, True, "success")
    named = {path.name for path in folder.iterdir()}
    assert named >= {"collective.json", "collective.svg", "collective.png", "ranks.json", "samples-rank-1.csv"}
    told = of_json(folder, "collective.json")
    assert (told["ranks"], told["wrong"], len(told["rows"])) == (2, [], 6 * 8)
    own = [read_samples(folder / name) for name in ("samples.csv", "samples-rank-1.csv")]
    assert {"message/8", "addition/1024"} <= own[0].keys()
    for row in told["rows"]:
        series = f"{row['algorithm']}/{row['size_bytes']}"
        times = np.array([[sample.value for sample in samples[series]] for samples in own])
        assert times.shape == (2, 6)
        assert row["median_s"] == median(times.max(axis=0)), "a call takes as long as its slowest rank"
    everyone = of_json(folder, "ranks.json")
    assert [rank["communicator"] for rank in everyone] == ["MPICommunicator"] * 2
    assert everyone[0]["pid"] != everyone[1]["pid"]


def test_the_metrics_follow_from_the_rows(ran: tuple[dict[str, Any], Path]) -> None:
    shown, folder = ran
    rows = {(row["algorithm"], row["size_bytes"]): row for row in of_json(folder, "collective.json")["rows"]}
    right, bandwidth, latency = shown["metrics"]
    assert (right["value"], right["passed"], right["samples"]) == (100.0, True, 1)
    largest, smallest = rows["library", 65536], rows["library", 4]
    assert bandwidth["value"] == largest["bus_gbyte_s"]
    # With two ranks, each has to send at least the buffer itself.
    assert bandwidth["value"] == pytest.approx(65536 / largest["median_s"] / 1e9)
    assert bandwidth["interval"]["low"] == pytest.approx(65536 / largest["high_s"] / 1e9)
    assert latency["value"] == pytest.approx(smallest["median_s"] * 1e6)
    assert (bandwidth["unit"], bandwidth["direction"], bandwidth["samples"]) == ("GB/s", "higher", 6)


def test_an_honest_result_passes_the_audit(ran: tuple[dict[str, Any], Path]) -> None:
    answer = audit([ran[1]])
    assert not answer.findings, answer.findings
    assert not any("the audit has no formula for it" in told for told in answer.skipped)


def test_it_is_shown_and_exported(ran: tuple[dict[str, Any], Path], deep5: Command) -> None:
    page = report_page(collect([ran[1]]))
    assert "bus bandwidth" in page
    assert "Ranks of" in page
    assert "accepted" in deep5("results", str(ran[1].parent)).out
    assert deep5("export", str(ran[1]), "--format", "csv", "-o", "all.csv").status == 0
    lines = Path("all.csv").read_text().splitlines()
    assert sum("library/65536" in line for line in lines) == 2 * 6, "those of both ranks"
    answer = deep5("export", str(ran[1]), "--format", "mllog", "-o", "log")
    assert "allowed: runs that train" in answer.err


# Doctored results


def edited(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    told = of_json(folder, name)
    change(told)
    (folder / name).write_text(json.dumps(told))


def in_rows(field: str, factor: float) -> Callable[[Path], None]:
    def change(told: Any) -> None:
        told["rows"][-1][field] *= factor

    return lambda folder: edited(folder, "collective.json", change)


def samples_halved(folder: Path) -> None:
    """The times of the library at the largest size, of both ranks."""
    for name in ("samples.csv", "samples-rank-1.csv"):
        lines = (folder / name).read_text().splitlines()
        for place, line in enumerate(lines):
            if line.startswith("library/65536,"):
                label, index, value, *rest = line.split(",")
                lines[place] = ",".join((label, index, repr(float(value) / 2), *rest))
        (folder / name).write_text("\n".join(lines) + "\n")


def a_series_left_out(folder: Path) -> None:
    for name in ("samples.csv", "samples-rank-1.csv"):
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join(line for line in lines if not line.startswith("ring/64,")) + "\n")


def ranks_are_four(folder: Path) -> None:
    edited(folder, "result.json", lambda told: told.update(ranks=4))


def collective_of_four(folder: Path) -> None:
    edited(folder, "collective.json", lambda told: told.update(ranks=4))


def one_rank_copied(folder: Path) -> None:
    own = (folder / "samples.csv").read_text().splitlines()
    shutil.copy(folder / "samples.csv", folder / "samples-rank-1.csv")
    kept = [line for line in own if not line.startswith(("message/", "addition/", "right", "bus", "collective"))]
    (folder / "samples-rank-1.csv").write_text("\n".join(kept) + "\n")


def a_faster_value(folder: Path) -> None:
    def change(told: Any) -> None:
        told["metrics"][1]["value"] *= 2

    edited(folder, "result.json", change)


def other_bits(folder: Path) -> None:
    def change(told: Any) -> None:
        for sums in told["measured"][0]["checksums"]:
            sums[0] += 1

    edited(folder, "collective.json", change)


def other_bits_on_a_rank(folder: Path) -> None:
    def change(told: Any) -> None:
        told["measured"][0]["checksums"][1][0] += 1

    edited(folder, "collective.json", change)


def another_plan(folder: Path) -> None:
    edited(folder, "collective.json", lambda told: told["plan"].update(op="max"))


def by_one_process(folder: Path) -> None:
    edited(folder, "result.json", lambda told: told.update(level=2))


def nothing_measured(folder: Path) -> None:
    (folder / "collective.json").unlink()


@pytest.mark.parametrize(
    ("doctor", "rule", "what"),
    [
        (samples_halved, 9, "the value of bus_bandwidth"),
        (samples_halved, 9, "median_s of library at 65536 bytes"),
        (a_series_left_out, 8, "how often each algorithm was called at each size"),
        (in_rows("median_s", 0.5), 9, "median_s of library at 65536 bytes"),
        (in_rows("bus_gbyte_s", 2), 9, "bus_gbyte_s of library at 65536 bytes"),
        (ranks_are_four, 14, "the ranks of ranks.json are"),
        (ranks_are_four, 14, "the number of ranks, by the recipe; stored 4, recomputed 2"),
        (collective_of_four, 14, "the number of ranks of collective.json; stored 4, recomputed 2"),
        (one_rank_copied, 8, "bit-identical samples of"),
        (a_faster_value, 9, "the value of bus_bandwidth"),
        (other_bits, 9, "the checksums of ring at 4 bytes, by the drawn numbers"),
        (other_bits_on_a_rank, 9, "whether all ranks had the same bits of ring at 4 bytes"),
        (another_plan, 14, "the plan of collective.json, by the recipe"),
        (by_one_process, 14, "the level of a result of collectives; stored 2, recomputed 3"),
        (nothing_measured, 9, "there is no collective.json"),
    ],
)
def test_an_audit_finds_what_was_changed(
    ran: tuple[dict[str, Any], Path], tmp_path: Path, doctor: Callable[[Path], None], rule: int, what: str
) -> None:
    folder = tmp_path / ran[1].name
    shutil.copytree(ran[1], folder)
    doctor(folder)
    findings = audit([folder]).findings
    assert any(finding.rule == rule and what in finding.what for finding in findings), findings


# A wrong result


def without_the_last(communicator: Communicator) -> Communicator:
    """A communicator whose float32 all-reduce leaves one element unreduced, so that it differs between ranks."""
    right = communicator.all_reduce

    def all_reduce(buffer: np.ndarray, **given: Any) -> None:
        last = buffer[-1].copy()
        right(buffer, **given)
        if buffer.dtype == np.float32:
            buffer[-1] = last

    communicator.all_reduce = all_reduce  # type: ignore[method-assign]
    return communicator


@pytest.fixture
def wrong(tmp_path: Path) -> Result:
    """A result with a wrong library among correct algorithms."""
    recipe = Recipe.make(FIXED, {"seed": 3}, METRICS, name="threads")

    def rank(communicator: Communicator) -> Result | None:
        return execute_as_rank(recipe, without_the_last(communicator), out=tmp_path / "wrong", quiet=True)

    result = run_in_threads(2, rank)[0]
    assert result is not None
    return result


def test_a_wrong_result_is_not_accepted(wrong: Result) -> None:
    assert wrong.accepted is False
    assert wrong.document["metrics"][0]["value"] == 50.0, "those of the ring are right"
    assert any(told.startswith("wrong: library at 64 bytes: ") for told in wrong.document["warnings"])
    answer = audit([wrong.folder])
    assert not answer.findings, answer.findings


@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_wrong_result_cannot_be_hidden(wrong: Result, all_of_it: bool) -> None:
    folder = wrong.folder

    def in_result(told: Any) -> None:
        told["metrics"][0] |= {"value": 100.0, "passed": True}
        told |= {"accepted": True, "reasons": [], "warnings": []}

    def in_collective(told: Any) -> None:
        told["wrong"] = []
        for row in told["rows"]:
            row |= {"right": True, "largest_error": 0.0}
        for entry in told["measured"]:
            entry |= {"largest_error": 0.0, "same_bits": True, "checksums": [entry["checksums"][0]] * 2}

    edited(folder, "result.json", in_result)
    samples = (folder / "samples.csv").read_text()
    (folder / "samples.csv").write_text(samples.replace("right_results,0,50.0", "right_results,0,100.0"))
    if all_of_it:
        edited(folder, "collective.json", in_collective)
    found = [finding.what for finding in audit([folder]).findings]
    expected = (
        "the checksums of library at 64 bytes" if all_of_it else "the samples of right_results, by collective.json"
    )
    assert any(expected in what for what in found), found


# By threads: other operations, element types and numbers of ranks


@pytest.mark.parametrize(
    "fixed",
    [{"ranks": 3}, {"op": "max", "dtype": "float64", "ranks": 3}, {"op": "prod", "dtype": "int32", "rounds": 3}],
)
def test_other_plans_pass_the_audit_too(fixed: dict[str, Any], tmp_path: Path) -> None:
    result = run(tmp_path, fixed)
    assert result.accepted is True
    assert result.document["ranks"] == fixed.get("ranks", 2)
    assert result.document["numerics"]["dtype"] == fixed.get("dtype", "float32")
    answer = audit([result.folder])
    assert not answer.findings, answer.findings
    told = of_json(result.folder, "collective.json")
    assert (told["plan"]["op"], told["launcher"]) == (fixed.get("op", "sum"), "threads")


def test_a_metric_of_what_was_not_timed_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, metrics=[(d5.BusBandwidth("pipeline"), None), (d5.CollectiveLatency(), 1e9)])
    assert result.document["metrics"][0]["missing"] == "'pipeline' was not timed; allowed: ring, library"
    assert result.accepted is True
    assert not audit([result.folder]).findings


# Refused combinations


def written(tmp_path: Path, old: str = "", new: str = "") -> Path:
    assert collectives.__file__ is not None
    path = tmp_path / "own.py"
    text = Path(collectives.__file__).read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"all_reduce"', '"broadcast"', "'collective' is 'broadcast'; allowed: 'all_reduce'"),
        ('"4:64M"', '"big"', "own.py:10: sizes 'big' cannot be read; allowed: FIRST:LAST"),
        ('"4:64M"', "4", "'sizes' is 4; allowed: a string"),
        ('"4:64M"', '"3,4"', "3 bytes are not a multiple of an element's 4 bytes"),
        ('"algorithms": None', '"algorithms": "rign"', "unknown all-reduce algorithm 'rign'; allowed: "),
        ('"algorithms": None', '"algorithms": ()', "'algorithms' is (); allowed: names such as 'ring,library'"),
        ('"sum"', '"mean"', "unknown reduction 'mean'; allowed: max, min, prod, sum"),
        ('"float32"', '"float23"', "unknown element type 'float23'"),
        ('"128K"', '"0"', "segment '0' cannot be read; allowed: bytes above 0"),
        ('"rounds": 20', '"rounds": 0', "'rounds' is 0; allowed: an integer of at least 1"),
        ('"ranks": 2', '"ranks": 1', "'ranks' is 1; allowed: an integer of at least 2"),
        ('"mpiexec"', '"srun"', "'launcher' is 'srun'; allowed: 'mpiexec', 'torchrun', 'threads'"),
        ('"seed": 0', '"epochs": 3', "unknown key 'epochs' in MUTABLE; allowed: collective, sizes, "),
    ],
)
def test_bad_keys_are_told(deep5: Command, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, old, new)
    for words in (("check", str(path)), ("run", str(path), "--launcher", "threads")):
        answer = deep5(*words)
        assert answer.status == 2
        assert message in answer.err or (words[0] == "run" and "is fixed by the recipe" in answer.err), answer.err
    assert not Path("results").exists(), "nothing is left behind"


def test_a_recipe_is_checked_without_running_it(deep5: Command, tmp_path: Path) -> None:
    answer = deep5("check", str(written(tmp_path)))
    assert answer.status == 0
    assert "6 algorithms would be timed at 13 sizes, 4 B to 64 MiB, in 1560 calls" in answer.out
    assert "it runs as 2 ranks, which mpiexec starts" in answer.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", NAME, "--ranks", "3"), "'ranks' is fixed by the recipe"),
        (("run", NAME, "--set", "sizes=4"), "'sizes' is fixed by the recipe"),
        (("study", NAME, "--vary", "optimizer=adam,sgd"), "trains nothing; allowed: a recipe that trains a network"),
        (("compare", NAME, "--frameworks", "pytorch,jax"), "itself times collectives, every algorithm in turn"),
    ],
)
def test_what_does_not_fit_is_refused(deep5: Command, words: tuple[str, ...], message: str) -> None:
    answer = deep5(*words)
    assert answer.status == 2
    assert message in answer.err


def test_one_process_cannot_run_it(tmp_path: Path) -> None:
    recipe = load_recipe(NAME)
    with pytest.raises(UsageError, match="requires 2 ranks, and this is one process"):
        execute(recipe, out=tmp_path)
    with pytest.raises(UsageError, match="trains nothing; allowed: neither --resume nor"):
        run_with_ranks(Recipe.make(FIXED, {}, METRICS), None, None, [], out=tmp_path, quiet=True, resume=tmp_path)


def _plan(recipe: Recipe) -> CollectivePlan:
    return Collectives(Experiment.of(recipe)).plan()


def test_what_is_timed_belongs_into_the_hash() -> None:
    recipe = load_recipe(NAME)
    assert (recipe.kind, recipe.ranks, recipe.division) == (COLLECTIVES, 2, "closed")
    assert _plan(recipe).sizes_bytes[-1] == 64 << 20
    open_one = Recipe.make({"collective": "all_reduce"}, {"sizes": "4"}, METRICS)
    assert open_one.division == "open", "times of other sizes are others"
    assert _plan(open_one.with_settings({"algorithms": ("ring", "library")})).algorithms == ("ring", "library")
    with pytest.raises(RecipeError, match="sizes 'x' cannot be read"):
        _plan(open_one.with_settings({"sizes": "x"}))
