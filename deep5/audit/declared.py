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
    stated = _stated(root) if recipe["size"] == "full" else "they are of another size than the full one"
    if isinstance(stated, str):
        ledger.skip(f"goals against recipe.py: {stated}")
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
    value = _literal(tree, "METRICS")
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
    stated = tree if isinstance(tree, str) else _parts(tree, "FIXED")
    if isinstance(tree, str) or isinstance(stated, str):
        ledger.skip(f"the fixed part against recipe.py: {stated}")
        return
    sizes = _parts(tree, "SIZES") if _mentions(tree, "SIZES") else {}
    if isinstance(sizes, str):
        ledger.skip(f"the size against recipe.py: {sizes}")
        return
    known = {"full", *sizes}
    size = recipe["size"]
    if not ledger.hold(14, size in known, f"the size is {size!r:.60}; allowed: {', '.join(sorted(known))}"):
        return
    changes = sizes.get(size, {})
    if changes is _UNKNOWN or not isinstance(changes, dict):
        ledger.skip(f"the size against recipe.py: SIZES does not state {size!r:.60} in literals")
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


def _parts(tree: ast.Module, name: str) -> dict[str, Any] | str:
    """The values of a dict with literal keys, `_UNKNOWN` for those that are no literals; or why it is not known."""
    node = _literal(tree, name)
    if isinstance(node, str):
        return node
    if not isinstance(node, ast.Dict):
        return f"{name} is not written as a literal dict"
    found: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            return f"a key of {name} is not written as a literal"
        try:
            found[key.value] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found[key.value] = _UNKNOWN
    return found


def _tree(root: Path) -> ast.Module | str:
    """The syntax of recipe.py, or why there is none."""
    source = bytes_of(root, "recipe.py", most_bytes=_SOURCE_BYTES)
    if source is None:
        return "the folder has no recipe.py"
    try:
        return parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "it is not Python code that this Python reads"


def _names(tree: ast.Module, name: str) -> list[ast.Name]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]


def _is_imported(tree: ast.Module, name: str) -> bool:
    """Whether the module may import a variable, by its name or with all others."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return bool({name, "*"} & {alias.asname or alias.name for node in imports for alias in node.names})


def _mentions(tree: ast.Module, name: str) -> bool:
    return bool(_names(tree, name)) or _is_imported(tree, name)


def _literal(tree: ast.Module, name: str) -> ast.expr | str:
    """The only value of a variable of the module, given to nothing but `run_recipe`; or why it is not known.

    Args:
        tree: The module.
        name: One of `_ARGUMENTS`.
    """
    named = _names(tree, name)
    written = [node for node in named if isinstance(node.ctx, ast.Store)]
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets == written[:1]]
    if _is_imported(tree, name):
        return f"an import may define {name}"
    if len(written) != 1 or len(values) != 1:
        return f"{name} is not assigned exactly once, at the top of the module"
    if (given := _given(tree, name)) is None:
        return f"a call of run_recipe does not get {name} by this name"
    if len(named) - 1 != given:
        return f"{name} has other uses than as an argument of run_recipe, which may change it"
    return values[0]


# Of the function `run_recipe`: the keyword, and the place if there is one.
_ARGUMENTS: Mapping[str, tuple[str, int | None]] = {
    "FIXED": ("fixed", 0),
    "METRICS": ("metrics", 2),
    "SIZES": ("sizes", None),
}


def _given(tree: ast.Module, name: str) -> int | None:
    """How often a variable is given to `run_recipe` as the argument of its name; None: a call may get another value."""
    keyword, place = _ARGUMENTS[name]
    count = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "run_recipe":
            continue
        if any(isinstance(own, ast.Starred) for own in node.args) or any(own.arg is None for own in node.keywords):
            return None
        given = [own.value for own in node.keywords if own.arg == keyword]
        given += node.args[place : place + 1] if place is not None else []
        if any(not isinstance(own, ast.Name) or own.id != name for own in given):
            return None
        count += len(given)
    return count


def _stated(root: Path) -> list[Any] | str:
    """The goals of METRICS in the order of the file; or why they are not known."""
    tree = _tree(root)
    value = tree if isinstance(tree, str) else _literal(tree, "METRICS")
    if isinstance(value, str):
        return value
    if not isinstance(value, (ast.List, ast.Tuple)):
        return "METRICS is not written as a list"
    found = []
    for entry in value.elts:
        if not isinstance(entry, (ast.Tuple, ast.List)) or len(entry.elts) != 2:
            return "METRICS is not written as pairs"
        try:
            found.append(ast.literal_eval(entry.elts[1]))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return "a goal in METRICS is not written as a literal"
    return found


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
