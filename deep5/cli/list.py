"""What `deep5 list` shows: a line a component, and for a missing framework the command that installs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
from typing import Any

from deep5.core.errors import MissingDependency, UsageError
from deep5.core.plugins import install_command, load, registered
from deep5.core.python_source import parse

__all__ = ["listing"]


def listing(kind: str) -> list[dict[str, Any]]:
    """Every registered component of a kind: `name` and `about`; for frameworks also `installed`.

    Args:
        kind: A key of `plugins.KINDS`.
    """
    rows: list[dict[str, Any]] = []
    for name in registered(kind):
        try:
            if kind == "recipes":
                rows.append({"name": name, "about": _recipe_about(registered(kind)[name].value)})
                continue
            component = load(kind, name)
        except UsageError as error:
            missing = "not installed; " if isinstance(error, MissingDependency) else ""
            rows.append({"name": name, "about": f"{missing}{error}", "installed": False})
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


def _installed(component: Any) -> dict[str, Any]:
    """Whether a framework's packages are there, looked up without importing any."""
    versions = []
    for package in component.requires:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            return {"about": f"not installed; remedy: {install_command(package)}", "installed": False}
    about = _first_sentence(inspect.getdoc(component))
    return {"about": f"{about} [{', '.join(versions) or 'always there'}]", "installed": True}


def _recipe_about(module: str) -> str:
    """The first sentence of a recipe's docstring, read without running the recipe."""
    import ast
    from pathlib import Path

    try:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise UsageError(f"registered as {module!r}, which is not there")
        return _first_sentence(ast.get_docstring(parse(Path(spec.origin).read_bytes())))
    except (ModuleNotFoundError, OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"registered as {module!r}, which cannot be read ({error})") from error


def _first_sentence(text: str | None) -> str:
    line = " ".join((text or "").split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".")
