"""Determines what a run measured from the parts it contains, not from its stated level."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.results.result import EVENTS

__all__ = [
    "CODE",
    "COLLECTIVES",
    "OPERATORS",
    "RANKS",
    "RECORDED",
    "SERVING",
    "TRAINING",
    "batch_size_of",
    "check_level",
    "ranks_of",
    "trains",
]

TRAINING, OPERATORS, COLLECTIVES, CODE = "training", "operators", "collectives", "hand-written code"
SERVING, RECORDED = "serving", "a recorded loop"
"""The possible kinds of measurement, the one with the most rules first."""

RANKS = "ranks.json"
"""Each rank's host, traffic and waits in a run of several ranks."""

_TRAINED = ("data", "split", "initial_weights", "trained_weights", "batch_order", "network")


def trains(document: Mapping[str, Any]) -> bool:
    """Whether a run trained a network, according to the parts of its document."""
    return _signs(document)[TRAINING]


def batch_size_of(document: Mapping[str, Any]) -> int | None:
    """Samples per batch, if all batch sizes can be derived from the number of samples; otherwise None.

    Args:
        document: result.json of a training run.
    """
    parts = parts_of(document)
    size, options = parts.get("batch_size"), parts.get("train_sampler_kwargs") or {}
    plain = parts.get("train_sampler", "shuffle") in ("shuffle", "ordered") and options.keys() <= {"drop_last", "seed"}
    if not isinstance(size, int) or size < 1 or not plain or parts.get("accumulate", 1) != 1:
        return None
    return size


def ranks_of(document: Mapping[str, Any]) -> int:
    """Number of ranks that trained, or timed code, together.

    Args:
        document: result.json.
    """
    return int(document.get("ranks", 1))


def _signs(document: Mapping[str, Any]) -> dict[str, bool]:
    parts, provenance = parts_of(document), document["provenance"]
    return {
        # A served network has a model, too, and learns nothing.
        TRAINING: "scenario" not in parts
        and ("model" in parts or any(provenance.get(key) is not None for key in _TRAINED)),
        OPERATORS: "operator" in parts or "problems" in parts,
        COLLECTIVES: "collective" in parts,
        CODE: "candidate" in parts,
        SERVING: "scenario" in parts,
        RECORDED: document.get("recorded") is not None,
    }


def check_level(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> str:
    """Rule 14: the parts of a result belong to one kind of measurement, and its level is that of this kind.

    Args:
        ledger: Receives the findings.
        root: The folder.
        document: result.json.

    Returns:
        One of `TRAINING`, `OPERATORS`, `COLLECTIVES`, `CODE`, `SERVING` and `RECORDED`.
    """
    signs = _signs(document)
    signs[TRAINING] |= os.path.lexists(root / EVENTS) and not signs[RECORDED]
    signs[OPERATORS] |= os.path.lexists(root / "operators.json")
    signs[COLLECTIVES] |= os.path.lexists(root / "collective.json")
    signs[SERVING] |= os.path.lexists(root / "serving.json")
    found = [kind for kind, is_there in signs.items() if is_there]
    ledger.hold(
        14, len(found) == 1, f"the result has the parts of {' and of '.join(found) or 'nothing'}; allowed: of one"
    )
    kind = found[0] if found else CODE
    ranks = ranks_of(document)
    if kind == OPERATORS:
        ledger.same(14, f"the level of a result of {kind}", document["level"], 0)
        ledger.same(14, f"the number of ranks of a result of {kind}", ranks, 1)
    elif kind == SERVING:
        ledger.same(14, f"the level of a result of {kind}", document["level"], 1)
        ledger.same(14, f"the number of ranks of a result of {kind}", ranks, 1)
    elif kind == RECORDED:
        ledger.same(14, f"the level of {kind}", document["level"], 2)
        ledger.same(14, f"the number of ranks of {kind}", ranks, 1)
    elif kind == COLLECTIVES:
        ledger.same(14, f"the level of a result of {kind}", document["level"], 3)
        ledger.hold(14, ranks > 1, f"a collective was timed on {ranks} rank; allowed: at least 2")
    else:
        together = "" if ranks == 1 else f" by {ranks} ranks"
        ledger.same(14, f"the level of a result of {kind}{together}", document["level"], 2 if ranks == 1 else 3)
    return kind
