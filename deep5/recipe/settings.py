"""Settings from outside (`--set`, `--framework`, …): they change only mutable parts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deep5.core.canonical import copied
from deep5.core.errors import UsageError
from deep5.recipe.keys import allowed_keys, base, component_kinds, kind_of
from deep5.recipe.meant import argument_of, meant_key, other_optimizers

__all__ = ["changed_by_settings", "changed_by_size", "changes_the_goal", "entered", "parse_setting"]


def parse_setting(text: str) -> tuple[str, Any]:
    """Read `KEY=VALUE`; the value is a Python literal, or else a string.

    Raises:
        UsageError: There is no '='.

    >>> parse_setting("batch_size=32"), parse_setting("optimizer=adam")
    (('batch_size', 32), ('optimizer', 'adam'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"cannot read the setting {text!r}; allowed: KEY=VALUE, such as batch_size=32")
    try:
        return key.strip(), ast.literal_eval(value.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return key.strip(), value


def changed_by_settings(
    recipe: str, fixed: Mapping[str, Any], mutable: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """MUTABLE with new values; the order of the settings does not matter.

    Args:
        recipe: Its name, for messages.
        fixed: FIXED.
        mutable: MUTABLE; it is not changed.
        settings: New values by key; `optimizer_kwargs.lr` sets one entry of a `_kwargs`, `schedules.lr` one schedule.

    Raises:
        UsageError: A fixed part, an unknown key, or a setting without effect.
    """
    for key in settings:
        _check_settable(recipe, fixed, mutable, key, settings)
    if "framework" in settings and "executor" in settings:
        raise UsageError("'framework' and 'executor' are both set; allowed: one of them")
    changed = dict(mutable)
    if "framework" in settings or "executor" in settings:
        other = "executor" if "framework" in settings else "framework"
        _check_settable(recipe, fixed, mutable, other, settings)
        for name in (other, f"{other}_args", f"{other}_kwargs"):
            dropped = changed.pop(name, None)
            # The tutorial's recipes pass the device with the executor.
            if name.endswith("_kwargs") and isinstance(dropped, Mapping) and "device" in dropped:
                changed.setdefault("device", dropped["device"])
    if "device" in settings and "executor_kwargs" in changed:
        given = changed["executor_kwargs"]
        changed["executor_kwargs"] = {name: given[name] for name in given if name != "device"}
    whole = {key: value for key, value in settings.items() if "." not in key}
    changed = {**_without_old_arguments(changed, whole), **copied(whole)}
    for key, value in settings.items():
        name, dot, entry = key.partition(".")
        if dot:
            path = entry.split(".") if name.endswith("_kwargs") else [entry]
            changed[name] = entered(changed.get(name), path, value)
    _check_effect(changed.get("schedules", fixed.get("schedules", {})), settings)
    return changed


def entered(into: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """A mapping with one more entry, as `train.input=x.npy` sets it; anything but a mapping is replaced by one.

    >>> entered({"test": 3}, ["train", "input"], "x.npy")
    {'test': 3, 'train': {'input': 'x.npy'}}
    """
    found = dict(into) if isinstance(into, Mapping) else {}
    found[path[0]] = entered(found.get(path[0]), path[1:], value) if path[1:] else value
    return found


def _check_effect(schedules: Any, settings: Mapping[str, Any]) -> None:
    """Reject a hyperparameter value that a schedule overwrites at every step."""
    for key in settings:
        name, _, entry = key.partition(".")
        if name == "optimizer_kwargs" and isinstance(schedules, Mapping) and entry in schedules:
            raise UsageError(
                f"got {key}, but {entry!r} has a schedule in this recipe, which sets it; remedy: schedules.{entry}=…, "
                "or schedules={} for none"
            )


# Keys that affect the evaluation of a network although neither part of the recipe sets them.
_EVALUATED = {"init", "validation", "validation_sampler", "test_transforms"}


def changes_the_goal(mutable: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether settings make a recipe's goals easier or harder, although none of them is fixed.

    Weights that the recipe does not mention may be pretrained, and other samples may be easier.

    Args:
        mutable: MUTABLE, before it is changed.
        names: Keys that are set.
    """
    return any(base(name) in _EVALUATED and base(name) not in mutable for name in names)


def changed_by_size(
    fixed: Mapping[str, Any], mutable: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """FIXED and MUTABLE at a size.

    Args:
        fixed: FIXED; it is not changed.
        mutable: MUTABLE; it is not changed.
        changes: New values by key; a key that neither part contains is added to MUTABLE.
    """
    made = _without_old_arguments(fixed, changes), _without_old_arguments(mutable, changes)
    for key, value in changes.items():
        made[0 if _is_fixed(fixed, mutable, key) and key not in mutable else 1][key] = value
    return made


def _without_old_arguments(part: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A part without the arguments of components that are about to be replaced, because they belong to the old ones."""
    new = [key for key, value in changes.items() if not isinstance(value, str) or part.get(key) != value]
    old = {f"{key}{suffix}" for key in new for suffix in ("_args", "_kwargs")}
    return {key: value for key, value in part.items() if key not in old}


def _check_settable(
    recipe: str, fixed: Mapping[str, Any], mutable: Mapping[str, Any], key: str, settings: Mapping[str, Any]
) -> None:
    name, dot, entry = key.partition(".")
    allowed = allowed_keys(kind_of(fixed, mutable).keys)
    settable = [known for known in allowed if not _is_fixed(fixed, mutable, known)]
    shown = [one for one in settable if base(one) == one or base(one) not in settable]
    if _is_fixed(fixed, mutable, name):
        raise UsageError(
            f"{name!r} is fixed by the recipe {recipe!r}; allowed to change: {', '.join(shown)}, each component with "
            "_args and _kwargs; remedy: copy the recipe and change the copy, which makes it another benchmark"
        )
    if name.casefold() in ("metrics", "metric", "goals", "goal"):
        raise UsageError(
            f"{key!r} cannot be set; allowed: metrics and goals that a recipe's file states, as METRICS; remedy: "
            "METRICS = [(d5.TestAccuracy(), '>= 90 %')] in a recipe of your own, say"
        )
    if name not in allowed or (dot and not ((name.endswith("_kwargs") or name == "schedules") and _is_path(entry))):
        meant = f"; did you mean '{name}_kwargs.{entry}'?" if f"{name}_kwargs" in settable and entry else ""
        # An argument is one of the components that the other settings choose.
        chosen = {one: settings[one] for one in settings if one in settable}
        meant = meant or _suggested(name, entry, settings[key], settable, {**fixed, **mutable, **chosen})
        raise UsageError(
            f"unknown key {key!r}; allowed: {', '.join(shown)}, each component with _args and _kwargs{meant}"
        )


def _suggested(name: str, entry: str, value: Any, settable: Sequence[str], parts: Mapping[str, Any]) -> str:
    """The tail of a message with the setting that was probably meant, as it is written for --set."""
    kinds = component_kinds(kind_of(parts).keys)
    owner = argument_of(name, kinds, parts)
    if owner is not None and owner[0] not in settable:
        return f"; {owner[1]!r} is an argument of {base(owner[0])!r}, which the recipe fixes"
    free = {key: kind for key, kind in kinds.items() if f"{key}_kwargs" in settable}
    begins = any(key.startswith(name) for key in settable)
    if owner is None and not begins and (tail := _of_another(name, value, settable, parts, near=False)):
        return tail
    found = meant_key(name, settable, free, parts)
    if found is None:
        return _of_another(name, value, settable, parts, near=True)
    key, argument = found
    return f"; did you mean {'.'.join(filter(None, (key, argument or entry)))!r}?"


def _of_another(name: str, value: Any, settable: Sequence[str], parts: Mapping[str, Any], *, near: bool) -> str:
    """As `other_optimizers`, if the recipe has an optimizer; without the remedy if it is fixed."""
    if parts.get("optimizer") is None:
        return ""
    tail = other_optimizers(name, value, parts["optimizer"], as_setting=True, near=near)
    if tail and "optimizer" not in settable:
        return f"{tail.partition('; remedy')[0]}, which the recipe fixes"
    return tail


def _is_path(entry: str) -> bool:
    return all(entry.split("."))


def _is_fixed(fixed: Mapping[str, Any], mutable: Mapping[str, Any], key: str) -> bool:
    """Whether a key is fixed: arguments of a fixed component are too, unless the recipe lists them as mutable."""
    return key in fixed or (base(key) in fixed and key not in mutable)
