"""`deep5 audit`: honest results pass, and doctored ones are caught under the number of the rule that they break."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
import honest_results
from deep5.audit import audit
from deep5.audit.declared import _same, check_declared, check_stated_parts
from deep5.audit.finding import Ledger
from deep5.audit.settings import check_set
from deep5.audit.turns import _is_in_turn
from deep5.core.errors import RunFailed, UsageError
from deep5.recipe.recipe import load_recipe
from deep5.recipes import digits_lenet
from deep5.results.comparison_summary import results_of, verdicts_of
from deep5.results.round_samples import read_round_samples, round_samples_text
from deep5.run.execute import execute
from deep5.training.checkpointer import Checkpointer
from doctored import (
    CORPUS,
    LATER,
    UNSEEN,
    Doctor,
    broken_off,
    cells,
    drawn_order,
    edited,
    metric,
    page,
    rates_of_row,
    scaled,
    setting,
)
from honest_results import (
    HONEST,
    LEVEL0,
    OLD_QUICK,
    OLD_RIGOROUS,
    QUICK,
    RECIPE,
    RECORDED,
    RIGOROUS,
    RUN,
    SET,
    STUDY,
    hashed_anew,
)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per kind of result, made now; read only."""
    folder = tmp_path_factory.mktemp("honest")
    honest_results.make(folder)
    return folder


