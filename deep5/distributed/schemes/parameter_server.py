"""`ParameterServer`: synchronous and centralized: one rank makes the update with the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Request
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays
from deep5.distributed.scaled import skips, unscaled
from deep5.distributed.schemes.bucketed import BucketedStep, checked_bucket_mib
from deep5.distributed.schemes.server_scheme import SchemeHalves, ServedOptimizer

if TYPE_CHECKING:
    from deep5.distributed.compression import Compression

__all__ = ["ParameterServer"]


class ParameterServer(ServedOptimizer):
    """Every rank, including the root, computes the gradients of its part of the batch; the root makes the update.

    The root sums the gradients, and sends the updated parameters to all ranks. N ranks compute the same step as one
    rank with the whole batch. Gradients are reduced to the root in buckets, during the backward pass if the framework
    exposes them early; parameters come back in one message. A rule whose gradient is taken at another point than the
    parameters has that point sent before the pass: one more message.

    Only the root has the optimizer's state, and only its part of a checkpoint holds it. With another number of ranks
    the run resumes from that part if the root is the same. An optimizer that is not an update rule, such as a
    framework's own, makes its update on the root's executor. One that owns its step (L-BFGS, SAG) must run each of its
    evaluations on every rank; the root sums the gradients and sends them back. All ranks execute it alike, and every
    rank has its state.

    Args:
        root: The rank that makes the updates.
        bucket_mib: A bucket is sent when it holds this many MiB; the first bucket when it holds one.
        compression: For the gradients sent to the root; the parameters come back uncompressed. Compressed buckets are
            sent after the backward pass.
        verify_every: See `DistributedOptimizer`.
        timeout_s: See `DistributedOptimizer`.
        synchronise_batch_norm: See `DistributedOptimizer`.

    References:
        Li et al., Scaling distributed machine learning with the parameter server, OSDI'14, section 2, with one server
        and its consistency model "sequential".

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.ParameterServer(root=0).wrap(d5.Momentum(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     info = d5.StepInfo(step=0, batch_size=1, global_batch_size=2)
    ...     scheme.step({"input": np.array([[4.0 * communicator.rank]])}, info)
    ...     return executor.parameters()["w"].tolist(), list(scheme.state_dict())
    >>> run_in_threads(2, train)  # only the root has the optimizer's state
    [([2.0], ['velocity/w', 'hyper']), ([2.0], ['hyper'])]
    """

    consistent: ClassVar[bool] = True
    compresses: ClassVar[bool] = True
    closures: ClassVar[bool] = True
    accumulates: ClassVar[bool] = True
    synchronises: ClassVar[bool] = True

    def __init__(
        self,
        root: int = 0,
        *,
        bucket_mib: float = 25.0,
        compression: Compression | None = None,
        verify_every: int = 100,
        timeout_s: float = TIMEOUT_S,
        synchronise_batch_norm: bool = False,
    ) -> None:
        super().__init__(
            root,
            compression=compression,
            verify_every=verify_every,
            timeout_s=timeout_s,
            synchronise_batch_norm=synchronise_batch_norm,
        )
        self.bucket_mib = checked_bucket_mib("ParameterServer", bucket_mib)

    def _bound(self) -> None:
        self._bucketed = BucketedStep(self, self.bucket_mib, self._start)
        self._buckets = self._bucketed.buckets
        self._sent = False
        # Whether the compression holds its state from before the current step, and how many steps were skipped before
        # it.
        self._held, self._skipped = False, 0

    def settle(self) -> None:
        """Do nothing: nothing is pending between two steps."""

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Backward, the mean at the root, its update, the parameters back; see `DistributedOptimizer.step`."""
        outputs = self.step_together(inputs, info) if self._shared is not None else self._bucketed.step(inputs, info)
        self.verify_in_turn(info)
        return outputs

    def _start(self, buffer: np.ndarray) -> Request:
        return self.communicator.reduce_start(buffer, root=self.root)

    def sum(self, buffer: np.ndarray, key: str, info: StepInfo) -> None:
        """The sum of a flat buffer over all ranks, at the root, in place; see `DistributedOptimizer.sum`."""
        compression, communicator = self.compression, self.communicator
        if compression is None:
            communicator.reduce(buffer, root=self.root, timeout_s=self.timeout_s)
            return
        with unscaled(compression, buffer, self.gradient_scale):
            # The root's own gradient is not sent but compressed nevertheless: what a compression does to gradients
            # (momentum, clipping) must be the same for the samples of every rank.
            message = compression.encode(buffer, key=key, step=info.step)
            if not self.serves:
                communicator.send(message, self.root, timeout_s=self.timeout_s)
                return
            arrived, part = np.empty_like(message), np.empty_like(buffer)
            buffer[...] = 0
            # In rank order, so that results are reproducible bit for bit.
            for rank in range(communicator.size):
                if rank != self.root:
                    communicator.receive(arrived, rank, timeout_s=self.timeout_s)
                compression.decode(message if rank == self.root else arrived, part)
                with np.errstate(all="ignore"):
                    buffer += part

    def sum_buckets(self, buffers: Sequence[np.ndarray], info: StepInfo) -> None:
        """See `DistributedOptimizer.sum_buckets`; the root sends whether the step is skipped with the parameters."""
        compression: Any = self.compression
        self._held = self._memory is not None and skips(compression, self.optimizer)
        if self._held:
            compression.hold()
        for index, buffer in enumerate(buffers):
            self.sum(buffer, f"bucket-{index}", info)

    @property
    def gradient_scale(self) -> float:
        """See `DistributedOptimizer.gradient_scale`; a dynamic scale is the root's."""
        optimizer: Any = self.optimizer
        if self._memory is None:
            return super().gradient_scale
        # A schedule sets the scale on every rank alike; a scale that the step adapts comes from the root.
        return float(self.memory.block.reals[0] if optimizer.pipeline.dynamic else optimizer.pipeline.loss_scale or 1.0)

    def sum_for_all(self, buffer: np.ndarray, info: StepInfo) -> None:
        """See `DistributedOptimizer.sum_for_all`: the root computes the sum and sends it to all."""
        self.communicator.reduce(buffer, root=self.root, timeout_s=self.timeout_s)
        self.communicator.broadcast(buffer, root=self.root, timeout_s=self.timeout_s)

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update at the root with these gradients; its parameters are copied to every rank."""
        if self._memory is not None:
            if self.serves:
                self.optimizer.halves.apply(gradients, info)  # type: ignore[attr-defined]
            self._send_parameters()
            if self._held and int(self.memory.block.head[1]) > self._skipped:
                self.compression.take_back()  # type: ignore[union-attr]
            self._held = False
            return
        if self.serves:
            super().apply(gradients, info)
        if self.communicator.size > 1:
            for packed in self._packed:
                buffer = packed.read()
                self.communicator.broadcast(buffer, root=self.root, timeout_s=self.timeout_s)
                packed.write(buffer)

    def _send_parameters(self) -> None:
        optimizer: Any = self.optimizer
        if self.serves:
            self.memory.block.reals[0] = optimizer.loss_scale
            self.memory.block.head[1] = optimizer.skipped_steps
        self.share_out()
        self._sent = True

    @property
    def _halves(self) -> Any:
        return super()._halves if self._memory is None else SchemeHalves(self)

    def backprop(
        self, inputs: Arrays, info: StepInfo, on_gradient: Callable[[str, Array], None] | None = None
    ) -> Arrays:
        """Forward and backward on this rank's part; see `DistributedOptimizer.backprop`."""
        if self._memory is None:
            return super().backprop(inputs, info, on_gradient)
        with self.undisturbed(info):
            return self.first_half(inputs, info, on_gradient)

    def first_half(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        """Like `backprop`, where the root has its own memory; see `TrainStep.backprop` for the rest.

        Args:
            inputs: This rank's part of the batch.
            info: The step.
            on_gradient: As for `backprop`.
            accumulate: Add to the gradients of the previous call.
            loss_scale: The gradient is that of `loss_scale * loss`, times the loss scale of the step itself.

        Returns:
            The network's outputs for this rank's part, native values.
        """
        optimizer: Any = self.optimizer
        if not self._sent:
            self._send_parameters()
        if self._prepares and not accumulate:
            if self.serves:
                optimizer.halves.backprop({}, info)
            self.share_out()
        self._skipped = int(self.memory.block.head[1])
        scale = loss_scale * self.gradient_scale
        return self.gradient(inputs, info, on_gradient, accumulate=accumulate, loss_scale=scale)

    def load_state_dict(self, state: Any) -> None:
        """Restore `state_dict`; called by every rank. The next step starts from the root's parameters."""
        super().load_state_dict(state)
        self._sent = False
