"""One measurement of deep5 itself against hand-written code, and the recipe that it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import deep5 as d5

__all__ = ["Case"]

_ARGUMENTS = ("candidate_kwargs", "baseline_kwargs")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement.

    Attributes:
        about: A sentence for `deep5 list`.
        kind: A key of `sides.KINDS`.
        given: Arguments of the kind.
        goal: Goal for the slowdown, or for the overhead per step if it is in microseconds; None: reported only.
        steps: Steps per call of a side.
        rounds: Calls per side.
        smoke: Steps and rounds of the smoke size.
        smoke_given: The arguments that differ in the smoke size.
        threads: Threads of the framework; None: the sides have no such argument.
        launcher: The launcher of the two ranks; None: one process.
        mutable: True if settings may change the arguments of the sides.
    """

    about: str
    kind: str
    given: Mapping[str, Any] = field(default_factory=dict)
    goal: str | None
    steps: int
    rounds: int = 60
    smoke: Mapping[str, int]
    smoke_given: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = 1
    launcher: str | None = None
    mutable: bool = False

    def parts(self) -> dict[str, Any]:
        """The definitions of a recipe file."""
        from deep5.recipes.overhead.sides import KINDS

        fixed = {**KINDS[self.kind](**self.given), "steps": self.steps, "rounds": self.rounds}
        if self.threads is not None:
            fixed["threads"] = self.threads
        if self.launcher is not None:
            fixed |= {"ranks": 2, "launcher": self.launcher}
        arguments = {key: fixed.pop(key) for key in _ARGUMENTS} if self.mutable else {}
        small = KINDS[self.kind](**{**self.given, **self.smoke_given}) if self.smoke_given else {}
        metric = d5.Overhead() if self.goal is not None and self.goal.endswith("us") else d5.Slowdown()
        return {
            "FIXED": fixed,
            "MUTABLE": {**arguments, "seed": 0},
            "METRICS": [(metric, self.goal)],
            "SIZES": {"smoke": {**{key: small[key] for key in _ARGUMENTS if small}, **self.smoke}},
        }
