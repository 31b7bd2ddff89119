"""What a module of PyTorch or Keras computes with beyond its weights: attributes and plain tensors."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import inspect
import numbers
import re
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import numpy as np

from deep5.core.canonical import captured, given_in_function
from deep5.core.errors import Deep5Error
from deep5.core.own_files import is_own_module
from deep5.core.tensors import to_numpy
from deep5.networks.keras_structure import is_keras, keras_layers

__all__ = ["attributes_of"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# TensorFlow's bookkeeping, which Keras sets when a layer gets its first attribute.
_TRACKING = "_self_"
_DEEPEST = 20
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def attributes_of(module: Any) -> dict[str, str]:
    """What differs between two modules of one class and with one set of weights, by name; empty for other objects.

    Of PyTorch: attributes of the module and its submodules, buffers that are not saved, and frozen parameters. Of
    Keras: attributes of the user's layers. Attributes are numbers, strings, arrays, functions by name, containers of
    these, and objects that hold them. Those of the framework itself do not count, nor do absolute paths, which differ
    between machines.

    Args:
        module: A `torch.nn.Module` or `keras.Layer`.
    """
    found: dict[str, str] = {}
    walk = _Walk(found)
    if _is_torch(module):
        walk.torch_module("", module)
    elif is_keras(module):
        for number, layer in enumerate(keras_layers(module)):
            walk.layer(f"{number}", layer)
    return found


class _Walk:
    """Collects attributes.

    Attributes:
        found: Receives a description of each value, by name.
    """

    def __init__(self, found: dict[str, str]) -> None:
        self.found = found
        # Of objects that are seen; those of the framework's own lists are seen from the start.
        self._seen: set[int] = set()

    def torch_module(self, prefix: str, module: Any) -> None:
        """Add a module of PyTorch and its submodules."""
        named = {path: own for path, own in module.named_modules() if id(own) not in self._seen}
        self._seen.update(map(id, named.values()))
        for path, own in named.items():
            place = f"{prefix}{path}."
            unsaved = getattr(own, "_non_persistent_buffers_set", ())  # PyTorch has no public list of them
            for name, buffer in own.named_buffers(recurse=False):
                if name in unsaved:
                    self._add(f"{place}{name}", buffer, 0)
            for name, parameter in own.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    self.found[f"{place}{name} frozen"] = "True"
            for name, value in _torch_attributes(own).items():
                self._add(f"{place}{name}", value, 0)
            for hooks in _HOOKS:
                for number, hook in enumerate(getattr(own, hooks, {}).values()):
                    self._add(f"{place}{hooks}{number}", hook, 0)

    def layer(self, prefix: str, layer: Any) -> None:
        """Add a layer of Keras, without its sublayers."""
        self._seen.add(id(layer))
        if type(layer).__module__.partition(".")[0] == "keras":
            return  # its settings are in the structure
        weights = set(map(id, layer.weights))
        for name, value in {**_class_attributes(layer), **vars(layer)}.items():
            if name not in _bare_keras() and not name.startswith(_TRACKING) and id(value) not in weights:
                self._add(f"{prefix}.{name}", value, 0)

    def _add(self, name: str, value: Any, depth: int) -> None:
        text = _plain(value)
        if text is not None:
            self.found[name] = text
            if inspect.isroutine(value) and depth < _DEEPEST and id(value) not in self._seen:
                self._seen.add(id(value))
                for key, inner in _held_by(value).items():
                    self._add(f"{name}.{key}", inner, depth + 1)
        elif depth > _DEEPEST or id(value) in self._seen or isinstance(value, type):
            return
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            # Symbolic tensors, and those that hold no values yet, have nothing to add.
            with suppress(Deep5Error, TypeError, ValueError, RuntimeError, AttributeError):
                array = to_numpy(value)
                if array.dtype != object:
                    self.found[name] = f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        elif _is_torch(value):  # in a plain list, where PyTorch does not see it
            for key, tensor in value.state_dict().items():
                self._add(f"{name}.{key}", tensor, depth + 1)
            self.torch_module(f"{name}.", value)
        elif not is_keras(value):
            self._parts(name, value, depth + 1)

    def _parts(self, name: str, value: Any, depth: int) -> None:
        parts = _parts_of(value)
        if parts is None:
            return
        self._seen.add(id(value))
        self.found[f"{name} kind"] = f"{_class_of(value)} {len(parts)}"
        for key, inner in parts.items():
            self._add(f"{name}/{key}", inner, depth)


def _plain(value: Any) -> str | None:
    """A value that is no container as text; None for others."""
    if isinstance(value, (str, PurePath)):
        # Another folder is no other network; a file there is seen when it is opened.
        return None if PurePath(value).is_absolute() else _ADDRESS.sub("", str(value))
    if value is None or (
        isinstance(value, (bool, bytes, range, slice, numbers.Number)) and not hasattr(value, "dtype")
    ):
        return repr(value)
    if isinstance(value, (set, frozenset)):
        items = [_plain_item(item) for item in value]
        return None if None in items else f"{sorted(map(str, items))}"
    if inspect.isroutine(value) or isinstance(value, type):
        return str(getattr(value, "__qualname__", ""))
    if isinstance(value, (enum.Enum, np.dtype)) or _is_torch_dtype(value):
        return str(value)
    return None


def _plain_item(value: Any) -> str | None:
    """An item of a set as text; None unless it is plain."""
    if not isinstance(value, tuple):
        return _plain(value)
    items = [_plain_item(item) for item in value]
    return None if None in items else f"({', '.join(map(str, items))})"


def _held_by(function: Any) -> dict[str, Any]:
    """What a function of the user's computes with besides its code: variables, defaults, and the object of a method."""
    if not is_own_module(str(getattr(function, "__module__", None))):
        return {}
    found = {**dict(captured(function)), **dict(given_in_function(function))}
    owner = getattr(function, "__self__", None)
    return found if owner is None or inspect.ismodule(owner) else {**found, "self": owner}


