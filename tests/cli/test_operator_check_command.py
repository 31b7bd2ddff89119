"""The command `deep5 check operator`: its arguments, its output, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command import Command

pytestmark = pytest.mark.usefixtures("warm")

FILE = """
import numpy as np
import deep5 as d5
from deep5.core.errors import ShapeError

class Power(d5.Operator):
    def __init__(self, power, off=0.0):
        self.power, self.off = power, off

    def specs(self, x):
        return (x,)

    def forward(self, x):
        return x ** self.power

    def backward(self, output_grads, inputs, outputs, needs):
        return ((self.power + self.off) * inputs[0] ** (self.power - 1) * output_grads[0],)

def cube(x):
    return x * x * x

def square(x):
    return x * x

CUBE = Power(3)

class Exits(Power):
    def __init__(self, how):
        self.how = how

    def forward(self, x):
        return eval(self.how)

class Odd(Power):
    def forward(self, x):  # one thing on NumPy, another everywhere else
        return x + (1 if isinstance(x, np.ndarray) else 0)

class Whole(d5.Operator):
    def specs(self, x, rows):
        if rows.dtype != "int64":
            raise ShapeError(f"got {rows}; allowed: int64")
        return (d5.TensorSpec(shape=rows.shape, dtype="int64"),)

    def forward(self, x, rows):
        return rows + 0

    def backward(self, output_grads, inputs, outputs, needs):
        raise NotImplementedError("none")
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(FILE)
    return "own.py:Power"


def test_the_command_prints_a_table(deep5: Command, file: str) -> None:
    answer = deep5("check", "operator", file, "--set", "power=3", "--against", "own.py:cube", "--shape", "4x5")
    assert (answer.status, answer.err) == (0, "")
    assert "Power on NumPy: passed" in answer.out
    assert "\ngradient by input 0" not in answer.out
    lines = answer.out.splitlines()
    assert len(lines) < 30
    assert not any(line.endswith(" ") or (len(line) > 80 and ":" not in line) for line in lines)
    given = ("check", "operator", file, "--set", "power=3", "--against", "own.py:cube", "--shape", "4x5")
    document = json.loads(deep5(*given, "--json").out)
    groups = {row["group"] for row in document["checks"]}
    assert "" not in groups
    assert all(any(line.startswith(group) for line in lines) for group in groups)
    table = [line for line in lines if any(line.startswith(group) for group in groups)]
    counts = [int(word) for line in table for word in re.sub(r"[\d.]+ %", "", line.partition("  ")[2]).split()]
    assert sum(counts) == len(document["checks"])
    everything = deep5(*given, "--all").out
    assert "\ngradient by input 0" in everything
    assert all(row["check"] in everything for row in document["checks"])
    answer = deep5("check", "operator", "own.py:CUBE", "--quiet")
    assert (answer.status, answer.out, answer.err) == (0, "", "")


def test_the_command_says_what_failed(deep5: Command, file: str, tmp_path: Path) -> None:
    given = ("check", "operator", file, "--set", "power=3", "--against", "own.py:square", "--out", "pictures")
    answer = deep5(*given)
    assert answer.status == 1
    assert re.search(r"forward, float32, against square: output 0: at \[\d, \d\] got", answer.out)
    assert re.search(
        r"^forward, float32, against square +[\d.e+-]+ +[\d.e+-]+ +[\d.,e+-]+ +FAILED$", answer.out, re.MULTILINE
    )
    assert re.search(r"^checks +of tolerance +passed .*FAILED", answer.out, re.MULTILINE)
    assert list((tmp_path / "pictures").glob("*.png"))
    document = json.loads(deep5(*given, "--json").out)
    assert document["passed"] is False
    row = next(row for row in document["checks"] if row["check"] == "forward, float64, against square")
    assert row["verdict"] == "FAILED"
    assert row["error"] > row["allowed"] > 0
    assert Path(row["picture"]).is_file()
    answer = deep5("check", "operator", file, "--set", "power=3", "--set", "off=1e-5", "--quiet")
    assert answer.status == 1
    assert re.match(
        r"Power on NumPy: \d+ of \d+ checks failed\n  gradient by input 0: output 0: d output 0\[", answer.out
    )


