"""`register`: components under names of this process, without an installed package."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from deep5.core.errors import UnknownName, UsageError, brief
from deep5.core.former_paths import present_name
from deep5.core.own_files import file_of
from deep5.core.plugins import KINDS, forget_names, registered
from deep5.core.run_time import RunTimeComponent, RunTimePoint, added_at_run_time, keep_component
from deep5.operators.registry import register_operator
from deep5.recipe.family import RecipeFamily

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe

__all__ = ["check_reachable", "refuse_local", "register"]

_Made = TypeVar("_Made")
_NAME = re.compile(r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")
# The base class of the components of a kind, where the core has one: its module and its name.
_BASES = {
    "frameworks": ("deep5.core.framework", "Framework"),
    "metrics": ("deep5.core.metric", "Metric"),
    "events": ("deep5.core.events", "Event"),
    "operators": ("deep5.core.operator", "Operator"),
}


@overload
def register(kind: str, name: str) -> Callable[[_Made], _Made]: ...
@overload
def register(kind: str, name: str, component: _Made) -> _Made: ...
def register(kind: str, name: str, component: Any = None) -> Any:
    """Make a component known under a name, in this process, as an entry point of an installed package does in all.

    A recipe's file may call it. Its fixed part is then hashed with the component in the place of the name. A component
    that is defined again, in a notebook or by a file that runs once more, replaces the previous one.

    Args:
        kind: `"frameworks"`, `"optimizers"`, …: a key of `deep5.core.plugins.KINDS`.
        name: The name; of an operator `DOMAIN.NAME`.
        component: A class, a function or an object. Left out: returns a decorator.

    Returns:
        The component itself, or a decorator of it.

    Raises:
        UnknownName: There is no such kind.
        UsageError: The name is not valid, or names another component; or the component is not of its kind.

    >>> @register("schedules", "halved")
    ... def halved(step): return 0.5
    >>> from deep5.core.plugins import load
    >>> load("schedules", "halved") is halved
    True
    """
    if kind not in KINDS:
        raise UnknownName("kind of component", str(kind), KINDS)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"register: got {brief(name)} as the name of a {KINDS[kind]}; allowed: letters, digits and _, and . or - "
            "between them; remedy: 'mine', say"
        )
    files = tuple(_running())
    if component is not None:
        _keep(kind, name, component, files)
        return component

    def decorate(made: _Made) -> _Made:
        _keep(kind, name, made, files)
        return made

    return decorate


def check_reachable(recipe: Recipe) -> None:
    """Reject a recipe with components that only this process knows, before other processes run it.

    Args:
        recipe: The recipe; what its file registers, another process registers, too.

    Raises:
        UsageError: For the first such name.
    """
    for part in (recipe.fixed, recipe.mutable):
        for key, value in part.items():
            about = recipe.kind.keys.get(key)
            kind = "frameworks" if key == "frameworks" else about.kind if about is not None else None
            refuse_local(kind or "", value, recipe.path)


def refuse_local(kind: str, value: Any, file: Path | None = None) -> None:
    """Reject a name that only this process knows, before other processes are started.

    Args:
        kind: A key of `KINDS`, or another word, which has no such names.
        value: A name, or several; anything else is no name.
        file: The file that the other processes run, or None.

    Raises:
        UsageError: The name was registered in this process, and not by the file.
    """
    own = None if file is None else os.path.realpath(file)
    for text in value if isinstance(value, (list, tuple)) else [value]:
        name = text.partition(":")[0] if isinstance(text, str) else ""
        added = added_at_run_time(kind, name) if name else None
        if added is not None and own not in added.files:
            raise UsageError(
                f"the {KINDS[kind]} {name!r} is registered only in this process, and others are started; allowed: a "
                "name that the recipe's file registers, FILE.py:NAME, or an entry point of an installed package; "
                f"remedy: {_file_name(added)}"
            )


def _file_name(added: RunTimeComponent) -> str:
    """`FILE.py:NAME` of a component where it has one, or the start of a plug-in."""
    file = file_of(sys.modules.get(str(getattr(added.component, "__module__", None))))
    name = str(getattr(added.component, "__qualname__", ""))
    return f"{file}:{name}" if file and name.isidentifier() else "deep5 new plugin NAME"


def _keep(kind: str, name: str, component: Any, files: tuple[str, ...]) -> None:
    point, before = registered(kind).get(present_name(kind, name)), added_at_run_time(kind, name)
    if point is not None and not isinstance(point, RunTimePoint):
        raise UsageError(
            f"register: the {KINDS[kind]} {name!r} exists already, as {point.value!r}; allowed: a name that is not "
            "registered; remedy: another name"
        )
    if fault := _fault(kind, name, component):
        raise UsageError(f"register: the {KINDS[kind]} {name!r} {fault}")
    if before is not None and _definition(before.component) != _definition(component):
        raise UsageError(
            f"register: the {KINDS[kind]} {name!r} is registered already, as {_shown(before.component)}, and would be "
            f"{_shown(component)}; allowed: one component under each name; remedy: another name"
        )
    if kind == "operators":
        domain, _, own = name.rpartition(".")
        register_operator(own, domain=domain)(component)
    known = () if before is None else before.files
    keep_component(kind, name, RunTimeComponent(component=component, files=tuple(dict.fromkeys((*files, *known)))))
    forget_names()


def _fault(kind: str, name: str, component: Any) -> str:
    """Why a component is not one of its kind, or an empty string."""
    if kind == "recipes":
        importable = isinstance(component, ModuleType) and component.__spec__ is not None
        if importable or isinstance(component, RecipeFamily):
            return ""
        return f"is {brief(component)}; allowed: an imported module, or a RecipeFamily; remedy: deep5 run FILE.py"
    if kind not in _BASES:
        ok = callable(component) or hasattr(component, "describe")
        return "" if ok else f"is {brief(component)}; allowed: a class, a function, or an object with describe()"
    module, base_name = _BASES[kind]
    base = getattr(import_module(module), base_name)
    made = component if isinstance(component, type) else type(component)
    if not issubclass(made, base) or (kind == "operators" and not isinstance(component, type)):
        return f"is {brief(component)}; allowed: a class of d5.{base_name}"
    own = getattr(component, "name", None)
    if kind == "frameworks" and own != name:
        return f"has the attribute name = {brief(own)}; allowed: the name under which it is registered"
    return ""


def _running() -> list[str]:
    """The files whose code is running, without deep5's and the import system's, innermost first."""
    found: dict[str, None] = {}
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not str(frame.f_globals.get("__name__")).startswith("deep5.") and not file.startswith("<"):
            found[os.path.realpath(file)] = None
        frame = frame.f_back
    return list(found)


def _definition(component: Any) -> object:
    """Equal for a component and the same one defined again; else different for different ones."""
    name = getattr(component, "__qualname__", None)
    module = str(getattr(component, "__module__", None))
    if name is None or "<lambda>" in name:
        return id(component)
    file = file_of(sys.modules.get(module))
    return module if file is None else os.path.realpath(file), name


def _shown(component: Any) -> str:
    name = getattr(component, "__qualname__", None)
    return brief(component) if name is None else f"{component.__module__}.{name}"
