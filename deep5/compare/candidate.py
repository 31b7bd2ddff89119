"""A comparison as declared: its candidates, what is set of the recipe for each, and what they are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deep5.core.canonical import canonical_hash
from deep5.core.errors import RecipeError
from deep5.recipe.recipe import Recipe

__all__ = ["KINDS", "MODES", "Candidate", "Plan", "check_plain", "content_hash", "settings_of"]

KINDS = ("training", "inference", "operators")
"""What can be compared: whole training steps, the forward pass in evaluation, single operators."""

MODES = ("quick", "rigorous")
"""One fresh process a candidate, or eight to thirty."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of those that are compared.

    Attributes:
        label: What it is called.
        framework: Its name, mode included.
        settings: What is set of the recipe beside the framework, in JSON's types.
    """

    label: str
    framework: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """What candidates have in common that have to compute the same: all settings but the framework."""
        return json.dumps(self.settings, sort_keys=True)

    @property
    def texts(self) -> list[str]:
        """All texts in what it names, keys left out: any may be the name of a file."""
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
        size: Of the recipe.
        kind: One of `KINDS`.
        mode: One of `MODES`.
        candidates: In the order in which they were named.
        baseline: Label of the one that the others are held against.
        threads: Within an operator.
        seed: Of the order in which processes run.
        steps: Of the proof's trajectory.
        most: Processes a candidate, at most.
        time_limit_s: Of one process.
        memory_limit_bytes: Of one process.
        contents: By label, `content_hash` of what was declared: a file that changes while the comparison runs is no
            part of it.
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
    contents: Mapping[str, str]

    def candidate(self, label: str) -> Candidate:
        """The candidate of a label."""
        return next(candidate for candidate in self.candidates if candidate.label == label)


def settings_of(candidate: Candidate, kind: str) -> dict[str, Any]:
    """What is set of the recipe for a candidate, its framework among it, in JSON's types."""
    framework = {"frameworks": [candidate.framework]} if kind == "operators" else {"framework": candidate.framework}
    return {**candidate.settings, **framework}


def content_hash(recipe: Recipe) -> str:
    """Of all that a candidate is made of, what files hold that it names included; but for the number of threads."""
    told = recipe.describe()
    mutable = {key: value for key, value in told["mutable"].items() if key != "threads"}
    return canonical_hash([told["fixed"], mutable, recipe.source_hash()])


def check_plain(settings: Any, what: str) -> None:
    """Refuse settings that another process would get otherwise than they are: they go there as JSON.

    Args:
        settings: Of candidates.
        what: How they are told of.

    Raises:
        RecipeError: With what is allowed.
    """
    try:
        json.dumps(settings, allow_nan=False)
        fault = "a key is no text" if _has_other_key(settings) else None
    except (TypeError, ValueError) as error:
        fault = str(error)
    if fault is not None:
        raise RecipeError(
            f"{what} cannot be handed to another process ({fault}); allowed: numbers, texts, lists and dicts of them "
            "by texts; remedy: FILE.py:NAME for an object"
        )


def _has_other_key(value: Any) -> bool:
    # JSON would make a text of it, unsaid.
    if isinstance(value, Mapping):
        return any(not isinstance(key, str) or _has_other_key(inner) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(map(_has_other_key, value))
