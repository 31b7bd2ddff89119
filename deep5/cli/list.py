"""Implementation of `deep5 list`: one sentence per component, with the install command of missing frameworks."""

from __future__ import annotations

import importlib.metadata
import inspect
import shutil
import sys
import textwrap
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

from deep5.core.errors import MissingDependency, UsageError
from deep5.core.plugins import KINDS, check_one_package, install_command, load, registered
from deep5.core.python_source import parse
from deep5.recipe.registered import family_of, module_file

__all__ = ["KEYS", "entry_lines", "key_listing", "key_text", "listing"]

KEYS = "keys"
"""What `deep5 list` lists beside the kinds of components: the keys of recipes."""

_COLUMNS = 100
"""The width of what is not printed on a terminal."""


def listing(kind: str) -> list[dict[str, Any]]:
    """All registered components of a kind: `name` and `about`; for frameworks also `installed`.

    Recipes also have `internal`: whether they measure deep5 itself.

    Args:
        kind: A key of `plugins.KINDS`.
    """
    rows: list[dict[str, Any]] = []
    for name, point in registered(kind).items():
        try:
            if kind == "recipes":
                rows += _recipes(point)
                continue
            component = load(kind, name)
        except UsageError as error:
            missing = "not installed; " if isinstance(error, MissingDependency) else ""
            internal = {"internal": False} if kind == "recipes" else {}
            rows.append({"name": name, "about": f"{missing}{error}", "installed": False, **internal})
            continue
        row = {"name": name, "about": _first_sentence(inspect.getdoc(component))}
        if kind == "frameworks":
            row |= _installed(component)
            rows.append(row)
            rows += [
                {"name": f"{name}:{mode}", "about": about, "installed": row["installed"]}
                for mode, about in component.modes.items()
            ]
            continue
        if kind == "metrics":
            row["about"] += f" [{component.unit}, {component.direction} is better]"
        rows.append(row)
    return rows


def key_listing() -> list[dict[str, Any]]:
    """The keys of recipes, by kind of recipe.

    Each row has `recipe` (the kind of recipe), `name`, `about`, `component` (the kind of component that the key names,
    or None), `allowed` (other values, or None), `required`, and `default` (as in Python; None if it is required).
    """
    from deep5.recipe.key_checks import allowed_values
    from deep5.recipe.keys import RECIPES

    return [
        {
            "recipe": kind.name,
            "name": name,
            "about": key.meaning.rstrip("."),
            "component": None if key.kind is None else KINDS.get(key.kind, "function"),
            "allowed": allowed_values(name, key),
            "required": key.required,
            "default": None if key.required else repr(key.default),
        }
        for kind in RECIPES
        for name, key in kind.keys.items()
    ]


def key_text(row: Mapping[str, Any]) -> str:
    """The meaning of a key, what it allows, and its default."""
    default = "required" if row["required"] else f"default {row['default']}"
    return f"{row['about']} [{row['component'] or row['allowed']}; {default}]"


def entry_lines(name: str, about: str, width: int, indent: str = "") -> str:
    """A component on one line, or on several below each other where the sentence is longer than the terminal.

    Args:
        name: Its name.
        about: The sentence.
        width: Columns of the names.
        indent: Precedes each line.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _COLUMNS
    first, rest = f"{indent}{name:<{width}}  ", " " * (len(indent) + width + 2)
    left = max(columns - len(rest), 30)
    lines = textwrap.wrap(about, left, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join((head + line).rstrip() for head, line in zip([first, *[rest] * len(lines)], lines, strict=False))


def _installed(component: Any) -> dict[str, Any]:
    """Whether a framework's packages are installed, checked without importing them."""
    versions = []
    for package in component.requires:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            return {"about": f"not installed; remedy: {install_command(package)}", "installed": False}
    about = _first_sentence(inspect.getdoc(component))
    return {"about": f"{about} [{', '.join(versions) or 'always available'}]", "installed": True}


def _recipes(point: EntryPoint) -> list[dict[str, Any]]:
    """The recipe of a module, or the recipes of a family, without running them."""
    check_one_package("recipes", point.name)
    if not point.attr:
        return [{"name": point.name, "about": _recipe_about(point), "internal": False}]
    family = family_of(point)
    return [
        {"name": f"{point.name}_{case}", "about": _first_sentence(about), "internal": family.internal}
        for case, about in sorted(family.cases.items())
    ]


def _recipe_about(point: EntryPoint) -> str:
    """The first sentence of a recipe's docstring, read without running the recipe."""
    import ast

    try:
        return _first_sentence(ast.get_docstring(parse(module_file(point).read_bytes())))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"registered as {point.value!r}, which cannot be read ({error})") from error


def _first_sentence(text: str | None) -> str:
    line = " ".join((text or "").split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".")
