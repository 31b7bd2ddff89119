"""Rule 1: compares the proof of a comparison, row by row, with the tolerances of the rules of measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deep5.audit.data import without_kinks
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.rank_test import rules_of
from deep5.core.plugins import registered

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
# A model of a library as it is differs in float64 from its export, which stores the numbers in its code in float32.
_ITSELF, _OF_ITSELF = ", of the model itself", 1e-5
_LOOSEST = 0.1
_UNDECIDED = ": cannot be decided, because the reference itself is off by "
_FREE = "losses in float32, free-running"
# Parts that a candidate must pass to be timed.
_NEEDED = {
    "training": ("loss at a float64 state", "gradients at a float64 state"),
    "inference": ("output ",),
    "operators": ("result ",),
}


# Optimizers of deep5 that are bare update rules, so that their updates are compared too, if nothing wraps them.
_BARE = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop")
_WRAPPERS = {
    "parameter_groups", "gradient_modifier", "clip_norm", "clip_value", "weight_decay", "loss_scale", "master_weights",
    "precision", "accumulate", "scheme", "compression",
}  # fmt: skip


def check_proof(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """A candidate is timed if and only if it passed the proof with deep5's own tolerances.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    kind = document["kind"]
    by_candidate: dict[str, list[Mapping[str, Any]]] = {}
    itself = set(_models_as_they_are(document))
    for row in document["equivalence"]:
        by_candidate.setdefault(row["candidate"], []).append(row)
        name = f"{row['candidate']}, {row['what']}"
        relative, allowed = float(row["relative"]), float(row["allowed"])
        ledger.same(1, f"{name}: whether {relative:.3g} is within {allowed:.3g}", row["passed"], relative <= allowed)
        if row["what"].endswith(_ITSELF):
            known: tuple[float, ...] = (_OF_ITSELF,)
            ledger.hold(
                1,
                row["candidate"] in itself and "float64" in row["what"].partition(" at ")[0],
                f"{name}: the tolerance of a library's model as it is; the candidate is none",
            )
        elif kind == "training":
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
        _check_parts(ledger, document, candidate, rows)
        for needed in _NEEDED[kind]:
            there = any(row["what"].startswith(needed) for row in rows)
            ledger.hold(
                1,
                there or needed in _undecided(candidate),
                f"{label} was timed without a proof of its {needed.strip()}",
            )
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


def _check_parts(
    ledger: Ledger, document: Mapping[str, Any], candidate: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Every part that the proof of a training has is there."""
    label, whats = candidate["label"], {row["what"].removesuffix(_ITSELF) for row in rows}
    if document["kind"] != "training":
        return
    smooth, parts = document["proof"]["smooth"], parts_of(document) | candidate["recipe"]
    smooth = smooth or any(_is_smooth(document, candidate))
    undecided = _undecided(candidate)
    ledger.hold(
        1, _FREE in whats | undecided or not smooth, f"{label} was timed without part (d) of a smooth network's proof"
    )
    due: set[str] = set()
    if parts.get("optimizer") in _BARE and not _WRAPPERS & parts.keys() and ":" not in str(candidate["framework"]):
        due |= {"loss a step later", "update on its own gradient", "update of a whole step"}
    # The first scheme's proof had no gradients in float64.
    if rules_of(document).tossed and "losses in float64, free-running" in whats:
        due |= {"gradients in float64 at a float64 state"}
    due -= undecided
    ledger.hold(
        1, due <= whats, f"{label} was timed without a proof of: {', '.join(sorted(due - whats))}; allowed: all parts"
    )


def _models_as_they_are(document: Mapping[str, Any]) -> Iterator[str]:
    """The candidates that may run a library's model as it is: on its own framework, which also runs the export."""
    frameworks = {str(candidate["framework"]) for candidate in document["candidates"]}
    for candidate in document["candidates"]:
        model = (parts_of(document) | candidate["recipe"]).get("model")
        zoo = isinstance(model, str) and model in registered("networks")
        if f"{candidate['framework']}:exported" in frameworks and not zoo:
            yield candidate["label"]


def _undecided(candidate: Mapping[str, Any]) -> set[str]:
    """The comparisons that the candidate's proof could not decide, which it says."""
    return {reason.partition(":")[0] for reason in candidate["left_out"] if _UNDECIDED in reason}


def _is_smooth(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[bool]:
    """Whether the network has no kinks, where that is known: it is one of deep5's, or others of its group show it."""
    same = [row["label"] for row in document["candidates"] if row["settings"] == candidate["settings"]]
    yield any(row["what"] == _FREE and row["candidate"] in same for row in document["equivalence"])
    if not candidate["settings"].keys() - {"framework", "batch_size"}:
        yield without_kinks(document)
