"""The hash of every registered recipe's fixed part, at every size, is the one under which results were stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deep5.recipe.recipe import FULL, load_recipe
from deep5.recipe.registered import recipe_names

HASHES: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "fixed_hashes.json").read_text("utf-8"))


def test_every_registered_recipe_has_its_hashes_here() -> None:
    assert recipe_names() == sorted(HASHES), "a new recipe's hashes are added, and none is ever changed"


@pytest.mark.daily
@pytest.mark.parametrize("name", HASHES)
def test_the_hash_of_the_fixed_part_stays(name: str) -> None:
    recipe = load_recipe(name)
    found = {size: recipe.at_size(size).fixed_hash() for size in (FULL, *recipe.sizes)}
    assert found == HASHES[name]
