"""Each leaf of a document, changed by itself: which changes `deep5 audit` does not find."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deep5.audit import audit
from honest_results import hashed_anew

__all__ = ["leaves", "not_found"]

Place = tuple[str | int, ...]

# Documents that hold the hashes of other files; whoever changes another document stores its new hash, too.
_HASHING = ("result.json", "comparison.json")


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The values of a document in JSON types that contain no others, each with its keys and indices."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield place, value
    else:
        for key, item in inner:
            yield from leaves(item, (*place, key))


def not_found(folder: Path, name: str) -> set[str]:
    """The fields of a document whose change has no finding, such as "candidates.#.observed.version".

    Of several entries of a list, the first one stands for all; of several pools or packages likewise.

    Args:
        folder: An honest folder, which is changed and restored.
        name: Name of the document in it.
    """
    path = folder / name
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    seen, missed = set[str](), set[str]()
    try:
        for place, value in leaves(document):
            field = ".".join("#" if isinstance(key, int) else _general(key, place) for key in place)
            other = _other(value)
            if field in seen or other is None:
                continue
            seen.add(field)
            changed = copy.deepcopy(document)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = other
            path.write_text(json.dumps(changed), encoding="utf-8")
            if name not in _HASHING:
                hashed_anew(folder)
            if audit([folder]):
                missed.add(field)
    finally:
        path.write_text(text, encoding="utf-8")
        if name not in _HASHING:
            hashed_anew(folder)
    return missed


def _general(key: str, place: Place) -> str:
    before = place[place.index(key) - 1] if place.index(key) else ""
    return "*" if before in ("pools", "packages", "environment_variables", "seen", "settings", "waiting") else key


def _other(value: Any) -> Any:
    """Another value of the same type; None for one that is absent."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 + 1
    if isinstance(value, float):
        return value * 1.5 + 0.01
    return f"{value}x" if isinstance(value, str) else None
