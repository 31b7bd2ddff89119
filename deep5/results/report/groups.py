"""Groups comparable runs: those of one recipe at one size with the same fixed part and the same inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deep5.results.inputs import data_of, disputes, drawn_of
from deep5.results.markup import Markup, clean, element, named
from deep5.results.result import Result

__all__ = ["Group", "badges", "differing_inputs", "groups", "groups_of_study", "labels"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one recipe.

    Attributes:
        recipe: The `recipe` entry of the first run.
        runs: All runs.
    """

    recipe: Mapping[str, Any]
    runs: Sequence[Result]


def groups(runs: Sequence[Result]) -> list[Group]:
    """Runs by recipe, size, level, fixed part and inputs; the fixed part itself counts, not only the stated hash.

    Runs with one hash have separate groups if their data differ, or their networks or initial weights at one seed.
    """
    found: dict[tuple[str, ...], list[Result]] = {}
    drawn = [drawn_of(run.document) for run in runs]
    disputed = {own[0] for pair in disputes(drawn) if (own := drawn[pair[0]]) is not None}
    for run, own in zip(runs, drawn, strict=True):
        recipe = run.document["recipe"]
        apart = own[1] if own is not None and own[0] in disputed else ""
        inputs = (data_of(run.document), apart)
        stated = (recipe["name"], recipe["hash"], recipe.get("size"), run.document["level"], recipe["fixed"], inputs)
        found.setdefault(tuple(json.dumps(part, sort_keys=True) for part in stated), []).append(run)
    return [Group(recipe=own[0].document["recipe"], runs=own) for own in found.values()]


def differing_inputs(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A sentence for each hash under which runs had different inputs.

    Args:
        documents: Names and documents of runs.
    """
    by_hash: dict[tuple[Any, Any], list[tuple[str, Mapping[str, Any]]]] = {}
    for name, document in documents:
        recipe = document["recipe"]
        if recipe["hash"] is not None:
            by_hash.setdefault((recipe["hash"], recipe.get("size")), []).append((name, document))
    said = []
    for (hash_of, _), own in by_hash.items():
        data = {data_of(document): name for name, document in reversed(own) if data_of(document)}
        if len(data) > 1:
            said.append((hash_of, "different data", list(data.values())[:2]))
        if pairs := disputes([drawn_of(document) for _, document in own]):
            names = [own[number][0] for number in pairs[0]]
            said.append((hash_of, "different networks or initial weights at one seed", names))
    return [
        f"not comparable: {' and '.join(map(clean, names))} have one hash, {str(hash_of)[:12]}, and {what}; they are "
        "in separate sections"
        for hash_of, what, names in said
    ]


def labels(runs: Sequence[Result]) -> list[str]:
    """Labels of a group's runs: framework and differing settings, without their seeds.

    Runs with different numbers of ranks also get different labels: no curve is the mean of both.
    """
    stated = [
        {key: json.dumps(value, sort_keys=True) for key, value in run.document["recipe"]["mutable"].items()}
        for run in runs
    ]
    keys = [key for key in dict.fromkeys(key for own in stated for key in own) if key not in {"seed", "framework"}]
    differ = [key for key in keys if len({own.get(key) for own in stated}) > 1]
    by_ranks = len({run.document.get("ranks") for run in runs}) > 1
    names = []
    for run, own in zip(runs, stated, strict=True):
        framework = run.document.get("framework")
        name = framework.get("name") if isinstance(framework, dict) else None
        several = run.document["recipe"]["mutable"].get("frameworks")
        if not name and isinstance(several, list):
            name = ", ".join(map(str, several))
        ranks = [f"ranks {run.document.get('ranks')}"] if by_ranks else []
        names.append(", ".join([str(name or "run"), *ranks, *(f"{key} {own.get(key, '-')}" for key in differ)]))
    return names


def badges(recipe: Mapping[str, Any]) -> Markup:
    """Name, size, division and fixed hash of a recipe; an open division is marked."""
    division = recipe.get("division")
    fixed = str(recipe.get("hash") or "unknown")
    why: tuple[str, ...] = ("its fixed part or its goals were changed",)
    if recipe.get("size") not in (None, "full"):
        why = "run at size ", named(recipe["size"]), ", not full"
    return element(
        "p",
        element("span", "recipe ", named(recipe.get("name")), class_="badge"),
        element("span", "size ", named(recipe["size"]), class_="badge") if recipe.get("size") else None,
        element("span", "open division: ", why, class_="badge warn")
        if division == "open"
        else element("span", "closed division", class_="badge"),
        element("span", "fixed part ", element("code", fixed[:12]), class_="badge", title=fixed),
        class_="badges",
    )


def groups_of_study(runs: Mapping[str, Sequence[Result]]) -> list[dict[str, list[Result]]]:
    """The runs of a study that may share a table or a chart, by the name of their point: those of one fixed part.

    Args:
        runs: All runs of the study, by the name of their point.
    """
    found = []
    for group in groups([run for own in runs.values() for run in own]):
        own = {name: [run for run in each if any(run is other for other in group.runs)] for name, each in runs.items()}
        found.append({name: each for name, each in own.items() if each})
    return found
