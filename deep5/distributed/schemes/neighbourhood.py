"""`Neighbourhood`: each rank averages its parameters with those of its neighbours in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S
from deep5.core.events import StepInfo
from deep5.core.tensors import aligned_empty
from deep5.distributed.schemes.averaging import ParameterAveraging
from deep5.distributed.schemes.graphs import check_graph, metropolis_weights, neighbours_of, spectral_gap

__all__ = ["Neighbourhood"]


class Neighbourhood(ParameterAveraging):
    """Decentralised parallel SGD (D-PSGD) on a graph of ranks, around any optimizer.

    With the doubly stochastic W of the graph, and rank i's own update u (for SGD −γ ∇F), in the order of algorithm 1:

    1. u from the parameters w_i as they are before averaging, by the rank's own optimizer;
    2. w_i ← Σ_j W_ij w_j over the rank itself and its neighbours, of the same parameters before the update;
    3. the update on top: w_i ← Σ_j W_ij w_j + u(w_i, ξ_i).

    The gradient belongs to w_i and not to the average, so that neither has to wait for the other; the average is of
    w_j and not of w_j + u_j, so that it can be sent before. Here it is computed as w_i + u + Σ_j W_ij (w_j − w_i),
    which leaves equal parameters as they are, to the bit. **Parameters** are averaged: ranks that average nothing but
    gradients with their neighbours drift apart without bound, as no two have the same neighbours.

    W has Metropolis-Hastings weights, W_ij = 1 / (1 + max(d_i, d_j)) for neighbours with d_i and d_j neighbours
    (symmetric, so that the mean over all ranks is kept), W_ii = 1 − Σ_j W_ij. On the complete graph all are 1 / P.

    A rank with d neighbours hands over d n bytes a step, n the bytes of the parameters that are trained: one message a
    neighbour and dtype.

    Args:
        graph: `"ring"`, `"torus"`, `"hypercube"`, `"complete"`, `"star"`, or each rank's neighbours, such as
            `[[1], [0, 2], [1]]`.
        timeout_s: See `DistributedOptimizer`.

    Raises:
        UsageError: No such graph; on `wrap`, one that is not for this number of ranks, not symmetric or not connected.

    Attributes:
        spectral_gap: 1 − max(|λ₂|, |λ_P|) of W, from 0 to 1: the larger, the sooner ranks agree. Known once wrapped.

    References:
        Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017, algorithm 1. Xiao,
        Boyd and Lall, A scheme for robust distributed sensor fusion based on average consensus, IPSN 2005, for the
        weights.
    """

    def __init__(self, graph: str | Sequence[Sequence[int]] = "ring", *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(timeout_s=timeout_s)
        check_graph(graph)
        self.graph = graph if isinstance(graph, str) else [list(others) for others in graph]
        self.spectral_gap: float | None = None
        self._neighbours: list[int] = []
        self._weights = np.empty(0)
        self._changes: list[np.ndarray] = []

    def _prepare(self) -> None:
        communicator = self.communicator
        graph = neighbours_of(self.graph, communicator.size)
        weights = metropolis_weights(graph)
        self.spectral_gap = spectral_gap(weights)
        self._neighbours = graph[communicator.rank]
        self._weights = weights[communicator.rank, self._neighbours]

    def _before(self, info: StepInfo) -> None:
        self._changes = []
        for packed in self._moving:
            own = packed.read()
            theirs = aligned_empty((len(self._neighbours), own.size), own.dtype)
            self.communicator.exchange(own, theirs, self._neighbours, timeout_s=self.timeout_s)
            theirs -= own
            theirs *= self._weights.astype(own.dtype)[:, None]
            self._changes.append(theirs.sum(axis=0, dtype=own.dtype))

    def _after(self, info: StepInfo) -> None:
        for packed, change in zip(self._moving, self._changes, strict=True):
            after = packed.read()
            after += change
            packed.write(after)

    def describe(self) -> dict[str, Any]:
        """As `DistributedOptimizer.describe`, with the graph and its spectral gap."""
        return {**super().describe(), "graph": self.graph, "spectral_gap": self.spectral_gap}
