"""Frozen parameters of a network: a list of names in the model's metadata, saved with its file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from deep5.core.errors import NetworkError, brief, suggestion
from deep5.networks.onnx.name_lists import FROZEN, listed_names, store_names

__all__ = ["freeze", "frozen_names", "unfreeze"]


def frozen_names(model: ir.Model, parameters: Collection[str]) -> frozenset[str]:
    """The frozen parameters of a model; listed names that are not parameters are ignored.

    Raises:
        NetworkError: The metadata is not a list of names.
    """
    return frozenset(listed_names(model, FROZEN)).intersection(parameters)


def freeze(model: ir.Model, parameters: Collection[str], patterns: Sequence[str]) -> ir.Model:
    """A copy in which the matching parameters are frozen; see `Network.freeze`."""
    return _with_frozen(model, frozen_names(model, parameters) | _matching(parameters, patterns, "freeze"))


def unfreeze(model: ir.Model, parameters: Collection[str], patterns: Sequence[str]) -> ir.Model:
    """A copy in which the matching parameters are trained; see `Network.unfreeze`."""
    return _with_frozen(model, frozen_names(model, parameters) - _matching(parameters, patterns, "unfreeze"))


def _matching(names: Collection[str], patterns: Sequence[str], what: str) -> set[str]:
    if not patterns:
        return set(names)
    found = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise NetworkError(f"{what}: got {brief(pattern)}; allowed: names of parameters, such as 'conv1.*'")
        # An exact name takes precedence: names in a file may contain brackets.
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
    store_names(model, FROZEN, names)
    return model
