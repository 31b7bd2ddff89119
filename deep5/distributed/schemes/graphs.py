"""Graphs of ranks: each rank's neighbors, their weights, and how fast values spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UnknownName, UsageError, brief

__all__ = ["GRAPHS", "check_graph", "metropolis_weights", "neighbours_of", "spectral_gap"]


def _ring(size: int) -> list[set[int]]:
    return [{(rank - 1) % size, (rank + 1) % size} for rank in range(size)]


def _torus(size: int) -> list[set[int]]:
    """As square as possible; a ring for a prime number of ranks."""
    rows = next(extent for extent in range(int(size**0.5), 0, -1) if not size % extent)
    columns = size // rows
    found = []
    for rank in range(size):
        row, column = divmod(rank, columns)
        beside = {row * columns + (column + move) % columns for move in (-1, 1)}
        found.append(beside | {(row + move) % rows * columns + column for move in (-1, 1)})
    return found


def _hypercube(size: int) -> list[set[int]]:
    if size & (size - 1):
        raise UsageError(
            f"graph 'hypercube': got {size} ranks; allowed: a power of two; remedy: graph='torus', or another number "
            "of ranks"
        )
    return [{rank ^ (1 << axis) for axis in range(size.bit_length() - 1)} for rank in range(size)]


def _complete(size: int) -> list[set[int]]:
    return [set(range(size)) for _ in range(size)]


def _star(size: int) -> list[set[int]]:
    """Rank 0 in the center."""
    return [set(range(size)), *({0} for _ in range(size - 1))]


GRAPHS: dict[str, Callable[[int], list[set[int]]]] = {
    "complete": _complete,
    "hypercube": _hypercube,
    "ring": _ring,
    "star": _star,
    "torus": _torus,
}
"""From a number of ranks to the neighbors of each, which may include the rank itself."""


def check_graph(graph: Any) -> None:
    """Reject anything but a graph's name or lists of each rank's neighbors.

    Raises:
        UnknownName: No graph has this name.
        UsageError: The value is not lists of ranks.
    """
    if isinstance(graph, str):
        if graph not in GRAPHS:
            raise UnknownName("graph", graph, GRAPHS)
        return
    fits = isinstance(graph, Sequence) and all(isinstance(others, Sequence | set | frozenset) for others in graph)
    if not fits or not graph or not all(is_whole(other) for others in graph for other in others):
        raise UsageError(
            f"graph: got {brief(graph)}; allowed: {', '.join(GRAPHS)}, or each rank's neighbors, such as "
            "[[1], [0, 2], [1]]"
        )


def neighbours_of(graph: str | Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """The neighbors of every rank, each once, in ascending order, without the rank itself.

    Args:
        graph: A name in `GRAPHS`, or each rank's neighbors.
        size: Number of ranks.

    Raises:
        UnknownName: No graph has this name.
        UsageError: The graph has another number of ranks; a rank is its own neighbor or is listed twice; a neighbor
            relation is not symmetric; or the graph is not connected.

    >>> neighbours_of("ring", 2), neighbours_of("ring", 4)
    ([[1], [0]], [[1, 3], [0, 2], [1, 3], [0, 2]])
    """
    check_graph(graph)
    if isinstance(graph, str):
        return [sorted(others - {rank}) for rank, others in enumerate(GRAPHS[graph](size))]
    found = [[int(other) for other in others] for others in graph]
    if len(found) != size:
        raise UsageError(f"graph: got the neighbors of {len(found)} ranks; allowed: of {size}, one list per rank")
    for rank, others in enumerate(found):
        for other in others:
            if not 0 <= other < size or other == rank:
                raise UsageError(
                    f"graph: got {other} as a neighbor of rank {rank}; allowed: another rank, from 0 to {size - 1}"
                )
            if others.count(other) > 1:
                raise UsageError(f"graph: got {other} as a neighbor of rank {rank} twice; allowed: once")
            if rank not in found[other]:
                raise UsageError(
                    f"graph: rank {other} is a neighbor of rank {rank}, but {rank} is not one of {other}; allowed: "
                    "both ways"
                )
    reached, waiting = {0}, [0]
    while waiting:
        new = set(found[waiting.pop()]) - reached
        reached |= new
        waiting += new
    if len(reached) < size:
        lost = ", ".join(str(rank) for rank in range(size) if rank not in reached)
        raise UsageError(f"graph: no path leads from rank 0 to {lost}; allowed: a connected graph")
    return [sorted(others) for others in found]


def metropolis_weights(neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    """W, shape (ranks, ranks), float64: symmetric and nonnegative, rows and columns sum to 1.

    W_ij = 1 / (1 + max(d_i, d_j)) if i and j are neighbors, d the number of neighbors; W_ii = 1 − Σ_j W_ij.

    References:
        Xiao, Boyd and Lall, A scheme for robust distributed sensor fusion based on average consensus, IPSN 2005.

    >>> metropolis_weights([[1], [0]]).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    size = len(neighbours)
    weights = np.zeros((size, size))
    for rank, others in enumerate(neighbours):
        for other in others:
            weights[rank, other] = 1.0 / (1 + max(len(others), len(neighbours[other])))
        weights[rank, rank] = 1.0 - weights[rank].sum()
    return weights


def spectral_gap(weights: np.ndarray) -> float:
    """1 − max(|λ₂|, |λ_P|) of a symmetric doubly stochastic matrix: the rate at which disagreement shrinks per step.

    >>> round(spectral_gap(metropolis_weights(neighbours_of("complete", 4))), 12)
    1.0
    """
    # The largest eigenvalue, 1, belongs to the mean, which is kept; a single rank has no disagreement.
    values = np.sort(np.linalg.eigvalsh(weights))[:-1]
    # Rounding makes an exact 0 slightly larger or smaller.
    return float(min(max(1.0 - np.abs(values).max(initial=0.0), 0.0), 1.0))
