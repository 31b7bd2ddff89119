"""Parameter groups: which parameters an update rule works on together, and with which hyperparameters."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from deep5.backend import ParameterGroup
from deep5.errors import RuleError
from deep5.tensors import TensorSpec

__all__ = ["partition"]


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
    """
    parts: dict[tuple[int, str], dict[str, TensorSpec]] = {}
    for name, spec in specs.items():
        if present is None or name in present:
            group = next((index for index, group in enumerate(groups) if group.match(name)), -1)
            parts.setdefault((group, spec.dtype), {})[name] = spec
    empty = set(range(len(groups))) - {group for group, _ in parts}
    if empty:
        raise RuleError(f"parameter group {min(empty)} matches no parameter; allowed: {', '.join(specs)}")
    return [
        (part, groups[group].hyper if group >= 0 else {})
        for (group, _), part in parts.items()
        if group < 0 or not groups[group].frozen
    ]
