"""What was asked for, or proved, against what a timed process says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.compare.plan import Plan
from deep5.measuring.pinning import processors
from deep5.recipe.recipe import Recipe

__all__ = ["fault_of"]

# Of a product of 1024 rows in float32, relative: twenty times its rounding, a fifth of that of TF32.
_EXACT = 2e-5


def fault_of(plan: Plan, recipe: Recipe, proved_on: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> str | None:
    """What is not as it should be, or None.

    Args:
        plan: The comparison as declared.
        recipe: As the candidate runs it.
        proved_on: Hashes of what the candidate was proved on.
        answer: Of its timed process: `settings` and `provenance` as read back, and `peaks`.
    """
    found, error = answer["settings"], answer["peaks"]["product_error"]
    for key, value in (proved_on or {}).items():
        if key in answer["provenance"] and answer["provenance"][key] != value:
            return f"its {key} is not what it was when the candidate was proved"
    declared = plan.kind != "operators" and bool(recipe.value("tf32"))
    # Recipes of operators have no such key.
    remedy = "" if plan.kind == "operators" else "; remedy: tf32=True in the recipe, which lets all candidates round so"
    if plan.kind != "operators" and found.get("dtype") not in (None, "float32"):
        return f"it computes in {found['dtype']}; asked for: float32"
    for what, asked, got in (
        ("threads", plan.threads, found.get("threads")),
        ("processors", processors(plan.threads), found.get("affinity")),
    ):
        if got is not None and got != asked:
            return f"it has {got} as {what}; asked for: {asked}"
    if found.get("tf32") is True and not declared:
        return f"it rounds float32 to TF32, as it says itself; asked for: float32{remedy}"
    if error is not None and not error <= _EXACT and not declared:
        return f"its matrix products in float32 are off by {error:.1g}; allowed: {_EXACT:g}{remedy}"
    return None
