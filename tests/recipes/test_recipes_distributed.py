"""The recipes of level 3: every scheme reaches its stated accuracy, by real processes, at two and at four ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deep5.core.plugins import registered

pytestmark = pytest.mark.usefixtures("warm")

# Those with a STUDY are run by test_study_ranks.py, and those that train nothing by test_recipe_collectives.py.
OTHERS = ("_study", "_strong", "_weak", "_collectives")
SCHEMES = sorted(
    name for name in registered("recipes") if name.startswith("distributed_") and not name.endswith(OTHERS)
)


def run(name: str, out: Path, ranks: int, *words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "deep5", "run", name, "--ranks", str(ranks), "--out", str(out), "--json", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_there_is_a_recipe_for_every_scheme() -> None:
    from deep5.recipe.recipe import load_recipe

    named = {load_recipe(name).value("scheme") for name in SCHEMES}
    assert named == set(registered("schemes"))


@pytest.mark.daily
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("distributed_asynchronous", "distributed_sparse") else pytest.mark.slow)
        for name in SCHEMES
    ],
)
def test_a_scheme_runs_at_its_smallest(name: str, tmp_path: Path) -> None:
    document = run(name, tmp_path, 2, "--size", "smoke", "--quiet")
    assert (document["level"], document["ranks"], document["status"]) == (3, 2, "success")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_reaches_its_stated_accuracy(name: str, ranks: int, tmp_path: Path) -> None:
    document = run(name, tmp_path, ranks, "--quiet")
    assert document["accepted"] is True
