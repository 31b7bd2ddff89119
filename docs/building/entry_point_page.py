"""The page of entry points, from `entry_points.txt` and the docstrings of what it registers."""

from __future__ import annotations

import configparser
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import api_pages
from deep5.cli.list import listing
from deep5.core.plugins import REGISTERED
from tables import code, require, table, with_code

HEAD = """\
# Entry points

deep5 finds its components, its own included, by
[entry points](https://packaging.python.org/en/latest/specifications/entry-points/). A package registers a component by
one line in its `pyproject.toml`:

```toml
[project.entry-points."deep5.optimizers"]
sign_momentum = "acme_parts.rules:SignMomentum"
```

After `pip install`, recipes and commands take the name `sign_momentum`, and `deep5 list optimizers` shows it.
`deep5 new plugin NAME` writes a package with a component of every kind ([how to write a
plug-in](../how_to/backends.md#a-plug-in)). Without a package, `d5.register("optimizers", "sign_momentum", Own)` gives
the class `Own` a name in one process. If two packages register the same name, deep5 refuses it where it is used.

A component is loaded when its name is used, so a package whose library is not installed does not disturb the others.
"""
OTHER = {
    "deep5.notebooks": (
        "Notebooks",
        "A module that registers how notebooks show values: functions decorated with "
        "`deep5.core.notebook.html_of.register`. "
        "deep5 loads all modules of the group when a notebook first shows a value.",
    ),
    "pytest11": (
        "pytest",
        "pytest's own group of plug-ins. deep5's plug-in adds fixtures and options for tests of components "
        "([testing](../how_to/testing.md)).",
    ),
}
"""Title and meaning of the groups that register no components."""
TITLES = {"datasets": "Data sets", "compressors": "Compressions"}
"""Titles that are not the word of the kind."""


def groups(root: Path) -> dict[str, dict[str, str]]:
    """The entry points of deep5 by group and name."""
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string((root / "entry_points.txt").read_text(encoding="utf-8"))
    return {group: dict(parser[group]) for group in parser.sections()}


def pages(root: Path = Path(__file__).parents[2], registered: Mapping[str, str] = REGISTERED) -> dict[str, str]:
    """The page.

    Args:
        root: The repository.
        registered: What an entry point names, by kind of component.

    Raises:
        PluginError: A group without a meaning, or a component without a docstring.
    """
    found = groups(root)
    kinds = {group.removeprefix("deep5."): names for group, names in found.items() if group not in OTHER}
    require("entry point groups", [(kind, registered.get(kind)) for kind in kinds], "deep5.core.plugins.REGISTERED")
    anchors = _anchors()
    parts = [HEAD]
    for kind, names in kinds.items():
        meaning = registered[kind]
        title = TITLES.get(kind, kind.capitalize())
        rows = _table(kind, names, anchors)
        parts.append(f"## {title} {{ #{kind} }}\n\nGroup {code(f'deep5.{kind}')}. {with_code(meaning)}\n\n{rows}\n")
    for group, (title, meaning) in OTHER.items():
        named = ", ".join(f"{code(name)} ({code(target)})" for name, target in found[group].items())
        parts.append(f"## {title}\n\nGroup {code(group)}. {meaning}\n\nRegistered by deep5: {named}.\n")
    return {"reference/entry_points.md": "\n".join(parts)}


def _anchors() -> dict[int, str]:
    """The link to the API reference, by identity of the public object."""
    return {
        id(value): f"api/{api_pages.page_of(name, value)}.md#{name}"
        for name, value in api_pages.public_names().items()
        if callable(value)
    }


def _table(kind: str, names: Mapping[str, str], anchors: Mapping[int, str]) -> str:
    """The registered names with their meanings."""
    if kind == "recipes":
        rows = [(row["name"], row["about"]) for row in listing(kind) if not row["internal"] and _is_own(row, names)]
        require("recipes", rows, "the docstring of the module")
        note = (
            "\n\nThe recipes that begin with `overhead_` measure deep5 itself: `deep5 list recipes --all` lists them."
        )
        return table(("name", "recipe"), [(code(name), with_code(about)) for name, about in rows]) + note
    loaded = {name: EntryPoint(name, target, f"deep5.{kind}").load() for name, target in names.items()}
    require(kind, [(name, inspect.getdoc(found)) for name, found in loaded.items()], "its docstring")
    columns = _COLUMNS.get(kind, ())
    rows = []
    for name, found in loaded.items():
        link = anchors.get(id(found))
        shown = code(name) if link is None else f"[{code(name)}]({link})"
        rows.append((shown, with_code(_first_sentence(found)), *(read(found) for _, read in columns)))
    return table(("name", "meaning", *(head for head, _ in columns)), rows)


def _is_own(row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
    return any(row["name"] == name or row["name"].startswith(f"{name}_") for name in names)


def _first_sentence(found: Any) -> str:
    """The first sentence of a docstring, without its final full stop."""
    return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")


_COLUMNS: Mapping[str, tuple[tuple[str, Callable[[Any], str]], ...]] = {
    "metrics": (("unit", lambda metric: metric.unit), ("better", lambda metric: metric.direction)),
    "frameworks": (
        ("modes", lambda framework: ", ".join(code(mode) for mode in framework.modes)),
        ("packages", lambda framework: ", ".join(code(package) for package in framework.requires)),
    ),
}
"""Further columns by kind: title, and what reads it from a component."""
