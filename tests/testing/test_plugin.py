"""The plug-in for pytest, in the tests of a user, with pytest-benchmark and pytest-xdist."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from deep5.testing.storage import change_of, earlier, machine_folder

pytest_plugins = ["pytester"]

PLUGIN = "deep5.testing.plugin"
# Where deep5 was installed before it had the plug-in, pytest does not find it.
LOADED = () if any(point.value == PLUGIN for point in entry_points(group="pytest11")) else ("-p", PLUGIN)

OPERATORS = """
import numpy as np
import pytest
import deep5 as d5

class Square(d5.Operator):
    def specs(self, x):
        return (x,)

    def forward(self, x):
        return x * x

    def backward(self, output_grads, inputs, outputs, needs):
        return (FACTOR * output_grads[0] * inputs[0],)

FACTOR = 2.0
"""


def run(pytester: pytest.Pytester, *arguments: str, code: str, start: str = OPERATORS) -> Any:
    pytester.makepyfile(test_own=start + code)
    found = pytester.runpytest_subprocess(*LOADED, "-p", "no:cacheprovider", *arguments)
    assert "INTERNALERROR" not in found.stdout.str() + found.stderr.str()
    return found


def test_an_operator_passes_and_fails_with_its_table(pytester: pytest.Pytester) -> None:
    code = """
def test_right(deep5_check):
    report = deep5_check.operator(Square(), (3, 4))
    assert report.values

def test_class(deep5_check):
    deep5_check.operator(Square, inputs=[np.ones((2, 2), np.float32)], reference=lambda x: x * x)

