"""Rules 11 and 14: goals and fixed part are those in recipe.py, as far as its text shows; it is never executed."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deep5.audit.files import bytes_of
from deep5.audit.finding import Ledger
from deep5.core.plugins import registered
from deep5.core.python_source import parse
from deep5.core.units import convert, units_like
from deep5.recipe.keys import base

__all__ = ["check_declared", "check_stated_parts"]

_SOURCE_BYTES = 4 << 20
_GOAL = re.compile(r"\s*([<>]=?)?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*)")


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
    # A comparison evaluates no metrics, and states no units.
    units = [row["unit"] for row in document["metrics"]] if "metrics" in document else [None] * len(declared)
    same = len(stated) == len(declared) == len(units) and all(map(_same, stated, declared, units))
    ledger.hold(
        11,
        same,
        f"the goals are not those of recipe.py; stored {declared!r:.200}, in the file {stated!r:.200}",
    )


def _check_metrics(ledger: Ledger, tree: ast.Module, declared: Sequence[Mapping[str, Any]]) -> None:
    """The declared metrics are those of METRICS, as far as their classes are deep5's."""
    names = _metrics(tree)
    if names is None:
        return
    known = registered("metrics")
    stated = [str(entry.get("metric")) for entry in declared]
    right = len(names) == len(stated) and all(
        name not in known or name == own for name, own in zip(names, stated, strict=True)
    )
    ledger.hold(
        11, right, f"the metrics are not those of recipe.py; stored {stated!r:.100}, in the file {names!r:.100}"
    )


def _metrics(tree: ast.Module) -> list[str] | None:
    """The names of METRICS by their classes, such as `d5.TestAccuracy()`; "" for one that is no such call."""
    value = _literal(tree, "METRICS", 2)
    if not isinstance(value, (ast.List, ast.Tuple)):
        return None
    calls = [entry.elts[0] if isinstance(entry, (ast.List, ast.Tuple)) and entry.elts else None for entry in value.elts]
    classes = [ast.unparse(call.func).partition("d5.")[2] if isinstance(call, ast.Call) else "" for call in calls]
    return [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in classes]


def check_stated_parts(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """Rule 14: compare size and fixed part with the literals FIXED and SIZES of recipe.py.

    A value that is not a literal is left out. The settings of a run may change every mutable part.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json or comparison.json.
    """
    recipe, tree = document["recipe"], _tree(root)
    stated = None if tree is None else _parts(_literal(tree, "FIXED", 0))
    if tree is None or stated is None:
        ledger.skip("the fixed part against recipe.py: it is not written as literals")
        return
    sizes = _parts(_literal(tree, "SIZES", None))
    if sizes is None and _names(tree, "SIZES"):
        ledger.skip("the size against recipe.py: SIZES is not written as literals")
        return
    known = {"full", *(sizes or {})}
    size = recipe["size"]
    if not ledger.hold(14, size in known, f"the size is {size!r:.60}; allowed: {', '.join(sorted(known))}"):
        return
    changes = (sizes or {}).get(size, {})
    if changes is _UNKNOWN or not isinstance(changes, dict):
        ledger.skip("the size against recipe.py: SIZES is not written as literals")
        return
    if "metrics" not in changes:
        _check_metrics(ledger, tree, recipe["metrics"])
    # Another component drops the arguments of the earlier one.
    changed = {key for key in changes if key == base(key)}
    due = {key: value for key, value in stated.items() if base(key) not in changed - {key}}
    due |= {key: value for key, value in changes.items() if key in stated}
    for key, value in due.items():
        if value is not _UNKNOWN and not _is_elsewhere(value):
            ledger.same(14, f"{key} of the recipe, by FIXED of recipe.py", recipe["fixed"].get(key), _plain(value))
    odd = sorted(recipe["fixed"].keys() - stated.keys() - changes.keys())
    ledger.hold(14, not odd, f"the fixed part has {', '.join(odd)[:100]}, which FIXED of recipe.py has not")


_UNKNOWN = object()
# A component of a file, whose content is stored instead of its name.
_FILE = re.compile(r"\.py:|[\w.]+:[\w.]+")


def _is_elsewhere(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_elsewhere, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_elsewhere, value))
    return not isinstance(value, (bool, int, float, str, type(None))) or (
        isinstance(value, str) and ("/" in value or _FILE.search(value) is not None)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _parts(node: ast.expr | None) -> dict[str, Any] | None:
    """The values of a dict with literal keys, `_UNKNOWN` for those that are no literals; None if it is no such dict."""
    if not isinstance(node, ast.Dict):
        return None
    found: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            return None
        try:
            found[key.value] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found[key.value] = _UNKNOWN
    return found


def _tree(root: Path) -> ast.Module | None:
    source = bytes_of(root, "recipe.py", most_bytes=_SOURCE_BYTES)
    try:
        return parse(source or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names(tree: ast.Module, name: str) -> list[ast.Name]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]


def _literal(tree: ast.Module, name: str, place: int | None) -> ast.expr | None:
    """The only value of a variable of the module that nothing else changes; None if there is no such variable.

    Args:
        tree: The module.
        name: The variable.
        place: Its place among the arguments of `run_recipe`, its only use; None: it has no use.
    """
    named = _names(tree, name)
    written = [node for node in named if isinstance(node.ctx, ast.Store)]
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets == written[:1]]
    if len(written) != 1 or len(values) != 1 or not _is_plain(tree, name, place, len(named) - 1):
        return None
    return values[0]


def _stated(root: Path) -> list[Any] | None:
    """The goals of METRICS in the order of the file; None if they are not literals, or assigned more than once."""
    tree = _tree(root)
    value = None if tree is None else _literal(tree, "METRICS", 2)
    if not isinstance(value, (ast.List, ast.Tuple)):
        return None
    found = []
    for entry in value.elts:
        if not isinstance(entry, (ast.Tuple, ast.List)) or len(entry.elts) != 2:
            return None
        try:
            found.append(ast.literal_eval(entry.elts[1]))
        except ValueError:
            return None
    return found


def _is_plain(tree: ast.Module, name: str, place: int | None, uses: int) -> bool:
    """Whether a variable is only used as an argument of `run_recipe`, `uses` times, so that nothing changes it."""
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    if {name, "*"} & imported:
        return False
    if place is None:
        return uses == 0
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "run_recipe"
    ]
    given = [node.args[place] for node in calls if len(node.args) > place]
    usual = [node for node in given if isinstance(node, ast.Name) and node.id == name]
    return len(usual) == len(calls) == uses


def _same(stated: Any, declared: str | None, unit: str | None) -> bool:
    """Whether a goal as written, such as `"< 1 min"` or 60, is the declared one, such as `"< 60"`, in the unit.

    Without a unit, it is any into which that of the written one converts.
    """
    if stated is None or declared is None:
        return stated is declared is None
    one, other = _GOAL.match(str(stated)), _GOAL.match(declared)
    if one is None or other is None or one[1] not in (None, other[1]):
        return False
    bound, own = float(one[2]), one[3].strip()
    if bound == float(other[2]) and (unit is None or own in ("", unit)):
        return True
    wanted = [each for each in units_like(own) if unit in (None, each) and each != own]
    # With the digits of a declared goal.
    return math.isfinite(bound) and any(
        float(f"{convert(one[2], own, each):.15g}") == float(other[2]) for each in wanted
    )
