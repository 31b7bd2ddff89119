"""The optimizers of candidates as they ran: their hyperparameters, and which of them no candidate states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deep5.core.terminal import plain

__all__ = ["RanOptimizer", "optimizer_lines", "optimizers_in", "unequal_arguments", "without_kernel"]

_KWARGS = "optimizer_kwargs"
# What names an optimizer in its description, and what says how it runs; the rest are its hyperparameters.
_NAMES = ("rule", "optimizer", "object")
_NOT_HYPER = {*_NAMES, "native", "kernel", "update_dtype", "scheme", "ranks", "loss"}


@dataclass(frozen=True, kw_only=True)
class RanOptimizer:
    """The optimizer of a candidate.

    Attributes:
        settings: The candidate's settings, as declared.
        parts: The recipe's parts with these settings.
        described: The optimizer before the first step, in JSON types; None: the candidate did not run.
    """

    settings: Mapping[str, Any]
    parts: Mapping[str, Any]
    described: Mapping[str, Any] | None

    @property
    def hyper(self) -> dict[str, Any]:
        """The hyperparameters by name, the learning rate first."""
        found = {
            name: value
            for name, value in (self.described or {}).items()
            if name not in _NOT_HYPER and isinstance(value, (bool, int, float, str))
        }
        return {name: found[name] for name in sorted(found, key=lambda name: (name != "lr", name))}

    @property
    def given(self) -> Mapping[str, Any]:
        """The arguments that the recipe or the settings give."""
        found = self.parts.get(_KWARGS)
        return found if isinstance(found, Mapping) else {}

    @property
    def of_recipe(self) -> set[str]:
        """The names of the arguments that the recipe gives, and no setting."""
        whole = self.settings.get(_KWARGS)
        if isinstance(whole, Mapping):
            return set()
        return {name for name in self.given if f"{_KWARGS}.{name}" not in self.settings}

    @property
    def scheduled(self) -> set[str]:
        """The hyperparameters that a schedule sets."""
        found = self.parts.get("schedules")
        return set(found) if isinstance(found, Mapping) else set()

    def __str__(self) -> str:
        described = self.described or {}
        name = next((str(described[key]) for key in _NAMES if key in described), "an optimizer")
        native = described.get("native")
        scheduled = self.scheduled
        shown = [f"{key} by a schedule" if key in scheduled else f"{key}={value}" for key, value in self.hyper.items()]
        return plain(", ".join([f"{name} of {native}" if native else name, *shown]))


def without_kernel(described: Any) -> dict[str, Any] | None:
    """A described optimizer without its kernel, which depends on the machine; None if it is not described."""
    if not isinstance(described, Mapping):
        return None
    return {name: value for name, value in described.items() if name != "kernel"}


def optimizers_in(document: Mapping[str, Any]) -> dict[str, RanOptimizer]:
    """The optimizers of a comparison's candidates; a comparison of inference, or by an older deep5, describes none.

    Args:
        document: comparison.json.
    """
    return {
        row["label"]: RanOptimizer(
            settings=row["settings"],
            parts={**document["recipe"]["fixed"], **row["recipe"]},
            described=(row["observed"] or {}).get("optimizer"),
        )
        for row in document["candidates"]
    }


def optimizer_lines(ran: Mapping[str, RanOptimizer]) -> list[str]:
    """Each candidate's optimizer with its hyperparameters; one line if all are the same.

    Args:
        ran: By candidate.

    >>> adam = RanOptimizer(settings={}, parts={}, described={"rule": "Adam", "beta1": 0.9, "lr": 0.003, "kernel": "c"})
    >>> optimizer_lines({"a": adam, "b": adam})
    ['each candidate ran Adam, lr=0.003, beta1=0.9']
    """
    shown = {label: str(own) for label, own in ran.items() if own.described is not None}
    if len(shown) > 1 and len(set(shown.values())) == 1:
        return [f"each candidate ran {next(iter(shown.values()))}"]
    return [f"{plain(label)} ran {words}" for label, words in shown.items()]


def unequal_arguments(ran: Mapping[str, RanOptimizer]) -> list[str]:
    """A warning for each argument that the recipe gives to some candidates, while others have a default of their class.

    A candidate with another optimizer than the recipe's does not have the recipe's arguments.

    Args:
        ran: By candidate.

    >>> adam = {"parts": {"optimizer_kwargs": {"lr": 0.003}}, "described": {"rule": "Adam", "lr": 0.003}}
    >>> other = {"parts": {}, "described": {"rule": "Own", "lr": 0.001}}
    >>> ran = {"adam": RanOptimizer(settings={}, **adam), "own": RanOptimizer(settings={}, **other)}
    >>> print(*unequal_arguments(ran))
    the candidates have unequal lr: 0.003 of the recipe's optimizer_kwargs for adam, and the default of the class for \
own (0.001), because another optimizer drops the recipe's arguments; remedy: state it for each candidate, in the \
recipe's STUDY, or as --vary optimizer_kwargs.lr=0.003,0.001 (each candidate with each value)
    """
    said = []
    for name in dict.fromkeys(name for own in ran.values() for name in sorted(own.of_recipe)):
        there = {label: own for label, own in ran.items() if name in own.hyper and name not in own.scheduled}
        recipes = [label for label, own in there.items() if name in own.of_recipe]
        defaults = {label: own.hyper[name] for label, own in there.items() if name not in own.given}
        if not recipes or all(value == there[recipes[0]].hyper[name] for value in defaults.values()):
            continue
        first = there[recipes[0]].hyper[name]
        values = ",".join(str(value) for value in dict.fromkeys([first, *defaults.values()]))
        others = ", ".join(f"{plain(label)} ({value})" for label, value in defaults.items())
        said.append(
            f"the candidates have unequal {name}: {first} of the recipe's {_KWARGS} for "
            f"{', '.join(map(plain, recipes))}, and the default of the class for {others}, because another optimizer "
            "drops the recipe's arguments; remedy: state it for each candidate, in the recipe's STUDY, or as --vary "
            f"{_KWARGS}.{name}={values} (each candidate with each value)"
        )
    return said
