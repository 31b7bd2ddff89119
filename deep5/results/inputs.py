"""The inputs of runs with one hash: the same data, and at one seed the same network and initial weights.

A hash covers what the fixed part of a recipe states and consists of. Data are read when the recipe runs, and code may
depend on what no hash sees, such as the time. Results therefore record the hashes of their inputs, and two results that
differ in them are not comparable, whatever their recipes state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["data_of", "disputes", "drawn_of"]

# Keys that determine the network and its weights, besides the seed.
_NETWORK = ("model", "init", "loss", "precision")
# These too, if the network is code of a framework.
_NATIVE = ("executor", "framework", "device")


def data_of(document: Mapping[str, Any]) -> str:
    """A hash of the data and their split, if the fixed part determines them; empty if it does not, or if unknown.

    Args:
        document: result.json of a run.
    """
    recipe, provenance = document["recipe"], document.get("provenance") or {}
    found = [provenance.get("data"), provenance.get("split")]
    if "dataset" not in recipe["fixed"] or _set(recipe["mutable"], ("dataset",)) or found == [None, None]:
        return ""
    return _hash(found)


def drawn_of(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """A key of all that determines the network and its initial weights, and a hash of both; None if unknown.

    Results with the same key must have the same hash.

    Args:
        document: result.json of a run.
    """
    recipe, provenance = document["recipe"], document.get("provenance") or {}
    found = [provenance.get("network"), provenance.get("initial_weights")]
    seed, parts = (document.get("seeds") or {}).get("weights"), {**recipe["fixed"], **recipe["mutable"]}
    if None in found or seed is None or "model" not in parts:
        return None
    model = (document.get("components") or {}).get("model") or {}
    # A library's model is another network as it is than as an export.
    native = parts.get("executor") is not None or model.get("kind", "ONNX") != "ONNX"
    chosen = _set(recipe["mutable"], (*_NETWORK, *(_NATIVE if native else ())))
    key = [recipe["hash"], recipe["size"], chosen, seed, provenance.get("init")]
    return _hash(key), _hash(found)


def disputes(drawn: Sequence[tuple[str, str] | None]) -> list[tuple[int, int]]:
    """Pairs of results that have another network or other initial weights at one seed: the first, and each other.

    Args:
        drawn: `drawn_of` each.

    >>> disputes([("a", "1"), ("b", "1"), ("a", "1"), ("a", "2"), None])
    [(0, 3)]
    """
    first: dict[str, int] = {}
    found = []
    for number, own in enumerate(drawn):
        if own is None:
            continue
        other = drawn[first.setdefault(own[0], number)]
        if other is not None and other[1] != own[1]:
            found.append((first[own[0]], number))
    return found


def _set(mutable: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    names = [f"{key}{suffix}" for key in keys for suffix in ("", "_args", "_kwargs")]
    return {name: mutable[name] for name in names if name in mutable}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
