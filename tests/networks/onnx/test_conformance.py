"""ONNX's back-end suite on every framework: cases not on a framework's list pass, listed ones end as listed."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

import deep5 as d5
from conformance import EITHER, FRAMEWORKS, SUITES, cases, excluded, list_of, main, outcome, shortened
from conformance_page import grouped, reasons
from deep5.core.errors import MissingDependency

SIZES = {"node": 1884, "converted": 82, "operator": 35, "simple": 23, "light": 9}
LEAST = {"reference": 1860, "onnxruntime": 1483, "pytorch": 1400, "tensorflow": 1200, "jax": 1200}
"""Least number of node tests that are not listed."""
EVERY = 6
"""On each framework one case in this many runs daily; the others are slow, together."""


def daily(framework: str, suite: str, name: str) -> bool:
    """The sample, a different one for each framework; the light models take seconds each."""
    seed = hashlib.sha256(f"{framework}/{suite}/{name}".encode()).digest()
    return int.from_bytes(seed[:4]) % EVERY == 0 and suite != "light"


@pytest.mark.parametrize(
    ("framework", "suite", "name"),
    [
        pytest.param(
            framework,
            suite,
            name,
            id=f"{framework}-{suite}-{name}",
            marks=() if daily(framework, suite, name) else pytest.mark.slow,
        )
        for framework in FRAMEWORKS
        for suite in SUITES
        for name in cases(suite)
    ],
)
def test_case(framework: str, suite: str, name: str) -> None:
    try:
        d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    expected = excluded(framework).get(suite, {}).get(name)
    found = outcome(framework, cases(suite)[name])
    if expected is not None and expected.kind == "either":
        assert found.kind in EITHER, found.reason
    else:
        assert found.kind == ("passed" if expected is None else expected.kind), found.reason


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_lists(framework: str) -> None:
    """The lists name existing cases, give a reason, and leave at least the promised number of cases."""
    listed = excluded(framework)
    assert {suite: len(cases(suite)) for suite in SUITES} == SIZES
    for suite, names in listed.items():
        assert set(names) <= set(cases(suite)), list_of(framework)
        assert Counter(found.kind for found in names.values() if not found.reason or found.reason == "TODO") == {}
    assert SIZES["node"] - len(listed.get("node", ())) >= LEAST[framework]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pytroch"], "argument framework: invalid choice: 'pytroch' .*'pytorch'"),
        (["reference", "-k", "relu("], r"argument -k: got 'relu\(', which is no regular expression: "),
        (["reference", "-k", "relu", "--write"], "argument --write: the list is written of all cases; remedy: "),
        (["reference", "-k", "test_nothing"], "argument -k: no case of node has 'nothing' in its name"),
    ],
)
def test_arguments_that_mean_nothing(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("part", ["^relu$", "^test_relu$"])
def test_cases_are_chosen_by_name(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reference", "-k", part])
    assert "reference node: {'passed': 1} of 1, " in capsys.readouterr().out


def test_reasons_are_cut_between_words() -> None:
    assert shortened("short") == "short"
    assert shortened("word " * 50) == "word " * 39 + "…"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_page_says_whole_reasons(framework: str) -> None:
    listed = reasons(framework)
    assert sum(int(line[2:].partition(":")[0]) for line in listed) == sum(map(len, excluded(framework).values()))
    for line in listed:
        assert not re.search(r"…|cannot run this network|clone_node| '|remedy|\{", line), line


def test_reasons_that_are_alike_stand_in_one_line() -> None:
    inside = "Loop_1 (Loop): SequenceInsert (SequenceInsert) in it: the JAX back-end has no such operator"
    assert grouped(f"jax cannot run this network: {inside}") == ("no such operator: {}", "SequenceInsert")
    assert grouped("the input 'x' is sequence of float32")[1] == "sequence of float32"
    assert grouped("its indices count otherwise") == ("its indices count otherwise", "")
