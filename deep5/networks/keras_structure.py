"""The structure of a Keras model as text that is the same each time the model is created."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from deep5.core.errors import Deep5Error
from deep5.core.tensors import to_numpy

__all__ = ["is_keras", "keras_layers", "keras_structure"]

# Modules of recipes' files, whose names follow from their paths.
_MODULES = ("deep5_recipe_", "deep5_component_")


def is_keras(value: Any) -> bool:
    """Whether an object is a layer or model of Keras; does not import Keras."""
    kind = getattr(sys.modules.get("keras"), "Layer", None)
    return kind is not None and isinstance(value, kind)


def keras_layers(model: Any) -> list[Any]:
    """A Keras model and all layers in it, each once, in a fixed order."""
    found, seen = [model], {id(model)}
    for layer in found:
        for inner in layer._layers:  # `layers` leaves out those of a layer that is no model
            if id(inner) not in seen:
                seen.add(id(inner))
                found.append(inner)
    return found


def keras_structure(model: Any) -> str:
    """The layers of a Keras model with their settings, and how they are connected if Keras knows it.

    Without the names of layers: Keras numbers them over all models of a process.

    Args:
        model: A `keras.Layer`.
    """
    lines = []
    for layer in keras_layers(model):
        policy = getattr(layer.dtype_policy, "name", "")
        lines.append(f"{type(layer).__qualname__} {layer.trainable} {policy} {_settings(layer)}")
    return "\n".join(lines)


def _settings(layer: Any) -> str:
    """What Keras saves of a layer, in JSON; empty if it saves nothing."""
    try:
        config = layer.get_config()
    except Exception:  # a user's layer need not support it
        return ""
    names: dict[str, str] = {}
    _collect(config, names)
    try:
        return json.dumps(_unnumbered(config, names), sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # keys that are no strings; a value in itself
        return ""


def _is_policy(config: Mapping[str, Any]) -> bool:
    """Whether a part of the settings names element types; every other name is that of a layer or an operation."""
    return str(config.get("class_name")).endswith("Policy")


def _collect(value: Any, names: dict[str, str]) -> None:
    """Number the names of layers in their order."""
    if isinstance(value, Mapping) and not _is_policy(value):
        if isinstance(value.get("name"), str):
            names.setdefault(value["name"], f"layer {len(names)}")
        for item in value.values():
            _collect(item, names)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, names)


def _unnumbered(value: Any, names: Mapping[str, str]) -> Any:
    """Settings in JSON types, with the numbers of layers for their names."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return "a lambda"  # saved with the path of its file; its code is hashed with the recipe's
        inner = {} if _is_policy(value) else names
        found = {str(key): _unnumbered(item, inner) for key, item in value.items()}
        if isinstance(found.get("name"), str):
            found["name"] = names.get(found["name"], found["name"])
        return found
    if isinstance(value, (list, tuple)):
        # An output of a layer: the layer's name, the number of its call, the number of the output.
        if len(value) == 3 and isinstance(value[0], str) and all(type(item) is int for item in value[1:]):
            return [names.get(value[0], value[0]), *value[1:]]
        return [_unnumbered(item, names) for item in value]
    if isinstance(value, str):
        # Where the recipe's files are does not count.
        return "a place" if os.path.isabs(value) or value.startswith(_MODULES) else value  # noqa: PTH117
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        try:
            array = to_numpy(value)
        except Deep5Error:  # a symbolic tensor
            return str(value.dtype)
        return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__
    return type(value).__qualname__
