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
    """

    def __init__(self, bound: int = 3, root: int = 0, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(root, timeout_s=timeout_s)
        if not is_whole(bound) or bound < 0:
            raise UsageError(f"StaleSynchronous: got bound={brief(bound)}; allowed: an integer of at least 0")
        self.bound = int(bound)

    @property
    def _ahead(self) -> int:
        return self.bound
