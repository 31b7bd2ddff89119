"""`Neighbourhood`: each rank averages its parameters with those of its neighbors in a graph."""

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
    """Decentralized parallel SGD (D-PSGD) on a graph of ranks, around any optimizer.

    With the doubly stochastic W of the graph, and rank i's own update u (for SGD −γ ∇F), in the order of algorithm 1:

    1. u from the parameters w_i before averaging, by the rank's own optimizer;
    2. w_i ← Σ_j W_ij w_j over the rank itself and its neighbors, of the same parameters before the update;
    3. the update is added: w_i ← Σ_j W_ij w_j + u(w_i, ξ_i).

    The gradient is taken at w_i and not at the average, so that neither waits for the other; the average is over w_j
    and not w_j + u_j, so that it can be sent earlier. It is computed as w_i + u + Σ_j W_ij (w_j − w_i), which leaves
    equal parameters bit-identical. **Parameters** are averaged: ranks that only average gradients with their neighbors
    diverge without bound, because no two ranks have the same neighbors.

    W has Metropolis-Hastings weights, W_ij = 1 / (1 + max(d_i, d_j)) for neighbors with d_i and d_j neighbors
    (symmetric, so that the mean over all ranks is kept), W_ii = 1 − Σ_j W_ij. On the complete graph all are 1 / P.

    A rank with d neighbors sends d n bytes per step, where n is the size of the trained parameters in bytes: one
    message per neighbor and dtype.

    Args:
        graph: `"ring"`, `"torus"`, `"hypercube"`, `"complete"`, `"star"`, or each rank's neighbors, such as
            `[[1], [0, 2], [1]]`.
        timeout_s: See `DistributedOptimizer`.

    Raises:
        UsageError: The graph is invalid; on `wrap`, it has another number of ranks, is not symmetric or not connected.

    Attributes:
        spectral_gap: 1 − max(|λ₂|, |λ_P|) of W, in [0, 1]: the larger, the sooner ranks agree. Known once wrapped.

    References:
        Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017, algorithm 1. Xiao,
        Boyd and Lall, A scheme for robust distributed sensor fusion based on average consensus, IPSN 2005, for the
        weights.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.Neighbourhood("ring").wrap(d5.SGD(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     for step in range(2):
    ...         info = d5.StepInfo(step=step, batch_size=1, global_batch_size=4)
    ...         scheme.step({"input": np.array([[8.0 * (communicator.rank == 0)]])}, info)
    ...     return executor.parameters()["w"].round(6).tolist(), round(scheme.spectral_gap, 6)
    >>> run_in_threads(4, train)  # of the 8 of rank 0 a third is at each neighbor now, and a third stays
    [([2.666667], 0.666667), ([2.666667], 0.666667), ([0.0], 0.666667), ([2.666667], 0.666667)]
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
        """Like `DistributedOptimizer.describe`, with the graph and its spectral gap."""
        return {**super().describe(), "graph": self.graph, "spectral_gap": self.spectral_gap}
