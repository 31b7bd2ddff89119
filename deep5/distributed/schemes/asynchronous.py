"""`AsynchronousParameterServer`: centralized; no rank waits for another."""

from __future__ import annotations

from typing import ClassVar

from deep5.core.communicator import TIMEOUT_S
from deep5.distributed.schemes.asynchronous_base import AsynchronousScheme

__all__ = ["AsynchronousParameterServer"]


class AsynchronousParameterServer(AsynchronousScheme):
    """Every rank sends its gradients to the root as soon as they are computed, and gets the newest parameters back.

    With v the version of the parameters, a worker computes a gradient g at w(v − s); the root applies it at once:

    w(v + 1) = rule(g(w(v − s)), w(v))

    s is the gradient's staleness, about the number of other ranks if all are equally fast; each rank counts its own.
    The root trains like every other rank and runs the server in a thread. One message carries all gradients, one all
    parameters.

    **An update uses the mean gradient over one worker's samples**, with the rule's full learning rate: N ranks that
    share batches of B samples make N updates, each of B / N samples, where a synchronous scheme makes one. Start with a
    learning rate that suits batches of B / N on one rank, not that of B. Late gradients act like momentum, so many
    ranks may need a smaller rate or less momentum: on the digits with LeNet and batches of 16 per rank, a rate of 0.02
    with momentum 0.9 trains one and two ranks; four ranks diverge, as does one rank whose gradients are three updates
    late; they learn with 0.005.

    Hyperparameters are those of the root and follow its steps. A hyperparameter that other ranks use themselves (a
    constant loss scale) must equal the root's. Clipping by norm applies to each gradient that arrives, weight decay to
    every update.

    Each rank takes the steps of an epoch at its own pace. All meet at the end of the epoch, when all gradients have
    been applied: in `averaged`, which evaluation enters, or at the first step of the next epoch. Checkpoints are taken
    only there. The root's part has the parameters and the state of the rule: a run resumes from exactly these with any
    number of ranks. The order in which gradients arrive is not reproducible, and so the result is not bit-identical.

    Args:
        root: The rank that runs the server.
        timeout_s: A rank silent for longer than this is lost.

    Raises:
        UsageError: The root is not a rank.
        Unsupported: From `wrap`: the optimizer is not an update rule, or uses a dynamic loss scale.

    References:
        Dean et al., Large scale distributed deep networks, NeurIPS 2012, section 4.1 (Downpour SGD). Recht et al.,
        Hogwild!: a lock-free approach to parallelizing stochastic gradient descent, NeurIPS 2011, for updates in the
        order of arrival; here a lock keeps each of them whole. Mitliagkas et al., Asynchrony begets momentum, with an
        application to deep learning, Allerton 2016, theorem 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("slope", dtype="float64")
    >>> product = build.op("Mul", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", product, keepdims=0)})
    >>> def train(communicator):  # the gradient is the sample, wherever it is taken
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.AsynchronousParameterServer().wrap(d5.SGD(lr=1.0), communicator)
    ...     scheme.bind(executor)
    ...     sample = np.array([[1.0 + communicator.rank]])
    ...     scheme.step({"input": sample}, d5.StepInfo(batch_size=1, global_batch_size=2))
    ...     with scheme.averaged():  # all ranks meet
    ...         return executor.parameters()["w"].tolist()
    >>> run_in_threads(2, train)  # an update for each rank: −1 and −2, where `AllReduce` makes one by their mean
    [[-3.0], [-3.0]]
    """

    alone: ClassVar[bool] = True

    def __init__(self, root: int = 0, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(root, timeout_s=timeout_s)

    @property
    def _ahead(self) -> None:
        return None
