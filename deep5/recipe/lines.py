"""Positions of a recipe's parts in its file, for messages; found in the source without running it."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

from deep5.core.python_source import parse

__all__ = ["RecipeLines"]


class RecipeLines:
    """Line numbers by place: `("FIXED",)`, `("FIXED", "epochs")`, `("SIZES", "smoke", "epochs")`, `("METRICS", 0)`.

    Args:
        path: The recipe's file, or None: every position is then an empty string.
        source: Its content.
    """

    def __init__(self, path: Path | None, source: bytes | None) -> None:
        self._path = path
        self._lines: dict[tuple[str | int, ...], int] = {}
        if source is None:
            return
        with contextlib.suppress(SyntaxError, ValueError):  # running the file reports its errors
            for node in parse(source).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                if isinstance(node, ast.AnnAssign) and node.value is not None:
                    targets = [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._lines[(target.id,)] = node.lineno
                        self._note((target.id,), node.value)  # type: ignore[attr-defined]

    def _note(self, place: tuple[str | int, ...], value: ast.expr) -> None:
        found: list[tuple[str | int, ast.expr, int]] = []
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append((key.value, item, key.lineno))
        elif isinstance(value, (ast.List, ast.Tuple)):
            found = [(index, item, item.lineno) for index, item in enumerate(value.elts)]
        for name, item, line in found:
            self._lines[(*place, name)] = line
            self._note((*place, name), item)

    def at(self, *place: str | int) -> str:
        """File and line of the innermost known part of a place, ending in `": "`, or an empty string."""
        if self._path is None:
            return ""
        for length in range(len(place), 0, -1):
            if place[:length] in self._lines:
                return f"{self._path}:{self._lines[place[:length]]}: "
        return f"{self._path}: "
