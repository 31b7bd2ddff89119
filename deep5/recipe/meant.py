"""What an unknown key of a recipe probably means: another key, or an argument of one of the recipe's components."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error, brief
from deep5.core.plugins import load, registered
from deep5.core.python_source import parse
from deep5.core.synonyms import SYNONYMS, nearest

__all__ = ["argument_of", "arguments", "as_settings", "meant_key", "names_of", "other_optimizers", "unknown_argument"]

# Arguments of an optimizer that cannot be inspected without running the user's file.
_USUAL = ("lr",)


def meant_key(
    key: str, allowed: Iterable[str], kinds: Mapping[str, str], parts: Mapping[str, Any]
) -> tuple[str, str] | None:
    """The allowed key that was probably meant, and the argument in its `_kwargs` or ''; None if nothing is similar.

    Deep500's `model_kwarg` and `optimizer_arg` mean the key with an s.

    Args:
        key: The unknown key.
        allowed: The allowed keys.
        kinds: The kind of component (a key of `KINDS`) by key, for the keys that name one.
        parts: The recipe's values by key.
    """
    names = list(allowed)
    if key.endswith(("_kwarg", "_arg")) and f"{key}s" in names:
        return f"{key}s", ""
    if (found := argument_of(key, kinds, parts)) is not None:
        return found
    if (name := nearest(key, names)) is not None:
        return name, ""
    for component, arguments in _arguments(kinds, parts):
        if (argument := nearest(key, arguments)) is not None:
            return f"{component}_kwargs", argument
    return None


def argument_of(key: str, kinds: Mapping[str, str], parts: Mapping[str, Any]) -> tuple[str, str] | None:
    """The `_kwargs` of the component that takes an argument of this name, and the argument's name; None if none does.

    Args:
        key: The name, or a synonym such as `learning_rate`.
        kinds: As for `meant_key`.
        parts: As for `meant_key`.
    """
    for component, arguments in _arguments(kinds, parts):
        for name in (key, *SYNONYMS.get(key.casefold(), ())):
            if name in arguments:
                return f"{component}_kwargs", name
    return None


def other_optimizers(argument: str, value: Any, chosen: Any, *, as_setting: bool, near: bool = False) -> str:
    """The tail of a message that names deep5's optimizers with an argument that the chosen one lacks; "" without any.

    Args:
        argument: The name that is unknown to the chosen optimizer.
        value: Its value.
        chosen: The value of the key `optimizer`.
        as_setting: Whether to write the remedy for --set instead of for a recipe's file.
        near: Whether a similar spelling counts.
    """
    taken = {
        name: arguments("optimizer", "optimizers", name) or []
        for name, point in registered("optimizers").items()
        if point.value.startswith("deep5.")
    }
    known = {each for names in taken.values() for each in names}
    known -= {*(arguments("optimizer", "optimizers", chosen) or ())}
    words = (argument, *SYNONYMS.get(argument.casefold(), ()))
    found = next((word for word in words if word in known or word in taken), None)
    if found is None and near:
        found = nearest(argument, sorted(known | taken.keys()))
    if found is None:
        return ""
    names = sorted(name for name, each in taken.items() if found in each)
    own = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)
    if not names or (found in taken and found not in names):  # nesterov=True
        return f"; {found!r} is an optimizer; remedy: {_set({'optimizer': found}, as_setting)}"
    best = found if found in names else names[0]
    remedy = _set({"optimizer": best, "optimizer_kwargs": {found: value}}, as_setting)
    many = "optimizers" if len(names) > 1 else "optimizer"
    return f"; {found!r} is an argument of the {many} {', '.join(names)}, not of {own!r}; remedy: {remedy}"


def _set(parts: Mapping[str, Any], as_setting: bool) -> str:
    """Parts of a recipe, as they are set, or as its file has them."""
    if not as_setting:
        return ", ".join(f"{key!r}: {brief(value)}" for key, value in parts.items())
    each = [
        f"--set {key}.{name}={entry}" if name else f"--set {key}={entry}"
        for key, value in parts.items()
        for name, entry in (value.items() if isinstance(value, Mapping) else [("", value)])
    ]
    return " ".join(each)


def _arguments(kinds: Mapping[str, str], parts: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The names of the arguments of each of the recipe's components, the optimizer's first."""
    for key in sorted(kinds, key=lambda name: name != "optimizer"):
        if (taken := arguments(key, kinds[key], parts.get(key))) is not None:
            yield key, taken


def arguments(key: str, kind: str, value: Any) -> list[str] | None:
    """The names of the arguments that a component takes; None if they are not known without running a file.

    Args:
        key: The key that names the component.
        kind: Its kind, a key of `KINDS`.
        value: The component, or its name.
    """
    if isinstance(value, str):
        if ".py:" in value:
            return _in_file(value) or (list(_USUAL) if key == "optimizer" else None)
        try:
            value = load(kind, value.removeprefix("native:"))
        except Deep5Error:
            return None
    if not callable(value):
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


def as_settings(message: str, made: Any, owner: str = "") -> str:
    """A component's message, with the arguments of its remedy as the command line sets them.

    A value that the command line would not read as such, such as an object in Python, keeps its form.

    Args:
        message: The message.
        made: The component, a function or class.
        owner: The key of the recipe that holds the component's arguments; "": they are set by their own names.

    >>> def table(path, missing="", features=()): ...
    >>> as_settings("a.csv: got nan; remedy: missing='drop', or features= without 'b'", table, "dataset_kwargs")
    "a.csv: got nan; remedy: --set dataset_kwargs.missing=drop, or --set dataset_kwargs.features= without 'b'"
    """
    what, mark, remedy = message.partition("; remedy: ")
    names = "|".join(map(re.escape, arguments("", "", made) or ()))
    if not names or not mark:
        return message
    start = f"--set {owner}." if owner else "--set "
    written = rf"(?<![\w.(])(?<!--set )({names})=(?:'([\w.%-]+)'|(?=[\w\s,;]|$))"
    return what + mark + re.sub(written, lambda found: f"{start}{found[1]}={found[2] or ''}", remedy)


def names_of(signature: inspect.Signature) -> str:
    """The arguments that a component takes, for messages: names, without types and defaults."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return ", ".join(f"{stars.get(each.kind, '')}{each.name}" for each in signature.parameters.values()) or "none"


def unknown_argument(signature: inspect.Signature, given: Iterable[str]) -> str | None:
    """The first keyword argument that a component does not take; None if it takes all."""
    taken = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return None
    return next((name for name in given if name not in taken), None)


def _in_file(text: str) -> list[str] | None:
    """The arguments of the function or class `FILE.py:NAME` as its source states them; None if they are not there."""
    file, _, name = text.rpartition(":")
    try:
        body = parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: ast.stmt | None = next((each for each in body if getattr(each, "name", None) == name), None)
    method = isinstance(found, ast.ClassDef)
    if isinstance(found, ast.ClassDef):
        found = next((each for each in found.body if getattr(each, "name", None) == "__init__"), None)
    if not isinstance(found, ast.FunctionDef):
        return None
    taken = [*found.args.posonlyargs, *found.args.args][int(method) :] + found.args.kwonlyargs
    return [each.arg for each in taken]
