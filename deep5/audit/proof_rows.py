"""Rule 1: compares the proof of a comparison, row by row, with the tolerances of the rules of measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.audit.finding import Ledger

__all__ = ["check_proof"]

# Permitted relative error against the reference in float64: by kind of comparison, part, and compared quantity.
_TOLERANCES: Mapping[tuple[str, str], Mapping[str, tuple[float, ...]]] = {
    ("training", "a"): {"losses in float64, free-running": (1e-9,)},
    ("training", "b"): {
        "loss at a float64 state": (1e-5,),
        "loss a step later": (1e-5, 2e-2),
        "update on its own gradient": (1e-5,),
        "update of a whole step": (1e-3,),
    },
    ("training", "c"): {
        "gradients at a float64 state": (1e-5, 2e-2),
        "gradients in float64 at a float64 state": (1e-7,),
    },
    ("training", "d"): {"losses in float32, free-running": (1e-4,)},
}
_OUTPUTS = {"a": 1e-9, "b": 1e-5}
_LOOSEST = 0.1
# Parts that a candidate must pass to be timed.
_NEEDED = {
    "training": ("loss at a float64 state", "gradients at a float64 state"),
    "inference": ("output ",),
    "operators": ("result ",),
}


def check_proof(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """A candidate is timed if and only if it passed the proof with deep5's own tolerances.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    kind = document["kind"]
    by_candidate: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["equivalence"]:
        by_candidate.setdefault(row["candidate"], []).append(row)
        name = f"{row['candidate']}, {row['what']}"
        relative, allowed = float(row["relative"]), float(row["allowed"])
        ledger.same(1, f"{name}: whether {relative:.3g} is within {allowed:.3g}", row["passed"], relative <= allowed)
        if kind == "training":
            known = _TOLERANCES[kind, row["part"]].get(row["what"], ())
        elif kind == "inference":
            known = (_OUTPUTS[row["part"]],)
        else:
            ledger.hold(
                1, 0 <= allowed <= _LOOSEST, f"{name}: {allowed:.3g} is allowed; deep5 allows {_LOOSEST} at most"
            )
            ledger.skip("tolerances of operators, except the loosest: they depend on results that are not stored")
            continue
        ledger.hold(1, allowed in known, f"{name}: {allowed:.3g} is allowed; deep5 allows {known}")
    timed = {(row["candidate"], row["workload"]) for row in document["results"]}
    for candidate in document["candidates"]:
        label, rows = candidate["label"], by_candidate.get(candidate["label"], [])
        if candidate["status"] != "timed":
            continue
        smooth = any(row["part"] == "d" for row in rows)
        for row in rows:
            if kind == "training" and smooth and row["part"] in "bc" and float(row["allowed"]) > 1e-3:
                ledger.find(1, f"{label}, {row['what']}: the tolerance of a network with kinks; it has none")
        for needed in _NEEDED[kind]:
            there = any(row["what"].startswith(needed) for row in rows)
            ledger.hold(1, there, f"{label} was timed without a proof of its {needed.strip()}")
        of_update = any(row["part"] in "ad" or not row["what"].endswith("at a float64 state") for row in rows)
        ledger.hold(1, kind != "training" or of_update, f"{label} was timed without a proof of an update")
        left_out = any(reported.startswith("in float64") for reported in candidate["left_out"])
        if kind != "operators" and not left_out:
            double = any(row["part"] == "a" for row in rows)
            ledger.hold(1, double, f"{label} was timed; nothing in float64 was compared, without a reason")
        if kind != "operators":
            # NaN also counts as wrong.
            wrong = [row["what"] for row in rows if not float(row["relative"]) <= float(row["allowed"])]
            ledger.hold(1, not wrong, f"{label} was timed, and failed the proof in {', '.join(wrong)[:100]}")
    if kind == "operators":
        passed = {(row["candidate"], row["workload"]) for row in document["equivalence"] if row["passed"]}
        failed = {(row["candidate"], row["workload"]) for row in document["equivalence"] if not row["passed"]}
        for pair in sorted(timed):
            ledger.hold(1, pair in passed - failed, f"{pair[0]} has a time of {pair[1]}, and no proof that passed")
