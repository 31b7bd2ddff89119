"""Hyperparameters in an optimizer's state: values set during a run remain in effect after a resume."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from deep5.core.errors import ShapeError, brief
from deep5.core.executors import ParameterGroup
from deep5.training.groups import owners

__all__ = ["KEY", "apart", "check_names", "group_values", "plain", "regrouped", "restore_rate"]

KEY = "hyper"
"""Their key in an optimizer's `state_dict`: without a slash, unlike a rule's `"<state>/<parameter>"`."""

Entries = list[dict[str, Any]]


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to Python numbers, the only ones that a checkpoint's header supports."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}


def apart(state: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Separate a state from its hyperparameters, which are None if an earlier deep5 wrote it without them.

    Raises:
        ShapeError: The entry has another type.
    """
    rest = {key: value for key, value in state.items() if key != KEY}
    if len(rest) == len(state):
        return rest, None
    held = state[KEY]
    if not isinstance(held, Mapping) or not isinstance(held.get("values"), Mapping):
        raise ShapeError(f"the optimizer's state: got {brief(held)} as {KEY!r}; allowed: a dict with 'values'")
    return rest, held


def check_names(values: Mapping[str, Any], required: Collection[str], further: Collection[str] = ()) -> None:
    """Reject hyperparameters of another optimizer.

    Raises:
        ShapeError: One is missing or unknown.
    """
    odd = (set(required) - set(values)) | (set(values) - {*required, *further})
    if odd:
        raise ShapeError(
            f"the optimizer's state has missing or unknown hyperparameters: {sorted(map(str, odd))}; allowed: "
            f"{', '.join((*required, *further)) or 'none'}"
        )


def restore_rate(optimizer: Any, held: Mapping[str, Any] | None) -> None:
    """Set the learning rate, the only changeable value, of an optimizer that stores hyperparameters separately.

    Raises:
        ShapeError: The hyperparameters belong to another optimizer.
        UsageError: The learning rate is invalid.
    """
    if held is not None:
        check_names(held["values"], ("lr",))
        optimizer.set_hyper("lr", held["values"]["lr"])


def group_values(names: Iterable[str], groups: Sequence[ParameterGroup]) -> Entries:
    """The own values of each trained group: `parameters`, their names, and `values`."""
    owned = owners(names, groups)
    return [
        {"parameters": [name for name, own in owned.items() if own == index], "values": plain(group.hyper)}
        for index, group in enumerate(groups)
        if not group.frozen
    ]


def regrouped(
    names: Collection[str], groups: Sequence[ParameterGroup], entries: Sequence[Mapping[str, Any]]
) -> list[ParameterGroup] | None:
    """Groups that set the values from `group_values`; frozen parameters stay frozen.

    Returns:
        New groups; None if the existing groups have the same parameters and were updated.
    """
    now = group_values(names, groups)
    trained = [group for group in groups if not group.frozen]
    if [_partition(entry) for entry in now] == [_partition(entry) for entry in entries]:
        for group, entry in zip(trained, entries, strict=True):
            group.hyper.update(entry["values"])
        return None
    owned = owners(names, groups)
    frozen = frozenset(name for name, own in owned.items() if own >= 0 and groups[own].frozen)
    found = [ParameterGroup(frozen.__contains__, frozen=True)] if frozen else []
    for entry in entries:
        # A group that matches nothing is rejected.
        if members := frozenset(entry["parameters"]) - frozen:
            group = ParameterGroup(members.__contains__)
            group.hyper.update(entry["values"])
            found.append(group)
    return found


def _partition(entry: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    return sorted(entry["parameters"]), sorted(entry["values"])
