"""What the tests of the compiler and of its cache share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deep5.core import compiler


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel folder of an empty cache, with a new secret, as a new process finds it."""
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, empty in (("_GIVEN_UP", {}), ("_FAILURES", []), ("_LOADED", {})):
        monkeypatch.setattr(compiler, name, empty)
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources for which the compiler was called."""
    seen: list[str] = []
    inner = compiler._call_compiler

    def counted(call: list[str], code: Path, *rest: Any) -> None:
        seen.append(code.read_text(encoding="utf-8"))
        inner(call, code, *rest)

    monkeypatch.setattr(compiler, "_call_compiler", counted)
    return seen
