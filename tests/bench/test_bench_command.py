"""The command `deep5 bench operator`: element types of inputs, operators that crash, functions of a file, warnings."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console

from deep5.bench.candidates import random_values
from deep5.bench.measure import measure
from deep5.bench.plan import Plan, workloads
from deep5.bench.recipe import check_operators, plan_of
from deep5.bench.summary import summarise
from deep5.cli.bench_operator import ready_recipe
from deep5.cli.check_operator import made_again
from deep5.core.errors import RecipeError, UsageError
from deep5.operators.drawn import whole_numbers
from deep5.operators.native import NativeOperator
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe, load_recipe

pytestmark = pytest.mark.usefixtures("warm")

FILE = """
import os, signal, sys, time
from textwrap import dedent
import numpy as np
import deep5 as d5

class Base(d5.Operator):
    def specs(self, x): return (x,)
    def forward(self, x): return x + x
    def backward(self, output_grads, inputs, outputs, needs): return (2 * output_grads[0],)

class Rows(d5.Operator):
    # Rows that are named by index, with a bias; a gradient by what is floating alone.
    def specs(self, x, index, bias): return (d5.TensorSpec(shape=(*index.shape, *x.shape[1:]), dtype=x.dtype),)
    def forward(self, x, index, bias):
        return d5.array_namespace(x).take(x, index, axis=0) + bias
    def backward(self, output_grads, inputs, outputs, needs):
        assert not needs[1]
        xp = d5.array_namespace(inputs[0])
        return (xp.zeros_like(inputs[0]), None, xp.sum(output_grads[0], axis=0))

class Crashes(Base):
    def forward(self, x): os.kill(os.getpid(), signal.SIGSEGV)

class Leaves(Base):
    def forward(self, x): os._exit(7)

class LeavesWithoutError(Base):
    def forward(self, x): sys.exit(0)

class Dies(Base):
    def forward(self, x):
        print("the last words", file=sys.stderr, flush=True)
        os.abort()

class Endless(Base):
    def forward(self, x):
        with open("PID", "w") as file:
            file.write(str(os.getpid()))
        while True:
            time.sleep(0.1)

class Loud(Base):
    told = False
    def forward(self, x):
        if not Loud.told:
            print("computed in", os.getpid())
            Loud.told = True
        return x + x