def test_wrong(deep5_check, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    deep5_check.operator(Square(), (3, 4))

def test_arguments(deep5_check):
    with pytest.raises(d5.UsageError, match="one or the other"):
        deep5_check.operator(Square(), (3, 4), inputs=[np.ones(3)])
"""
    found = run(pytester, code=code)
    found.assert_outcomes(passed=3, failed=1)
    shown = found.stdout.str()
    assert "FAILED" in shown
    assert "gradient" in shown
    assert "Traceback" not in shown
    assert "deep5/operators" not in shown  # no frames of deep5


def test_rules_back_ends_and_schemes(pytester: pytest.Pytester) -> None:
    code = """
import deep5 as d5
from deep5.distributed.schemes.all_reduce import AllReduce
from deep5.core.errors import Unsupported
from deep5.training.rules.sgd import SGD

class Backwards(SGD):
    def update_rule(self, grad, param, state):
        return param + self.lr * grad, state

def test_rule(deep5_check):
    deep5_check.optimizer(SGD(lr=0.1))

def test_wrong_rule(deep5_check):
    deep5_check.optimizer(lambda: Backwards(lr=0.1))

def test_no_rule(deep5_check):
    deep5_check.optimizer(3)

def test_communicator(deep5_check):
    from deep5.core.communicator import SingleRank
    deep5_check.communicator(SingleRank())

def test_scheme(deep5_check):
    deep5_check.scheme(AllReduce, ranks=(1, 2))

class Poor:
    name = "poor"

    def executor(self, network, **options):
        raise Unsupported("not on this machine")

def test_unsupported(deep5_check):
    deep5_check.executor(Poor)
"""
    found = run(pytester, "-rs", code=code, start="")
    found.assert_outcomes(passed=3, failed=2, skipped=1)
    shown = found.stdout.str()
    assert "allowed: below 1; remedy: a step against the gradient" in shown
    assert "not on this machine" in shown
    assert "allowed: an update rule" in shown


@pytest.mark.slow
def test_a_back_end(pytester: pytest.Pytester) -> None:
    code = """
def test_reference(deep5_check):
    deep5_check.executor("reference")
"""
    run(pytester, code=code, start="").assert_outcomes(passed=1)


def test_a_test_runs_on_every_framework(pytester: pytest.Pytester) -> None:
    code = """
import pytest

def test_every(deep5_framework):
    assert isinstance(deep5_framework, str)

@pytest.mark.deep5_frameworks("reference")
def test_one(deep5_framework):
    assert deep5_framework == "reference"
"""
    from deep5.core.plugins import registered

    found = run(pytester, "--strict-markers", "-v", code=code, start="")
    outcomes = found.parseoutcomes()
    assert outcomes["passed"] + outcomes.get("skipped", 0) == len(registered("frameworks")) + 1
    found = run(pytester, "-v", "--deep5-framework", "reference", code=code, start="")
    found.assert_outcomes(passed=2)
    found = run(pytester, "--deep5-framework", "torch", code=code, start="")
    shown = found.stdout.str() + found.stderr.str()
    assert "unknown framework 'torch'" in shown
    assert "deep5/testing" not in shown  # no frames of deep5
    assert found.ret


def test_a_wrong_name_in_a_marker_fails_only_its_test(pytester: pytest.Pytester) -> None:
    code = """
import pytest

@pytest.mark.deep5_frameworks("refrence", "reference", 3)
def test_wrong(deep5_framework):
    assert deep5_framework == "reference"

def test_other():
    pass
"""
    for chosen in ((), ("--deep5-framework", "reference")):
        found = run(pytester, *chosen, code=code, start="")
        found.assert_outcomes(passed=2, errors=2)
        shown = found.stdout.str()
        assert "unknown framework 'refrence'" in shown
        assert "did you mean 'reference'?" in shown
        assert "unknown framework '3'" in shown
        assert "deep5/testing" not in shown  # no frames of deep5
    run(pytester, "-k", "other", code=code, start="").assert_outcomes(passed=1, deselected=3)


BENCHMARK = """
def work(count, *, offset=0):
    return sum(range(count)) + offset

def test_time(deep5_benchmark):
    assert deep5_benchmark(work, 2000, offset=1) == sum(range(2000)) + 1
"""


def stored(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / ".benchmarks" / machine_folder()).glob("*.json"))


def test_times_are_stored_and_compared(pytester: pytest.Pytester) -> None:
    found = run(pytester, code=BENCHMARK, start="")
    found.assert_outcomes(passed=1)
    (first,) = stored(pytester)
    assert first.name.startswith("0001_deep5-")
    document = json.loads(first.read_text())
    (entry,) = document["benchmarks"]
    assert entry["fullname"] == "test_own.py::test_time"
    assert len(entry["stats"]["data"]) == entry["stats"]["rounds"] == 25
    assert entry["extra_info"]["deep5_low_s"] <= entry["stats"]["median"] <= entry["extra_info"]["deep5_high_s"]
    found = run(pytester, code=BENCHMARK, start="")
    assert "of before" in found.stdout.str()
    assert f"compared with {first}" in found.stdout.str()
    assert [path.name[:5] for path in stored(pytester)] == ["0001_", "0002_"]
    # The files of a storage are what the other program lists and compares.
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare"], cwd=pytester.path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test_time") == 2


def test_beside_pytest_benchmark(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # The inner program is no worker of an outer one: pytest-benchmark stores nothing in a worker.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    code = f"""{BENCHMARK}
def test_other(benchmark):
    benchmark.pedantic(work, args=(10,), rounds=3)
"""
    # pytest-benchmark 5.2 reads an attribute that pytest 9.2 no longer has.
    pytester.makeconftest("import pytest\npytest.Function._nodeid = property(lambda self: self.nodeid)\n")
    found = run(pytester, "--benchmark-autosave", code=code, start="")
    found.assert_outcomes(passed=2)
    names = [path.name for path in stored(pytester)]
    assert len(names) == 2
    assert sum("_deep5-" in name for name in names) == 1
    assert len({name[:4] for name in names}) == 2
    found = run(pytester, "-p", "no:benchmark", code=BENCHMARK, start="")
    found.assert_outcomes(passed=1)


def test_under_xdist_and_disabled(pytester: pytest.Pytester) -> None:
    code = (
        BENCHMARK
        + """
def test_check(deep5_framework):
    assert deep5_framework
"""
    )
    found = run(pytester, "-n", "2", "--deep5-framework", "reference", code=code, start="")
    found.assert_outcomes(passed=2)
    assert not stored(pytester)
    found = run(pytester, "--deep5-benchmark-disable", "--deep5-framework", "reference", code=code, start="")
    found.assert_outcomes(passed=2)
    assert "called once and not timed, because of --deep5-benchmark-disable" in found.stdout.str()
    assert not stored(pytester)


def test_wrong_use_and_storage(pytester: pytest.Pytester) -> None:
    code = """
import pytest

def test_twice(deep5_benchmark):
    deep5_benchmark(int)
    deep5_benchmark(int)

def test_no_function(deep5_benchmark):
    deep5_benchmark(3)

def test_raises(deep5_benchmark):
    deep5_benchmark(lambda: 1 / 0)
"""
    (pytester.path / "occupied").write_text("a file")
    found = run(pytester, "--deep5-storage", "occupied", code=code, start="")
    found.assert_outcomes(failed=3)
    shown = found.stdout.str()
    assert "twice in one test" in shown
    assert "allowed: deep5_benchmark(function" in shown
    assert "ZeroDivisionError" in shown
    assert "deep5/testing" not in shown  # the lines of the test, and no frames of deep5
    assert "deep5_benchmark(int)" in shown
    assert "not stored: the times cannot be stored in" in shown
    assert (pytester.path / "occupied").read_text() == "a file"


def test_a_damaged_earlier_file_counts_as_none(tmp_path: Path) -> None:
    folder = tmp_path / machine_folder()
    folder.mkdir()
    assert earlier(tmp_path) == (None, {})
    for content in ("", "[]", "{}", '{"benchmarks": [{}]}', '{"benchmarks": 3}'):
        (folder / "0001_deep5-x.json").write_text(content)
        assert earlier(tmp_path) == (None, {})
    assert earlier(tmp_path / "absent") == (None, {})


def test_changes_have_intervals() -> None:
    before = [1.0 + number / 1000 for number in range(25)]
    assert "slower" in change_of([2 * value for value in before], before)
    assert "faster" in change_of([value / 2 for value in before], before)
    assert "no change shown" in change_of(before, before)
    assert "0.99998 … 0.99998), faster" in change_of([0.99998] * 25, [1.0] * 25)
    assert change_of(before, before[:3]) == ""
    assert change_of(before, [0.0] * 25) == ""


def test_loading_the_plug_in_loads_nothing_heavy() -> None:
    code = f"import sys, {PLUGIN}; print([name for name in ('numpy', 'torch', 'onnx', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
