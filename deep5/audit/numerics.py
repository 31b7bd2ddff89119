"""Rules 2 and 3: compares dtypes, TF32 and threads as read back with the declared and requested values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger

__all__ = ["PLAYED", "check_numerics", "check_threads", "parts_of"]

PLAYED = ("episodes", "replay")
"""Samplers whose batches an agent plays between two steps: they are not known in advance, and take any time."""
_MIXED = ("bfloat16", "float16")
_PLAIN = ("float32", "float64")
# Relative error of a product of 1024 rows in float32: far above its rounding, far below that of TF32.
_EXACT = 2e-5
# The warning of a run whose threads were already set when it tried to set them.
_NOT_DEFAULT = "the number of threads is not the default: "


def parts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fixed and mutable parts of a document's recipe, combined."""
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
    """Rule 2, for one process or candidate.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        found: `dtype`, `compute_dtype`, `tf32`, as read back.
        declared: The recipe's parts, with the settings applied.
        native: Dtype of the stored network, if known.
        product_error: Error of a probe, a matrix product in float32 against float64, if there was one.
        operators: Whether operators were timed, whose problems each have their own dtype.
    """
    if not ledger.hold(2, bool(found), f"{who} does not state its numerics; allowed: at least its element type"):
        return
    found = found or {}
    dtype, computed, precision = found.get("dtype"), found.get("compute_dtype"), declared.get("precision")
    if operators:
        pass  # each problem has its own, which its results must match
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
        f"{who} rounds products to TF32 ({rounds!r:.40}), which is not declared; allowed: with tf32=True in the recipe",
    )
    if isinstance(product_error, (int, float)) and not loose:
        ledger.hold(
            2,
            product_error <= _EXACT,
            f"{who}: its product in float32 is off by {product_error:.2g}; allowed: {_EXACT:g} where TF32 is not "
            "declared",
        )


def check_threads(ledger: Ledger, who: str, requested: Any, found: Any, warnings: Sequence[str]) -> None:
    """Rule 3: the threads as read back are those requested, or the result reports the difference.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        requested: Number, or None for the framework's default.
        found: Number, or None if the framework does not report it.
        warnings: Warnings of a run; a comparison has none that excuse it, because such a candidate fails.
    """
    if requested is None or found is None:
        ledger.skip(f"threads of {who}: they were not requested, or the framework does not report them")
        return
    # Results of older versions have other words for "requested".
    numbers = (re.escape(str(number)) for number in (requested, found))
    own = re.compile(r"the run \w+(?: for)? {} threads\b.* has {};".format(*numbers))
    said = any(warning.startswith(_NOT_DEFAULT) or own.match(warning) for warning in warnings)
    ledger.hold(
        3,
        requested == found or said,
        f"{who} has {found} threads; allowed: the requested {requested}, or a warning",
    )
