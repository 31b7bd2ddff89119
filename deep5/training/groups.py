"""Parameter groups: which parameters an update rule works on together, and with which hyperparameters."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Sized

import numpy as np

from deep5.errors import RuleError, UsageError, brief
from deep5.executors import ParameterGroup
from deep5.tensors import TensorSpec
from deep5.training.rule import UpdateRule

__all__ = ["partition", "require_trained"]


def partition(
    specs: Mapping[str, TensorSpec], groups: Sequence[ParameterGroup], present: Container[str] | None = None
) -> list[tuple[dict[str, TensorSpec], dict[str, float]]]:
    """Parameters by (group, dtype), with their group's hyperparameters; those of a frozen group are left out.

    Args:
        specs: The parameters by name.
        groups: The first that matches a name has it.
        present: Names that count; all of `specs` where None.

    Raises:
        RuleError: A group matches no parameter.
        UsageError: `groups` is no sequence of groups, or a group's `match` gives no bool.
    """
    if not isinstance(groups, Sequence) or not all(isinstance(group, ParameterGroup) for group in groups):
        raise UsageError(
            f"groups: got {brief(groups)}; allowed: a sequence of ParameterGroup; remedy: groups=[ParameterGroup(…)]"
        )
    parts: dict[tuple[int, str], dict[str, TensorSpec]] = {}
    for name, spec in specs.items():
        if present is None or name in present:
            group = next((index for index, group in enumerate(groups) if _matches(group, index, name)), -1)
            parts.setdefault((group, spec.dtype), {})[name] = spec
    empty = set(range(len(groups))) - {group for group, _ in parts}
    if empty:
        raise RuleError(f"parameter group {min(empty)} matches no parameter; allowed: {', '.join(specs)}")
    return [
        (part, groups[group].hyper if group >= 0 else {})
        for (group, _), part in parts.items()
        if group < 0 or not groups[group].frozen
    ]


def require_trained(rule: UpdateRule, parameters: Sized, trained: Sized) -> None:
    """Refuse a network all of whose parameters are frozen.

    Raises:
        RuleError: There are parameters, and none is trained.
    """
    if len(parameters) and not len(trained):
        raise RuleError(
            f"nothing to train by {type(rule).__name__}: got {len(parameters)} parameters, all of them frozen"
        )


def _matches(group: ParameterGroup, index: int, name: str) -> bool:
    answer = group.match(name)
    if not isinstance(answer, (bool, np.bool_)):
        raise UsageError(
            f"parameter group {index}: match({name!r}) gave {brief(answer)}; allowed: True or False; remedy: bool(…) "
            "around it"
        )
    return bool(answer)
