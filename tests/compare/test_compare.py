"""`deep5 compare`: proof before timing, fresh processes in turn, a verdict, and the handling of bad candidates."""

from __future__ import annotations

import inspect
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import deep5.measuring.calibration
from command import Command
from deep5.audit.folders import audit
from deep5.compare.driver import run_comparison
from deep5.compare.options import parse_variation
from deep5.compare.plan import make_plan
from deep5.compare.record import _ORDERS, ComparisonRecord
from deep5.core.errors import MissingDependency, RecipeError, RunFailed, UsageError
from deep5.core.plugins import load
from deep5.measuring.calibration import Calibration
from deep5.measuring.environment import default_threads
from deep5.measuring.pinning import processors
from deep5.measuring.scheme import CURRENT, SCHEMES
from deep5.results.comparison import load_comparison
from deep5.results.comparison_summary import results_of, standing, verdicts_of
from deep5.results.comparison_table import comparison_tables, sentence, whole_table
from deep5.results.comparison_warnings import warnings_of_machine
from deep5.results.folder import locked
from deep5.results.round_samples import order_of_round, round_samples_text

pytestmark = pytest.mark.usefixtures("warm")

STEPS = 6

# Frameworks that do what no framework should: each is the reference with a defect.
BAD = '''
import copy, os, time
import numpy as np
from deep5.frameworks.reference.framework import Reference


class Spoiled(Reference):
    """Spoils what executors give."""

    def executor(self, network, **options):
        made = super().executor(network, **options)
        step = made.train_step

        def train_step(*args, **more):
            return Wrapped(step(*args, **more), self)

        made.train_step = train_step
        return made

    def called(self, call):
        return self.spoiled(call())


class Wrapped:
    def __init__(self, step, owner):
        self._step, self._owner = step, owner

    def __getattr__(self, name):
        return getattr(self._step, name)

    def __call__(self, inputs, info):
        return self._owner.called(lambda: self._step(inputs, info))


class Aborts(Spoiled):
    name = "aborts"

    def spoiled(self, outputs):
        os.abort()


class Leaves(Spoiled):
    name = "leaves"

    def spoiled(self, outputs):
        os._exit(0)


class Hangs(Spoiled):
    name = "hangs"

    def spoiled(self, outputs):
        time.sleep(1000)


class Hoards(Spoiled):
    name = "hoards"

    def spoiled(self, outputs):
        self.hoard = getattr(self, "hoard", []) + [np.ones(8_000_000)]
        time.sleep(0.02)
        return outputs


class Babbles(Spoiled):
    name = "babbles"

    def spoiled(self, outputs):
        print("}{" * 2000, flush=True)
        return {**outputs, "loss": np.float32("nan")}


class Floods(Spoiled):
    name = "floods"

    def spoiled(self, outputs):
        while True:
            print("x" * (1 << 20))


class Differs(Spoiled):
    name = "differs"

    def spoiled(self, outputs):
        return {**outputs, "loss": outputs["loss"] * np.float32(1.001)}


class Raises(Spoiled):
    name = "raises"

    def spoiled(self, outputs):
        raise RuntimeError("nothing here")


class Same(Reference):
    name = "same"


class Rounds(Reference):
    """Right, but for products by themselves, which are rounded as TF32 does."""

    name = "rounds"

    def operator_executor(self, operator, **options):
        made = super().operator_executor(operator, **options)
        inference = made.inference

        def rounded(*inputs):
            cut = [(np.asarray(x).view(np.int32) & ~0x1FFF).view(np.float32) for x in inputs]
            return inference(*cut)

        made.inference = rounded
        return made


class Later:
    def __init__(self, finish):
        self._finish = finish

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._finish(), dtype)


class Lazy(Spoiled):
    """Right, but late: steps are done when somebody looks at what they made. To end some day, it does the last only."""

    name = "lazy"

    def executor(self, network, **options):
        made = super().executor(network, **options)
        self._waiting, self._loss, parameters = [], 0.0, made.parameters

        def finished():
            self.finish()
            return parameters()

        made.parameters = finished
        return made

    def finish(self):
        due, self._waiting = self._waiting[-100:], []
        for call in due:
            outputs = call()
        self._loss = outputs["loss"] if due else self._loss
        return self._loss

    def called(self, call):
        self._waiting = [*self._waiting[-99:], call]
        return {"loss": Later(self.finish)}


class Deaf(Reference):
    """Right, but for what a schedule sets: it computes on with what it began with."""

    name = "deaf"

    def executor(self, network, **options):
        made = super().executor(network, **options)
        step = made.train_step

        def train_step(rule, *args, **more):
            return step(copy.copy(rule), *args, **more)

        made.train_step = train_step
        return made
'''


RULE = """
import deep5 as d5


class Mine(d5.UpdateRule):
    def update_rule(self, grad, param, state):
        return param - 0.01 * grad, state
"""


