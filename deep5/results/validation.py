"""Checks that a document is a valid result.json, by the rules of schema.json, with a small built-in validator.

Results are checked at every write, in runs that only have deep5's own dependencies: hence no `jsonschema` here. The
tests compare this validator with that package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.schema import schema

__all__ = ["check_document", "encode"]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def check_document(document: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> None:
    """Check an encoded document against its schema; a result.json takes about a millisecond.

    Args:
        document: In JSON types.
        root: The schema; None: schema.json, for result.json.

    Raises:
        UsageError: The first violation: where, the value, and what is allowed.
    """
    what = "result.json" if root is None else str(root.get("title"))
    root = schema() if root is None else root
    fault = _fault(document, root, root, "")
    if fault is not None:
        raise UsageError(
            f"not a valid {what} (schema version {root['properties']['schema_version']['const']}): {fault}"
        )


def encode(value: Any, where: str = "document") -> Any:
    """A copy of a value in JSON types.

    Args:
        value: Mappings with string keys, sequences, strings, numbers (also NumPy's), bools, None. Infinities and NaN
            become the strings "inf", "-inf", "nan", because JSON has no such numbers; `float` parses them.
        where: Name of the value in an error.

    Raises:
        UsageError: The value has another type.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"{where} has the key {key!r} of type {type(key).__name__}; allowed: strings")
        return {key: encode(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return encode(value.item(), where)
    raise UsageError(
        f"{where} is of type {type(value).__name__}; allowed: mappings, lists, strings, numbers, booleans, None; "
        "remedy: write large data with write_file"
    )


def _fault(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], where: str) -> str | None:
    """The violation of one rule of the schema by a value, or None."""
    place = where or "the document"
    if "$ref" in rule:
        return _fault(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root, where)
    if "type" in rule:
        names = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
        if not any(_is_type(value, name) for name in names):
            return f"{place} is of type {type(value).__name__}; allowed: {' or '.join(names)}"
    allowed = [rule["const"]] if "const" in rule else rule.get("enum")
    # True == 1 in Python but not in JSON.
    if allowed is not None and not any(value == item and type(value) is type(item) for item in allowed):
        return f"{place} is {value!r}; allowed: {', '.join(map(repr, allowed))}"
    if isinstance(value, str):
        if len(value) < rule.get("minLength", 0):
            return f"{place} is empty; allowed: a nonempty string"
        if "pattern" in rule and re.search(rule["pattern"], value) is None:
            return f"{place} is {value!r}; allowed: a string that matches {rule['pattern']}"
    elif isinstance(value, dict):
        return _object_fault(value, rule, root, where) or _combined_fault(value, rule, root, where)
    elif isinstance(value, list):
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", math.inf):
            return (
                f"{place} has {len(value)} items; allowed: {rule.get('minItems', 0)} to {rule.get('maxItems', 'any')}"
            )
        for index, item in enumerate(value):
            fault = _fault(item, rule.get("items", {}), root, f"{where}[{index}]")
            if fault is not None:
                return fault
    elif _is_type(value, "number"):
        if isinstance(value, float) and not math.isfinite(value):
            return f"{place} is {value!r}; allowed: a finite number (see encode)"
        if not rule.get("minimum", -math.inf) <= value:
            return f"{place} is {value!r}; allowed: at least {rule['minimum']}"
        if not rule.get("exclusiveMinimum", -math.inf) < value < rule.get("exclusiveMaximum", math.inf):
            low, high = rule.get("exclusiveMinimum", "-infinity"), rule.get("exclusiveMaximum", "infinity")
            return f"{place} is {value!r}; allowed: between {low} and {high}"
    return _combined_fault(value, rule, root, where)


def _object_fault(value: dict[str, Any], rule: Mapping[str, Any], root: Mapping[str, Any], where: str) -> str | None:
    known = rule.get("properties", {})
    missing = [key for key in rule.get("required", ()) if key not in value]
    if missing:
        return f"{where or 'the document'} has no {', '.join(missing)}"
    for key, item in value.items():
        inner = known.get(key, rule.get("additionalProperties", True))
        if inner is False:
            return f"{where or 'the document'} has the unknown field {key!r}; allowed: {', '.join(known)}"
        if inner is not True:
            fault = _fault(item, inner, root, f"{where}.{key}" if where else key)
            if fault is not None:
                return fault
    return None


def _combined_fault(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], where: str) -> str | None:
    if "anyOf" in rule:
        faults = [_fault(value, choice, root, where) for choice in rule["anyOf"]]
        if None not in faults:
            return faults[0]
    if "not" in rule and _fault(value, rule["not"], root, where) is None:
        return f"{where or 'the document'} is {value!r}, which is not allowed"
    for part in rule.get("allOf", ()):
        fault = _fault(value, part, root, where)
        if fault is not None:
            return f"{fault} ({part['description']})" if "description" in part else fault
    if "if" in rule and _fault(value, rule["if"], root, where) is None:
        return _fault(value, rule["then"], root, where)
    return None


def _is_type(value: Any, name: str) -> bool:
    number = name in {"integer", "number"}
    return isinstance(value, _TYPES[name]) and not (number and isinstance(value, bool))