def test_the_command_holds_an_operator_against_another_framework(deep5: Command, file: str) -> None:
    answer = deep5("check", "operator", file, "--set", "power=3", "--against", "pytorch", "--json")
    assert (answer.status, answer.err) == (0, "")
    found = {row["check"]: row for row in json.loads(answer.out)["checks"]}
    row = found["forward, float64, against pytorch"]
    assert (row["verdict"], row["values"]) == ("passed", 12)
    answer = deep5("check", "operator", "own.py:Odd", "--set", "power=3", "--against", "pytorch", "--json")
    assert answer.status == 1
    found = {row["check"]: row for row in json.loads(answer.out)["checks"]}
    row = found["forward, float64, against pytorch"]
    assert (row["verdict"], round(row["error"], 9)) == ("FAILED", 1.0)  # the 1 that it adds only on NumPy


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("own.py:Power",), r"missing a required argument: 'power'; allowed: \(power, off=0.0\)"),
        (
            ("own.py:Power", "--set", "pwr=3"),
            r"Power has no argument 'pwr'; allowed: power, off; did you mean 'power'\?",
        ),
        (
            ("own.py:Powr",),
            r"own\.py has no 'Powr'; .* operators in it: Power, cube, square, CUBE, Exits, Odd, Whole; "
            r"did you mean 'Power'\?",
        ),
        (
            ("own.py",),
            r"own\.py names only a file; allowed: own\.py:CLASS, of the operators in it: Power, cube, square, CUBE",
        ),
        (("gone.py:Power",), r"gone\.py cannot be read, since it is not there; .*files beside it: own\.py"),
        (
            ("own.py:CUBE", "--against", "own.py:cubic"),
            r"no 'cubic'; .*functions in it: cube, square; did you mean 'cube'",
        ),
        (("own.py:CUBE", "--against", "own.py:CUBE"), r"own\.py:CUBE is .*; allowed: a function of NumPy arrays"),
        (("nothing",), r"unknown operator 'nothing'; allowed: deep5\..*FILE\.py:CLASS .*one of ONNX's, such as Conv"),
        (("own.py:CUBE", "--set", "power=3"), "is an operator already; allowed: no --set"),
        (("own.py:CUBE", "--shape", "3y"), "got the shape '3y'; allowed: sizes such as 3x4"),
        (("own.py:CUBE", "--shape", "3", "--shape", "4"), "got 2 times --shape; allowed: once"),
        (("own.py:CUBE", "--dtype", "float8"), "got the element type 'float8'"),
        (("own.py:CUBE", "--range", "2", "1"), "the lower one first"),
        (("own.py:CUBE", "--time-limit", "0"), "allowed: more than 0 s"),
        (("own.py:CUBE", "--against", "nobody"), "unknown framework 'nobody'"),
        (("own.py:Power",), "the arguments of Power do not fit"),
    ],
)
def test_the_command_refuses(deep5: Command, file: str, arguments: tuple[str, ...], told: str) -> None:
    answer = deep5("check", "operator", *arguments)
    assert answer.status == 2
    assert re.search(told, answer.err), answer.err


def test_inputs_of_the_command(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import deep5 as d5\nclass Rows(d5.Operator):\n"
        "    def specs(self, x, rows):\n"
        "        return (d5.TensorSpec(shape=(*rows.shape, *x.shape[1:]), dtype=x.dtype),)\n"
        "    def forward(self, x, rows): return d5.array_namespace(x).take(x, rows, axis=0)\n"
        "    def backward(self, output_grads, inputs, outputs, needs):\n"
        "        x, rows = inputs\n        xp = d5.array_namespace(x)\n"
        "        hot = xp.astype(xp.arange(x.shape[0], dtype=rows.dtype)[:, None] == rows[None, :], x.dtype)\n"
        "        return hot @ output_grads[0], None\n"
    )
    given = (
        "check",
        "operator",
        "rows.py:Rows",
        "--shape",
        "5x3",
        "--shape",
        "4",
        "--dtype",
        "float64",
        "--dtype",
        "int64",
    )
    answer = deep5(*given, "--all")
    assert answer.status == 0, answer.out + answer.err
    assert re.search(r"gradient by input 0 .*passed", answer.out)
    assert "gradient by input 1" not in answer.out


