"""The canonical form of a recipe's values in JSON types, and its hash: equal meaning gives equal text."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from deep5.core.errors import RecipeError, contained, described
from deep5.core.files import is_file
from deep5.core.former_paths import hash_module, hash_name
from deep5.core.own_files import is_own_module
from deep5.core.plugins import name_of, owner_of
from deep5.core.python_source import source_of, syntax_hash
from deep5.core.run_time import added_at_run_time

__all__ = [
    "canonical",
    "canonical_hash",
    "captured",
    "check_nesting",
    "copied",
    "given_in_function",
    "kind_of",
    "names_file",
]

# Levels of dicts and lists in a recipe's value, values in all of them, and bits of an integer: JSON, and Python's text
# of an integer, have limits too.
_DEPTH, _VALUES, _BITS = 100, 1_000_000, 4096

# Recipe key to the registry in which its objects are looked up, so that a class and its name are equivalent.
_REGISTRY = {
    "model": "networks",
    "dataset": "datasets",
    "train_sampler": "samplers",
    "validation_sampler": "samplers",
    "optimizer": "optimizers",
    "events": "events",
    "train_transforms": "transforms",
    "test_transforms": "transforms",
    "schedules": "schedules",
    "gradient_modifier": "gradient_modifiers",
    "framework": "frameworks",
}
# Keys whose classes are not hashed by their registered names.
_OTHERS = {"scheme": "schemes", "compression": "compressors"}
_DESCRIPTORS = (property, types.MemberDescriptorType, types.GetSetDescriptorType)
# Identities of the functions and classes whose captured values are being described.
_OUTSIDE: ContextVar[frozenset[int]] = ContextVar("outside", default=frozenset())
# Under these keys a string may also name an object in a file.
_IN_FILES = {
    *_REGISTRY,
    "batch_size",
    "parameter_groups",
    "executor",
    "candidate",
    "baseline",
    "bare",
    "operator",
    "loss",
}


def kind_of(key: str) -> str:
    """The kind of component that a name under a key of a recipe refers to; "" if it refers to none."""
    return _REGISTRY.get(key, "")


def names_file(key: str, value: str) -> bool:
    """Whether a string under a key of a recipe names an object in a file: `FILE.py:NAME`."""
    return key in _IN_FILES and ".py:" in value


def canonical(
    value: Any, key: str = "", *, strict: bool = True, beside: Path | None = None, by_text: bool = False
) -> Any:
    """A value of a recipe in JSON types.

    Args:
        value: JSON types, tuples, NumPy numbers, classes, functions, networks, data sets, and objects with
            `describe()`.
        key: The recipe key of the value.
        strict: False only for the record: a value without a canonical form is written as its type.
        beside: The folder that `FILE.py:NAME` is relative to; None: the working directory.
        by_text: Hash code by its text instead of its syntax, as the first version of hashes did, and as the record
            does, which shows every change.

    Raises:
        RecipeError: A lambda, a number that is not finite, or an object that does not describe itself.
    """
    within = functools.partial(canonical, strict=strict, beside=beside, by_text=by_text)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        if key == "init" or (key == "model" and value.lower().endswith(".onnx")):
            return _file_content(value, beside)
        if names_file(key, value):
            return _file_component(value, beside, by_text or not strict)
        if (added := added_at_run_time(kind_of(key) or _OTHERS.get(key, ""), value)) is not None:
            return within(added.component, key)  # the name is only of this process
        return hash_name(kind_of(key), value)
    if isinstance(value, float):
        if math.isfinite(value) or not strict:
            return float(value) if math.isfinite(value) else str(float(value))
        raise RecipeError(f"{key!r} holds {value!r}; allowed: finite numbers")
    if isinstance(value, Mapping):
        odd = [name for name in value if not isinstance(name, str)]
        if odd and strict:
            raise RecipeError(f"{key!r} holds a dict with the key {odd[0]!r}; allowed: strings as keys")
        return {str(name): within(value[name], key) for name in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [within(item, key) for item in value]
    if isinstance(value, type) or inspect.isroutine(value):
        return _component(value, key, strict, by_text or not strict)
    if isinstance(value, functools.partial):
        return {"partial": within(value.func, key), "args": within(value.args), "kwargs": within(value.keywords)}
    return _object(value, key, strict, by_text or not strict)


def canonical_hash(value: Any) -> str:
    """SHA-256 of the canonical form, keys sorted."""
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_nesting(value: Any, what: str) -> None:
    """Reject dicts, lists and tuples that are nested too deep, or in themselves, and integers without end.

    Everything that follows walks through a recipe's values recursively.

    Args:
        value: Any value.
        what: Its name in messages.

    Raises:
        RecipeError: More than 100 levels, more than a million values, or an integer of more than 4,096 bits.
    """
    waiting, seen = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if seen > _VALUES:
            raise RecipeError(
                f"{what} holds more than {_VALUES:,} values; allowed: at most as many; remedy: a file that a component "
                "reads"
            )
        if isinstance(item, int) and item.bit_length() > _BITS:
            raise RecipeError(
                f"{what} holds an integer of {item.bit_length()} bits; allowed: at most {_BITS}; remedy: a smaller one"
            )
        inside: Any = ()
        if isinstance(item, Mapping):
            inside = (*item.keys(), *item.values())
        elif isinstance(item, (list, tuple)):
            inside = item
        if inside and depth == _DEPTH:
            raise RecipeError(
                f"{what} holds a {type(item).__name__} in more than {_DEPTH} others, or in itself; allowed: {_DEPTH} "
                "levels; remedy: a flat value, or an object with a method describe() that returns one"
            )
        waiting += [(each, depth + 1) for each in inside]


def copied(value: Any) -> Any:
    """Dicts, lists and tuples copied recursively; the other objects in them are shared."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(item) for item in value)
    return value


