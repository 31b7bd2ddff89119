"""Parameter groups: subsets of parameters with common hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from deep5.core.errors import RuleError, UsageError, brief
from deep5.core.executors import ParameterGroup
from deep5.core.tensors import TensorSpec
from deep5.training.rule import UpdateRule

__all__ = ["WatchedGroups", "check_groups", "matches", "owners", "partition", "partition_by_dtype", "require_trained"]

Parts = list[tuple[dict[str, TensorSpec], dict[str, float]]]


def partition(
    specs: Mapping[str, TensorSpec], groups: Sequence[ParameterGroup], present: Container[str] | None = None
) -> Parts:
    """Parameters by (group, dtype), with their group's hyperparameters; those of frozen groups are omitted.

    The dict of hyperparameters is the group's own: later readers see its current values.

    Args:
        specs: The parameters by name.
        groups: The first match of a name determines the group.
        present: Names to include; None: all of `specs`.

    Raises:
        RuleError: A group matches no parameter.
        UsageError: `groups` is not a sequence of groups, or a group's `match` does not return a bool.
    """
    check_groups(groups)
    parts: dict[tuple[int, str], dict[str, TensorSpec]] = {}
    owned = owners([name for name in specs if present is None or name in present], groups)
    for name, group in owned.items():
        parts.setdefault((group, specs[name].dtype), {})[name] = specs[name]
    empty = set(range(len(groups))) - {group for group, _ in parts}
    if empty:
        raise RuleError(f"parameter group {min(empty)} matches no parameter; allowed: {', '.join(specs)}")
    return [
        (part, groups[group].hyper if group >= 0 else {})
        for (group, _), part in parts.items()
        if group < 0 or not groups[group].frozen
    ]


def owners(names: Iterable[str], groups: Sequence[ParameterGroup]) -> dict[str, int]:
    """The group of each parameter: the first that matches its name; -1 if none does.

    Raises:
        UsageError: A group's `match` does not return a bool.
    """
    return {
        name: next((index for index, group in enumerate(groups) if matches(group.match, name, f"group {index}")), -1)
        for name in names
    }


def check_groups(groups: Any) -> None:
    """Reject an argument that is not a sequence of groups.

    Raises:
        UsageError: It is not.
    """
    if not isinstance(groups, Sequence) or not all(isinstance(group, ParameterGroup) for group in groups):
        raise UsageError(
            f"groups: got {brief(groups)}; allowed: a sequence of ParameterGroup; remedy: groups=[ParameterGroup(…)]"
        )


def partition_by_dtype(
    specs: Mapping[str, TensorSpec], groups: Sequence[ParameterGroup], present: Container[str]
) -> list[Parts]:
    """The parts of `partition` by element type: one kernel handles each."""
    found: dict[str, Parts] = {}
    for part, hyper in partition(specs, groups, present):
        found.setdefault(next(iter(part.values())).dtype, []).append((part, hyper))
    return list(found.values())


def require_trained(rule: UpdateRule, parameters: Sized, trained: Sized) -> None:
    """Reject a network whose parameters are all frozen.

    Raises:
        RuleError: There are parameters, but none is trained.
    """
    if len(parameters) and not len(trained):
        raise RuleError(
            f"nothing to train by {type(rule).__name__}: got {len(parameters)} parameters, all of them frozen; remedy: "
            "network.unfreeze(), or fewer frozen groups"
        )


def matches(match: Callable[[str], bool], name: str, whose: str) -> bool:
    """The result of a predicate for a parameter's name.

    Raises:
        UsageError: It is not a bool.
    """
    answer = match(name)
    if not isinstance(answer, (bool, np.bool_)):
        raise UsageError(
            f"parameter {whose}: match({name!r}) gave {brief(answer)}; allowed: True or False; remedy: bool(…) "
            "around it"
        )
    return bool(answer)


class WatchedGroups:
    """The groups that a caller passed to an optimizer, which works on copies of them.

    Args:
        groups: The caller's groups.

    Attributes:
        groups: As given.
    """

    def __init__(self, groups: Sequence[ParameterGroup]) -> None:
        self.groups = tuple(groups)
        self._before = [_content(group) for group in groups]

    def check(self) -> None:
        """Reject a change, which would have no effect.

        Raises:
            UsageError: A group has changed.
        """
        for index, (group, before) in enumerate(zip(self.groups, self._before, strict=True)):
            if _content(group) != before:
                raise UsageError(
                    f"parameter group {index} was changed after the optimizer copied it: got "
                    f"{brief(group.describe())}; remedy: RuleOptimizer.set_parameter(name, value, match)"
                )


def _content(group: ParameterGroup) -> tuple[Any, ...]:
    return group.match, group.frozen, dict(group.hyper)
