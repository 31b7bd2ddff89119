"""`Gossip`: after every step each rank averages with one other rank, drawn anew for each step."""

from __future__ import annotations

from deep5.core.events import StepInfo
from deep5.core.seeds import generator
from deep5.core.tensors import aligned_empty
from deep5.distributed.schemes.averaging import ParameterAveraging

__all__ = ["Gossip", "partner"]


class Gossip(ParameterAveraging):
    """Gossip SGD: each rank steps independently, then pairs drawn anew at every step average.

    w_i ← w_i + u(w_i, ξ_i), then for every pair {i, j} of the step's matching: w_i, w_j ← (w_i + w_j) / 2.

    All ranks draw the same matching from (seed, step), without communication: pairs are disjoint, so all of them
    average at the same time. With an odd number of ranks, the unpaired rank keeps its parameters.

    A rank sends n bytes per step, where n is the size of the trained parameters in bytes, in one message per dtype;
    nothing in a step in which it is unpaired.

    Args:
        timeout_s: See `DistributedOptimizer`.

    References:
        Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, IEEE Transactions on Information Theory 52(6),
        2006. Jin, Yuan, Iandola and Keutzer, How to scale distributed deep learning?, 2016,
        arXiv:1611.04581, for gossip with gradient steps; Blot, Picard, Cord and Thome, Gossip training for deep
        learning, 2016, arXiv:1611.09726.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.Gossip().wrap(d5.SGD(lr=0.5), communicator, seed=2)
    ...     scheme.bind(executor)
    ...     info = d5.StepInfo(step=0, batch_size=1, global_batch_size=4)
    ...     scheme.step({"input": np.array([[float(communicator.rank)]])}, info)
    ...     return executor.parameters()["w"].tolist()
    >>> run_in_threads(4, train)  # each rank steps to its own sample, then averages with one other
    [[1.0], [2.0], [1.0], [2.0]]
    """

    def _after(self, info: StepInfo) -> None:
        other = partner(self.communicator.rank, self.communicator.size, self.seed, info.step)
        if other is None:
            return
        for packed in self._moving:
            own = packed.read()
            theirs = aligned_empty(own.shape, own.dtype)
            self.communicator.exchange(own, theirs, [other], timeout_s=self.timeout_s)
            # A sum of two is the same in either order, so both ranks get the same bits.
            own += theirs
            own /= 2
            packed.write(own)


def partner(rank: int, size: int, seed: int, step: int) -> int | None:
    """The rank with which a rank averages in a step; None if it is unpaired.

    Args:
        rank: From 0 to `size` - 1.
        size: Number of ranks.
        seed: The same on all ranks.
        step: From 0.

    >>> all(partner(partner(rank, 4, 0, 7), 4, 0, 7) == rank for rank in range(4))
    True
    """
    order = generator(seed, "gossip", step).permutation(size).tolist()
    place = order.index(rank) ^ 1
    return int(order[place]) if place < size else None
