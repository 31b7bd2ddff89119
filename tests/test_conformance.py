"""ONNX's back-end suite on every framework: what is not on a framework's list passes, what is on it ends as it says."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

import deep5 as d5
from conformance import EITHER, SUITES, cases, excluded, list_of, outcome
from deep5.errors import MissingDependency

FRAMEWORKS = ("jax", "onnxruntime", "pytorch", "reference", "tensorflow")
SIZES = {"node": 1884, "converted": 82, "operator": 35, "simple": 23, "light": 9}
LEAST = {"reference": 1860, "onnxruntime": 1483, "pytorch": 1400, "tensorflow": 1200, "jax": 1200}
"""Of the node tests."""
EVERY = 6
"""One case of so many runs daily on each framework; the others are slow, together."""


def daily(framework: str, suite: str, name: str) -> bool:
    """The sample, another one for each framework; the light models take seconds each."""
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
    """They name cases that there are, say why, and leave as many as were promised."""
    listed = excluded(framework)
    assert {suite: len(cases(suite)) for suite in SUITES} == SIZES
    for suite, names in listed.items():
        assert set(names) <= set(cases(suite)), list_of(framework)
        assert Counter(found.kind for found in names.values() if not found.reason or found.reason == "TODO") == {}
    assert SIZES["node"] - len(listed.get("node", ())) >= LEAST[framework]
