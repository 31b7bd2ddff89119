"""Which parameters of a network are frozen: a list of names in the model, which its file keeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from deep5.core.errors import NetworkError, brief, suggestion

__all__ = ["freeze", "frozen_names", "renamed_frozen", "unfreeze"]

# Of the model's metadata: names in JSON.
_KEY = "deep5.frozen"


def frozen_names(model: ir.Model, parameters: Collection[str]) -> frozenset[str]:
    """The parameters that a model says are frozen; of names that are none it says nothing.

    Raises:
        NetworkError: What the model says is no list of names.
    """
    return frozenset(_listed(model)).intersection(parameters)


def freeze(model: ir.Model, parameters: Collection[str], patterns: Sequence[str]) -> ir.Model:
    """A copy in which the parameters that match are frozen; see `Network.freeze`."""
    return _with_frozen(model, frozen_names(model, parameters) | _matching(parameters, patterns, "freeze"))


def unfreeze(model: ir.Model, parameters: Collection[str], patterns: Sequence[str]) -> ir.Model:
    """A copy in which the parameters that match are trained; see `Network.unfreeze`."""
    return _with_frozen(model, frozen_names(model, parameters) - _matching(parameters, patterns, "unfreeze"))


def renamed_frozen(model: ir.Model, old: str, new: str) -> None:
    """A parameter that is frozen has another name from now on."""
    if old in (names := _listed(model)):
        _store(model, {new if name == old else name for name in names})


def _listed(model: ir.Model) -> list[str]:
    text = model.metadata_props.get(_KEY)
    if text is None:
        return []
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NetworkError(f"the model's {_KEY} is {brief(text)}; allowed: a list of names in JSON")
    return names


def _store(model: ir.Model, names: Iterable[str]) -> None:
    model.metadata_props.pop(_KEY, None)
    if names := sorted(names):
        model.metadata_props[_KEY] = json.dumps(names)


def _matching(names: Collection[str], patterns: Sequence[str], what: str) -> set[str]:
    if not patterns:
        return set(names)
    found = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise NetworkError(f"{what}: got {brief(pattern)}; allowed: names of parameters, such as 'conv1.*'")
        # A name as it stands goes first: a file's may have brackets in it.
        matched = {pattern} if pattern in names else {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise NetworkError(
                f"{what}: {brief(pattern)} matches no parameter; allowed: {', '.join(list(names)[:10])}"
                f"{', …' if len(names) > 10 else ''}{suggestion(pattern, names)}"
            )
        found |= matched
    return found


def _with_frozen(model: ir.Model, names: Iterable[str]) -> ir.Model:
    model = model.clone()
    _store(model, names)
    return model
