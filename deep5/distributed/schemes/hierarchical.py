"""`Hierarchical`: gradients are summed within a group of ranks; groups communicate less, or through one rank each."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S, Communicator, SingleRank
from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Arrays
from deep5.distributed.communicators.base_communicator import take_over
from deep5.distributed.scaled import unscaled
from deep5.distributed.schemes.averaging import check_every
from deep5.distributed.schemes.base import DistributedOptimizer
from deep5.distributed.texts import gather_texts

if TYPE_CHECKING:
    from deep5.distributed.compression import Compression

__all__ = ["Hierarchical"]


class Hierarchical(DistributedOptimizer):
    """Synchronous within a group of ranks, whose links are fast; between groups, one rank of each communicates.

    With `every` 1, gradients are summed in two levels: within each group to its first rank, among the first ranks of
    all groups, and back. Every rank makes the update with the mean over all samples: synchronous SGD.

    With `every` H above 1, the gradient is the mean over the samples of the group, and groups train independently:
    after every H-th step all parameters become the mean over all ranks, Σ_g (P_g / P) w_g with P_g ranks in group g.
    This is local SGD whose workers are groups. Each group has its own optimizer state. With an optimizer that owns its
    step, each of its evaluations uses all samples, or those of the group.

    For n bytes of gradients, the first rank of a group sends n to the other first ranks and n back to the group per
    step, every other rank n. With H above 1, each rank sends n + 8 within its group, and the first rank of each 2 n
    more every H steps. Messages without a receiver (a group of one, a single group) are omitted.

    Args:
        group_size: Ranks per group, adjacent ones; the last group has the remainder. None: the ranks of one host.
        every: H, in steps.
        compression: For the gradients between groups, only with `every` 1: the first rank of each group encodes its
            group's gradients and holds the compression's state.
        verify_every: See `DistributedOptimizer`.
        timeout_s: See `DistributedOptimizer`.
        synchronise_batch_norm: See `DistributedOptimizer`; only with `every` 1.

    Raises:
        UsageError: An argument is out of range.
        Unsupported: From `wrap`: the optimizer owns its step and evaluates the loss where the scheme cannot intervene.

    Attributes:
        groups: Number of groups; known once wrapped.

    References:
        Lin, Stich, Patel and Jaggi, Don't use large mini-batches, use local SGD, ICLR 2020 (hierarchical local
        SGD), for H above 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.Hierarchical(group_size=2, every=4).wrap(d5.SGD(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     info = d5.StepInfo(step=0, batch_size=1, global_batch_size=4)
    ...     scheme.step({"input": np.array([[float(communicator.rank)]])}, info)
    ...     return executor.parameters()["w"].tolist()
    >>> run_in_threads(4, train)  # the mean within ranks 0 and 1, and within 2 and 3; of all at every fourth step
    [[0.5], [0.5], [2.5], [2.5]]
    """

    compresses: ClassVar[bool] = True
    closures: ClassVar[bool] = True
    accumulates: ClassVar[bool] = True
    synchronises: ClassVar[bool] = True

    def __init__(
        self,
        group_size: int | None = None,
        *,
        every: int = 1,
        compression: Compression | None = None,
        verify_every: int = 100,
        timeout_s: float = TIMEOUT_S,
        synchronise_batch_norm: bool = False,
    ) -> None:
        super().__init__(
            compression=compression,
            verify_every=verify_every,
            timeout_s=timeout_s,
            synchronise_batch_norm=synchronise_batch_norm,
        )
        if group_size is not None and (not is_whole(group_size) or group_size < 1):
            raise UsageError(
                f"Hierarchical: got group_size={brief(group_size)}; allowed: an integer of at least 1, or None"
            )
        self.group_size = None if group_size is None else int(group_size)
        self.every = check_every("Hierarchical", every)
        if self.synchronise_batch_norm and self.every > 1:
            raise UsageError(
                f"Hierarchical: got synchronise_batch_norm with every={self.every}; allowed: with every=1, where all "
                "ranks step together"
            )
        if self.compression is not None and self.every > 1:
            raise UsageError(
                f"Hierarchical: got a compression with every={self.every}; allowed: with every=1, where gradients go "
                "between groups, and not parameters"
            )
        self.groups = 1
        self._members: tuple[int, ...] = (0,)
        self._group: Communicator = SingleRank()
        self._first_ones: Communicator = SingleRank()
        # Samples of this rank's group in the current step; 0: samples are not counted.
        self._samples = 0

    def _prepare(self) -> None:
        communicator = self.communicator
        if self.group_size is None:
            hosts = gather_texts(communicator, platform.node(), timeout_s=self.timeout_s)
            colors = [hosts.index(host) for host in hosts]
        else:
            colors = [rank // self.group_size for rank in range(communicator.size)]
        self.groups, own = len(set(colors)), colors[communicator.rank]
        self._members = tuple(rank for rank, color in enumerate(colors) if color == own)
        if self.compression is not None and self.groups == 1 and communicator.size > 1:
            raise UsageError(
                "Hierarchical: got a compression of what goes between groups, and there is one group; allowed: "
                "several; remedy: group_size=1, say, or d5.AllReduce"
            )
        self._group = communicator.split(own)
        # Every rank must call `split`; the other ranks' part is not used.
        self._first_ones = communicator.split(min(self._group.rank, 1))
        # A single group keeps all ranks equal for any H.
        self.consistent = self.every == 1 or self.groups == 1  # type: ignore[misc]

    @property
    def sharers(self) -> Communicator:
        """See `DistributedOptimizer.sharers`: all ranks, or the group."""
        return self.communicator if self.consistent else self._group

    @property
    def members(self) -> Sequence[int]:
        """See `DistributedOptimizer.members`."""
        return super().members if self.consistent else self._members

    @property
    def keeps_equal(self) -> bool:
        """Always true: for all ranks, or those of a group."""
        return True

    def settle(self) -> None:
        """See `DistributedOptimizer.settle`."""
        super().settle()
        self._count()

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Backward, the mean within the group or over all, the update; see `DistributedOptimizer.step`."""
        if self._idle(info):
            outputs = self.executor.inference(inputs)
        elif self._shared is not None:
            outputs = self.step_together(inputs, info)
        else:
            outputs = self.backprop(inputs, info)
            self.apply(self.mean(self.gradients(), info), info)
        self._between(info)
        return outputs

    def accumulated_step(self, batches: Sequence[Arrays | None], info: StepInfo) -> Arrays:
        """The same from several micro-batches, exchanged once; None represents one without a sample of this rank."""
        if self._idle(info):
            outputs = self.executor.inference(next(batch for batch in batches if batch is not None))
        else:
            outputs = super().accumulated_step(batches, info)
        self._between(info)
        return outputs

    def share(self, info: StepInfo) -> float:
        """This rank's fraction of the samples that the mean is over: its group's, or those of all."""
        if self.consistent:
            return super().share(info)
        return info.batch_size / self._samples if self._samples else 1.0 / self._group.size

    def sum(self, buffer: np.ndarray, key: str, info: StepInfo) -> None:
        """The sum over the group, or in two levels over all, in place."""
        group, limit = self._group, self.timeout_s
        if not self.consistent or self.groups == 1:
            group.all_reduce(buffer, timeout_s=limit)
        else:
            group.reduce(buffer, timeout_s=limit)
            if self.compression is None:
                self._among_first_ones(buffer)
                return
            if group.rank == 0:
                with unscaled(self.compression, buffer, self.gradient_scale):
                    self.compression.all_reduce(self._first_ones, buffer, key=key, step=info.step, timeout_s=limit)
            group.broadcast(buffer, timeout_s=limit)

    def average_parameters(self) -> None:
        """Give every rank the mean of all ranks' parameters; the first rank contributes for its equal group."""
        for packed in self._moving:
            buffer = packed.read()
            buffer *= self._group.size / self.communicator.size
            self._among_first_ones(buffer)
            packed.write(buffer)

    def _among_first_ones(self, buffer: np.ndarray) -> None:
        if self._group.rank == 0:
            self._first_ones.all_reduce(buffer, timeout_s=self.timeout_s)
        self._group.broadcast(buffer, timeout_s=self.timeout_s)

    def _idle(self, info: StepInfo) -> bool:
        """Whether the whole group has no sample, and so no gradient, in this step; sums the samples of the group."""
        if self.consistent or not info.global_batch_size:
            return False
        count = np.array([info.batch_size], np.int64)
        self._group.all_reduce(count, timeout_s=self.timeout_s)
        self._samples = int(count[0])
        return not self._samples

    def _between(self, info: StepInfo) -> None:
        if not self.consistent and not (info.step + 1) % self.every:
            self.average_parameters()
        self.verify_in_turn(info)
        self._count()

    def _count(self) -> None:
        """Add the traffic of the group communicators to this rank's counters, which are the ones that callers read."""
        for part in (self._group, self._first_ones):
            take_over(self.communicator, part)
