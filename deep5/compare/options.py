"""Options of a comparison by name, with their types, and its variations, checked before anything is created."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deep5.core.canonical import canonical
from deep5.core.errors import UnknownName, UsageError, brief

__all__ = ["given_options", "parse_variation"]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any, kinds: tuple[type, ...] = (int, float)) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value, (int,)) and value >= 0


def _is_list(value: Any) -> bool:
    # A string is a sequence of characters, each of which would be taken for a name.
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _are_names(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _are_settings(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, value))


def _are_variations(value: Any) -> bool:
    return _are_settings(value) and all(map(_is_list, value.values()))


_COUNT = _is_count, "an integer of at least 0"
_TEXT = _is_text, "a string"
_TAKES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "frameworks": (_are_names, "a list of names, such as ['pytorch', 'jax']"),
    "vary": (_are_variations, "a dict of lists, such as {'optimizer': ['adam', 'momentum']}"),
    "settings": (_are_settings, "a dict by keys of the recipe, such as {'batch_size': 32}"),
    "size": _TEXT,
    "kind": _TEXT,
    "rigorous": (lambda value: isinstance(value, bool), "True or False"),
    "baseline": _TEXT,
    "threads": _COUNT,
    "seed": _COUNT,
    "steps": _COUNT,
    "most": _COUNT,
    "time_limit_s": (_is_number, "a number of seconds"),
    "memory_limit_bytes": _COUNT,
}
# Options with another name on the command line.
_IN_PYTHON = {
    "of": "kind",
    "set": "settings",
    "processes": "most",
    "time_limit": "time_limit_s",
    "memory_limit": "memory_limit_bytes",
    "quick": "rigorous",
    "quiet": "tell",
}


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options of `deep5.compare.plan.make_plan`: those that are not None.

    Args:
        options: By name.

    Raises:
        UsageError: An unknown option, or one of the wrong type.
    """
    for name, value in options.items():
        if name not in _TAKES:
            remedy = f"remedy: {_IN_PYTHON[name]}, its name in Python" if name in _IN_PYTHON else ""
            raise UnknownName("option of a comparison", name, (*_TAKES, "out", "resume", "tell"), remedy=remedy)
        fits, allowed = _TAKES[name]
        if value is not None and not fits(value):
            raise UsageError(f"got {name}={brief(value)}; allowed: {allowed}")
    return {name: value for name, value in options.items() if value is not None}


def parse_variation(text: str) -> tuple[str, list[Any]]:
    """Read `KEY=VALUE,VALUE,…`; each value is a Python literal, or else a string.

    Raises:
        UsageError: There is no '=', no value, or a repeated value.

    >>> parse_variation("batch_size=16,64"), parse_variation("optimizer=adam,momentum")
    (('batch_size', [16, 64]), ('optimizer', ['adam', 'momentum']))
    """
    key, equals, rest = text.partition("=")
    try:
        # Commas within brackets belong to a value.
        listed = ast.literal_eval(f"[{rest}]")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        listed = [_literal(word.strip()) for word in rest.split(",")]
    if not equals or not key.strip() or not listed or "" in listed:
        raise UsageError(f"cannot read {text!r}; allowed: KEY=VALUE,VALUE,… such as optimizer=adam,momentum")
    if len({json.dumps(canonical(value, strict=False)) for value in listed}) < len(listed):
        raise UsageError(f"--vary {text!r} holds a value twice; allowed: each once")
    return key.strip(), listed


def _literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return word