@pytest.fixture
def given(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of the honest folders."""

    def copy(kind: str) -> Path:
        folder = Path(shutil.copytree(HONEST / kind, tmp_path / kind))
        if kind in (QUICK, RIGOROUS, OLD_QUICK, OLD_RIGOROUS):
            shutil.copy(digits_lenet.__file__, folder / "recipe.py")
        return folder

    return copy


@pytest.mark.parametrize("kind", [RUN, SET, STUDY, QUICK, RIGOROUS, LEVEL0, RECORDED])
@pytest.mark.parametrize("when", ["committed", pytest.param("made now", marks=pytest.mark.slow)])
def test_honest_results_pass(
    when: str, kind: str, given: Callable[[str], Path], request: pytest.FixtureRequest
) -> None:
    report = audit([given(kind) if when == "committed" else request.getfixturevalue("made") / kind])
    assert [str(finding) for finding in report.findings] == []
    assert report
    assert report.checks > 20
    folders = {SET: 2, STUDY: 5}.get(kind, 1)
    assert report.folders == folders


@pytest.mark.parametrize("kind", [OLD_QUICK, OLD_RIGOROUS])
def test_comparisons_of_the_first_scheme_pass_under_its_rules(kind: str, given: Callable[[str], Path]) -> None:
    report = audit([given(kind)])
    assert [str(finding) for finding in report.findings] == []
    assert report.checks > 20


@pytest.mark.parametrize(
    ("kind", "doctor", "rule", "words"), [row[1:] for row in CORPUS], ids=[row[0] for row in CORPUS]
)
def test_doctored_results_are_caught(
    given: Callable[[str], Path], kind: str, doctor: Doctor, rule: int, words: str
) -> None:
    """The audit finds the change, under the right rule; the same folder passed before."""
    folder = given(kind)
    assert audit([folder])
    doctor(folder)
    hashed_anew(folder)  # so that no hash of a raw file finds it
    report = audit([folder])
    assert not report
    found = [str(finding) for finding in report.findings]
    assert any(finding.rule == rule and words in finding.what for finding in report.findings), found


@pytest.mark.parametrize(("kind", "doctor", "file", "word"), [row[1:] for row in LATER], ids=[row[0] for row in LATER])
def test_raw_files_that_were_changed_after_the_run(
    given: Callable[[str], Path], kind: str, doctor: Doctor, file: str, word: str
) -> None:
    folder = given(kind)
    doctor(folder)
    said = {"changed": f"{file} was changed after the run", "missing": f"{file} is missing; the run ended with it"}
    found = [str(finding) for finding in audit([folder]).findings]
    assert any(finding.startswith("rule 8: ") and said[word] in finding for finding in found), found


def test_results_without_hashes_of_raw_files_say_so(given: Callable[[str], Path]) -> None:
    for kind in (RUN, QUICK):
        folder = given(kind)
        for path in (*folder.glob("result.json"), *folder.glob("comparison.json")):
            document = json.loads(path.read_text())
            del document["files"]
            path.write_text(json.dumps(document))
        report = audit([folder])
        assert [str(finding) for finding in report.findings] == []
        assert report.skipped["the bytes of raw files: no hashes of them are stored, because an older deep5 made it"]


def test_the_docs_list_every_cheat() -> None:
    docs = Path(__file__).parents[2] / "docs" / "results" / "red_team.md"
    assert docs.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(("kind", "doctor"), [row[1:3] for row in UNSEEN], ids=[row[0] for row in UNSEEN])
def test_what_a_folder_cannot_show(given: Callable[[str], Path], kind: str, doctor: Doctor) -> None:
    """The docs name these limits; a finding here is good news, and the row belongs to those that are caught."""
    folder = given(kind)
    doctor(folder)
    hashed_anew(folder)
    assert audit([folder])


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_comparison_that_was_ended_between_looks_passes(given: Callable[[str], Path], rounds: int) -> None:
    """There is no noise floor for a number of rounds at which no look takes place, and no verdict claims anything."""
    folder = given(RIGOROUS)
    made = [sample for sample in read_round_samples(folder / "samples.csv") if sample.round < rounds]
    (folder / "samples.csv").write_text(round_samples_text(made))
    with edited(folder / "comparison.json") as document:
        own = [row for row in document["processes"] if row["round"] is None or row["round"] < rounds]
        sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
        document |= {"status": "aborted", "reasons": ["interrupted"], "resources": None, "processes": own}
        document["results"] = results_of(made, sizes)
        document["verdicts"] = verdicts_of(made, document["baseline"], {})
    assert [str(finding) for finding in audit([folder]).findings] == []
    # A floor of one process per candidate is a finding.
    with edited(folder / "comparison.json") as document:
        document["verdicts"][0]["floor"] = 1.5
    assert any(finding.rule == 10 for finding in audit([folder]).findings)


class Ended(d5.Event):
    """Ends a run at a step, in one of the ways in which runs end."""

    def __init__(self, at: int, how: BaseException) -> None:
        self.at, self.how = at, how

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.step == self.at:
            raise self.how


def one_run(out: Path, changes: dict[str, Any], event: d5.Event | None = None, **options: Any) -> Path:
    """The folder of a run of RECIPE, however the run ended."""
    out.mkdir(exist_ok=True)
    (out / "small.py").write_text(RECIPE)
    recipe = load_recipe(out / "small.py").with_settings(changes)
    with suppress(RunFailed, KeyboardInterrupt):
        execute(recipe, out=out / "runs", quiet=True, events=() if event is None else (event,), **options)
    (folder,) = (out / "runs").iterdir()
    return folder


@pytest.mark.parametrize(
    ("changes", "event", "status"),
    [
        ({}, Ended(5, ValueError("broken")), "failed"),
        ({}, Ended(0, ValueError("broken")), "failed"),
        ({}, Ended(5, KeyboardInterrupt()), "aborted"),
        ({}, Ended(4, d5.StopTraining("enough")), "success"),
        ({"batch_size": 40}, None, "success"),
        ({"batch_size": 96}, None, "success"),
        ({"train_sampler": "shuffle", "accumulate": 2}, None, "success"),
        ({"threads": 1, "optimizer": "adam"}, None, "success"),
    ],
)
def test_honest_runs_of_every_end_pass(
    tmp_path: Path, changes: dict[str, Any], event: d5.Event | None, status: str
) -> None:
    folder = one_run(tmp_path, changes, event)
    document = json.loads((folder / "result.json").read_text())
    assert document["status"] == status
    raw = {"samples.csv", "events.mllog", "dataset.json", "environment.json"}
    assert set(document["files"]) == raw
    assert [str(finding) for finding in audit([folder]).findings] == []
    (folder / "samples.csv").write_text((folder / "samples.csv").read_text() + " ")
    assert any("samples.csv was changed after the run" in str(finding) for finding in audit([folder]).findings)


@pytest.mark.parametrize("step", [1, 4])
def test_honest_runs_that_were_resumed_pass(tmp_path: Path, step: int) -> None:
    """The resumed process sees some sizes of batches for the first time."""
    keeper = Checkpointer(every_steps=1, every_s=None)
    folder = one_run(tmp_path, {"batch_size": 40}, Ended(step, KeyboardInterrupt()), checkpointer=keeper)
    execute(
        load_recipe(tmp_path / "small.py").with_settings({"batch_size": 40}), resume=folder, out=tmp_path, quiet=True
    )
    document = json.loads((folder / "result.json").read_text())
    assert (document["status"], len(document["resumed"])) == ("success", 1)
    assert set(document["files"]) == {"samples.csv", "events.mllog", "dataset.json", "environment-2.json"}
    report = audit([folder])
    assert [str(finding) for finding in report.findings] == []
    assert not any("the first steps of each size" in what or "throughput" in what for what in report.skipped)


def test_a_recipe_run_twice_is_no_study(tmp_path: Path) -> None:
    """Two honest runs with the recipe's own seed: only within one study would they be repetitions."""
    for number in range(2):
        one_run(tmp_path / str(number), {}).rename(tmp_path / f"run-{number}")
    report = audit([tmp_path / "run-0", tmp_path / "run-1"])
    assert [str(finding) for finding in report.findings] == []
    assert report.folders == 2


def test_a_busy_machine_is_no_fraud(given: Callable[[str], Path]) -> None:
    """In slow epochs more time may lie between two readings of the clock, and between dates and clock."""

    def slow(row: dict[str, str]) -> dict[str, str]:
        row["time_s"] = repr(float(row["time_s"]) * 200) if row["time_s"] else ""
        if row["metric"] == "time_to_accuracy":
            row["time_s"] = repr(float(row["time_s"]) + 0.2)
        if row["metric"] in ("wall_clock_time", "time_to_accuracy"):
            row["value"] = row["time_s"]
        return row

    folder = given(RUN)
    cells(slow)(folder)
    told = [finding.what for finding in audit([folder]).findings]
    assert not any("are not those of the evaluations" in what for what in told)


def lived(folder: Path, seconds: int, wall_s: float) -> list[str]:
    with edited(folder / "result.json") as document:
        begun = datetime.fromisoformat(document["started"])
        document["finished"] = (begun + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        document["resources"]["wall_time_s"] = wall_s
    return [finding.what for finding in audit([folder]).findings]


def test_dates_and_clock_may_differ_by_a_share(given: Callable[[str], Path]) -> None:
    folder = given(RUN)
    assert lived(folder, 108, 100.0) == []
    assert "it took 300 s by its dates and 100 s by its clock; allowed: a difference of 35 s" in lived(
        folder, 300, 100.0
    )


@pytest.mark.parametrize("left", [None, 0, 1, 2, 3])
def test_a_round_that_was_broken_off_and_ran_again_has_no_fault(left: int | None, given: Callable[[str], Path]) -> None:
    folder = given(RIGOROUS)
    broken_off(1, 2, left)(folder)
    hashed_anew(folder)
    assert [str(finding) for finding in audit([folder]).findings] == []


def test_a_round_that_was_interrupted_goes_on_in_an_order_of_its_own() -> None:
    """A candidate that had failed in the round before stays failed; all others run again."""
    labels = list("abcdef")
    drawn = [labels[place] for place in drawn_order(7, 2, 6)]
    gone = drawn[1]
    rows = [{"label": label, "settings": {}, "failed_rounds": [2] if label == gone else []} for label in labels]
    document = {"seed": 7, "mode": "rigorous", "candidates": rows, "resumed": ["then"], "statistics": {"scheme": 2}}
    rest = [label for label in labels if label != gone]
    again = [gone] + [rest[place] for place in drawn_order(7, 2, 5)]
    due, ran = ([(2, label) for label in order] for order in (drawn, again))
    assert ran != due
    assert _is_in_turn(document, due, due)
    assert _is_in_turn(document, ran, due)
    assert not _is_in_turn(document | {"resumed": []}, ran, due)
    assert not _is_in_turn(document, ran[::-1], due)
    for row in rows:
        row["failed_rounds"] = []
    assert not _is_in_turn(document, ran, due)


@pytest.mark.parametrize("kind", ["profile", "network"])
def test_what_claims_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / f"{kind}.json").write_text("{}")
    report = audit([tmp_path])
    assert report
    assert list(report.skipped) == [f"a {kind}: the rules do not apply to it"]


def lines_of(answer: Any) -> list[str]:
    """All lines except the last, which holds the counts."""
    return [line for line in answer.out.splitlines()[:-1] if not line.startswith("not re-checked")]


def test_what_documents_say_steers_no_terminal(given: Callable[[str], Path], deep5: Any) -> None:
    folder = given(QUICK)
    setting("candidates", 1, "label", to="\x1b[2Jfine\u202e")(folder)
    found = deep5("audit", str(folder))
    assert found.status == 1
    assert "\\x1b[2Jfine\\u202e" in found.out
    assert found.out.replace("\n", "").isprintable()
    other = folder.rename(folder.with_name("a\nrule 1: b\x1b"))
    assert all(line.startswith("rule ") and "/a rule 1: b" in line for line in lines_of(deep5("audit", str(other))))


def test_thousands_of_folders_take_as_many_looks(tmp_path: Path, given: Callable[[str], Path]) -> None:
    """Twice the folders take twice the checks, not four times as many."""
    document = json.loads((given(RUN) / "result.json").read_text())
    document |= {"status": "aborted", "reasons": ["ended"], "accepted": None, "warnings": [], "files": {}}
    for row in document["metrics"]:
        row.update(value=None, passed=None, interval=None, samples=0)
    source = (tmp_path / RUN / "recipe.py").read_bytes()
    checks = []
    for count in (1000, 2000):
        for number in range(count):
            folder = tmp_path / str(count) / f"{number}"
            folder.mkdir(parents=True)
            (folder / "recipe.py").write_bytes(source)
            (folder / "result.json").write_text(
                json.dumps(document | {"run_id": f"{document['run_id'][:-6]}{number:06x}"})
            )
        report = audit([tmp_path / str(count)])
        assert [str(finding) for finding in report.findings] == []
        assert report.folders == count
        checks.append(report.checks)
    assert checks[1] == 2 * checks[0]


def test_settings_that_are_objects_are_no_finding() -> None:
    """A recipe holds the contents of a file or a class, and the settings hold its name."""
    ledger = Ledger("folder")
    held = {"file": "rules.py", "name": "Mine"}
    parts = {"optimizer": held, "events": ["halve"], "framework": "native:adam"}
    check_set(ledger, "run", {"optimizer": "rules.py:Mine", "events": ["deep5.events:Halve"]}, parts)
    assert (ledger.findings, sum(ledger.skipped.values())) == ([], 2)
    check_set(ledger, "run", {"framework": "native:sgd"}, parts)
    assert len(ledger.findings) == 1


def test_a_finding_tells_where_long_values_differ() -> None:
    ledger = Ledger("folder")
    long = {"a": list(range(100)), "b": {"c": "x" * 100, "d": 1}}
    ledger.same(14, "documents", long, {**long, "b": {**long["b"], "d": 2}})
    ledger.same(14, "lists", list(range(50)), [*range(49), 7])
    ledger.same(14, "a part", long, {"a": long["a"]})
    ledger.same(14, "hashes", "a" * 64, "b" * 64)
    ledger.same(14, "ends", "a" * 100, "a" * 99 + "b")
    assert [finding.what for finding in ledger.findings] == [
        "documents, at b.d; stored 1, recomputed 2",
        "lists, at [49]; stored 49, recomputed 7",
        "a part, at b; stored {'c': '" + "x" * 53 + "…, recomputed nothing",
        f"hashes; stored '{'a' * 60}…', recomputed '{'b' * 60}…'",
        f"ends; stored '…{'a' * 13}', recomputed '…{'a' * 12}b'",
    ]


def test_every_rule_has_a_doctored_result() -> None:
    rules = {rule for *_, rule, _ in CORPUS}
    assert rules == set(range(1, 15))


def test_times_below_what_the_arithmetic_needs(given: Callable[[str], Path]) -> None:
    """Everything derived from the times is consistent: what remains is that no machine is that fast."""
    folder = given(QUICK)
    scaled(1e-4, clock=True)(folder)
    found = [finding.what for finding in audit([folder]).findings if finding.rule == 8]
    assert any("operations take at least" in what for what in found)
    folder = given(LEVEL0)
    cells(lambda r: {**r, "value": repr(float(r["value"]) * 1e-4)} if r["metric"] != "operator_coverage" else r)(folder)
    with edited(folder / "operators.json") as document:
        for row in document["rows"]:
            row |= {key: row[key] * 1e-4 for key in ("median_s", "low_s", "high_s") if row[key] is not None}
            row |= {"calls": row["calls"] * 10_000, **rates_of_row(document)}
    with edited(folder / "result.json") as document:
        own = document["metrics"][0]
        own["value"] *= 1e-4
        if own["interval"] is not None:
            own["interval"] |= {key: own["interval"][key] * 1e-4 for key in ("low", "high")}
    # Of calls this short, the loop's own time is also a large part, which no warning states.
    finding, warning = sorted(audit([folder]).findings, key=lambda found: found.rule)
    assert finding.rule == 8
    assert "the machine's measured peak" in finding.what
    assert "a warning is missing: loop itself" in warning.what


def test_a_comparison_ends_where_it_is_decided(given: Callable[[str], Path]) -> None:
    folder = given(RIGOROUS)
    setting("measurement", "most_processes", to=16)(folder)
    decided = json.loads((folder / "comparison.json").read_text())["verdicts"][0]["word"] != "no difference shown"
    report = audit([folder])
    # Undecided after ten rounds, it had to continue.
    assert decided == bool(report)
    assert decided or {finding.rule for finding in report.findings} == {11}


def test_numbers_without_end_are_told_soon(given: Callable[[str], Path]) -> None:
    folder = given(RIGOROUS)
    setting("measurement", "most_processes", to=10**30)(folder)
    setting("processes", 5, "round", to=10**30)(folder)
    setting("verdicts", 0, "rounds", to=10**30)(folder)
    assert {8, 10} <= {finding.rule for finding in audit([folder]).findings}


def test_nothing_in_a_folder_is_run(given: Callable[[str], Path], tmp_path: Path) -> None:
    folder, mark = given(RUN), tmp_path / "was run"
    (folder / "recipe.py").write_text(f"open({str(mark)!r}, 'w')\n")
    assert not audit([folder])
    assert not mark.exists()


def test_weights_in_another_file_are_not_read(given: Callable[[str], Path]) -> None:
    import onnx

    folder = given(RUN)
    model = onnx.load_model(folder / "network.onnx")
    entry = model.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    (folder / "network.onnx").write_bytes(model.SerializeToString())
    found = [finding.what for finding in audit([folder]).findings if finding.rule == 14]
    assert any("lie in another file" in what for what in found)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not an existing folder; allowed: a folder that deep5 run"):
        audit([tmp_path / "none"])
    names = r"comparison\.json, study\.json, sweep\.json, result\.json"
    with pytest.raises(UsageError, match=f"holds no result: neither {names}"):
        audit([tmp_path])
    with pytest.raises(UsageError, match="no folder to audit"):
        audit([])


def test_a_folder_of_folders_is_a_set(given: Callable[[str], Path]) -> None:
    folder = given(SET)
    one, other = sorted(folder.iterdir())
    assert audit([one, other, one]).folders == 2
    shutil.copytree(one, folder / "copy")
    assert not audit([folder])


def test_the_command(given: Callable[[str], Path], deep5: Any) -> None:
    fine = deep5("audit", str(HONEST / RUN), str(given(QUICK)))
    assert fine.status == 0
    assert fine.out.splitlines()[-1].startswith("2 folders, ")
    assert "not re-checked, 1 time: the hash of the initial weights" in fine.out
    assert "not re-checked, 1 time: the calibration: its machine, date" in fine.out
    folder = given(RUN)
    metric("peak_memory", value=1.0)(folder)
    found = deep5("audit", str(folder))
    assert found.status == 1
    assert f"rule 9: {folder}: the value of peak_memory; stored 1.0, recomputed " in found.out
    told = json.loads(deep5("audit", "--json", str(folder)).out)
    assert [row["rule"] for row in told["findings"]] == [9]
    assert not told["passed"]
    assert deep5("audit", "--quiet", str(HONEST / RUN)).out == ""
    assert deep5("audit", str(folder / "none")).status == 2


def test_tolerances_are_those_of_the_proof() -> None:
    from deep5.audit import proof_rows
    from deep5.compare import proof
    from deep5.training import trajectory

    table = proof_rows._TOLERANCES
    assert {"a": proof._OUTPUTS["float64"], "b": proof._OUTPUTS["float32"]} == proof_rows._OUTPUTS
    assert table["training", "a"] == {"losses in float64, free-running": (trajectory._FREE_DOUBLE,)}
    assert table["training", "d"] == {"losses in float32, free-running": (trajectory._FREE_SINGLE,)}
    assert table["training", "c"] == {
        "gradients at a float64 state": tuple(trajectory._GRADIENT.values()),
        "gradients in float64 at a float64 state": (trajectory._GRADIENT_DOUBLE,),
    }
    assert table["training", "b"]["loss at a float64 state"] == (trajectory._RESTARTED,)
    assert table["training", "b"]["update on its own gradient"] == (trajectory._UPDATE,)
    assert table["training", "b"]["update of a whole step"] == (trajectory._WHOLE,)


IN_MINUTES = """\
FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
    "epochs": 1,
}
MUTABLE = {"batch_size": 16, "framework": "reference", "optimizer": "sgd"}
METRICS = [("step_latency", "< 1.7 min"), ("peak_memory", "< 100 GB")]
"""


def test_goals_in_other_units_than_the_metrics_are_those_declared(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(IN_MINUTES)
    folder = Path(execute(load_recipe(tmp_path / "own.py"), out=tmp_path / "results", quiet=True).folder)
    assert audit([folder]), audit([folder]).findings
    stored = (folder / "recipe.py").read_text()
    for goal, other in (("1.7 min", "1.7 s"), ("1.7 min", "1.8 min"), ("100 GB", "100 GiB"), ("100 GB", "100 s")):
        (folder / "recipe.py").write_text(stored.replace(goal, other))
        assert any("the goals are not those of recipe.py" in str(found) for found in audit([folder]).findings)


SIZED = """
import deep5 as d5

class Net:
    pass

FIXED = {"model": Net, "dataset": "digits", "epochs": 2}
MUTABLE = {"batch_size": 64}
METRICS = [(d5.TestAccuracy(), ">= 80 %")]
SIZES = {"smoke": {"epochs": 1}}
"""
MAIN = """
if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
"""


def of_recipe(folder: Path, source: str | None, size: str, epochs: int) -> Ledger:
    """The checks of a result against the source of its recipe."""
    folder.mkdir(exist_ok=True)
    if source is not None:
        (folder / "recipe.py").write_text(source)
    recipe = {
        "size": size,
        "fixed": {"model": {"object": "Net"}, "dataset": "digits", "epochs": epochs},
        "metrics": [{"metric": "test_accuracy", "goal": ">= 80"}],
    }
    ledger = Ledger("folder")
    check_declared(ledger, folder, {"recipe": recipe, "metrics": [{"unit": "%"}]})
    check_stated_parts(ledger, folder, {"recipe": recipe})
    return ledger


@pytest.mark.parametrize(
    "main",
    [
        "",
        MAIN,
        MAIN.replace("FIXED, MUTABLE, METRICS,", "FIXED, MUTABLE, metrics=METRICS,"),
        MAIN.replace("FIXED, MUTABLE, METRICS,", "metrics=METRICS, mutable=MUTABLE, fixed=FIXED,"),
        MAIN.replace(", sizes=SIZES", ""),
    ],
)
def test_sizes_that_are_given_to_run_recipe_are_checked(main: str, tmp_path: Path) -> None:
    """As the docs write it: a variable that is only an argument of run_recipe is what the file states."""
    for size, epochs in (("full", 2), ("smoke", 1)):
        ledger = of_recipe(tmp_path, SIZED + main, size, epochs)
        goals = {"goals against recipe.py: they are of another size than the full one"} if size == "smoke" else set()
        assert (ledger.findings, set(ledger.skipped)) == ([], goals)
        (found,) = of_recipe(tmp_path, SIZED + main, size, 7).findings
        assert found.what == f"epochs of the recipe, by FIXED of recipe.py; stored 7, recomputed {epochs}"
    (found,) = of_recipe(tmp_path, SIZED + main, "tiny", 1).findings
    assert found.what == "the size is 'tiny'; allowed: full, smoke"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "the folder has no recipe.py"),
        ("FIXED = {", "it is not Python code that this Python reads"),
        (SIZED + "SIZES['smoke']['epochs'] = 9\n", "SIZES has other uses than as an argument of run_recipe"),
        (SIZED + "SIZES = {}\n", "SIZES is not assigned exactly once"),
        (SIZED.replace('{"smoke": {"epochs": 1}}', "dict(smoke={})"), "SIZES is not written as a literal dict"),
        (SIZED.replace('"smoke":', '"smo" + "ke":'), "a key of SIZES is not written as a literal"),
        (SIZED.replace('{"epochs": 1}}', "dict(epochs=1)}"), "SIZES does not state 'smoke' in literals"),
        (SIZED.replace("SIZES =", "OTHER =") + "from base import SIZES\n", "an import may define SIZES"),
        (SIZED + MAIN.replace("sizes=SIZES", "sizes={}"), "a call of run_recipe does not get SIZES by this name"),
        (SIZED + MAIN.replace("sizes=SIZES", "**more"), "a call of run_recipe does not get FIXED by this name"),
        (SIZED + "print(FIXED)\n", "FIXED has other uses than as an argument of run_recipe"),
        (SIZED.replace("FIXED =", "PARTS ="), "FIXED is not assigned exactly once"),
    ],
)
def test_why_a_recipe_is_not_rechecked(source: str | None, reason: str, tmp_path: Path) -> None:
    ledger = of_recipe(tmp_path / "own", source, "smoke", 1)
    assert ledger.findings == []
    assert any(reason in what for what in ledger.skipped), ledger.skipped


@pytest.mark.parametrize(
    ("stated", "declared", "unit", "same"),
    [
        ("< 1 min", "< 60", "s", True),
        ("< 1 min", "< 60", "ms", False),
        ("< 1 min", "< 60", None, True),
        ("< 1 min", "< 61", None, False),
        ("< 1 min", "< 1", "s", False),
        ("< 60 s", "< 60", "s", True),
        ("< 60 s", "<= 60", "s", False),
        (60, "<= 60", "s", True),
        (">= 97 %", ">= 97", "%", True),
        (">= 97 %", ">= 97", None, True),
        (">= 97 %", ">= 0.97", None, False),
        ("< 1e999 s", "< 60", "s", False),
        (None, None, "s", True),
        (None, "< 60", "s", False),
    ],
)
def test_a_goal_as_written_and_as_declared(stated: object, declared: str | None, unit: str | None, same: bool) -> None:
    assert _same(stated, declared, unit) == same
