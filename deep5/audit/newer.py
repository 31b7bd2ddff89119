"""Reads a result's document; one of a newer deep5 may have keys that this one does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.core.version import __version__
from deep5.results.validation import check_document

__all__ = ["is_newer", "read_newer"]

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def is_newer(document: Mapping[str, Any]) -> bool:
    """Whether a deep5 newer than this one made a result, according to its software.

    Args:
        document: result.json or comparison.json.
    """
    software = document.get("software")
    stated = software.get("deep5") if isinstance(software, Mapping) else None
    return isinstance(stated, str) and _release(stated) > _release(__version__)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release, without zeros at the end; empty if there are none."""
    found = _RELEASE.match(version.strip()[:40])
    numbers = [int(number) for number in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def read_newer(ledger: Ledger, root: Path, name: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """A document of a newer deep5, valid except for unknown keys, which are counted as not re-checked.

    All its keys stay: hashes cover them.

    Args:
        ledger: Counts the unknown keys.
        root: The resolved folder.
        name: Name of the document.
        schema: Its schema, as this deep5 knows it.

    Returns:
        The document; None if no newer deep5 made it, or its schema has another version.

    Raises:
        UsageError: The file cannot be read, or its known keys violate the schema.
    """
    document = json_of(root, name)
    if not isinstance(document, dict) or not is_newer(document):
        return None
    if document.get("schema_version") != schema["properties"]["schema_version"]["const"]:
        return None
    unknown: list[str] = []
    check_document(_known(document, schema, schema, "", unknown), schema)
    for place in unknown:
        ledger.skip(f"the key {place[:100]} of {name}: a newer deep5 wrote it")
    return document


def _known(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], where: str, unknown: list[str]) -> Any:
    """A copy without the keys that the schema does not allow; their places are added to `unknown`."""
    if "$ref" in rule:
        return _known(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root, where, unknown)
    if "anyOf" in rule:
        kind = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else None
        fits = (choice for choice in rule["anyOf"] if "$ref" in choice or kind in choice.get("type", ()))
        return value if kind is None else _known(value, next(fits, {}), root, where, unknown)
    if isinstance(value, list):
        inner = rule.get("items", {})
        return [_known(item, inner, root, f"{where}[]", unknown) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        inner = rule.get("properties", {}).get(key, rule.get("additionalProperties", True))
        place = f"{where}.{key}" if where else key
        if inner is False:
            unknown.append(place)
        else:
            found[key] = _known(item, inner if isinstance(inner, Mapping) else {}, root, place, unknown)
    return found