def _object(value: Any, key: str, strict: bool, by_text: bool) -> Any:
    describe, kind = getattr(value, "describe", None), type(value)
    if callable(describe):
        try:
            with contained():
                found = canonical(describe(), key, strict=strict, by_text=by_text)
        except Exception as error:
            raise RecipeError(
                f"{key!r} holds a {kind.__name__} that cannot describe itself: {described(error)}; allowed: a method "
                "describe() that returns a dict"
            ) from error
        return found if _own(kind) else {"object": _component(kind, key, strict, by_text), "is": found}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return canonical(value.item(), key, strict=strict)
    registered = name_of("frameworks", kind) if key == "framework" else None
    if registered:
        return registered
    content = _content(value)
    if content is not None:
        return content
    if hasattr(value, "tobytes") and hasattr(value, "dtype") and hasattr(value, "shape"):
        content_hash = hashlib.sha256(value.tobytes()).hexdigest()
        return {"array": content_hash, "dtype": str(value.dtype), "shape": list(value.shape)}
    # A model of a framework's library; structure and weights are hashed with the content.
    if key == "model" and owner_of(value) is not None:
        return {"object": _component(kind, "", strict, by_text)}
    if not strict:
        return {"object": kind.__qualname__}
    raise RecipeError(
        f"{key!r} holds a {kind.__name__}, which has no canonical form; remedy: name the component by a string, "
        "or give its class a method describe() that returns a dict"
    )


def _content(value: Any) -> dict[str, Any] | None:
    """A network or data set given as an object is identified by its own hashes."""
    if hasattr(value, "structure_hash") and hasattr(value, "weights_hash"):
        return {"network": value.structure_hash(), "weights": value.weights_hash()}
    if hasattr(value, "split_hash"):
        return {"data": [value.train.content_hash(), value.test.content_hash()], "split": value.split_hash}
    return None


