"""Rule 11: metrics and goals are those that recipe.py states, as far as its text shows them; it is never executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.audit.files import bytes_of
from deep5.audit.finding import Ledger
from deep5.core.python_source import parse

__all__ = ["check_declared"]

_SOURCE_BYTES = 4 << 20
_GOAL = re.compile(r"\s*([<>]=?)?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


def check_declared(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """Compare the declared goals with the literal METRICS of recipe.py.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json.
    """
    recipe = document["recipe"]
    # Another size has its own goals, or none.
    stated = _stated(root) if recipe["size"] == "full" else None
    if stated is None:
        ledger.skip("goals against recipe.py: they are not of the full size, or not written as literals")
        return
    declared = [None if entry.get("goal") is None else str(entry["goal"]) for entry in recipe["metrics"]]
    same = len(stated) == len(declared) and all(map(_same, stated, declared))
    ledger.hold(
        11,
        same,
        f"the goals are not those of recipe.py; stored {declared!r:.200}, in the file {stated!r:.200}",
    )


def _stated(root: Path) -> list[Any] | None:
    """The goals of METRICS in the order of the file; None if they are not literals, or assigned more than once."""
    source = bytes_of(root, "recipe.py", most_bytes=_SOURCE_BYTES)
    try:
        tree = parse(source or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "METRICS"]
    written = [node for node in named if isinstance(node.ctx, ast.Store)]
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and node.targets == written[:1]
        and isinstance(node.value, (ast.List, ast.Tuple))
    ]
    if len(written) != 1 or len(values) != 1 or not _is_plain(tree, len(named) - 1):
        return None
    found = []
    for entry in values[0].elts:
        if not isinstance(entry, (ast.Tuple, ast.List)) or len(entry.elts) != 2:
            return None
        try:
            found.append(ast.literal_eval(entry.elts[1]))
        except ValueError:
            return None
    return found


def _is_plain(tree: ast.Module, uses: int) -> bool:
    """Whether METRICS is used `uses` times, only as the third argument of `run_recipe`, so that nothing changes it."""
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "run_recipe"
    ]
    given = [node.args[2] for node in calls if len(node.args) > 2]
    usual = [node for node in given if isinstance(node, ast.Name) and node.id == "METRICS"]
    return not {"METRICS", "*"} & imported and len(usual) == len(calls) == uses


def _same(stated: Any, declared: str | None) -> bool:
    """Whether a goal as written, such as `">= 97 %"` or 97, is the declared one, such as `">= 97"`."""
    if stated is None or declared is None:
        return stated is declared is None
    one, other = _GOAL.match(str(stated)), _GOAL.match(declared)
    if one is None or other is None:
        return False
    return one[1] in (None, other[1]) and float(one[2]) == float(other[2])
