"""A comparison as declared: its candidates, their settings of the recipe, and their content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deep5.core.canonical import canonical_hash
from deep5.core.errors import RecipeError
from deep5.measuring.scheme import Scheme
from deep5.recipe.recipe import Recipe

__all__ = ["KINDS", "MODES", "Candidate", "Plan", "check_plain", "content_hash", "settings_of"]

KINDS = ("training", "inference", "operators")
"""Possible subjects of a comparison: whole training steps, the forward pass in evaluation, single operators."""

MODES = ("quick", "rigorous")
"""Two fresh processes per candidate, or ten to thirty."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A candidate of a comparison.

    Attributes:
        label: Its name.
        framework: Name of its framework, mode included.
        settings: Settings of the recipe other than the framework, in JSON types.
    """

    label: str
    framework: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Identifier shared by candidates that must compute the same: all settings except the framework."""
        return json.dumps(self.settings, sort_keys=True)

    @property
    def texts(self) -> list[str]:
        """All strings in its settings, without keys: any may be the name of a file."""
        return _texts([self.framework, self.settings])


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [text for each in inner for text in _texts(each)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison as declared.

    Attributes:
        recipe: Its name or path.
        size: Size of the recipe.
        kind: One of `KINDS`.
        mode: One of `MODES`.
        candidates: The candidates, in the order in which they were named.
        baseline: Label of the candidate that the others are compared with.
        threads: Threads within an operator.
        seed: Seed of the order of the processes.
        steps: Steps of the proof's trajectory.
        most: Maximum number of processes per candidate.
        time_limit_s: Time limit of one process.
        memory_limit_bytes: Memory limit of one process.
        scheme: Rules of order, evaluation and claims.
        contents: By label, `content_hash` of the declared content: a file that changes during the comparison does not
            take part in it.
    """

    recipe: str
    size: str
    kind: str
    mode: str
    candidates: Sequence[Candidate]
    baseline: str
    threads: int
    seed: int
    steps: int
    most: int
    time_limit_s: float
    memory_limit_bytes: int
    scheme: Scheme
    contents: Mapping[str, str]

    def candidate(self, label: str) -> Candidate:
        """The candidate with a label."""
        return next(candidate for candidate in self.candidates if candidate.label == label)


def settings_of(candidate: Candidate, kind: str) -> dict[str, Any]:
    """The settings of the recipe for a candidate, including its framework, in JSON types."""
    framework = {"frameworks": [candidate.framework]} if kind == "operators" else {"framework": candidate.framework}
    return {**candidate.settings, **framework}


def content_hash(recipe: Recipe) -> str:
    """Hash of everything that a candidate consists of, including the content of named files, except the number of
    threads."""
    reported = recipe.describe()
    mutable = {key: value for key, value in reported["mutable"].items() if key != "threads"}
    return canonical_hash([reported["fixed"], mutable, recipe.source_hash()])


def check_plain(settings: Any, what: str) -> None:
    """Reject settings that would change when passed to another process as JSON.

    Args:
        settings: Settings of candidates.
        what: Name of the settings in messages.

    Raises:
        RecipeError: States what is allowed.
    """
    try:
        json.dumps(settings, allow_nan=False)
        fault = "a key is not a string" if _has_other_key(settings) else None
    except (TypeError, ValueError) as error:
        fault = str(error)
    if fault is not None:
        raise RecipeError(
            f"{what} cannot be passed to another process ({fault}); allowed: numbers, strings, and lists and dicts of "
            "them with string keys; remedy: FILE.py:NAME for an object"
        )


def _has_other_key(value: Any) -> bool:
    # JSON would silently convert the key to a string.
    if isinstance(value, Mapping):
        return any(not isinstance(key, str) or _has_other_key(inner) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(map(_has_other_key, value))
