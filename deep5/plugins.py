"""Names to components: the only loader. Everything is registered by entry point, deep5's own components included."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from deep5.errors import Deep5Error, MissingDependency, UnknownName

if TYPE_CHECKING:
    from deep5.backend import Framework

__all__ = ["KINDS", "framework", "load", "missing_dependency", "name_of", "registered"]

KINDS = {
    "recipes": "recipe",
    "frameworks": "framework",
    "metrics": "metric",
    "networks": "network",
    "datasets": "data set",
    "samplers": "sampler",
    "optimizers": "optimizer",
    "events": "event",
}
"""What can be registered: the entry point group `deep5.<kind>` and the word for one of them."""

# The distribution that brings a module, and the extra of deep5 that installs it.
_EXTRAS = {
    "torch": "pytorch",
    "tensorflow": "tensorflow",
    "onnxruntime": "onnxruntime",
    "jax": "jax",
    "array_api_strict": "dev",
}


@functools.cache
def registered(kind: str) -> Mapping[str, EntryPoint]:
    """Every registered component of a kind (a key of `KINDS`), by name, nothing loaded."""
    return {point.name: point for point in sorted(entry_points(group=f"deep5.{kind}"), key=lambda point: point.name)}


@functools.cache
def load(kind: str, name: str) -> Any:
    """The component registered under a name.

    Args:
        kind: A key of `KINDS`.
        name: The registered name.

    Raises:
        UnknownName: Nothing has that name.
        MissingDependency: A package that the component needs is not installed.
    """
    points = registered(kind)
    if name not in points:
        raise UnknownName(KINDS[kind], name, points, remedy=f"'deep5 list {kind}' shows them")
    try:
        return points[name].load()
    except ModuleNotFoundError as error:
        raise missing_dependency(f"{KINDS[kind]} {name!r}", error) from error
    except AttributeError as error:
        raise Deep5Error(
            f"{KINDS[kind]} {name!r} is registered as {points[name].value!r}, which is not there ({error}); "
            "remedy: install that package again"
        ) from error


def missing_dependency(what: str, error: ModuleNotFoundError) -> MissingDependency:
    """The error for a package that is not installed, with the command that installs it."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    command = f"pip install 'deep5[{extra}]'" if extra else f"pip install {package or 'the missing package'}"
    return MissingDependency(f"{what} needs the package {package!r}, which is not installed; remedy: {command}")


def name_of(kind: str, component: Any) -> str | None:
    """The registered name of a component given as an object, or None; loads nothing but what the object came from."""
    module, qualified = getattr(component, "__module__", None), getattr(component, "__qualname__", None)
    for name, point in registered(kind).items():
        if f"{module}:{qualified}" == point.value:
            return name
    # A registered path may re-export: compare by identity, but only within the same package.
    for name, point in registered(kind).items():
        if module and point.attr == qualified and module.startswith(re.split(r"[:.]", point.value)[0]):
            if load(kind, name) is component:
                return name
    return None


@functools.cache
def framework(name: str) -> Framework:
    """A back-end by name.

    Args:
        name: `"pytorch"`, `"reference"`, …; a mode follows a colon.

    Raises:
        UnknownName: No back-end has that name.
        MissingDependency: Its library is not installed.

    >>> framework("reference").name
    'reference'
    """
    from deep5.backend import Framework

    found = load("frameworks", name)
    if isinstance(found, type):
        found = found()
    if not isinstance(found, Framework):
        raise Deep5Error(f"framework {name!r} is a {type(found).__name__}; allowed: a Framework or a class of it")
    return found
