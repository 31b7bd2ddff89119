"""`StaleSynchronous`: asynchronous with bounded staleness."""

from __future__ import annotations

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import UsageError, brief
from deep5.distributed.schemes.asynchronous_base import AsynchronousScheme

__all__ = ["StaleSynchronous"]


class StaleSynchronous(AsynchronousScheme):
    """Like `AsynchronousParameterServer`, but a rank that has done c steps waits until the slowest has done c − bound.

    With a bound of 0 all ranks take the same number of steps at any time; their gradients are still applied one by one,
    in order of arrival. A rank that has ended its epoch does not hold others back. Every rank counts the time it was
    held back, `held_s`, and the staleness of its gradients, which is at most (N − 1)(2 bound + 1) for N ranks.

    Args:
        bound: By how many steps a rank may lead the slowest, from 0.
        root: See `AsynchronousParameterServer`.
        timeout_s: See `AsynchronousParameterServer`.

    Raises:
        UsageError: An argument is out of range.
        Unsupported: See `AsynchronousParameterServer`.

    References:
        Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NeurIPS 2013,
        section 2. The paper's workers read from caches that may be as old as the bound permits; here they always get
        the newest parameters.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("slope", dtype="float64")
    >>> product = build.op("Mul", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", product, keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.StaleSynchronous(bound=1).wrap(d5.SGD(lr=1.0), communicator)
    ...     scheme.bind(executor)
    ...     staleness = []
    ...     for step in range(5):
    ...         info = d5.StepInfo(step=step, batch_size=1, global_batch_size=2)
    ...         scheme.step({"input": np.array([[1.0]])}, info)
    ...         staleness.append(scheme.last_staleness)
    ...     with scheme.averaged():
    ...         return executor.parameters()["w"].tolist(), max(staleness) <= 3  # (2 − 1) · (2 · 1 + 1)
    >>> run_in_threads(2, train)  # ten updates
    [([-10.0], True), ([-10.0], True)]
    """

    def __init__(self, bound: int = 3, root: int = 0, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(root, timeout_s=timeout_s)
        if not is_whole(bound) or bound < 0:
            raise UsageError(f"StaleSynchronous: got bound={brief(bound)}; allowed: an integer of at least 0")
        self.bound = int(bound)

    @property
    def _ahead(self) -> int:
        return self.bound