def made(): return Base()
def chosen(factor): return Base()
def square(x): return x * x
def scaled(x, factor=3): return factor * x
def total(*arrays): return sum(arrays)
def optional(x=None): return x + x
def nothing(): return 3
def fails(): raise RuntimeError("no such layer")
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(FILE.replace("PID", str(tmp_path / "pid")))
    return str(tmp_path / "own.py")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    command = [sys.executable, "-m", "deep5", "bench", "operator", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# Element types


def rows_plan(own: str, **changes: Any) -> Plan:
    given: dict[str, Any] = {"shapes": ((4, 3), (5,), (3,)), "dtype": ("float32", "int64", "float32"), **changes}
    return Plan(operator=f"{own}:Rows", frameworks=("reference", "pytorch"), backward=True, rounds=7, **given)


@pytest.mark.slow
def test_an_operator_with_whole_numbers_among_its_inputs_is_timed(own: str) -> None:
    (raw,) = measure(rows_plan(own))
    assert raw["left_out"] == []
    seen = {(series["candidate"], series["direction"]) for series in raw["series"]}
    assert seen == {(name, way) for name in ("reference", "pytorch") for way in ("forward", "backward")}
    assert raw["roofline"]["dtype"] == "float32"


def test_whole_numbers_are_indices_as_the_check_draws_them(own: str) -> None:
    (forward, backward), _ = workloads(rows_plan(own))
    assert backward.direction.needs == (True, False, True)
    many = [random_values(forward, seed)[0][1] for seed in range(40)]
    assert {value.dtype.name for value in many} == {"int64"}
    # Below every dimension, of which the smallest is 3: 0, 1 and 2 all occur; by chance not in one of 10^35 runs.
    assert set(np.concatenate(many).tolist()) == {0, 1, 2}
    within, _ = random_values(forward, 0, (5.0, 9.0))
    assert all(5 <= value.min() <= value.max() <= 9 for value in within)
    assert within[1].dtype == np.int64
    # More rows than the element type has values: none is negative.
    assert whole_numbers(np.random.default_rng(0), (1000,), "int8", 1000).min() >= 0


@pytest.mark.parametrize(
    ("dtypes", "told"), [((), "float32"), (("int32",), "int32"), (("float32", "int64"), ("float32", "int64"))]
)
def test_an_element_type_is_given_once_or_once_an_input(dtypes: tuple[str, ...], told: Any) -> None:
    made = ready_recipe("Add", shapes=("2", "2"), dtypes=dtypes, frameworks="reference")
    assert plan_of(recipe_parts(made)).dtype == told
    assert Plan.from_json(plan_of(recipe_parts(made)).to_json()) == plan_of(recipe_parts(made))


def test_another_number_of_element_types_is_refused(own: str) -> None:
    with pytest.raises(UsageError, match="got 2 times --dtype; allowed: once, or once per input, 3 times"):
        workloads(rows_plan(own, dtype=("float32", "int64")))
    with pytest.raises(UsageError, match="got the element type 'int65'"):
        workloads(rows_plan(own, dtype=("float32", "int65", "float32")))
    with pytest.raises(UsageError, match="element types float32, int64 are given with the problems"):
        workloads(Plan(problems="deepbench.gemm", dtype=("float32", "int64")))
    with pytest.raises(UsageError, match="got --range 2 1; allowed: two numbers, the lower one first"):
        workloads(rows_plan(own, bounds=(2.0, 1.0)))


def test_a_recipe_gives_element_types_and_bounds(own: str) -> None:
    fixed = {"operator": f"{own}:Rows", "shapes": ((4, 3), (5,), (3,)), "dtype": ("float32", "int64", "float32")}
    made = plan_of(recipe_parts(Recipe.make({**fixed, "bounds": (0, 2)}, {"frameworks": ("reference",)}, [])))
    assert (made.dtypes, made.bounds) == (("float32", "int64", "float32"), (0, 2))
    for wrong in ((), ("float32", 3), 3):
        with pytest.raises(RecipeError, match=r"'dtype' is .*; allowed: a name such as 'float32', or one per input"):
            Recipe.make({**fixed, "dtype": wrong}, {}, [])
    with pytest.raises(RecipeError, match="'bounds' is 3; allowed: two numbers, the lower one first, or None"):
        Recipe.make({**fixed, "bounds": 3}, {}, [])


@pytest.mark.slow
def test_the_command_takes_an_element_type_an_input_and_a_range(own: str, tmp_path: Path) -> None:
    shapes = ("--shape", "4x3", "--shape", "5", "--shape", "3", "--range", "0", "2")
    types = ("--dtype", "float32", "--dtype", "int64", "--dtype", "float32")
    done = bench(f"{own}:Rows", *shapes, *types, "--frameworks", "reference", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["median_s"] > 0


# Operators that end their process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("Crashes", r"Crashes was killed by SIGSEGV \(segmentation fault\)"),
        ("Dies", r"Dies was killed by SIGABRT \(aborted\).*its last output: the last words"),
        ("Leaves", "Leaves ended its process with the status 7"),
        ("LeavesWithoutError", "LeavesWithoutError ended its process with the status 0"),
    ],
)
def test_an_operator_that_ends_its_process_is_told_with_how_and_where(
    own: str, tmp_path: Path, name: str, how: str
) -> None:
    done = bench(f"{own}:{name}", "--shape", "3x4", "--frameworks", "reference", "--out", str(tmp_path / "out"))
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    said = " ".join(done.stderr.split())
    assert re.search(how, said), said
    assert "in the first call of forward on reference (it ran in a child process, which leaves this one intact)" in said
    (folder,) = (tmp_path / "out").iterdir()
    assert str(folder) in said
    assert json.loads((folder / "result.json").read_text())["status"] == "failed"


