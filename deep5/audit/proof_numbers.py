"""Rule 1: the two measures of each difference in a proof agree, and not all differences are zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.core.plugins import registered

__all__ = ["check_proof_numbers"]

# Distance of neighboring numbers near 1.
_EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
# A difference is relative to no less than the reference's own errors, so that a small loss has a small one.
_SMALLEST = 1e8
_ROUNDING = 1e-6
_HALF, _WHOLE = "update on its own gradient", "update of a whole step"
# Rows whose two measures are of different numbers.
_OTHERWISE = (
    _HALF,
    _WHOLE,
    "gradients in float64 at a float64 state",
    "gradients in float64 at a float64 state, of the model itself",
)
# Fewer differences may be zero by chance.
_FEWEST = 3
_FREE = "losses in float32, free-running"


def check_proof_numbers(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Compare the relative differences of a proof with those in units in the last place.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    by_candidate: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["equivalence"]:
        by_candidate.setdefault(row["candidate"], []).append(row)
        relative, ulps = float(row["relative"]), float(row["ulps"])
        name = f"{row['candidate']}, {row['what']}"
        least = min(relative, ulps)
        ledger.hold(1, not least < 0, f"{name}: a difference of {least:.3g}; allowed: at least 0")
        # The update's is relative to a size that its own rounding sets, and the gradients' is a median over states.
        ledger.hold(
            1,
            relative != 0 or ulps == 0 or row["what"] in _OTHERWISE,
            f"{name}: no relative difference, and {ulps:.3g} ulps; allowed: both or none",
        )
        if document["kind"] == "training" and row["what"].startswith("loss"):
            _check_ulps(ledger, name, relative, ulps, _EPS["float64" if row["part"] == "a" else "float32"])
    for candidate, rows in by_candidate.items():
        _check_updates(ledger, candidate, rows)
        _check_rounded(ledger, document, candidate, rows)
    if document["kind"] == "training" and document["proof"]["smooth"] is False and by_candidate:
        free = {row["candidate"] for row in document["equivalence"] if row["what"] == _FREE}
        ledger.hold(
            1,
            not by_candidate.keys() <= free,
            "the network has kinks, and the proof compares free-running losses of all candidates; allowed: only of a "
            "smooth network",
        )


def _check_ulps(ledger: Ledger, name: str, relative: float, ulps: float, eps: float) -> None:
    """A unit in the last place is from a half to the whole of the distance of neighbors, relative to the number."""
    if not (math.isfinite(relative) and math.isfinite(ulps)):
        return
    least, most = relative / eps * (1 - _ROUNDING), 2 * relative / eps * _SMALLEST
    ledger.hold(
        1,
        least <= ulps <= most,
        f"{name}: a relative difference of {relative:.3g} is {ulps:.3g} ulps; allowed: from {least:.3g}",
    )


def _check_updates(ledger: Ledger, candidate: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Both rows of the update are measured on the same one."""
    found = {row["what"]: row["ulps"] for row in rows}
    if _HALF in found and _WHOLE in found:
        ledger.same(1, f"{candidate}: the ulps of its update, in both rows", found[_HALF], found[_WHOLE])


def _check_rounded(
    ledger: Ledger, document: Mapping[str, Any], candidate: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Numbers in float32 are not those in float64: a network of deep5 is drawn at random."""
    model = parts_of(document).get("model")
    entry = registered("networks").get(model) if isinstance(model, str) else None
    if document["kind"] == "operators" or entry is None or not entry.value.startswith("deep5."):
        return
    single = [row for row in rows if row["part"] != "a" and "in float64" not in row["what"]]
    wrong = len(single) >= _FEWEST and not any(float(row["relative"]) for row in single)
    ledger.hold(1, not wrong, f"{candidate}: no number in float32 differs from its value in float64; allowed: rounded")
