"""Lists of names in a model's metadata, which its file keeps: frozen parameters, and initial values that may be fed."""

from __future__ import annotations

import json
from collections.abc import Iterable

import onnx_ir as ir

from deep5.core.errors import NetworkError, brief

__all__ = ["DEFAULTS", "FROZEN", "listed_names", "rename_in_lists", "store_names"]

FROZEN = "deep5.frozen"
"""The key of the parameters that no optimizer changes."""
DEFAULTS = "deep5.defaults"
"""The key of the initial values that are the defaults of inputs: a caller may feed others."""


def listed_names(model: ir.Model, key: str) -> list[str]:
    """The names under a key; none if the model does not have it.

    Raises:
        NetworkError: The metadata is not a list of names.
    """
    text = model.metadata_props.get(key)
    if text is None:
        return []
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NetworkError(f"the model's {key} is {brief(text)}; allowed: a list of names in JSON")
    return names


def store_names(model: ir.Model, key: str, names: Iterable[str]) -> None:
    """Replace the names under a key."""
    model.metadata_props.pop(key, None)
    if names := sorted(names):
        model.metadata_props[key] = json.dumps(names)


def rename_in_lists(model: ir.Model, old: str, new: str) -> None:
    """Rename a value in every list."""
    for key in (FROZEN, DEFAULTS):
        if old in (names := listed_names(model, key)):
            store_names(model, key, {new if name == old else name for name in names})
