"""`RecipeFamily`: recipes of the same structure, registered by one entry point and identified by the name of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RecipeFamily"]


@dataclass(frozen=True, kw_only=True)
class RecipeFamily:
    """Several recipes defined by one module.

    An entry point of the group `deep5.recipes` registers a family as `NAME = "package.module:FAMILY"`. Its case
    `batch_64` is then the recipe `NAME_batch_64`. `deep5 list` imports the module for the names, so the module imports
    frameworks, and whatever else is slow, only inside `parts`.

    A result stores the module's source as its `recipe.py`, with a last line that selects the case. The module therefore
    imports what it needs by absolute names, so that its source is self-contained.

    Attributes:
        cases: By name, a one-sentence description of each case.
        parts: Returns, for the name of a case, the definitions of a recipe file: `FIXED`, `MUTABLE` and `METRICS`, and
            optionally `SIZES` and `STUDY`.
        internal: True if the recipes measure their own package: `deep5 list` shows them only with `--all`.

    >>> def parts(case: str) -> dict:
    ...     import deep5 as d5
    ...     size = int(case.removeprefix("batch_"))
    ...     return {
    ...         "FIXED": {"model": "lenet", "dataset": "digits", "epochs": 1},
    ...         "MUTABLE": {"batch_size": size, "framework": "reference", "optimizer": "adam"},
    ...         "METRICS": [(d5.TestAccuracy(), None)],
    ...     }
    >>> cases = {"batch_32": "LeNet with batches of 32.", "batch_64": "LeNet with batches of 64."}
    >>> FAMILY = RecipeFamily(cases=cases, parts=parts)
    >>> FAMILY.parts("batch_64")["MUTABLE"]["batch_size"], FAMILY.internal
    (64, False)
    """

    cases: Mapping[str, str]
    parts: Callable[[str], Mapping[str, Any]]
    internal: bool = False
