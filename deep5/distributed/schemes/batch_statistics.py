"""`RankStatistics`: batch normalization over the parts of all ranks: the exchange in its two passes."""

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
    """Statistics of a batch split over the ranks, and the sums that their gradient needs.

    Every rank makes the same calls in the same order, so that all ranks take part in a training pass together. Values
    are sent in float64 over a separate communicator, so that they do not come between buckets of gradients in flight;
    its traffic is added to the counters of the ranks' own.

    With w_r the weight of rank r's loss in the total loss, L = Σ w_r L_r, and n_r elements per channel in its part:

    - forward: n = Σ n_r, m = Σ n_r m_r / n, v = Σ n_r (v_r + (m_r − m)²) / n, in which no terms cancel;
    - backward: rank r computes the gradient of L_r. A sum S over all ranks of gradients of L is Σ w_r s_r, and rank r
      gets back S / w_r, because its own gradients are multiplied by w_r when they are summed.

    A rank whose part is empty takes part with n_r = w_r = 0, whatever sample it borrowed.

    Args:
        communicator: Connects all ranks; every rank creates such an object.
        share: w_r of this rank in a step.
        timeout_s: Time limit of every wait for other ranks.

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
        """Set up the next pass; called by the executor before each training pass.

        Args:
            info: The step; None: all ranks have the same number of samples.
        """
        info = info or StepInfo()
        self._weight = self._share(info)
        self._counts = not info.global_batch_size or info.batch_size > 0

    def moments(self, mean: np.ndarray, variance: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Statistics of all ranks' parts from those of this rank's; bit-identical on every rank.

        Args:
            mean: One value per channel, shape (C,).
            variance: Population variance, shape (C,).
            count: Elements per channel.

        Returns:
            Mean and variance, float64, (C,), and the total number of elements per channel.
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
        # If the means differ by so much that the squares overflow, the result is infinite, as on a single rank.
        with np.errstate(all="ignore"):
            spread: np.ndarray = (parts * (variances + np.square(means - whole))).sum(axis=0)
        return whole, spread, total

    def sums(self, *own: np.ndarray) -> Sequence[np.ndarray]:
        """Sums of gradients over all ranks, scaled to this rank's gradients.

        Args:
            own: Sums over this rank's part, each of shape (C,), of gradients of its own loss.

        Returns:
            Sums of the same shapes, float64.
        """
        total = np.stack(own).astype(np.float64)
        if self._weight:
            total *= self._weight
        else:
            total[...] = 0.0  # the sample is borrowed
        self._link.all_reduce(total, timeout_s=self._timeout_s)
        take_over(self._whole, self._link)
        # The result of a rank without samples is multiplied by 0 and must only be finite.
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
    """Have an executor use the batch-normalization statistics of the batch of all ranks.

    Called by all ranks before the first training pass.

    Args:
        name: Name of the scheme, for messages.
        executor: This rank's executor.
        communicator: Connects all ranks.
        share: As for `RankStatistics`.
        timeout_s: Time limit of every wait for other ranks.

    Returns:
        The object that exchanges the statistics; None if the network has no batch normalization and is unchanged.

    Raises:
        Unsupported: The executor cannot do this.
    """
    nodes = getattr(executor.network, "nodes", None)
    if nodes is None:
        raise Unsupported(
            f"{name}: got synchronise_batch_norm with a network that is native code; "
            "allowed: networks of ONNX operators; remedy: synchronise_batch_norm=False, and a layer of the framework "
            "that normalizes over ranks by itself"
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
