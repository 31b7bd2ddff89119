"""Graphs of ranks: symmetric, connected, each neighbor once; weights that keep the mean; other graphs are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deep5.core.errors import UnknownName, UsageError
from deep5.distributed.schemes.graphs import GRAPHS, metropolis_weights, neighbours_of, spectral_gap


@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 48))
def test_named_graphs_are_graphs(name: str, size: int) -> None:
    if name == "hypercube":
        size = 1 << size % 7
    found = neighbours_of(name, size)
    assert len(found) == size
    # Passed as lists they are checked: a graph that is not symmetric or connected would be refused.
    assert neighbours_of(found, size) == found
    weights = metropolis_weights(found)
    np.testing.assert_array_equal(weights, weights.T)
    # Sums of some dozens of numbers below 1.
    np.testing.assert_allclose(weights.sum(axis=0), 1.0, rtol=1e-14)
    assert (weights >= 0).all()
    # Connected, and every rank has a weight for itself: differences shrink.
    assert 0 < spectral_gap(weights) <= 1


def test_named_graphs_are_these() -> None:
    assert neighbours_of("ring", 2) == [[1], [0]]
    assert neighbours_of("ring", 1) == neighbours_of("star", 1) == neighbours_of("torus", 1) == [[]]
    assert neighbours_of("ring", 5)[0] == [1, 4]
    assert neighbours_of("star", 4) == [[1, 2, 3], [0], [0], [0]]
    assert neighbours_of("complete", 3) == [[1, 2], [0, 2], [0, 1]]
    assert neighbours_of("hypercube", 8)[5] == [1, 4, 7]
    assert neighbours_of("torus", 12)[5] == [1, 4, 6, 9]  # three rows of four
    assert neighbours_of("torus", 4) == [[1, 2], [0, 3], [0, 3], [1, 2]]
    assert neighbours_of("torus", 7) == neighbours_of("ring", 7)


@pytest.mark.parametrize("size", [3, 4, 7, 16])
def test_spectral_gaps_are_those_of_the_eigenvalues_by_hand(size: int) -> None:
    places = np.arange(1, size)
    circle = np.abs(1 / 3 + 2 / 3 * np.cos(2 * np.pi * places / size)).max()
    # An eigenvalue is accurate to some 1e-16.
    assert spectral_gap(metropolis_weights(neighbours_of("ring", size))) == pytest.approx(1 - circle, abs=1e-13)
    assert spectral_gap(metropolis_weights(neighbours_of("complete", size))) == pytest.approx(1, abs=1e-13)
    if not size & (size - 1):
        axes = size.bit_length() - 1
        assert spectral_gap(metropolis_weights(neighbours_of("hypercube", size))) == pytest.approx(2 / (axes + 1))


@pytest.mark.parametrize(
    ("graph", "size", "message"),
    [
        ("rign", 4, "unknown graph 'rign'; allowed: complete, hypercube, ring, star, torus; did you mean 'ring'"),
        ("hypercube", 6, "got 6 ranks; allowed: a power of two; remedy: graph='torus'"),
        ([[1], [0]], 3, "the neighbors of 2 ranks; allowed: of 3"),
        ([[1], [0, 2], [1], [4], [3]], 5, "no path leads from rank 0 to 3, 4; allowed: a connected graph"),
        ([[1], []], 2, "rank 1 is a neighbor of rank 0, but 0 is not one of 1; allowed: both ways"),
        ([[1, 1], [0, 0]], 2, "got 1 as a neighbor of rank 0 twice; allowed: once"),
        ([[0, 1], [0]], 2, "got 0 as a neighbor of rank 0; allowed: another rank"),
        ([[2], [0]], 2, "got 2 as a neighbor of rank 0; allowed: another rank, from 0 to 1"),
        ([[1.0], [0]], 2, "each rank's neighbors, such as"),
        ([], 2, "each rank's neighbors, such as"),
        (3, 2, "got 3; allowed: complete"),
    ],
)
def test_what_is_no_graph_is_refused(graph: Any, size: int, message: str) -> None:
    with pytest.raises(UnknownName if graph == "rign" else UsageError, match=message):
        neighbours_of(graph, size)