def runs(pid: int) -> bool:
    """Whether a process exists and has not ended; an ended one may remain until its parent reads its status."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_command_and_the_operator(own: str, tmp_path: Path, number: signal.Signals) -> None:
    out, told = str(tmp_path / "out"), tmp_path / "pid"
    command = [sys.executable, "-m", "deep5", "bench", "operator", f"{own}:Endless", "--shape", "3"]
    # In its own process group: the signal reaches only the command, not its child.
    run = subprocess.Popen([*command, "--frameworks", "reference", "--out", out], start_new_session=True)
    try:
        end = monotonic() + 60
        while not (told.exists() and told.read_text()) and monotonic() < end:
            sleep(0.05)
        child = int(told.read_text())
        assert child != run.pid, "the operator has a process of its own"
        run.send_signal(number)
        assert run.wait(timeout=30) == 130
        end = monotonic() + 10
        while runs(child) and monotonic() < end:
            sleep(0.05)
        assert not runs(child)
    finally:
        run.kill()
        run.wait()


@pytest.mark.slow
def test_an_operator_of_a_file_is_measured_apart_and_what_it_prints_is_seen(
    own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (raw,) = measure(Plan(operator=f"{own}:Loud", shapes=((3,),), rounds=7))
    assert [series["candidate"] for series in raw["series"]] == ["reference"]
    (found,) = re.findall(r"computed in (\d+)", capsys.readouterr().out)
    assert int(found) != os.getpid()


def test_what_is_refused_apart_is_refused_here(own: str) -> None:
    with pytest.raises(UsageError, match="'bare' names 'no_such_module:f', which cannot be imported"):
        measure(Plan(operator=f"{own}:Base", shapes=((3,),), rounds=7, bare="no_such_module:f"))


# Functions of a file


@pytest.mark.parametrize(
    ("name", "arguments", "native"),
    [
        ("made", {}, False),
        ("chosen", {"factor": 2}, False),
        ("square", {}, True),
        ("scaled", {}, True),
        ("scaled", {"factor": 2}, True),
        ("total", {}, True),
        ("optional", {}, True),
    ],
)
def test_check_and_bench_make_the_same_of_a_function(
    own: str, name: str, arguments: dict[str, Any], native: bool
) -> None:
    from deep5.bench.plan import make_operator_of

    given = Plan(operator=f"{own}:{name}", shapes=((3,),), attributes=arguments)
    (work,), _ = workloads(given)
    timed = make_operator_of(given, work.problem)
    checked = made_again(f"{own}:{name}", [f"{key}={value}" for key, value in arguments.items()])
    assert type(timed).__name__ == type(checked).__name__ == ("NativeOperator" if native else "Base")
    value = np.array([1.0, 2.0])
    assert timed.forward(value).tolist() == checked.forward(value).tolist()
    if isinstance(checked, NativeOperator):
        assert checked.framework == "reference"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing gives 3; allowed: a d5.Operator"),
        ("fails", r"fails\(\) raised RuntimeError: no such layer"),
        ("absent", "of the operators in it: .*Rows.*made, chosen, square"),
    ],
)
def test_check_and_bench_say_the_same_of_what_is_no_operator(own: str, name: str, message: str) -> None:
    said = []
    for call in (
        lambda: workloads(Plan(operator=f"{own}:{name}", shapes=((3,),))),
        lambda: made_again(f"{own}:{name}", []),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            call()
        said.append(str(caught.value))
    assert said[1] in said[0]
    assert "dedent" not in said[1], "a function of another module is not offered"


# Warnings of a run


def compared(ratios: list[float]) -> tuple[str, ...]:
    """The warnings for sizes that take `ratios` times as long through deep5 as in hand-written code."""
    series = []
    for number, ratio in enumerate(ratios):
        for bare, each in ((False, ratio * 1e-3), (True, 1e-3)):
            series.append({
                "problem": f"p-{number}", "title": "t", "use": "", "direction": "forward",
                "candidate": "a (bare)" if bare else "a", "framework": "a", "bare": bare, "flops": None,
                "bytes": None, "calls": 1, "first_call_s": 1.0, "memory_bytes": None, "settled": True,
                "spent_s": 0.1, "processors": 1.0, "warm_ups": [(0.0, 1.0)], "cold": [],
                "samples": [(0.1 * n, each) for n in range(7)],
            })  # fmt: skip
    roofline = {"flop_s": 4e9, "byte_s": 1e9, "threads": 1, "dtype": "float32", "seen": {"numpy": (4e9, 1e9)}}
    raw = {
        "process": 0, "series": series, "left_out": [], "warnings": [], "settings": {}, "resolution_s": 1e-7,
        "overhead_s": 1e-7, "roofline": roofline, "peaks_flop_s": [4e9, 4e9],
    }  # fmt: skip
    return summarise([raw]).warnings


def test_few_or_scattered_ratios_are_no_verdict_on_what_is_compared() -> None:
    assert compared([0.78, 0.78]) == ()
    assert compared([0.5] * 5) == (), "five allow no interval"
    (said,) = compared([0.7, 0.75, 0.78, 0.78, 0.8, 0.85])
    assert said.startswith(
        "a takes 0.78 times as long through deep5 as in hand-written code (median of 6): the implementations differ"
    )
    assert compared([0.6, 0.7, 0.78, 0.78, 0.8, 1.1]) == (), "the interval holds 1"
    assert compared([1.1] * 8) == ()


@pytest.mark.parametrize("name", ["deepbench_conv", "deepbench_gemm", "deepbench_rnn"])
def test_the_smoke_size_of_a_recipe_asks_for_no_gradients_that_are_not_there(name: str) -> None:
    notes = check_operators(recipe_parts(load_recipe(name).at_size("smoke")))
    assert not any("gradients" in note for note in notes), notes


@pytest.mark.slow
@pytest.mark.parametrize("judged", [False, True])
def test_the_warnings_of_a_run_are_printed_once(
    judged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deep5.recipe.experiment import Experiment
    from deep5.results.table import verdict_table
    from deep5.run.execute import execute
    from deep5.run.operators import time_operators

    monkeypatch.setenv("COLUMNS", "200")
    # Integers have no gradient, which is reported.
    fixed = {"operator": "Add", "shapes": ((2,), (2,)), "dtype": "int64", "backward": True}
    made = Recipe.make(fixed, {"frameworks": ("reference",), "rounds": 7}, [])
    if judged:
        result = execute(made, out=tmp_path)
        console = Console(file=io.StringIO(), width=200)
        verdict_table(result, console)
        told = capsys.readouterr().out + console.file.getvalue()  # type: ignore[attr-defined]
    else:
        time_operators(Experiment.of(made), tmp_path)
        told = capsys.readouterr().out
    assert " ".join(told.split()).count("gradients are requested") == 1