def test_inputs_that_are_not_taken_are_told_with_the_way_to_others(deep5: Command, file: str) -> None:
    answer = deep5("check", "operator", "own.py:Whole")
    assert answer.status == 3
    assert "Whole: got float32[3, 4]; allowed: int64; the inputs were x float32[3, 4], rows float32[3, 4]" in answer.err
    assert "(change them by --shape and --dtype, one per input; integers, such as indices, by --dtype int64)" in (
        answer.err
    )
    # Also for an operator that does not run at all.
    answer = deep5("check", "operator", "own.py:Exits", "--set", "how=x[np.ones(3)]")
    assert re.search(r"raised IndexError .*; the inputs were x float32\[3, 4\] \(change them by", answer.err)


def test_where_nothing_was_judged_it_is_not_accepted(deep5: Command, file: str) -> None:
    for given in (("--shape", "0"), ("--dtype", "int64", "--quiet")):
        answer = deep5("check", "operator", "own.py:CUBE", *given)
        assert answer.status == 1
        assert "Power on NumPy: no value was evaluated, since there was nothing to compare with" in answer.out
    answer = deep5("check", "operator", "own.py:CUBE", "--dtype", "int64", "--against", "own.py:cube", "--quiet")
    assert (answer.status, answer.out) == (0, "")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("__import__('os')._exit(4)", r"Exits ended its process with the status 4 in forward on float32 inputs"),
        ("__import__('os')._exit(0)", r"Exits ended its process with the status 0 in forward on float32 inputs"),
        ("__import__('os').abort()", r"Exits was killed by SIGABRT \(aborted\) in forward on float32 inputs"),
        ("__import__('sys').exit(5)", r"Exits\.forward called sys\.exit, with the status 5"),
        ("__import__('time').sleep(60)", r"Exits did not finish within 4 s in forward .* allow more by --time-limit"),
    ],
)
def test_the_command_outlives_an_operator_in_python(deep5: Command, file: str, how: str, told: str) -> None:
    answer = deep5("check", "operator", "own.py:Exits", "--set", f"how={how}", "--time-limit", "4")
    assert answer.status == 3
    assert re.search(told, answer.err), answer.err


def test_the_command_takes_operators_of_onnx(deep5: Command) -> None:
    given = ("check", "operator", "MatMul", "--shape", "3x4", "--shape", "4x2", "--quiet")
    assert deep5(*given) == (0, "", "")
    answer = deep5("check", "operator", "Conv")
    assert answer.status == 3
    assert "the inputs were X float32[3, 4], W float32[3, 4] (change them by --shape" in answer.err


def test_the_command_outlives_a_crash(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import deep5 as d5\nclass Made(d5.CppOperator):\n    source = '''\n"
        "template <typename T> struct Made : deep5::Operator {\n"
        "  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { *(volatile int *)(8) = 1; y[0] = x[0]; }\n"
        "};'''\n    def specs(self, x): return (x,)\n"
    )
    answer = deep5("check", "operator", "crash.py:Made", "--json")
    assert answer.status == 3
    assert re.search(r"Made was killed by SIGSEGV \(segmentation fault\) in forward on float32 inputs", answer.err)
    assert "SIGSEGV" in json.loads(answer.out)["error"]


def test_recipes_are_checked_as_before(deep5: Command) -> None:
    assert deep5("check", "digits_lenet").out == deep5("check", "recipe", "digits_lenet").out
    answer = deep5("check", "--help")
    assert answer.status == 0
    assert "operator" in answer.out
    assert "RECIPE" in answer.out