@pytest.fixture(autouse=True, scope="module")
def calibrated() -> Any:
    """A quiet machine's calibration, in the session's own cache: the machine is not under test.

    One thread each: other tests run at the same time, on the same processors.
    """
    patched = pytest.MonkeyPatch()
    patched.setenv("OMP_NUM_THREADS", "1")
    made = Calibration(
        machine=deep5.measuring.calibration.machine_id(),
        threads=default_threads("") or 1,
        processes={"matrix product": tuple(1 + 0.001 * (number % 7) for number in range(32))},
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        # Otherwise no quick comparison would get a verdict.
        others_share=1.0,
    )
    path = deep5.measuring.calibration._file(made.machine, made.threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made.document()))
    patched.setattr(deep5.measuring.calibration, "_LOADED_LASTS_S", 24 * 3600.0)
    yield
    path.unlink()
    patched.undo()


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frameworks") / "bad.py"
    path.write_text(BAD)
    return path


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A comparison of two correct candidates."""
    return run_comparison(
        "digits_lenet",
        frameworks=["reference", "onnxruntime"],
        size="smoke",
        steps=STEPS,
        out=tmp_path_factory.mktemp("results"),
    )


@pytest.mark.slow
def test_the_reference_need_be_no_candidate(tmp_path: Path) -> None:
    found = run_comparison(
        "digits_lenet", frameworks=["onnxruntime", "jax"], size="smoke", steps=2, kind="inference", out=tmp_path
    )
    assert [row["status"] for row in found.candidates] == ["timed", "timed"]


@pytest.mark.daily
def test_the_four_steps_leave_all_that_a_sceptic_asks_for(quick: Any) -> None:
    document = quick.document
    assert quick
    assert [row["status"] for row in quick.candidates] == ["timed", "timed"]
    # 1. Every part of the proof, for every candidate that computes in float64.
    parts = {(row["candidate"], row["part"]) for row in document["equivalence"]}
    assert parts == {("reference", part) for part in "abcd"} | {("onnxruntime", part) for part in "bcd"}
    assert all(
        row["passed"] and row["relative"] <= row["allowed"] and row["ulps"] >= 0 for row in document["equivalence"]
    )
    assert any("float64" in told for told in quick.candidates[1]["left_out"])
    # 2. The settings read back, the pinned processors, and each candidate's own peaks.
    for row in quick.candidates:
        assert row["observed"]["threads"] == document["threads"]
        assert row["observed"]["affinity"] == document["measurement"]["processors"]
        assert row["observed"]["dtype"] == "float32"
        assert row["peaks"]["product_flop_s"] > 1e8
        assert row["peaks"]["product_error"] < 1e-5
    assert quick.candidates[1]["observed"]["spinning"] is False
    # 3. Each in its own process, one after the other.
    processes = document["processes"]
    assert [row["job"] for row in processes] == ["reference", "prove", "prove", *["time"] * 4]
    for before, after in itertools.pairwise(processes):
        assert before["begin_s"] + before["wall_s"] <= after["begin_s"]
    assert all(row["memory_bytes"] > 1e7 and row["reason"] is None for row in processes)
    samples = quick.samples()
    assert {sample.phase for sample in samples} >= {"first", "steady"}
    assert {sample.round for sample in samples} == {0, 1}
    ran = [(row["round"], row["candidate"]) for row in processes[3:]]
    assert [candidate for _, candidate in ran[2:]] == [candidate for _, candidate in ran[1::-1]]
    # 4. A verdict based on the machine's floor.
    (verdict,) = quick.verdicts
    assert (verdict["candidate"], verdict["baseline"]) == ("onnxruntime", "reference")
    assert verdict["floor"] == pytest.approx(1.006)
    assert document["mode"] == "quick"


@pytest.mark.slow
def test_a_machine_that_is_too_noisy_says_so(tmp_path: Path) -> None:
    """Identical code that differs by half: a candidate that takes less than twice as long gets no verdict."""
    made = deep5.measuring.calibration.machine_id(), default_threads("") or 1
    path = deep5.measuring.calibration._file(*made)
    quiet = path.read_text()
    document = json.loads(quiet)
    document["processes"] = {"copy": [1.0 + 0.5 * (number % 2) for number in range(32)]}
    document["others_share"] = 0.0
    path.write_text(json.dumps(document))
    pin = f"import os; os.sched_setaffinity(0, {processors(1)})"
    busy = subprocess.Popen([sys.executable, "-c", f"{pin}\nwhile True: pass"])
    try:
        found = run_comparison(
            "digits_lenet",
            frameworks=["reference"],
            vary={"optimizer": ["sgd", "momentum"]},
            size="smoke",
            steps=2,
            out=tmp_path,
        )
    finally:
        busy.kill()
        busy.wait()
        path.write_text(quiet)
    # Another process computes on the candidates' own processor all the time.
    (crowded, _) = [told for told in found.document["warnings"] if "other programs took up to" in told]
    assert ", more than while the machine was calibrated, so there is no verdict; remedy: a quiet machine" in crowded
    assert any(
        "this machine is noisy: identical code may differ by up to 50 %" in told for told in found.document["warnings"]
    )
    assert [row["word"] for row in found.verdicts] == ["no difference shown"]
    assert found.verdicts[0]["floor"] is None  # a quiet machine's floor does not apply here
    told = "no difference shown: it has no valid noise floor; see the warnings"
    assert sentence(found.verdicts[0], CURRENT) == told


def test_what_is_said_follows_from_the_samples(quick: Any) -> None:
    samples, document = quick.samples(), quick.document
    sizes = {("training step", name): 64 for name in ("reference", "onnxruntime")}
    assert results_of(samples, sizes) == document["results"]
    assert (
        verdicts_of(samples, "reference", {CURRENT.quick_rounds: document["verdicts"][0]["floor"]})
        == document["verdicts"]
    )


def test_the_folder_reads_back(quick: Any) -> None:
    assert load_comparison(quick.folder).document == quick.document
    assert {path.name for path in quick.folder.iterdir()} == {"comparison.json", "samples.csv", "recipe.py"}


def shown(result: Any) -> str:
    """What a terminal shows of a comparison."""
    out = io.StringIO()
    comparison_tables(result, Console(file=out, width=320))
    return out.getvalue()


def test_what_the_terminal_shows(quick: Any) -> None:
    told = shown(quick)
    lacks = "Conv_1 (Conv): ONNX Runtime has no kernel for Conv in float64; allowed: float32"
    said = f"onnxruntime: part (a) left out: in float64: onnxruntime cannot run this network: {lacks} … "
    left = "nothing needs to be done: the proof still has parts (b), (c), (d)"
    assert f"{said}(3 lines more in comparison.json); {left}" in told
    # Another precision is the proof's choice, and no remedy.
    assert "with_precision" not in told + json.dumps(quick.document)
    assert "same: error <= allowed; ULPs, the difference in units in the last place, do not decide" in told
    assert f"proof over {STEPS} steps: the worst row of each part" in told
    assert "other settings" not in told
    (line,) = re.findall(r"took .*: proof .*", told)
    named = re.findall(r"(took|proof|timing|preparation|deep5 itself) ([\d.]+) (s|ms)\b", line)
    spent = {name: float(value) / {"s": 1, "ms": 1000}[unit] for name, value, unit in named}
    # Each has three digits.
    assert spent.pop("took") == pytest.approx(sum(spent.values()), rel=0.02)
    timed = sum(row["wall_s"] for row in quick.document["processes"] if row["job"] == "time")
    assert spent["timing"] == pytest.approx(timed, rel=0.006)
    assert spent.keys() >= {"proof", "deep5 itself"}


def test_a_calibration_under_load_is_warned_of(quick: Any) -> None:
    document = quick.document
    for share, said in ((None, False), (0.04, False), (0.05, True)):
        warnings = warnings_of_machine({**document, "calibration": {**document["calibration"], "others_share": share}})
        assert any("while this machine was calibrated" in told for told in warnings) == said


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ": p is 0.016, not 0.002 (the smallest provable: 5.0 %)"),
        ({"p": 0.001, "low": 0.9}, ": the interval holds 1 (the smallest provable: 5.0 %)"),
        ({"p": 0.001, "floor": 1.3}, ": the ratio is within the noise floor, 30.0 % (the smallest provable: 5.0 %)"),
        (
            {"ratio": 0.9, "p": 0.001, "floor": 3.0},
            ": the ratio is within the noise floor, 3 times (the smallest provable: 5.0 %",
        ),
        ({"low": 0.9, "floor": 1.3}, ": p is 0.016, not 0.002; the interval holds 1; the ratio is within the noise f"),
        ({"p": 0.001, "rounds": 16}, ": p is 0.001, not 0.0005 (the smallest provable: 5.0 %)"),
        ({"p": 0.001, "floor": None, "smallest": None}, ": the noise floor of 10 rounds is not known"),
        ({"rounds": 3, "p": None, "low": None, "high": None, "smallest": None}, ": 3 rounds, and a verdict needs 10"),
        ({"rounds": 2, "p": None, "low": None, "high": None, "smallest": None}, " (below 2.0 % it may be noise)"),
    ],
)
def test_what_is_undecided_says_why(changes: dict[str, Any], told: str) -> None:
    row = {"word": "no difference shown", "ratio": 1.2, "low": 1.1, "high": 1.3, "floor": 1.02, "smallest": 1.05}
    assert sentence({**row, "p": 0.0156, "rounds": 10, **changes}, CURRENT).startswith("no difference shown" + told)


def test_claims_that_hold_together_are_counted() -> None:
    claims = [{"word": "faster", "sequential_p": 0.001, "whole_table": holds} for holds in (True, True, False)]
    other = {"word": "no difference shown", "sequential_p": 0.5, "whole_table": False}
    assert whole_table([*claims, other]) == (
        "2 of 3 claims hold for the whole table (at most 5 % of tables would have a wrong one)"
    )
    assert whole_table([*claims[:2], other]).startswith("all 2 claims hold for")
    assert whole_table([claims[0], other]).startswith("the one claim holds for")
    assert whole_table([claims[2], other]).startswith("the one claim does not hold for")
    assert (
        whole_table([other, {"word": "faster", "sequential_p": None, "whole_table": False}, {"word": "faster"}]) == ""
    )


def test_an_old_comparison_is_told_by_its_rules() -> None:
    row = {"word": "no difference shown", "ratio": 1.2, "low": 1.1, "high": 1.3, "floor": 1.02, "smallest": 1.05}
    assert "p is 0.016, not 0.0078" in sentence({**row, "p": 0.0156, "rounds": 8}, SCHEMES[1])


FAULTS = {
    "Aborts": ("failed", "killed by SIGABRT in the proof's trajectories"),
    "Leaves": ("failed", "exited with status 0 in the proof's trajectories, without an answer"),
    "Hangs": ("failed", "did not finish within 25 s, in the proof's trajectories; remedy: --time-limit"),
    "Hoards": ("failed", "iB, in the proof's trajectories; allowed: 1 GiB; remedy: --memory-limit"),
    "Babbles": ("different", "off by inf"),
    "Floods": ("failed", "it printed more than 64 MiB in the proof's trajectories"),
    "Lazy": ("failed", "reading the parameters took"),
    "Differs": ("different", "losses in float64, free-running is off by 0.001; allowed: 1e-09 (part a)"),
    "Raises": ("failed", "it raised RuntimeError: nothing here"),
    "Rounds": ("failed", "matrix products in float32 are off by"),
}


@pytest.fixture(scope="module")
def spoiled(bad: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bad candidates that this session has tests of, and two good ones around them."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = {item.callspec.params["name"] for item in tests if item.originalname == "test_a_bad_candidate_is_told"}
    return run_comparison(
        "digits_lenet",
        frameworks=["reference", *(f"{bad}:{name}" for name in FAULTS if name in asked), "onnxruntime"],
        size="smoke",
        steps=STEPS,
        out=tmp_path_factory.mktemp("results"),
        time_limit_s=25.0,
        memory_limit_bytes=1 << 30,
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("Differs", "Raises") else pytest.mark.slow) for name in FAULTS],
)
@pytest.mark.daily
def test_a_bad_candidate_is_told(name: str, spoiled: Any) -> None:
    (row,) = (row for row in spoiled.candidates if row["label"].endswith(f":{name}"))
    status, match = FAULTS[name]
    assert match in row["reason"]
    assert row["status"] == status
    # A pair that fails the proof gets no timing.
    assert name in ("Rounds", "Lazy") or not any(sample.candidate == row["label"] for sample in spoiled.samples())


@pytest.mark.parametrize("name", ["Lazy", pytest.param("Rounds", marks=pytest.mark.slow)])
def test_nobody_is_held_against_a_baseline_that_was_refused(name: str, bad: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="there is nothing to compare"):
        run_comparison("digits_lenet", frameworks=[f"{bad}:{name}", "onnxruntime"], size="smoke", steps=2, out=tmp_path)
    (folder,) = tmp_path.iterdir()
    left = load_comparison(folder)
    assert left.verdicts == []
    assert [row["candidate"] for row in left.results] == ["onnxruntime"]
    assert {sample.candidate for sample in left.samples()} == {"onnxruntime", f"{bad}:{name}"}  # kept anyway
    assert audit([folder]).findings == ()


def test_the_others_go_on(spoiled: Any) -> None:
    assert [row["status"] for row in spoiled.candidates if ":" not in row["label"]] == ["timed", "timed"]
    assert [row["candidate"] for row in spoiled.verdicts] == ["onnxruntime"]
    # Measurements of a refused candidate do not appear in a table.
    assert {row["candidate"] for row in spoiled.results} == {"reference", "onnxruntime"}
    assert audit([spoiled.folder]).findings == ()


@pytest.mark.slow
def test_what_a_schedule_does_is_part_of_the_proof(bad: Path, tmp_path: Path) -> None:
    """A step is timed with the recipe's schedules, so the proof includes them."""
    recipe = tmp_path / "scheduled.py"
    (digits,) = (entry for entry in entry_points(group="deep5.recipes") if entry.name == "digits_lenet")
    source = Path(str(find_spec(digits.value).origin)).read_text()  # type: ignore[union-attr]
    recipe.write_text(source + '\nMUTABLE["schedules"] = {"lr": d5.Piecewise(steps={0: 0.01, 3: 0.001})}\n')
    found = run_comparison(
        str(recipe),
        frameworks=["reference", "onnxruntime", f"{bad}:Deaf"],
        size="smoke",
        steps=STEPS,
        out=tmp_path / "results",
    )
    assert [row["status"] for row in found.candidates] == ["timed", "timed", "different"]
    assert "(part " in found.candidates[2]["reason"]


