"""Rules 2 and 3: element types, TF32 and threads as read back, held against what was declared and asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger

__all__ = ["check_numerics", "check_threads", "parts_of"]

_MIXED = ("bfloat16", "float16")
_PLAIN = ("float32", "float64")
# Of a product of 1024 rows in float32, relative: far above its rounding, far below that of TF32.
_EXACT = 2e-5
# How a run says that somebody else had set the threads before it could.
_NOT_DEFAULT = "the number of threads is not the default: "


def parts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fixed and mutable parts of a document's recipe, together."""
    return {**document["recipe"]["fixed"], **document["recipe"]["mutable"]}


def check_numerics(
    ledger: Ledger,
    who: str,
    found: Mapping[str, Any] | None,
    declared: Mapping[str, Any],
    *,
    native: str | None = None,
    product_error: Any = None,
    operators: bool = False,
) -> None:
    """Rule 2, of one process or candidate.

    Args:
        ledger: Takes the findings.
        who: What findings call it.
        found: `dtype`, `compute_dtype`, `tf32`, as read back.
        declared: The recipe's parts, and what was set of them.
        native: Element type of the stored network, where it is known.
        product_error: Of a probe, a matrix product in float32 against float64, where there was one.
        operators: Whether operators were timed, each problem in an element type of its own.
    """
    if not ledger.hold(2, bool(found), f"{who} says nothing of its numerics; allowed: its element type, at least"):
        return
    found = found or {}
    dtype, computed, precision = found.get("dtype"), found.get("compute_dtype"), declared.get("precision")
    if operators:
        pass  # each problem has its own, which its results are held to
    elif precision in _MIXED:
        seen = computed if computed is not None else dtype
        ledger.same(2, f"{who}: the element type that it computes in, by the recipe's precision", seen, precision)
    elif precision in _PLAIN:
        ledger.same(2, f"{who}: the element type, by the recipe's precision", dtype, precision)
        ledger.hold(2, computed in (None, dtype), f"{who} computes in {computed!r}; the recipe declares {precision!r}")
    else:
        allowed = (native,) if native is not None else _PLAIN
        ledger.hold(
            2,
            dtype in allowed and computed in (None, dtype),
            f"{who} has the element type {dtype!r} and computes in {computed or dtype!r}, and the recipe declares no "
            f"precision; allowed: {' or '.join(map(str, allowed))}",
        )
    loose, rounds = declared.get("tf32") is True, found.get("tf32")
    ledger.hold(
        2,
        rounds in (None, False) or (loose and rounds is True),
        f"{who} rounds products to TF32 ({rounds!r:.40}), which nobody declared; allowed: with tf32=True in the recipe",
    )
    if isinstance(product_error, (int, float)) and not loose:
        ledger.hold(
            2,
            product_error <= _EXACT,
            f"{who}: its product in float32 is off by {product_error:.2g}; allowed: {_EXACT:g} where TF32 is not "
            "declared",
        )


def check_threads(ledger: Ledger, who: str, asked: Any, found: Any, warnings: Sequence[str]) -> None:
    """Rule 3: threads as read back are those that were asked for, or the result says that they are not.

    Args:
        ledger: Takes the findings.
        who: What findings call it.
        asked: Number, or None where the framework was left alone.
        found: Number, or None where it does not say.
        warnings: Of a run; a comparison has none that would excuse it: there such a candidate failed.
    """
    if asked is None or found is None:
        ledger.skip(f"threads of {who}: they were not asked for, or the framework does not say them")
        return
    own = f"the run asked for {asked} threads and "
    said = any(
        told.startswith(_NOT_DEFAULT) or (told.startswith(own) and f" has {found};" in told) for told in warnings
    )
    ledger.hold(
        3, asked == found or said, f"{who} has {found} threads; allowed: the {asked} asked for, or a warning of its own"
    )
