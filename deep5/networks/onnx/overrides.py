"""The argument `parameters` of `Network.from_onnx`: which tensors of a file are trained, as the caller states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from deep5.core.errors import NetworkError, brief, suggestion

__all__ = ["Overrides", "check_names", "overrides_of", "stated_for"]

Overrides = Mapping[str, bool]
"""By name or pattern, whether a tensor is trained."""

_FORMS = "a dict such as {'logit_scale': True, '*.mask': False}, or a list of the names of all parameters"
# Names in a message.
_SHOWN = 10


def overrides_of(given: Overrides | Iterable[str] | None) -> Overrides:
    """The argument as a mapping.

    Args:
        given: A mapping of names or patterns to whether the tensor is trained; or names or patterns of all parameters:
            then no other tensor is trained.

    Raises:
        NetworkError: Neither of these.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for name, trained in given.items():
            if not isinstance(name, str) or not isinstance(trained, bool):
                raise NetworkError(f"parameters: got {brief(name)}: {brief(trained)}; allowed: {_FORMS}")
        return dict(given)
    if isinstance(given, str):
        raise NetworkError(f"parameters: got the string {given!r}; allowed: {_FORMS}; remedy: [{given!r}]")
    names = list(given) if isinstance(given, Iterable) else [given]
    for name in names:
        if not isinstance(name, str):
            raise NetworkError(f"parameters: got {brief(name)}; allowed: {_FORMS}")
    return {**dict.fromkeys(names, True), "*": False}


def stated_for(name: str, overrides: Overrides) -> bool | None:
    """Whether the caller states that a tensor is trained: an exact name precedes patterns, the first pattern counts."""
    if name in overrides:
        return overrides[name]
    return next((trained for pattern, trained in overrides.items() if fnmatchcase(name, pattern)), None)


def check_names(overrides: Overrides, names: Collection[str], others: Mapping[str, str]) -> None:
    """Reject a name or pattern that matches no tensor.

    Args:
        overrides: What the caller states.
        names: The floating-point tensors of the file.
        others: The element types of its other tensors, by name.

    Raises:
        NetworkError: Such a name, and what is allowed.
    """
    for pattern in overrides:
        if pattern in names or pattern == "*" or any(fnmatchcase(name, pattern) for name in names):
            continue
        kind = others.get(pattern)
        reason = f"is of type {kind}" if kind else "matches no tensor"
        listed = ", ".join(list(names)[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        raise NetworkError(
            f"parameters: {pattern!r} {reason}; allowed: floating-point initial values and constants of the file: "
            f"{listed or 'there are none'}; remedy: deep5 show network FILE lists them{suggestion(pattern, names)}"
        )