@pytest.mark.slow
def test_candidates_differ_in_any_mutable_part(tmp_path: Path) -> None:
    found = run_comparison(
        "digits_lenet",
        vary={"optimizer": ["adam", "momentum"], "batch_size": [16, 32]},
        frameworks=["reference"],
        size="smoke",
        steps=STEPS,
        out=tmp_path,
    )
    labels = [f"optimizer={name}, batch_size={size}" for name in ("adam", "momentum") for size in (16, 32)]
    assert [row["label"] for row in found.candidates] == labels
    assert [row["status"] for row in found.candidates] == ["timed"] * 4
    # Each has its own reference: they do not compute the same, and no claim says so.
    assert sum(row["job"] == "reference" for row in found.document["processes"]) == 4
    told = shown(found)
    assert told.count("; it has other settings and a separate proof") == 3
    assert (
        "Candidates with another optimizer or batch_size have other settings and a separate reference in the proof"
        in told
    )
    # The recipe's learning rate is Adam's; momentum has its own.
    assert f"\n{labels[0]} ran Adam, lr=0.003, beta1=0.9, beta2=0.999, epsilon=1e-08\n" in told
    assert f"\n{labels[2]} ran Momentum, lr=0.01, momentum=0.9, nesterov=False\n" in told
    both, others = ", ".join(labels[:2]), ", ".join(f"{label} (0.01)" for label in labels[2:])
    given = f"0.003 of the recipe's optimizer_kwargs for {both}, and the default of the class for {others}, "
    assert f"warning: the candidates have unequal lr: {given}" in told
    assert not audit([found.folder]).findings
    rates = {row["candidate"]: row["samples_per_s"] * row["median_s"] for row in found.results}
    assert {name: round(size) for name, size in rates.items()} == dict(zip(labels, (16, 32, 16, 32), strict=True))


