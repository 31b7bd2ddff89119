"""Checks of FIXED and MUTABLE against the tables of keys, without loading any component."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from deep5.core.deep500 import PAGE
from deep5.core.errors import RecipeError, brief, suggestion
from deep5.recipe import faults
from deep5.recipe.keys import Key, allowed_keys, component_kinds, kind_of
from deep5.recipe.meant import meant_key, other_optimizers

__all__ = ["allowed_values", "check_keys", "check_parts"]

# If these keys name no component, there is none; other keys have a default component.
_ABSENT = ("compression", "gradient_modifier", "bare")


def allowed_values(name: str, about: Key) -> str | None:
    """The values that a key allows, in the words of its error message; None if it names a component.

    >>> from deep5.recipe.keys import TRAINING
    >>> allowed_values("epochs", TRAINING.keys["epochs"])
    'an integer of at least 1 and at most 1000000'
    """
    if about.kind is not None:
        return None
    fault = _fault(name, about, object()) or ""
    return fault.partition("; allowed: ")[2].partition(", or None")[0]


def check_parts(fixed: Mapping[str, Any], mutable: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Check both parts against the table of keys, without loading any component.

    Args:
        fixed: FIXED.
        mutable: MUTABLE.
        where: Returns the file and line of a key, ending in `": "`, or an empty string.

    Raises:
        RecipeError: The first error found.
    """
    kind, both = kind_of(fixed, mutable), {**fixed, **mutable}
    keys = kind.keys
    for what, part in (("FIXED", fixed), ("MUTABLE", mutable)):
        check_keys(part, what, keys, both, where)
        for key, value in part.items():
            fault = _fault(key, keys.get(key), value)
            if fault is not None:
                raise RecipeError(f"{where(key)}{fault}")
    missing = [key for key, about in keys.items() if about.required and key not in both]
    if missing:
        raise RecipeError(
            f"{where('')}the key {missing[0]!r} is missing; allowed: in FIXED or in MUTABLE, one of them; "
            f"remedy: add {missing[0]!r}"
        )
    for key in _ABSENT:
        for name in (f"{key}_args", f"{key}_kwargs"):
            if both.get(key) is None and both.get(name):
                raise RecipeError(
                    f"{where(name)}{name!r} is {brief(both[name])}, but {key!r} is not set; allowed: only with "
                    f"{key!r}; remedy: set {key!r}, or omit {name!r}"
                )
    if (wrong := kind.fault(both)) is not None:
        key, fault = wrong
        raise RecipeError(f"{where(key)}{fault}")


def check_keys(
    part: Mapping[str, Any],
    what: str,
    keys: Mapping[str, Key],
    parts: Mapping[str, Any],
    where: Callable[[str], str],
    more: tuple[str, ...] = (),
) -> None:
    """Check that a part of a recipe has only known keys.

    Args:
        part: FIXED, MUTABLE, or the changes of a size.
        what: Its name in messages.
        keys: All keys, except those for arguments.
        parts: The recipe's values by key.
        where: As for `check_parts`.
        more: Further allowed keys.

    Raises:
        RecipeError: The first unknown key; the message suggests the one that was probably meant.
    """
    allowed = [*allowed_keys(keys), *more]
    for key, value in part.items():
        if key in allowed:
            continue
        name, dot, entry = key.partition(".")
        settable = dot and name in allowed and name.endswith("_kwargs")  # as --set writes it
        meant = (name, entry) if settable else meant_key(key, allowed, component_kinds(keys), {**parts, **part})
        raise RecipeError(
            f"{where(key)}unknown key {key!r} in {what}; allowed: {', '.join((*keys, *more))}, each component with "
            f"_args and _kwargs{_asked(key, meant, value) or _of_another(key, value, {**parts, **part})}"
        )


def _of_another(key: str, value: Any, parts: Mapping[str, Any]) -> str:
    """As `other_optimizers`, if the recipe has an optimizer."""
    chosen = parts.get("optimizer")
    return "" if chosen is None else other_optimizers(key, value, chosen, as_setting=False, near=True)


def _asked(got: str, meant: tuple[str, str] | None, value: Any) -> str:
    """The tail of a message that suggests a key as it is written in a recipe."""
    if meant is None:
        return ""
    key, argument = meant
    if got == key.removesuffix("s"):  # model_kwarg, optimizer_arg
        return f"; did you mean {key!r}? Deep500's {got!r} is {key!r} in deep5 ({PAGE})"
    return f"; did you mean {key!r}?" if not argument else f"; did you mean {key!r}: {{{argument!r}: {brief(value)}}}?"


def _fault(key: str, about: Key | None, value: Any) -> str | None:
    """The error in the value of a known key, or None."""
    if about is None:
        if key.endswith("_kwargs"):
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
                return f"{key!r} is {value!r}; allowed: a dict of keyword arguments, with strings as keys"
        elif not isinstance(value, (list, tuple)):
            return f"{key!r} is {value!r}; allowed: a tuple or list of arguments"
        return None
    if value is None and about.optional:
        return None
    if about.fault is not None:
        fault = about.fault(value)
        return fault and f"{key!r} {fault}"
    if about.least is not None:
        high = math.inf if about.most is None else about.most
        if isinstance(value, bool) or not isinstance(value, int) or not about.least <= value <= high:
            end = "" if about.most is None else f" and at most {about.most}"
            return f"{key!r} is {brief(value)}; allowed: an integer of at least {about.least}{end}"
        return None
    if about.flag:
        near = suggestion(value, ("True", "False")) if isinstance(value, str) else ""
        return None if isinstance(value, bool) else f"{key!r} is {value!r}; allowed: True or False{near}"
    if about.kind is None:
        return faults.init_fault(value) if key == "init" else faults.device_fault(value)
    if key in ("events", "train_transforms", "test_transforms") and isinstance(value, (list, tuple)):
        return next((fault for item in value if (fault := faults.component_fault(key, about.kind, item))), None)
    if value is None and key in ("framework", "executor"):
        return None
    return faults.component_fault(key, about.kind, value)