def _parts_of(value: Any) -> Mapping[str, Any] | None:
    """The parts of a container, or of an object that holds settings, by name; None for other objects."""
    if isinstance(value, Mapping):
        return {str(key): value[key] for key in value}
    if isinstance(value, (list, tuple, collections.deque)):
        return {str(number): item for number, item in enumerate(value)}
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": value.args, **value.keywords}
    if inspect.ismodule(value) or isinstance(value, type):
        return None
    held: dict[str, Any] = {}
    if dataclasses.is_dataclass(value):
        held = {own.name: getattr(value, own.name, None) for own in dataclasses.fields(value)}
    elif not isinstance(value, types.SimpleNamespace) and not _holds_settings(value):
        return None
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    held |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**_class_attributes(value), **held, **getattr(value, "__dict__", {})}


def _holds_settings(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "argparse" or is_own_module(kind.__module__)


def _class_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object's classes that are the user's, without methods."""
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        if is_own_module(kind.__module__):
            found |= {
                name: own
                for name, own in vars(kind).items()
                if not name.startswith("__")
                and not isinstance(own, (types.FunctionType, staticmethod, classmethod, property, type))
                and not hasattr(own, "__get__")
            }
    return found


def _class_of(value: Any) -> str:
    return type(value).__qualname__


def _is_torch(value: Any) -> bool:
    kind = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return kind is not None and isinstance(value, kind)


def _is_torch_dtype(value: Any) -> bool:
    kind = getattr(sys.modules.get("torch"), "dtype", None)
    return kind is not None and isinstance(value, kind)


def _torch_attributes(module: Any) -> dict[str, Any]:
    bare = _bare_torch()
    own = {name: value for name, value in vars(module).items() if name not in bare}
    kind: Any = type(module)
    base: Any = sys.modules["torch"].nn.Module
    if kind.__module__.partition(".")[0] != "torch":
        return {**_class_attributes(module), **own}
    if kind.__module__.startswith("torch._dynamo"):
        return {}  # around a module: numbers of this process
    parameters = inspect.signature(kind).parameters
    left_out = {name for name, one in parameters.items() if name in own and _equals(own[name], one.default)}
    if kind.extra_repr is not base.extra_repr:
        # PyTorch's own layers print their settings, which are in the structure, except some.
        required = {name for name, one in parameters.items() if one.default is inspect.Parameter.empty}
        left_out |= required | {name for name in own if _is_printed(name, own[name], module.extra_repr())}
        left_out |= _used_by(kind) - parameters.keys()
    return {name: value for name, value in own.items() if name not in left_out}


def _is_printed(name: str, value: Any, printed: str) -> bool:
    return re.search(rf"\b{name}=(?:{re.escape(str(value))}|{re.escape(repr(value))})", printed) is not None


@functools.cache
def _used_by(kind: type) -> frozenset[str]:
    """The names of attributes that the methods of a class use: others are set by the user."""
    functions = [own for base in kind.__mro__ for own in vars(base).values() if isinstance(own, types.FunctionType)]
    return frozenset(name for function in functions for name in function.__code__.co_names)


def _equals(value: Any, default: Any) -> bool:
    """Whether a value is the default, or that for each axis."""
    try:
        return bool(value == default or (isinstance(value, tuple) and all(item == default for item in value)))
    except (TypeError, ValueError, RuntimeError):  # tensors
        return False


@functools.cache
def _bare_torch() -> frozenset[str]:
    """The attributes that every module of PyTorch has."""
    return frozenset(vars(sys.modules["torch"].nn.Module()))


@functools.cache
def _bare_keras() -> frozenset[str]:
    """The attributes that every layer and model of Keras has."""
    keras = sys.modules["keras"]
    # With names, as each layer without one changes the names of later ones.
    layer, model = keras.layers.Layer(name="deep5"), keras.Model(name="deep5")
    fed = keras.Input((1,), name="deep5")
    graph = keras.Model(fed, keras.layers.Identity(name="deep5_same")(fed), name="deep5")
    chain = keras.Sequential([keras.Input((1,), name="deep5"), keras.layers.Identity(name="deep5_same")], name="deep5")
    return frozenset(name for bare in (layer, model, graph, chain) for name in vars(bare))
