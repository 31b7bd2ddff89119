"""Former paths of modules: they import, and those that `import deep5` once loaded are its attributes."""

from __future__ import annotations

from importlib import import_module

import pytest

import deep5
from deep5.core.former_paths import IMPORTABLE


@pytest.mark.parametrize("name", sorted(IMPORTABLE))
def test_a_former_path_is_the_present_module(name: str) -> None:
    module = import_module(name)
    assert module is import_module(IMPORTABLE[name])
    if name.count(".") == 1:
        assert getattr(deep5, name.partition(".")[2]) is module
