"""`Experiment`: a recipe ready to run, with its values or defaults, its hashes, and the resolution of its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deep5.core.canonical import canonical
from deep5.core.metric import Goal, Metric
from deep5.recipe.keys import Kind
from deep5.recipe.origin import origin_of
from deep5.recipe.part import Part, Parts, part_of
from deep5.recipe.recipe import Recipe

__all__ = ["Experiment", "recipe_parts"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The resolved content of a recipe, at one size and with all settings; made once.

    Attributes:
        name: Name of the recipe.
        kind: The kind of recipe.
        size: The selected size.
        ranks: The requested number of ranks; None: one process without ranks.
        values: By key, the recipe's value or the default.
        parts: By key, the value with its arguments, from which an object is created.
        metrics: Pairs of metric and goal; None: reported, without a goal.
        metrics_at: File and line of METRICS, ending in `": "`, or an empty string.
        document: The description of the recipe in a result, including its hash.
        first_rule: The parts of `document` that differ by the first rule for hashes, under which older runs resume.
        defaults: By key, the value if a recipe omits it, in JSON types.
        source: Returns the content of the recipe's file, or of the model's in its place; None without a file.
        source_hash: SHA-256 of the source, or None.
        in_place: The model that is given in place of a recipe, as given, or None.
        origin: Returns where the recipe and the user's own files are, as `deep5.recipe.origin.origin_of`; None:
            there is no recipe to run again.
    """

    name: str
    kind: Kind
    size: str
    ranks: int | None
    values: Mapping[str, Any]
    parts: Parts
    metrics: tuple[tuple[Metric, Goal | None], ...]
    metrics_at: str
    document: Mapping[str, Any]
    first_rule: Mapping[str, Any]
    defaults: Mapping[str, Any]
    source: Callable[[], bytes | None]
    source_hash: str | None
    in_place: str | None
    origin: Callable[[], dict[str, Any]] | None

    @classmethod
    def of(cls, recipe: Recipe) -> Experiment:
        """Make a recipe ready to run; loads no component yet.

        Raises:
            RecipeError: FIXED holds a value without a canonical form.
        """
        document, parts = recipe.document(), recipe_parts(recipe)
        return cls(
            name=recipe.name,
            kind=recipe.kind,
            size=recipe.size,
            ranks=parts["ranks"].value if "ranks" in parts else None,
            values={key: part.value for key, part in parts.items()},
            parts=parts,
            metrics=recipe.metrics,
            metrics_at=recipe.where("METRICS"),
            document=document,
            first_rule=recipe.by_first_rule(),
            defaults=defaults_of(recipe.kind),
            source=_source_of(recipe),
            source_hash=recipe.source_hash(),
            in_place=None if recipe.in_place is None else recipe.in_place.text,
            origin=partial(origin_of, recipe),
        )


def _source_of(recipe: Recipe) -> Callable[[], bytes | None]:
    content = recipe.source
    return (lambda: content) if recipe.in_place is None else recipe.in_place.read


def recipe_parts(recipe: Recipe) -> dict[str, Part]:
    """By key, each part of a recipe; lists and dicts are copies."""
    stated, where = {**recipe.fixed, **recipe.mutable}, recipe.where
    return {
        key: part_of(
            key,
            about,
            stated,
            where=where,
            settings=recipe.settings,
            file=recipe.path,
            folder=recipe.folder_of(key),
        )
        for key, about in recipe.kind.keys.items()
    }


def defaults_of(kind: Kind) -> dict[str, Any]:
    """Default of each key that a recipe of a kind may omit, in JSON types."""
    return {name: canonical(key.default, name, strict=False) for name, key in kind.keys.items() if not key.required}