def _component(component: Any, key: str, strict: bool, by_text: bool) -> Any:
    """A class or function: its registered name, else its module and name or the hash of its source."""
    name = component.__qualname__
    if "<lambda>" in name and strict:
        raise RecipeError(f"{key!r} holds a lambda, which has no name to hash; remedy: define a function with def")
    kind = _REGISTRY.get(key)
    registered = name_of(kind, component) if kind else None
    if kind and registered:
        return hash_name(kind, registered)
    owner = getattr(component, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):  # a bound method includes its object
        return {"method": name, "of": canonical(owner, key, strict=strict, by_text=by_text)}
    module = hash_module(str(getattr(component, "__module__", None)))
    if _own(component):
        return f"{module}:{name}"
    try:
        text = source_of(component)
        # An installed package's code changes only with its version.
        by_syntax = not by_text and is_own_module(str(component.__module__))
        source = syntax_hash(text) if by_syntax else hashlib.sha256(text.encode()).hexdigest()
    except (OSError, TypeError) as error:
        if not strict or (module != "__main__" and "<locals>" not in name):
            return f"{module}:{name}"
        raise RecipeError(
            f"{key!r} holds {name!r}, whose source cannot be found; remedy: define it in a file"
        ) from error
    held = _held(component, functools.partial(canonical, key=key, strict=strict, by_text=by_text))
    return {"object": name, "source": source, **held}


def _held(component: Any, within: Callable[[Any], Any]) -> dict[str, Any]:
    """What a function or class holds besides its source: what it captures, and what a function that defines it gives it
    as defaults and attributes."""
    outside = _OUTSIDE.get()
    if id(component) in outside:  # it refers to itself, perhaps by way of others
        return {}
    found = {}
    token = _OUTSIDE.set(outside | {id(component)})
    try:
        if inspect.isfunction(component):
            found["closure"] = {name: within(value) for name, value in captured(component) if value is not component}
        if "<locals>" in component.__qualname__:
            found["defaults"] = {
                name: _described(value, within, set())
                for name, value in given_in_function(component)
                if value is not component
            }
    finally:
        _OUTSIDE.reset(token)
    return {name: values for name, values in found.items() if values}


def captured(function: Any) -> Iterator[tuple[str, Any]]:
    """The variables that a function captures, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        with suppress(ValueError):  # not set yet
            yield name, cell.cell_contents


def given_in_function(component: Any) -> Iterator[tuple[str, Any]]:
    """What a function that defines a function or class in itself gives it, by place: defaults; of a class, attributes,
    and what its methods capture."""
    if isinstance(component, type):
        for name, value in sorted(vars(component).items()):
            parts = [getattr(value, part, None) for part in ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")]
            functions = [each for each in (value, *parts) if inspect.isfunction(each)]
            for function in functions:
                yield from ((f"{name}.{place}", held) for place, held in captured(function))
                yield from ((f"{name}.{place}", held) for place, held in given_in_function(function))
            if not functions and not name.startswith("__") and not isinstance(value, _DESCRIPTORS):
                yield name, value
        return
    keywords = getattr(component, "__kwdefaults__", None) or {}
    yield from ((str(number), value) for number, value in enumerate(getattr(component, "__defaults__", None) or ()))
    yield from sorted(keywords.items())


def _described(value: Any, within: Callable[[Any], Any], seen: set[int]) -> Any:
    """A value that code holds; one without a canonical form by its type and attributes."""
    try:
        return within(value)
    except RecipeError:
        kind = type(value)
    if inspect.ismodule(value):
        return {"module": value.__name__}
    if id(value) in seen:
        return {"object": kind.__qualname__}
    seen = seen | {id(value)}
    held = {str(name): _described(each, within, seen) for name, each in sorted(getattr(value, "__dict__", {}).items())}
    return {
        "object": _described(kind, within, seen) if is_own_module(kind.__module__) else kind.__qualname__,
        "is": held,
    }


def _file_component(text: str, beside: Path | None, by_text: bool) -> Any:
    """`FILE.py:NAME` is identified by the file's content; a missing file is reported when it is loaded."""
    file, _, name = text.rpartition(":")
    path = Path(beside or "", file)
    if not is_file(path):
        return text
    content = path.read_bytes()
    return {"object": name, "file": hashlib.sha256(content).hexdigest() if by_text else syntax_hash(content)}


def _file_content(text: str, beside: Path | None) -> Any:
    """A file of weights or of a network is identified by its content, not by its path."""
    path = Path(beside or "", text)
    return {"file": hashlib.sha256(path.read_bytes()).hexdigest()} if is_file(path) else text


def _own(component: Any) -> bool:
    return str(getattr(component, "__module__", "")).startswith("deep5.")
