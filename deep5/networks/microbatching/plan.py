"""Divide a minibatch so that a layer's workspace fits, by dynamic programming; and divide a limit among all layers.

References:
    Oyama, Ben-Nun, Hoefler and Matsuoka, Accelerating deep learning frameworks with micro-batches, CLUSTER 2018,
    sections 3.1 (a limit for each layer: workspace reuse) and 3.2 (a limit that all layers share: workspace division).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["Cost", "Division", "divide", "divisions", "share"]

_ATTEMPTS = 1000
SIZES = ("undivided", "powers", "any")
"""Allowed parts of a minibatch: the undivided minibatch, powers of two, or any measured sizes."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a layer for a micro-batch of one size.

    Attributes:
        seconds: Time.
        workspace_bytes: Temporary memory besides inputs and outputs.
    """

    seconds: float
    workspace_bytes: int


@dataclass(frozen=True, kw_only=True)
class Division:
    """A minibatch in parts that run one after the other.

    Attributes:
        parts: Their sizes, the largest first; their sum is the minibatch.
        seconds: Time of all parts.
        workspace_bytes: The largest workspace of a part: parts use the same memory in turn.
    """

    parts: tuple[int, ...]
    seconds: float
    workspace_bytes: int


def divide(costs: Mapping[int, Cost], batch: int, limit_bytes: int | None = None, sizes: str = "any") -> Division:
    """The fastest division of a minibatch whose parts all fit a limit.

    T(b) = min over sizes s <= b within the limit of t(s) + T(b - s), T(0) = 0.

    Args:
        costs: Measurements, by micro-batch size.
        batch: Samples of the minibatch.
        limit_bytes: Limit on the workspace of a part; None for no limit.
        sizes: One of `SIZES`.

    Raises:
        UsageError: Unknown sizes, a batch of less than 1, or a limit that no division meets; the message contains the
            smallest possible limit.

    >>> costs = {1: Cost(seconds=1.0, workspace_bytes=1), 2: Cost(seconds=1.5, workspace_bytes=2)}
    >>> divide(costs, 3).parts, divide(costs, 3, 1).parts
    ((2, 1), (1, 1, 1))
    """
    allowed = _allowed(costs, batch, sizes)
    found = _fastest({size: costs[size] for size in allowed if _keeps(costs[size], limit_bytes)}, batch)
    if found is None:
        raise UsageError(_cannot(costs, allowed, batch, limit_bytes, sizes))
    return found


def divisions(costs: Mapping[int, Cost], batch: int, sizes: str = "any") -> list[Division]:
    """The Pareto front of divisions in time and workspace, by increasing workspace.

    Raises:
        UsageError: As for `divide`, if there is no division at all.
    """
    allowed = _allowed(costs, batch, sizes)
    front: list[Division] = []
    for limit in sorted({costs[size].workspace_bytes for size in allowed}):
        found = _fastest({size: costs[size] for size in allowed if costs[size].workspace_bytes <= limit}, batch)
        if found is not None and (not front or found.seconds < front[-1].seconds):
            front.append(found)
    if not front:
        raise UsageError(_cannot(costs, allowed, batch, None, sizes))
    return front


def share(layers: Mapping[str, Sequence[Division]], limit_bytes: int) -> dict[str, Division]:
    """The fastest choice of a division for each layer when the workspaces of all layers are allocated together.

    min sum over k, c of T(k, c) x(k, c), subject to sum of M(k, c) x(k, c) <= limit and, for each layer k, sum of
    x(k, c) = 1, x in {0, 1}; solved exactly, by branch and bound.

    Args:
        layers: The result of `divisions` by layer name.
        limit_bytes: Limit on the sum of all workspaces.

    Raises:
        UsageError: No layers, or a limit that no choice meets; the message contains the smallest possible limit.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not layers or not all(layers.values()):
        raise UsageError("got no divisions to choose from; allowed: at least one for each layer")
    least = sum(min(each.workspace_bytes for each in choices) for choices in layers.values())
    if least > limit_bytes:
        raise UsageError(
            f"the limit of {limit_bytes} bytes for all {len(layers)} layers cannot be met; allowed: at least {least}"
        )
    every = [(name, division) for name, choices in layers.items() for division in choices]
    seconds = np.array([division.seconds for _, division in every])
    memory = np.array([[division.workspace_bytes for _, division in every]], dtype=np.float64)
    one = np.array([[name == layer for name, _ in every] for layer in layers], dtype=np.float64)
    # Scaled by the limit and by the slowest choice: the solver's tolerances are absolute.
    scale = max(float(limit_bytes), 1.0)
    rules = [LinearConstraint(memory / scale, ub=limit_bytes / scale), LinearConstraint(one, 1.0, 1.0)]
    for _ in range(_ATTEMPTS):
        solved = milp(
            seconds / (seconds.max() or 1.0),
            constraints=rules,
            integrality=np.ones(len(every)),
            bounds=Bounds(0.0, 1.0),
            options={"mip_rel_gap": 0.0},
        )
        if solved.x is None:
            break
        taken = solved.x > 0.5
        chosen = [choice for choice, here in zip(every, taken, strict=True) if here]
        if sum(division.workspace_bytes for _, division in chosen) <= limit_bytes:
            return dict(chosen)
        # Within the solver's tolerance, but some bytes too many: exclude this choice.
        rules.append(LinearConstraint(taken.astype(np.float64)[None], ub=len(layers) - 1.0))
    raise UsageError(f"the division of {limit_bytes} bytes among {len(layers)} layers failed: {solved.message}")


def _allowed(costs: Mapping[int, Cost], batch: int, sizes: str) -> list[int]:
    if sizes not in SIZES:
        raise UsageError(f"unknown sizes {sizes!r}; allowed: {', '.join(SIZES)}")
    if batch < 1:
        raise UsageError(f"got a batch of {batch}; allowed: at least 1")
    if sizes == "undivided":
        return [size for size in costs if size == batch]
    return sorted(size for size in costs if 1 <= size <= batch and (sizes == "any" or size & (size - 1) == 0))


def _keeps(cost: Cost, limit_bytes: int | None) -> bool:
    return limit_bytes is None or cost.workspace_bytes <= limit_bytes


def _fastest(costs: Mapping[int, Cost], batch: int) -> Division | None:
    seconds, last = [0.0] + [inf] * batch, [0] * (batch + 1)
    for total in range(1, batch + 1):
        for size, cost in costs.items():
            if size <= total and seconds[total - size] + cost.seconds < seconds[total]:
                seconds[total], last[total] = seconds[total - size] + cost.seconds, size
    if seconds[batch] == inf:
        return None
    parts, left = [], batch
    while left:
        parts.append(last[left])
        left -= last[left]
    return Division(
        parts=tuple(sorted(parts, reverse=True)),
        seconds=seconds[batch],
        workspace_bytes=max(costs[size].workspace_bytes for size in parts),
    )


def _cannot(costs: Mapping[int, Cost], allowed: Sequence[int], batch: int, limit: int | None, sizes: str) -> str:
    for least in sorted({costs[size].workspace_bytes for size in allowed}):
        if _fastest({size: costs[size] for size in allowed if costs[size].workspace_bytes <= least}, batch):
            return (
                f"a batch of {batch} cannot be divided ({sizes}) so that no part takes more than {limit} bytes of "
                f"workspace; allowed: at least {least}"
            )
    return f"a batch of {batch} cannot be divided ({sizes}) into sizes {sorted(costs)}; remedy: measure more sizes"
