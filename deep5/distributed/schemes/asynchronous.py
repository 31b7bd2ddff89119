"""`AsynchronousParameterServer`: centralised, and nobody waits for anybody."""

from __future__ import annotations

from typing import ClassVar

from deep5.core.communicator import TIMEOUT_S
from deep5.distributed.schemes.asynchronous_base import AsynchronousScheme

__all__ = ["AsynchronousParameterServer"]


class AsynchronousParameterServer(AsynchronousScheme):
    """Every rank sends its gradients to the root as soon as it has them, and gets the newest parameters back.

    With v the version of the parameters, a worker's gradient g was computed at w(v − s); the root applies it at once:

    w(v + 1) = rule(g(w(v − s)), w(v))

    s is the gradient's staleness, about the number of the other ranks where all are equally fast; each rank counts its
    own. The root trains like every other rank, its server is a thread beside it. One message carries all gradients, one
    all parameters.

    **An update uses the gradient of the mean over one worker's samples**, with the rule's whole learning rate: N ranks
    that share batches of B samples make N updates where a synchronous scheme makes one, each of B / N samples. A
    learning rate that suits batches of B / N on one rank is the one to begin with, not that of B; as gradients are
    late, which acts like momentum, a smaller one, or less momentum, may be needed where ranks are many: on the digits
    with LeNet and batches of 16 a rank, a rate of 0.02 with a momentum of 0.9 trains one rank and two, and four ranks
    diverge with it, as one does whose gradients are three updates late; they learn with 0.005.

    Hyperparameters are those of the root, and follow its steps. Where another rank has a number of its own (a constant
    loss scale), it has to be the root's. Clipping by norm is of each gradient that arrives, weight decay goes with
    every update.

    Ranks take their steps of an epoch each at its own pace, and meet at its end, where all gradients have been applied:
    in `averaged`, which evaluation enters, or at the first step of the next epoch. Checkpoints are taken there alone,
    and the root's part has the parameters and the state of the rule: a resume goes on from exactly these, with any
    number of ranks. The order in which gradients arrive does not repeat, and so the bits of the result do not.

    Args:
        root: The rank that has the server.
        timeout_s: Who says nothing for as long is lost.

    Raises:
        UsageError: No such rank.
        Unsupported: From `wrap`: an optimizer that is no update rule, or a dynamic loss scale.

    References:
        Dean et al., Large scale distributed deep networks, NeurIPS 2012, section 4.1 (Downpour SGD). Recht et al.,
        Hogwild!: a lock-free approach to parallelizing stochastic gradient descent, NeurIPS 2011, for updates in the
        order of arrival; here a lock keeps each of them whole. Mitliagkas et al., Asynchrony begets momentum, with an
        application to deep learning, Allerton 2016, theorem 1.
    """

    alone: ClassVar[bool] = True

    def __init__(self, root: int = 0, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(root, timeout_s=timeout_s)

    @property
    def _ahead(self) -> None:
        return None
