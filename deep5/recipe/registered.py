"""Registered recipes: names of modules and of the cases of families, each resolved to its source."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error, RecipeError, UsageError
from deep5.core.own_files import is_own_module
from deep5.core.plugins import check_one_package, load, registered
from deep5.core.run_time import added_at_run_time
from deep5.recipe.family import RecipeFamily

__all__ = ["RegisteredRecipe", "family_of", "module_file", "own_registered", "recipe_names", "registered_recipe"]


@dataclass(frozen=True, kw_only=True)
class RegisteredRecipe:
    """The target of a registered name.

    Attributes:
        name: Name of the recipe.
        point: The entry point of its module.
        case: Its case name in the module's family, or None for a module with one recipe.
    """

    name: str
    point: EntryPoint
    case: str | None = None

    def path(self) -> Path:
        """The file of the module; raises as `module_file`."""
        return module_file(self.point)

    def source(self) -> bytes | None:
        """For a case, a Python file that defines it: the module's source and one more line; None: the module's source
        is used."""
        if self.case is None:
            return None
        selection = f"\n\nglobals().update({self.point.attr}.parts({self.case!r}))\n"
        return self.path().read_bytes().rstrip() + selection.encode()


def own_registered(kind: str, name: str) -> Any:
    """The component under a registered name if it is the user's code: of a package that is installed in place
    (`pip install --editable`), or registered at run time. None if it is not, or cannot be loaded.

    Args:
        kind: A key of `KINDS`.
        name: The registered name.
    """
    point = registered(kind).get(name)
    if (added := added_at_run_time(kind, name)) is not None:
        return added.component
    if point is None or point.module.partition(".")[0] == "deep5":
        return None
    try:
        component = load(kind, name)
    except Deep5Error:
        return None  # reported where the component is used
    return component if is_own_module(str(getattr(component, "__module__", None))) else None


def registered_recipe(name: str) -> RegisteredRecipe | None:
    """The recipe registered under a name, or None; imports at most the family's module.

    Raises:
        UsageError: Several packages register the name, or it begins with the name of a family whose module cannot be
            imported.
    """
    point = registered("recipes").get(name)
    if point is not None and not point.attr:
        check_one_package("recipes", name)
        return RegisteredRecipe(name=name, point=point)
    for point in _families():
        case = name.removeprefix(f"{point.name}_")
        if case != name and case in family_of(point).cases:
            return RegisteredRecipe(name=name, point=point, case=case)
    return None


def recipe_names() -> list[str]:
    """All registered recipes, without families whose module cannot be imported."""
    names = {name for name, point in registered("recipes").items() if not point.attr}
    for point in _families():
        try:
            names.update(f"{point.name}_{case}" for case in family_of(point).cases)
        except UsageError:
            continue
    return sorted(names)


def family_of(point: EntryPoint) -> RecipeFamily:
    """The family of an entry point.

    Raises:
        UsageError: It cannot be imported, or is not a family.
    """
    family = load("recipes", point.name)
    if not isinstance(family, RecipeFamily):
        raise RecipeError(
            f"the recipes {point.name!r} are registered as {point.value!r}, a {type(family).__name__}; "
            "allowed: a RecipeFamily, or a module without ':'"
        )
    return family


def module_file(point: EntryPoint) -> Path:
    """The file of an entry point's module, found without importing it.

    Raises:
        RecipeError: It does not exist.
    """
    try:
        spec = importlib.util.find_spec(point.module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise RecipeError(
            f"the recipe {point.name!r} is registered as {point.value!r}, which is not there; "
            "remedy: install the package that brings it again"
        )
    return Path(spec.origin)


def _families() -> Iterator[EntryPoint]:
    # Longest name first: `a_b_c` is the case `c` of `a_b` rather than the case `b_c` of `a`.
    points = [point for point in registered("recipes").values() if point.attr]
    return iter(sorted(points, key=lambda point: len(point.name), reverse=True))
