"""`make operator-bench`: its cases, which operators it takes, what it measures and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import operator_bench
import operator_code
import operator_runs
import operator_shapes
import pytest
from measure import Samples, Worker
from registry import benchmarks
from sides import Side

from deep5.networks.kernels.operators import COMPOSITES

# The import converts Upsample to Resize; the time of the others is that of the networks inside them.
WITHOUT_CASE = {"If", "Loop", "Scan", "Upsample"}
DYING = """
import os
from registry import register

@register("ends", group="own")
def ends(folder):
    return lambda: os._exit(3)

@register("lives", group="own", peak=True)
def lives(folder):
    return lambda: None
"""


HOLDING = """
import numpy as np
from registry import register

@register("holds", group="own", peak=True)
def holds(folder):
    return lambda: np.ones(4_000_000).sum()

@register("nothing", group="own", peak=True)
def nothing(folder):
    return lambda: None
"""


def test_every_operator_that_is_written_once_has_a_case() -> None:
    assert set(COMPOSITES) - {operator_shapes.operator_of(name) for name in operator_shapes.CASES} == WITHOUT_CASE


@pytest.mark.parametrize("name", operator_shapes.CASES)
def test_a_case_is_a_model(name: str) -> None:
    case = operator_shapes.CASES[name](False)
    for gradient in (False, True) if case.gradient else (False,):
        model = operator_runs.model_of(operator_shapes.operator_of(name), case, gradient=gradient)
        onnx.checker.check_model(model)
        assert all(output.type.HasField("tensor_type") for output in model.graph.output)


def test_the_large_size_is_larger() -> None:
    def size(name: str, large: bool) -> int:
        case = operator_shapes.CASES[name](large)
        return sum(np.asarray(array).size for array in (*case.feeds, *case.constants) if array is not None)

    # These take sizes or positions.
    alike = {name for name in operator_shapes.CASES if size(name, True) <= size(name, False)}
    assert alike == {"ConstantOfShape", "MelWeightMatrix", "RandomNormal", "RandomUniform", "Range"}


def test_benchmarks_of_a_case() -> None:
    every = benchmarks(operator_bench.MODULES)
    assert not set(every) & set(benchmarks())
    assert operator_runs.names_of("jax", "Resize:cubic") == [
        "jax.Resize:cubic.small.forward",
        "jax.Resize:cubic.small.gradient",
        "jax.Resize:cubic.large.forward",
        "jax.Resize:cubic.large.forward.memory",
        "jax.Resize:cubic.large.gradient",
        "jax.Resize:cubic.large.gradient.memory",
    ]
    assert operator_runs.names_of("jax", "Floor")[-1] == "jax.Floor.large.forward.memory"
    assert every["jax.Floor.large.forward.memory"].peak
    assert not every["jax.Floor.large.forward"].peak


def compiled(source: str) -> Any:
    space: dict[str, Any] = {"__name__": "deep5.written"}
    exec(source, space)  # noqa: S102 - the sources of this test
    return space["called"]


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ("def own(x): return x + 1\ndef called(x): return own(x)", False),
        ("def own(x):\n  # a comment\n  return x + 1\n\ndef called(x): return own(x)", False),
        ("def own(x): return x + 2\ndef called(x): return own(x)", True),
        ("def own(x): return x - 1\ndef called(x): return own(x)", True),
        ("def own(x): return x + 1\ndef called(x): return own(own(x))", True),
    ],
)
def test_the_hash_of_code_covers_what_it_calls(changed: str, differs: bool) -> None:
    found = []
    for source in ("def own(x): return x + 1\ndef called(x): return own(x)", changed):
        code = operator_code.Code(None)
        code.add(compiled(source))
        found.append(code.digest())
    assert (found[0] != found[1]) == differs


def test_the_hash_of_code_covers_primitives() -> None:
    class Before:
        def take(self, x: Any) -> Any:
            return x

    class After:
        def take(self, x: Any) -> Any:
            return x[::-1]

    found = []
    for kind in (Before, After):
        kind.take.__module__ = "deep5.written"
        code = operator_code.Code(kind())
        code.add(compiled("def called(xp, x): return xp.take(x)"))
        found.append(code.digest())
    assert found[0] != found[1]


def test_the_peak_of_a_call_is_what_it_holds_at_once(tmp_path: Path) -> None:
    """In a separate process, as in the benchmark: what other threads of this one free meanwhile counts too."""
    (tmp_path / "holding.py").write_text(HOLDING)
    with Worker(Side(label="head", commit="a", layout=tmp_path), ["holding"]) as worker:
        held, nothing = (worker.sample(name) for name in ("holds", "nothing"))
    assert isinstance(held, float)
    assert isinstance(nothing, float)
    assert 30e6 < held < 48e6
    assert nothing < 8e6


def test_a_process_that_ends_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    with Worker(Side(label="head", commit="a", layout=tmp_path), ["dying"]) as worker:
        assert worker.sample("ends") == "its process ended with status 3"
        assert isinstance(worker.sample("lives"), float)
        assert worker.sample("none") == "KeyError: 'none'"


def written(base: dict[str, tuple[str, str]], head: dict[str, tuple[str, str]]) -> Any:
    return lambda side, framework: base if side.label == "base" else head


SIDES = [Side(label=label, commit="a", layout=Path()) for label in ("base", "head")]


def test_operators_whose_code_is_the_same_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"Relu": ("native", "1"), "Abs": ("native", "1"), "Neg": ("native", "1"), "Exp": ("composite", "1")}
    after = {**before, "Relu": ("composite", "2"), "Neg": ("native", "2"), "Sqrt": ("composite", "1")}
    monkeypatch.setattr(operator_bench, "_code", written(before, after))
    cases = ["Relu", "Abs", "Neg", "Exp", "Sqrt", "Mish"]
    chosen, left = operator_bench._chosen(SIDES, cases, ["jax"], same=False)
    assert {name.split(".")[1] for name in chosen} == {"Relu", "Neg", "Exp", "Sqrt"}
    assert {each.name: each.why for each in left} == {
        "jax.Abs": "the same code, not written once",
        "jax.Mish": "in no table",
    }
    chosen, _ = operator_bench._chosen(SIDES, cases, ["jax"], same=True)
    assert {name.split(".")[1] for name in chosen} == {"Relu", "Abs", "Neg", "Exp", "Sqrt"}


def sampled(factors: dict[str, float], error: dict[str, str]) -> Any:
    """Samples of a second, or of a megabyte, times these factors on the head."""

    def measure(sides: Any, chosen: Any, *, rounds: int, turns: int, **_: Any) -> dict[str, Samples]:
        found = {}
        for each in chosen:
            unit, factor = 8e6 if each.peak else 1.0, factors.get(each.name, 1.0)
            base = [[unit + 0.001 * (turn % 2) for turn in range(turns)] for _ in range(rounds)]
            head = [[factor * value for value in one] for one in base]
            first = [number % 2 == 0 for number in range(rounds)]
            found[each.name] = Samples(base=base, head=head, first=first, error=error.get(each.name, ""))
        return found

    return measure


@pytest.mark.parametrize(
    ("factors", "listed"),
    [
        ({"jax.Mish.small.gradient": 1.3}, ["jax.Mish.small.gradient"]),
        ({"jax.Mish.large.forward.memory": 1.3}, ["jax.Mish.large.forward.memory"]),
        ({"jax.Mish.large.forward": 1.15}, []),
    ],
)
def test_what_is_above_the_allowed_ratio_is_listed(
    factors: dict[str, float],
    listed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = {"Mish": ("composite", "1")}
    monkeypatch.setattr(operator_bench, "_code", written(table, table))
    monkeypatch.setattr(operator_bench, "base_side", lambda commit, home: SIDES[0])
    monkeypatch.setattr(operator_bench, "head_side", lambda home: SIDES[1])
    monkeypatch.setattr(operator_bench, "base_commit", lambda given: given)
    reason = "base: Unsupported: no such operator"
    monkeypatch.setattr(operator_bench, "measure", sampled(factors, {"jax.Mish.small.forward": reason}))
    status = operator_bench.main(["--only", "Mish", "--frameworks", "jax", "--out", str(tmp_path)])
    text = capsys.readouterr().out
    assert status == int(bool(listed))
    above = text.partition(f"{len(listed)} of 5 above 1.2\n")[2].split("\n")[:-2]
    assert [line.split()[0] for line in above] == listed
    assert all("1.30 (1.30 … 1.30)  10 rounds" in line or "1.27 (" in line for line in above)
    assert f"not measured: {reason}: jax.Mish.small.forward\n" in text
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text())
    assert document["left"] == {"jax.Mish.small.forward": reason}
    assert len(document["samples"]) == 6


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        operator_bench.main(["--only", "Misch"])
    assert "no case is called Misch; allowed: Abs, " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        operator_bench.main(["--frameworks", "torch"])
    assert "no back-end is called torch; allowed: pytorch, tensorflow, jax" in capsys.readouterr().err
