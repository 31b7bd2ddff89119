"""Each field of each document is checked, or is listed with the reason why nothing can check it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from deep5.recipes import digits_lenet
from fields import leaves, not_found
from honest_results import HONEST, QUICK
from unchecked import UNCHECKED


@pytest.mark.parametrize(
    ("kind", "name", "listed"),
    [(*which, fields) for which, fields in UNCHECKED.items()],
    ids=[" ".join(which) for which in UNCHECKED],
)
def test_a_change_of_each_field_is_found_unless_listed(
    kind: str, name: str, listed: Mapping[str, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(HONEST / kind, tmp_path / kind))
    if kind == QUICK:
        shutil.copy(digits_lenet.__file__, folder / "recipe.py")
    assert not_found(folder, name) == set(listed)


def test_the_fields_of_a_document_are_its_leaves() -> None:
    document = json.loads('{"a": {"b": [1, {"c": null}]}, "d": "e", "f": {}}')
    assert list(leaves(document)) == [(("a", "b", 0), 1), (("a", "b", 1, "c"), None), (("d",), "e")]
