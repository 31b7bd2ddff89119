"""One text for one meaning: what a recipe holds, in JSON's types, and its hash."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from typing import Any

from deep5.errors import RecipeError
from deep5.plugins import KINDS, name_of

__all__ = ["canonical", "canonical_hash", "source_hash"]

# The registry in which an object under one of a recipe's keys is looked up, so that a class and its name are one.
_REGISTRY = {
    "model": "networks",
    "dataset": "datasets",
    "train_sampler": "samplers",
    "validation_sampler": "samplers",
    "optimizer": "optimizers",
    "events": "events",
    "framework": "frameworks",
}


def canonical(value: Any, key: str = "") -> Any:
    """A value of a recipe in JSON's types.

    Args:
        value: JSON's types, tuples, NumPy numbers, classes, functions, and objects with `describe()`.
        key: The recipe's key it stands under.

    Raises:
        RecipeError: A lambda, a number that is not finite, or an object that does not describe itself.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecipeError(f"{key!r} holds {value!r}; allowed: finite numbers")
        return value
    if isinstance(value, Mapping):
        odd = [name for name in value if not isinstance(name, str)]
        if odd:
            raise RecipeError(f"{key!r} holds a dict with the key {odd[0]!r}; allowed: strings as keys")
        return {name: canonical(value[name], key) for name in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(item, key) for item in value]
    if isinstance(value, type) or inspect.isroutine(value):
        return _component(value, key)
    describe = getattr(value, "describe", None)
    if callable(describe):
        described = canonical(describe(), key)
        kind = type(value)
        return {"object": _component(kind, key), "is": described} if not _own(kind) else described
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return canonical(value.item(), key)
    raise RecipeError(
        f"{key!r} holds a {type(value).__name__}, which has no canonical form; remedy: name the component by a string, "
        "or give its class a method describe() that returns a dict"
    )


def canonical_hash(value: Any) -> str:
    """SHA-256 of the canonical form, keys sorted."""
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def source_hash(component: Any) -> str | None:
    """SHA-256 of a class's or function's source text, or None where it has none."""
    try:
        return hashlib.sha256(inspect.getsource(component).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def _own(component: Any) -> bool:
    return str(getattr(component, "__module__", "")).startswith("deep5.")


def _component(component: Any, key: str) -> Any:
    """A class or function: its registered name, else its own name and the hash of its source."""
    name = getattr(component, "__qualname__", type(component).__name__)
    if "<lambda>" in name:
        raise RecipeError(f"{key!r} holds a lambda, which has no name to hash; remedy: define a function")
    kind = _REGISTRY.get(key.removesuffix("_args").removesuffix("_kwargs"))
    registered = name_of(kind, component) if kind in KINDS and kind else None
    if registered:
        return registered
    if _own(component):
        return f"{component.__module__}:{name}"
    return {"object": name, "source": source_hash(component)}
