"""`RankStatistics`: batch normalisation over the parts of all ranks: what its two passes exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.distributed.communicators.base_communicator import take_over
from deep5.distributed.communicators.threads import ThreadCommunicator

__all__ = ["RankStatistics", "synchronise_batch_norm"]

_FRAMEWORKS = ("jax", "pytorch", "reference", "tensorflow")


class RankStatistics:
    """Statistics of a batch of which every rank has a part, and the sums that their gradient needs.

    Every rank calls the same in the same order: a training pass is then a thing that all ranks do together. Numbers
    travel in float64, by a communicator of their own, so that they do not come between buckets of gradients that are
    under way; what that one counts is counted by the ranks' own.

    With w_r the weight of rank r's loss in the loss of all, L = Σ w_r L_r, and n_r elements a channel in its part:

    - forward: n = Σ n_r, m = Σ n_r m_r / n, v = Σ n_r (v_r + (m_r − m)²) / n, of which no term cancels another;
    - backward: what rank r carries is the gradient of L_r. A sum S over all ranks of gradients of L is Σ w_r s_r, and
      what comes back to rank r is S / w_r, since its own gradients are multiplied by w_r when they are added up.

    A rank whose part is empty takes part with n_r = w_r = 0, whatever it was given to run on.

    Args:
        communicator: Of all ranks; every one of them makes such an object.
        share: w_r of this rank in a step.
        timeout_s: Limit of every wait for others.

    Attributes:
        in_threads: Whether the ranks are threads of one process.

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, algorithm 1 and section 3. Chan, Golub and LeVeque, Updating
        formulae and a pairwise algorithm for computing sample variances, COMPSTAT 1982, equation 2.1, for v.
    """

    def __init__(
        self, communicator: Communicator, *, share: Callable[[StepInfo], float], timeout_s: float = TIMEOUT_S
    ) -> None:
        self._whole, self._link = communicator, communicator.split(0)
        self.in_threads = isinstance(communicator, ThreadCommunicator)
        self._share, self._timeout_s = share, timeout_s
        self._weight, self._counts = 1.0 / communicator.size, True

    def begin(self, info: StepInfo | None) -> None:
        """What holds for the next pass; called by the executor before each in training.

        Args:
            info: The step; None: every rank has as much as the others.
        """
        info = info or StepInfo()
        self._weight = self._share(info)
        self._counts = not info.global_batch_size or info.batch_size > 0

    def moments(self, mean: np.ndarray, variance: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Statistics of all ranks' parts from those of this rank's; the same bits on every rank.

        Args:
            mean: A value a channel, shape (C,).
            variance: The population's, (C,).
            count: Elements a channel.

        Returns:
            Mean and variance, float64, (C,), and how many elements a channel there are.
        """
        width, size = len(mean), self._whole.size
        own, every = np.zeros(2 * width + 1), np.empty((size, 2 * width + 1))
        if self._counts:
            own[:width], own[width:-1], own[-1] = mean, variance, count
        self._link.all_gather(own, every, timeout_s=self._timeout_s)
        take_over(self._whole, self._link)
        means, variances, counts = every[:, :width], every[:, width:-1], every[:, -1:]
        total = float(counts.sum())
        parts = counts / total
        whole: np.ndarray = (parts * means).sum(axis=0)
        # Far apart by what overflows, it is what one rank would have: an infinity.
        with np.errstate(all="ignore"):
            spread: np.ndarray = (parts * (variances + np.square(means - whole))).sum(axis=0)
        return whole, spread, total

    def sums(self, *own: np.ndarray) -> Sequence[np.ndarray]:
        """Sums of gradients over all ranks, on the scale of this rank's gradients.

        Args:
            own: Sums over this rank's part, each of shape (C,), of gradients of its own loss.

        Returns:
            As given, float64.
        """
        total = np.stack(own).astype(np.float64)
        if self._weight:
            total *= self._weight
        else:
            total[...] = 0.0  # of a sample that is another's
        self._link.all_reduce(total, timeout_s=self._timeout_s)
        take_over(self._whole, self._link)
        # What a rank without a sample computes is multiplied by 0, and must only be finite.
        total *= 1.0 / self._weight if self._weight else 0.0
        return tuple(total)


def synchronise_batch_norm(
    name: str,
    executor: GraphExecutor,
    communicator: Communicator,
    *,
    share: Callable[[StepInfo], float],
    timeout_s: float,
) -> RankStatistics | None:
    """Have an executor take the statistics of batch normalisation from the batch of all ranks.

    Called by all ranks, before anything has run in training.

    Args:
        name: The scheme's, for messages.
        executor: This rank's.
        communicator: Of all ranks.
        share: As for `RankStatistics`.
        timeout_s: Limit of every wait for others.

    Returns:
        What it exchanges by; None where the network has no batch normalisation, and is left as it is.

    Raises:
        Unsupported: The executor cannot.
    """
    nodes = getattr(executor.network, "nodes", None)
    if nodes is None:
        raise Unsupported(
            f"{name}: got synchronise_batch_norm with a network that is code of the framework's own; "
            "allowed: networks of ONNX operators; remedy: synchronise_batch_norm=False, and a layer of the framework's "
            "that normalises over ranks by itself"
        )
    if not any(node.op_type == "BatchNormalization" and not node.domain for node in nodes):
        return None
    take: Any = getattr(executor, "synchronise_batch_norm", None)
    if take is None:
        raise Unsupported(
            f"{name}: got synchronise_batch_norm with {type(executor).__name__}, whose ranks cannot exchange anything "
            f"within a pass; allowed: {', '.join(_FRAMEWORKS)}; remedy: one of those as framework, or "
            "synchronise_batch_norm=False"
        )
    found = RankStatistics(communicator, share=share, timeout_s=timeout_s)
    take(found)
    return found
