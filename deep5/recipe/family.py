"""`RecipeFamily`: recipes of one shape, registered by one entry point and told apart by the name of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RecipeFamily"]


@dataclass(frozen=True, kw_only=True)
class RecipeFamily:
    """Recipes that one module defines, instead of a module each.

    An entry point of the group `deep5.recipes` registers a family as `NAME = "package.module:FAMILY"`. Its case
    `batch_64` is then the recipe `NAME_batch_64`. `deep5 list` imports the module for the names, so the module imports
    frameworks, and whatever else is slow, only inside `parts`.

    A result stores the module's source as its `recipe.py`, with a last line that selects the case. The module
    therefore imports what it needs by absolute names, and its source stands alone.

    Attributes:
        cases: A sentence for each case, by name.
        parts: Gives, for the name of a case, what the file of a recipe defines: `FIXED`, `MUTABLE` and `METRICS`, and
            `SIZES` and `STUDY` where the recipe has them.
        internal: True if the recipes measure their own package: `deep5 list` shows them only with `--all`.
    """

    cases: Mapping[str, str]
    parts: Callable[[str], Mapping[str, Any]]
    internal: bool = False