@pytest.mark.parametrize("kind", ["inference", pytest.param("operators", marks=pytest.mark.slow)])
def test_inference_and_operators(kind: str, tmp_path: Path) -> None:
    recipe = "deepbench_gemm" if kind == "operators" else "digits_lenet"
    found = run_comparison(
        recipe,
        frameworks=["reference", "onnxruntime"],
        size="smoke",
        kind=None if kind == "operators" else kind,
        out=tmp_path,
    )
    assert found
    assert {row["part"] for row in found.document["equivalence"]} <= {"a", "b", "c"}
    assert all(row["passed"] for row in found.document["equivalence"])
    assert {row["candidate"] for row in found.results} == {"reference", "onnxruntime"}
    assert len({row["workload"] for row in found.results}) == (3 if kind == "operators" else 1)


@pytest.mark.slow
def test_a_rigorous_comparison_stops_when_it_has_an_answer(tmp_path: Path) -> None:
    """Samples in batches of 16 and of 320 take different times: it stops at the first look that has an answer."""
    found = run_comparison(
        "digits_lenet",
        frameworks=["reference"],
        vary={"batch_size": [16, 320]},
        size="smoke",
        steps=2,
        rigorous=True,
        out=tmp_path,
    )
    (verdict,) = found.verdicts
    assert verdict["per"] == "sample"
    assert verdict["rounds"] in CURRENT.looks
    assert (verdict["word"] == "no difference shown") <= (verdict["rounds"] == CURRENT.looks[-1])
    assert verdict["p"] >= 2 / 2 ** verdict["rounds"] * (1 - 1e-9)
    orders: dict[int, list[str]] = {}
    for row in found.document["processes"]:
        if row["job"] == "time":
            orders.setdefault(row["round"], []).append(row["candidate"])
    assert len({tuple(order) for order in orders.values()}) == 2  # a new order each round
    assert all(len(order) == 2 for order in orders.values())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"frameworks": ["reference"]}, "one candidate, reference; allowed: at least two"),
        ({"frameworks": ["reference", "reference"]}, "names a framework twice"),
        ({"frameworks": ["reference", "nothing"]}, "nothing"),
        ({"frameworks": ["pytorhc"]}, "unknown framework 'pytorhc'; .*did you mean 'pytorch'"),
        ({"frameworks": ["pytorch:compield"]}, "unknown pytorch mode 'compield'"),
        ({"frameworks": "pytorch,jax"}, "got frameworks='pytorch,jax'; allowed: a list of names, such as "),
        ({"frameworks": [1, 2]}, "allowed: a list of names"),
        ({"vary": "optimizer=adam"}, "got vary='optimizer=adam'; allowed: a dict of lists, such as "),
        ({"vary": {"optimizer": "adam"}}, "allowed: a dict of lists"),
        ({"settings": "batch_size=8"}, "allowed: a dict by keys of the recipe"),
        (
            {"of": "inference"},
            "unknown option of a comparison 'of'; allowed: baseline, .*; remedy: kind, its name in Python",
        ),
        ({"quiet": True}, "unknown option of a comparison 'quiet'; .*; remedy: tell, its name in Python"),
        ({"thread": 1}, "did you mean 'threads'"),
        ({"threads": "2"}, "got threads='2'; allowed: an integer"),
        ({"seed": -1}, "got seed=-1; allowed: an integer of at least 0"),
        ({"rigorous": "yes"}, "allowed: True or False"),
        ({"time_limit_s": "9"}, "allowed: a number of seconds"),
        ({"frameworks": ["reference", "jax"], "baseline": "pytorch"}, "is not a candidate; allowed: reference; jax"),
        ({"frameworks": ["reference", "jax"], "kind": "operators"}, "allowed: training, inference"),
        ({"frameworks": ["reference", "jax"], "settings": {"epochs": 3}}, "'epochs' is fixed"),
        ({"frameworks": ["reference", "jax"], "settings": {"events": []}}, "'events', which does not affect"),
        ({"frameworks": ["reference"], "vary": {"scheme": ["gossip"]}}, "'scheme', which does not affect"),
        ({"frameworks": ["reference", "jax"], "settings": {"dataset": "mnist"}}, "'dataset' is fixed"),
        ({"frameworks": ["reference"], "vary": {"threads": [1, 2]}}, "allowed: --threads"),
        ({"frameworks": ["reference"], "vary": {"batch_size": []}}, "has no value"),
        ({"frameworks": ["reference", "jax"], "settings": {"accumulate": 2}}, "which the proof covers"),
        ({"frameworks": ["reference", "jax"], "settings": {"precision": "bfloat16"}}, "which the proof covers"),
        ({"frameworks": ["reference", "jax"], "steps": 0}, "at least 2"),
        ({"frameworks": ["reference", "jax"], "time_limit_s": float("inf")}, "and finite"),
        ({"frameworks": ["reference", "jax"], "settings": {"framework": "jax"}}, "allowed: --frameworks"),
        ({"vary": {"seed": [1, 2]}, "settings": {"seed": 3}}, "set and varied"),
        ({"frameworks": ["reference", "jax"], "size": "huge"}, "no size 'huge'"),
        ({"frameworks": ["reference", "jax"], "threads": 10_000}, "10000 threads; allowed: at most"),
        ({"frameworks": ["reference", "jax"], "time_limit_s": -1.0}, "above 0 s"),
        ({"frameworks": ["reference", "jax"], "most": 8}, "without --rigorous; allowed: 2"),
        ({"frameworks": ["reference", "jax"], "rigorous": True, "most": 7}, "allowed: 10, 16, 24, 30"),
        ({"frameworks": ["reference", "jax"], "memory_limit_bytes": 5}, "at least 256 MiB"),
        ({"frameworks": ["reference", "none.py:Name"]}, "none.py of the component 'none.py:Name' cannot be read"),
        ({"frameworks": ["reference"], "vary": {"optimizer": ["sgd", "none.py:Name"]}}, "none.py of the component"),
        ({"frameworks": ["reference", "jax"], "settings": {"optimizer": "none.py:Name"}}, "none.py of the component"),
        ({"frameworks": ["reference", "jax"], "settings": {"schedules": {"lr": "none.py:Name"}}}, "cannot be read"),
        ({"frameworks": ["pytorch"], "vary": {"optimizer": ["sgd", "native:adamm"]}}, "did you mean 'adam'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=match):
        run_comparison("digits_lenet", out=tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"most": 1}, "--processes 1 without --rigorous; allowed: 2"),
        ({"steps": 1}, "1 steps of the proof"),
        ({"threads": 0}, "0 threads; allowed: at least 1"),
        ({"threads": 10_000}, "10000 threads; allowed: at most"),
        ({"time_limit_s": -1.0}, "above 0 s"),
    ],
)
def test_numbers_are_checked_before_the_model_is_created(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise SystemExit('was run')\n")
    with pytest.raises(UsageError, match=match):
        run_comparison(f"{tmp_path / 'net.py'}:Net", frameworks=["reference", "jax"], out=tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nothing", "has no 'nothing'; allowed: "),
        ("number", "'framework' gives a int"),
        ("Broken", "raised .*: no luck"),
    ],
)
def test_a_framework_in_a_file_is_refused_before_anything_runs(name: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("number = 1\n\n\nclass Broken:\n    def __init__(self):\n        raise ValueError('no luck')\n")
    with pytest.raises(RecipeError, match=match):
        run_comparison("digits_lenet", frameworks=["reference", f"{path}:{name}"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_candidates_own_file_is_not_run_in_the_process_of_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file sets or ends would affect the other candidates, too."""
    monkeypatch.setenv("XLA_FLAGS", "")
    path = tmp_path / "mine.py"
    path.write_text("import os\n\nos.environ['XLA_FLAGS'] = '--mine'\nos.abort()\n")
    frameworks = ["reference", "onnxruntime", f"{path}:Mine"]
    found = run_comparison("digits_lenet", frameworks=frameworks, size="smoke", steps=2, out=tmp_path / "out")
    assert os.environ["XLA_FLAGS"] == ""
    assert [row["status"] for row in found.candidates] == ["timed", "timed", "failed"]
    assert "it was killed by SIGABRT" in found.candidates[2]["reason"]


def test_a_key_that_json_would_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be passed to another process \(a key is not a string\)"):
        run_comparison(
            "digits_lenet", frameworks=["reference", "jax"], settings={"optimizer_kwargs": {"m": {0: 1}}}, out=tmp_path
        )


def test_a_file_that_raises_is_refused_in_one_line(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise ValueError('no luck')\n")
    answer = deep5("compare", "digits_lenet", "--frameworks", "reference,mine.py:Mine")
    assert answer.status == 2
    (line,) = answer.err.splitlines()
    assert "mine.py:1: the component raised ValueError: no luck; allowed: a file that can be run; remedy: " in line
    assert answer.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_framework_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load("frameworks", "jax"), "requires", ("json", "nowhere_to_be_found"))  # module names
    with pytest.raises(MissingDependency, match="framework 'jax' needs the module 'nowhere_to_be_found'"):
        run_comparison("digits_lenet", frameworks=["reference", "jax"], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_times_code_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="times two pieces of code"):
        run_comparison("overhead_trainer", frameworks=["reference", "jax"], out=tmp_path)


def test_without_a_baseline_there_is_nothing_to_compare(bad: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="nothing to compare") as caught:
        run_comparison(
            "digits_lenet",
            frameworks=[f"{bad}:Raises", "reference"],
            size="smoke",
            steps=STEPS,
            out=tmp_path,
        )
    (folder,) = tmp_path.iterdir()
    assert str(folder) in str(caught.value)
    left = load_comparison(folder)
    assert left.document["status"] == "failed"
    assert left.candidates[0]["status"] == "failed"


@pytest.mark.parametrize("text", ["optimizer", "=1,2", "optimizer=", "batch_size=1,1"])
def test_a_variation_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match=r"cannot read|twice"):
        parse_variation(text)


def test_settings_that_no_process_could_be_handed(tmp_path: Path) -> None:
    with pytest.raises((RecipeError, UsageError)):
        make_plan("digits_lenet", frameworks=["reference", "jax"], settings={"optimizer": object()})


def _interrupted(folder: Path, changes: Mapping[str, Any]) -> None:
    """Leave what a comparison leaves that is interrupted after its last process."""
    file = folder / "comparison.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "status": "aborted", "reasons": ["interrupted"], **changes}))


def _cut(folder: Path, processes: int) -> Path:
    """Leave what a comparison leaves that is killed after this many processes."""
    document = json.loads((folder / "comparison.json").read_text())
    left, rows = document["processes"][:processes], []
    for row in document["candidates"]:
        memory = [own["memory_bytes"] for own in left if (own["candidate"], own["job"]) == (row["label"], "time")]
        untimed = dict.fromkeys(("observed", "peaks", "provenance")) | {"status": "proved"}
        rows.append({**row, **({} if memory else untimed), "memory_bytes": max(memory, default=None)})
    _interrupted(folder, {"candidates": rows, "processes": left, "results": [], "verdicts": []})
    return folder


@pytest.mark.slow
def test_a_round_that_was_broken_off_runs_again(quick: Any, tmp_path: Path) -> None:
    """Times of one hour are not compared with those of another: nothing of the interrupted round counts."""
    folder = _cut(shutil.copytree(quick.folder, tmp_path / "left"), 4)
    (first,) = {sample.candidate for sample in load_comparison(folder).samples()}
    assert audit([folder]).findings == ()
    again = run_comparison("digits_lenet", resume=folder)
    jobs = [row["job"] for row in again.document["processes"]]
    assert jobs == ["reference", "prove", "prove", "time", "reference", "prove", "prove", *["time"] * 4]
    assert standing(again.document) == {7, 8, 9, 10}
    raw = [sample.seconds for sample in again.samples() if sample.candidate == first and sample.phase == "steady"]
    (row,) = (row for row in again.results if row["candidate"] == first)
    assert 0 < row["samples"] < len(raw)  # the earlier samples are kept, and do not count
    assert len(again.verdicts) == 1
    assert audit([folder]).findings == ()
    # Interrupted once more, in the round that runs again.
    _cut(folder, 8)
    assert audit([folder]).findings == ()
    again = run_comparison("digits_lenet", resume=folder)
    assert standing(again.document) == {11, 12, 13, 14}
    assert audit([folder]).findings == ()


def test_a_comparison_goes_on_with_one_deep5_alone(quick: Any, tmp_path: Path) -> None:
    folder = _cut(shutil.copytree(quick.folder, tmp_path / "left"), 4)
    document = json.loads((folder / "comparison.json").read_text())
    _interrupted(folder, {"software": {**document["software"], "commit": {"id": "0" * 40, "dirty": False}}})
    with pytest.raises(UsageError, match=r"started by deep5's commit 000000000000, and this is .*; allowed: the same"):
        run_comparison("digits_lenet", resume=folder)


def test_nobody_goes_on_where_another_still_writes(quick: Any, tmp_path: Path) -> None:
    folder = _cut(shutil.copytree(quick.folder, tmp_path / "left"), 4)
    held = locked(folder)
    for named in (folder, folder / "comparison.json"):
        with pytest.raises(UsageError, match="a run still writes to"):
            run_comparison("digits_lenet", resume=named)
    os.close(held)


@pytest.mark.slow
def test_what_the_proof_behind_an_interruption_does_not_hold_for_is_not_lost(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that fails for lack of time loses nothing: the measurements are there when the comparison resumes."""
    folder = shutil.copytree(quick.folder, tmp_path / "left")
    _interrupted(folder, {})
    with pytest.raises(
        RunFailed, match="rounds of candidates that were not proved again: reference: of the reference, in float64"
    ):
        run_comparison("digits_lenet", resume=folder, time_limit_s=0.2)
    document = json.loads((folder / "comparison.json").read_text())
    assert (document["status"], document["verdicts"]) == ("failed", [])
    assert audit([folder]).findings == ()
    # Nor does it prove a candidate that had other data then.
    rows = [{**row, "provenance": {**row["provenance"], "data": "0" * 64}} for row in document["candidates"]]
    other = shutil.copytree(folder, tmp_path / "other")
    _interrupted(other, {"candidates": rows})
    with pytest.raises(RunFailed, match="reference: its data changed since it was timed"):
        run_comparison("digits_lenet", resume=other, time_limit_s=600.0)
    again = run_comparison("digits_lenet", resume=folder, time_limit_s=600.0)
    assert again.document["results"] == quick.document["results"]
    assert again.document["verdicts"] == quick.document["verdicts"]
    assert audit([folder]).findings == ()
    # Wherever it is killed, the medians of all complete rounds exist, and the sizes of their batches.
    _cut(folder, 4)
    written = []
    write = ComparisonRecord.write

    def noted(record: ComparisonRecord) -> None:
        write(record)
        document = json.loads((record.path / "comparison.json").read_text())
        written.append((len(document["processes"]), len(document["results"]), len(document["verdicts"])))

    monkeypatch.setattr(ComparisonRecord, "write", noted)
    run_comparison("digits_lenet", resume=folder, time_limit_s=600.0)
    assert written == [(7, 0, 0), (8, 0, 0), (9, 2, 1), (10, 2, 1), (11, 2, 1), (11, 2, 1)]


def test_a_comparison_goes_on_where_its_noise_floor_holds(quick: Any, tmp_path: Path) -> None:
    folder = _cut(shutil.copytree(quick.folder, tmp_path / "left"), 4)
    _interrupted(folder, {"calibration": {**quick.document["calibration"], "machine": "another"}})
    with pytest.raises(
        UsageError, match="started on another machine, or with other processors, and has their noise floor"
    ):
        run_comparison("digits_lenet", resume=folder)


@pytest.mark.slow
def test_a_candidates_file_that_changes_meanwhile_is_not_run(tmp_path: Path) -> None:
    """The file that is timed is the one that was proved: each process reads it again."""
    file = tmp_path / "rule.py"
    file.write_text(RULE)

    def tell(line: str) -> None:
        if line.startswith("timing"):
            file.write_text(RULE.replace("0.01", "0.02"))

    options: dict[str, Any] = {"frameworks": ["reference"], "size": "smoke", "steps": 2, "tell": tell}
    with pytest.raises(RunFailed, match="or a file that it names, has changed since the start"):
        run_comparison("digits_lenet", vary={"optimizer": ["sgd", f"{file}:Mine"]}, out=tmp_path / "out", **options)


@pytest.mark.slow
def test_answers_follow_from_the_rounds_before_a_look(quick: Any, tmp_path: Path) -> None:
    """Interrupted in its thirteenth round, after one candidate: the ten rounds before the first look still decide."""
    folder = shutil.copytree(quick.folder, tmp_path / "left")
    document, samples = json.loads((folder / "comparison.json").read_text()), quick.samples()
    proof = [row for row in document["processes"] if row["job"] != "time"]
    labels = [row["label"] for row in document["candidates"]]
    steady = [sample for sample in samples if sample.candidate == labels[0] and sample.round == 0]
    processes, made = proof, []
    for number in range(13):
        order = [labels[place] for place in order_of_round(document["seed"], number, 2, reverses=False)]
        for label in order if number < 12 else [labels[1]]:
            own = next(row for row in quick.document["processes"] if (row["candidate"], row["job"]) == (label, "time"))
            processes.append({**own, "round": number})
            factor = 1.001 ** (number % 2) if label == labels[1] else 1.0  # no candidate is faster
            place = {"candidate": label, "round": number, "process": len(processes) - 1}
            made += [sample._replace(**place, seconds=sample.seconds * factor) for sample in steady]
    measurement = {**document["measurement"], "most_processes": 16, "order": _ORDERS[CURRENT.version]}
    (folder / "samples.csv").write_text(round_samples_text(made))
    _interrupted(folder, {"mode": "rigorous", "processes": processes, "measurement": measurement})
    found = run_comparison("digits_lenet", resume=folder)
    (verdict,) = found.verdicts
    assert verdict["rounds"] == 16
    assert len(standing(found.document)) == 32


def test_a_comparison_goes_on_by_its_folder_alone(quick: Any, deep5: Command, tmp_path: Path) -> None:
    """All rounds are complete: the proof runs again, as long and for the same candidates, and nothing is measured."""
    folder = shutil.copytree(quick.folder, tmp_path / "left")
    _interrupted(folder, {})
    refused = deep5("compare", "digits_lenet", "--resume", str(folder), "--steps", str(STEPS + 1))
    assert (refused.status, "a different 'measurement'" in refused.err) == (2, True)
    refused = deep5("compare", "digits_lenet", "--resume", str(folder), "--rigorous")
    assert (refused.status, "a different 'mode'" in refused.err) == (2, True)
    refused = deep5("compare", "digits_lenet", "--resume", str(folder), "--frameworks", "reference,jax")
    assert (refused.status, "is of reference; onnxruntime; got reference; jax" in refused.err) == (2, True)
    answer = deep5("compare", "digits_lenet", "--resume", str(folder), "--json")
    assert answer.status == 0, answer.err
    # The steps done are reported on stderr, apart from the document.
    assert "proof: onnxruntime" in answer.err.splitlines()
    document = json.loads(answer.out)
    assert document["results"] == quick.document["results"]
    assert len(document["resumed"]) == 1
    # The processes of the interrupted comparison, and those of the proof that ran again: no other.
    before = quick.document["processes"]
    assert document["processes"][: len(before)] == before
    assert [row["job"] for row in document["processes"][len(before) :]] == ["reference", "prove", "prove"]
    assert load_comparison(folder)


@pytest.mark.parametrize("place", ["framework", "settings"])
def test_no_file_is_run_because_a_folder_names_it(place: str, quick: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    named = f"{tmp_path / 'mine.py'}:Mine"
    folder = shutil.copytree(quick.folder, tmp_path / "left")
    rows = [{**row, place: {"optimizer": [named]} if place == "settings" else named} for row in quick.candidates]
    _interrupted(folder, {"candidates": rows})
    with pytest.raises(UsageError, match=r"which may be a file; .*; remedy: repeat the whole command"):
        run_comparison("digits_lenet", resume=folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Killed within a round: the rounds before count, this one runs again, and no process remains."""
    command = [sys.executable, "-m", "deep5", "compare", "digits_lenet", "--frameworks", "reference,onnxruntime"]
    command += ["--size", "smoke", "--steps", "2", "--rigorous", "--processes", "8", "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        assert running.stderr is not None
        lines = (line for line in running.stderr if "round 3" in line)
        next(lines)
        next(lines)
        running.kill()
    (folder,) = tmp_path.iterdir()
    left = load_comparison(folder)
    assert left.document["status"] == "aborted"
    kept = left.samples()
    assert kept
    options: dict[str, Any] = {"size": "smoke", "steps": 2, "rigorous": True, "most": 8, "resume": folder}
    with pytest.raises(UsageError, match="is of reference; onnxruntime; got onnxruntime; reference"):
        run_comparison("digits_lenet", frameworks=["onnxruntime", "reference"], **options)
    done = subprocess.run([*command, "--resume", str(folder)], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [folder]
    found = load_comparison(folder)
    assert found.samples()[: len(kept)] == kept
    rows = found.document["processes"]
    ran = [(rows[number]["candidate"], rows[number]["round"]) for number in standing(found.document)]
    assert sorted(ran) == [(name, number) for name in ("onnxruntime", "reference") for number in range(8)]
    for before, after in itertools.pairwise(rows):
        assert before["begin_s"] + before["wall_s"] <= after["begin_s"]
    assert len([row for row in rows if row["job"] == "time"]) == 17
    assert len(found.document["resumed"]) == 1
    assert audit([folder]).findings == ()
    with pytest.raises(UsageError, match="is finished"):
        run_comparison("digits_lenet", frameworks=["reference", "onnxruntime"], **options)


@pytest.mark.slow
def test_the_same_comparison_twice_never_turns_faster_into_slower(tmp_path: Path) -> None:
    words: dict[str, set[str]] = {}
    # This test needs the calibration of the real machine.
    path = deep5.measuring.calibration._file(deep5.measuring.calibration.machine_id(), default_threads("") or 1)
    quiet = path.read_text()
    path.unlink()
    for number in range(2):
        found = run_comparison(
            "digits_lenet",
            frameworks=["reference", "onnxruntime", "pytorch", "jax", "tensorflow"],
            size="smoke",
            steps=20,
            out=tmp_path / str(number),
        )
        for row in found.verdicts:
            words.setdefault(row["candidate"], set()).add(row["word"])
    path.write_text(quiet)
    assert len(words) == 4
    assert not any(own >= {"faster", "slower"} for own in words.values())


@pytest.mark.slow
def test_five_frameworks_are_compared(tmp_path: Path) -> None:
    names = ["pytorch", "tensorflow", "onnxruntime", "jax", "reference"]
    found = run_comparison("digits_lenet", frameworks=names, out=tmp_path)
    assert [row["status"] for row in found.candidates] == ["timed"] * 5
    resources = found.document["resources"]
    assert 0 <= resources["harness_share"] <= 1
    assert resources["wall_s"] > 0


@pytest.mark.slow
def test_modes_are_candidates(tmp_path: Path) -> None:
    names = ["pytorch", "pytorch:compiled", "tensorflow:xla"]
    found = run_comparison("digits_lenet", frameworks=names, size="smoke", steps=10, out=tmp_path)
    assert [row["status"] for row in found.candidates] == ["timed"] * 3
    assert all(row["passed"] for row in found.document["equivalence"])
    first = {row["candidate"]: row["first_call_s"] for row in found.results}
    assert first["pytorch:compiled"] > first["pytorch"]


@pytest.mark.slow
def test_identical_candidates_are_not_told_apart(bad: Path, tmp_path: Path) -> None:
    """Two frameworks with one code, ten processes each: one of 512 comparisons may claim a difference."""
    found = run_comparison(
        "digits_lenet",
        frameworks=["reference", f"{bad}:Same"],
        size="smoke",
        steps=2,
        rigorous=True,
        most=10,
        out=tmp_path,
    )
    (verdict,) = found.verdicts
    assert verdict["rounds"] == 10
    assert verdict["word"] == "no difference shown"
    assert verdict["p"] > 2 / 2**10 or verdict["floor"] > max(verdict["ratio"], 1 / verdict["ratio"])


def test_each_option_is_told_in_the_docstring() -> None:
    told = str(run_comparison.__doc__)
    for name in inspect.signature(make_plan).parameters:
        # A resumed comparison reads its candidates and scheme from its folder; they cannot be passed.
        assert (f"`{name}`" in told) == (name not in ("recipe", "candidates", "scheme")), name
    with pytest.raises(UsageError, match="unknown option of a comparison 'candidates'"):
        run_comparison("digits_lenet", candidates=[])


def test_quick_and_rigorous_are_not_both(deep5: Command, tmp_path: Path) -> None:
    answer = deep5("compare", "digits_lenet", "--quick", "--rigorous", "--frameworks", "reference,jax")
    assert (answer.status, answer.out) == (2, "")
    assert "--quick and --rigorous are both given; allowed: one of them" in answer.err
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_recipe_is_told_first(quick: Any, deep5: Command) -> None:
    answer = deep5("compare", "deepbench_gemm", "--resume", str(quick.folder))
    assert answer.status == 2
    assert f"the comparison in {quick.folder} is of digits_lenet; got deepbench_gemm; remedy: " in answer.err


OPTIMIZER = """
import os

import deep5 as d5


class Leaves(d5.UpdateRule):
    hyper = ("lr",)

    def __init__(self, lr=0.01):
        self.lr = lr

    def update_rule(self, grad, param, state):
        os._exit(7)
"""


@pytest.mark.slow
def test_an_optimizer_of_which_no_update_can_be_compared_is_not_timed(tmp_path: Path) -> None:
    """It owns its step, the framework has no float64, and after a network's kinks losses diverge by themselves."""
    (digits,) = (entry for entry in entry_points(group="deep5.recipes") if entry.name == "digits_lenet")
    source = Path(str(find_spec(digits.value).origin)).read_text()  # type: ignore[union-attr]
    path = tmp_path / "kinks.py"
    path.write_text(source.replace('"activation": "tanh"', '"activation": "relu"'))
    found = run_comparison(
        str(path),
        frameworks=["reference", "onnxruntime", "jax"],
        settings={"optimizer": "sag", "optimizer_kwargs": {"lr": 0.01}},
        size="smoke",
        steps=STEPS,
        out=tmp_path,
    )
    told = {row["label"]: (row["status"], row["reason"]) for row in found.candidates}
    status, reason = told["onnxruntime"]
    assert status == "failed"
    assert reason.startswith("no update of its optimizer, and no result of one, could be compared: in float64: ")
    assert told["reference"] == told["jax"] == ("timed", None)
    assert not any(sample.candidate == "onnxruntime" for sample in found.samples())


@pytest.mark.slow
def test_an_optimizer_that_ends_its_process_ends_no_other(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OPTIMIZER)
    vary = ["--frameworks", "reference", "--vary", "optimizer=sgd,momentum,mine.py:Leaves"]
    answer = deep5("compare", "digits_lenet", *vary, "--size", "smoke", "--steps", "2", "--json")
    assert answer.status == 0, answer.err
    document = json.loads(answer.out)
    found = document["candidates"]
    assert [row["status"] for row in found] == ["timed", "timed", "failed"]
    assert "it exited with status 7 in the reference's trajectory in float64" in found[2]["reason"]
    # The process that checked whether the file can be run is not counted as work of deep5 itself.
    assert document["resources"]["processes_s"] > sum(row["wall_s"] for row in document["processes"]) + 0.1


def test_an_optimizer_of_a_recipe_in_a_file_ends_its_process_alone(deep5: Command, tmp_path: Path) -> None:
    (digits,) = (entry for entry in entry_points(group="deep5.recipes") if entry.name == "digits_lenet")
    source = Path(str(find_spec(digits.value).origin)).read_text()  # type: ignore[union-attr]
    made = 'MUTABLE |= {"optimizer": Leaves(), "optimizer_kwargs": {}}\n'
    (tmp_path / "mine.py").write_text(source + OPTIMIZER + made)
    frameworks = ["--frameworks", "reference,onnxruntime"]
    answer = deep5("compare", "mine.py", *frameworks, "--size", "smoke", "--steps", "2")
    assert answer.status == 3, answer.err
    assert "there is nothing to compare: reference: of the reference, in float64: it exited with status 7" in answer.err
