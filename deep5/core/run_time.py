"""Components registered at run time, by kind and name; `deep5.core.plugins` finds them beside entry points."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

__all__ = ["RunTimeComponent", "RunTimePoint", "added_at_run_time", "keep_component", "run_time_points"]


@dataclass(frozen=True, kw_only=True)
class RunTimeComponent:
    """A component of this process.

    Attributes:
        component: The object.
        files: The files whose code was running at its registration, innermost first: that of the call, and those that
            imported it. A process that runs one of them again registers the component again.
    """

    component: Any
    files: tuple[str, ...]


class RunTimePoint(EntryPoint):
    """The entry point of a component of this process: its `load` returns the object."""

    def load(self) -> Any:
        """The object."""
        return _COMPONENTS[self.group.removeprefix("deep5."), self.name].component


_COMPONENTS: dict[tuple[str, str], RunTimeComponent] = {}


def added_at_run_time(kind: str, name: str) -> RunTimeComponent | None:
    """The component registered at run time under a name, or None."""
    return _COMPONENTS.get((kind, name))


def keep_component(kind: str, name: str, component: RunTimeComponent) -> None:
    """Add a component, or replace the one of that name; `deep5.core.plugins` has to forget what it found before."""
    _COMPONENTS[kind, name] = component


def run_time_points(kind: str) -> Mapping[str, EntryPoint]:
    """The entry points of the components of a kind, by name."""
    found = {}
    for (own, name), kept in _COMPONENTS.items():
        if own == kind:
            found[name] = RunTimePoint(name, _place(kept.component), f"deep5.{kind}")
    return found


def _place(component: Any) -> str:
    """`module:name` of a component, as in an entry point; of a module only its name."""
    if isinstance(component, type(re)):
        return component.__name__
    qualified = getattr(component, "__qualname__", None) or type(component).__qualname__
    return f"{component.__module__}:{re.sub(r'[^A-Za-z0-9_.]', '', qualified)}"
