"""`DistributedOptimizer`: the base of communication schemes, which wrap any optimizer of level 2."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from deep5.core.arguments import is_finite, is_whole
from deep5.core.communicator import TIMEOUT_S, Communicator, SingleRank
from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.tensors import Array, Arrays
from deep5.distributed.agreement import check_agreement
from deep5.distributed.borrowed import kept_statistics, without_samples
from deep5.distributed.packed import Packed
from deep5.distributed.scaled import finite, skips, unscaled
from deep5.distributed.schemes.arguments import check_compression, check_synchronises
from deep5.distributed.schemes.batch_statistics import RankStatistics, synchronise_batch_norm
from deep5.distributed.schemes.check import check_initialised, check_method, checked_step
from deep5.distributed.schemes.shared_executor import SharedExecutor, check_shareable, owns_step
from deep5.distributed.schemes.wrapper import OptimizerWrapper
from deep5.training.accumulation import accumulated_step, batch_layout
from deep5.training.optimizer import as_step_optimizer
from deep5.training.rule import UpdateRule

if TYPE_CHECKING:
    from deep5.distributed.compression import Compression

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(OptimizerWrapper):
    """How ranks that train one network take their steps: a `StepOptimizer` around another, which is not modified.

    A user-defined scheme is a subclass with one method, `step`, which uses `backprop`, `gradients`, `mean`, `apply`,
    `average_parameters` and `communicator`, and `step_together` for optimizers that own their step.

    An object holds only parameters, as in a recipe; `wrap` returns one that steps. A subclass that defines `__init__`
    calls `super().__init__()` there.

    Args:
        compression: Compression of the gradients for communication; None: none.
        verify_every: After this many steps, and after the last step of each epoch, ranks compare a checksum of their
            parameters, if the scheme keeps them equal; 0: never.
        timeout_s: Time limit of every wait for other ranks.
        synchronise_batch_norm: Whether batch normalization uses the statistics of the batch of all ranks, if the scheme
            `synchronises`, instead of those of a rank's part.

    Raises:
        UsageError: An argument is out of range.

    Attributes:
        consistent: Whether all ranks hold the same parameters after every step.
        lockstep: Whether all ranks take the same steps at the same time, so that they can be stopped between two steps.
        compresses: Whether the scheme accepts a compression.
        alone: Whether a single rank does exactly what its optimizer does.
        synchronises: Whether every step is one pass of all ranks at a time at the same parameters, so that they can
            normalize batches together.
        closures: Whether `step` accepts an optimizer that evaluates the loss any number of times, by `step_together`.
        accumulates: Whether several micro-batches can make up one step; once bound, whether the optimizer supports
            them.
        optimizer: The wrapped optimizer.
        communicator: Connects the ranks.
        seed: Random seed of the scheme; the same on all ranks.
        executor: Runs the network.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> class Decentralized(d5.DistributedOptimizer):
    ...     consistent = True
    ...     def step(self, inputs, info):
    ...         outputs = self.backprop(inputs, info)
    ...         self.apply(self.mean(self.gradients(), info), info)
    ...         return outputs
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = Decentralized().wrap(d5.SGD(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     info = d5.StepInfo(step=0, batch_size=1, global_batch_size=2)
    ...     scheme.step({"input": np.array([[4.0 * communicator.rank]])}, info)
    ...     return executor.parameters()["w"].tolist()
    >>> run_in_threads(2, train)  # both ranks step to the mean of both samples, 0 and 4
    [[2.0], [2.0]]
    """

    lockstep: ClassVar[bool] = True
    compresses: ClassVar[bool] = False
    alone: ClassVar[bool] = True
    synchronises: ClassVar[bool] = False
    closures: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("step")
        if inspect.isfunction(own):
            cls.step = checked_step(own)  # type: ignore[method-assign]

    def __init__(
        self,
        *,
        compression: Compression | None = None,
        verify_every: int = 100,
        timeout_s: float = TIMEOUT_S,
        synchronise_batch_norm: bool = False,
    ) -> None:
        name = type(self).__name__
        if not is_whole(verify_every) or verify_every < 0:
            raise UsageError(f"{name}: got verify_every={brief(verify_every)}; allowed: an integer of at least 0")
        if not is_finite(timeout_s) or timeout_s <= 0:
            raise UsageError(f"{name}: got timeout_s={brief(timeout_s)}; allowed: seconds above 0")
        if compression is not None and not self.compresses:
            raise UsageError(
                f"{name}: got a compression; allowed: none, since the scheme sends no gradients to compress; remedy: a "
                "scheme that takes one, such as d5.AllReduce; a custom one sets compresses = True, and sums by mean"
            )
        if compression is not None:
            check_compression(name, compression)
        check_synchronises(name, synchronise_batch_norm, allowed=self.synchronises)
        self.compression, self.verify_every, self.timeout_s = compression, verify_every, timeout_s
        self.synchronise_batch_norm = synchronise_batch_norm
        self.communicator: Communicator = SingleRank()
        self.seed = 0
        self._optimizer: StepOptimizer | None = None
        self._executor: GraphExecutor | None = None
        self._shared: SharedExecutor | None = None
        self._packed: list[Packed] = []
        # The parameters among these that the optimizer changes: frozen parameters stay equal, and a mean would round
        # them.
        self._moving: list[Packed] = []
        # Synchronizes batch normalization, if enabled.
        self._statistics: RankStatistics | None = None

    @abstractmethod
    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One step of this rank.

        Args:
            inputs: This rank's part of the batch.
            info: The step; `batch_size` is this rank's, `global_batch_size` that of all ranks together. A rank whose
                part is empty has a `batch_size` of 0, and a borrowed sample as inputs.

        Returns:
            The network's outputs for this rank's part, native values.
        """

    def wrap(self, optimizer: UpdateRule | StepOptimizer, communicator: Communicator, *, seed: int = 0) -> Self:
        """The scheme around an optimizer, on a communicator.

        Args:
            optimizer: An update rule, or an optimizer that owns its step.
            communicator: Connects all ranks that train together.
            seed: Random seed of the scheme; the same on all ranks.

        Raises:
            UsageError: The optimizer is invalid or one that the scheme cannot wrap; or a user-defined class whose
                `__init__` does not call its base's or whose `step` has another signature.
            Unsupported: The optimizer owns its step and the scheme cannot exchange gradients between its evaluations.
        """
        check_initialised(self, DistributedOptimizer, "_packed")
        check_method(self, "step", DistributedOptimizer)
        made = copy.copy(self)
        made._optimizer = as_step_optimizer(optimizer)
        made.communicator, made.seed = communicator, seed
        if made.compression is not None:
            made.compression = made.compression.bound(seed, rank=communicator.rank, size=communicator.size)
            if hasattr(made.compression, "check_optimizer"):
                made.compression.check_optimizer(optimizer)
        if made._shares:
            check_shareable(type(made).__name__, made.optimizer, compressed=made.compression is not None)
        made._prepare()
        return made

    def _prepare(self) -> None:
        """Hook of a scheme, called when its communicator is known but no network is."""

    def bind(self, executor: GraphExecutor) -> None:
        """Give every rank the weights of rank 0, check that they arrived, and bind the optimizer.

        Args:
            executor: Runs the network on this rank.

        Raises:
            CommunicationError: A rank did not arrive, or has other weights nevertheless.
        """
        optimizer, communicator = self.optimizer, self.communicator
        self._executor = executor
        self._packed = Packed.of(executor)
        self._moving = []
        if communicator.size > 1:
            given = [*self._packed, *Packed.of(executor, buffers=True)]
            for packed in given:
                buffer = packed.read()
                communicator.broadcast(buffer, timeout_s=self.timeout_s)
                packed.write(buffer)
            values = [packed.read() for packed in given]
            check_agreement(communicator, values, "initial weights", timeout_s=self.timeout_s)
            if self.synchronise_batch_norm:
                self._statistics = synchronise_batch_norm(
                    type(self).__name__, executor, communicator, share=self.share, timeout_s=self.timeout_s
                )
        self._bind_optimizer()
        trained = self.trained
        for packed in self._packed:
            if names := [name for name in packed.names if name in trained]:
                whole = len(names) == len(packed.names)
                self._moving.append(packed if whole else Packed(executor, names, packed.dtype))
        self._bound()
        several = getattr(optimizer, "accumulated_step", None)
        takes = several is not None and bool(getattr(optimizer, "accumulates", True))
        if communicator.size == 1 and self.alone:
            # A single rank takes its optimizer's step directly, without overhead.
            self.step = optimizer.step  # type: ignore[method-assign]
            if several is not None:
                self.accumulated_step = several  # type: ignore[method-assign]
            self.accumulates = takes  # type: ignore[misc]
        else:
            self.accumulates = takes and type(self).accumulates  # type: ignore[misc]

    def _bind_optimizer(self) -> None:
        """Bind the optimizer to the object on which it makes updates: in most schemes, the executor."""
        self._shared = SharedExecutor(self) if self._shares else None
        self.optimizer.bind(self.executor if self._shared is None else self._shared)

    @property
    def _shares(self) -> bool:
        """Whether the optimizer owns its step, whose evaluations use all ranks' samples."""
        return self.closures and self.communicator.size > 1 and owns_step(self.optimizer)

    def _bound(self) -> None:
        """Hook of a scheme, called when its network is known."""

    def verify(self, what: str = "parameters") -> None:
        """Check, by a checksum, that ranks that must be equal hold the same parameters.

        Args:
            what: What is compared, for the error message.

        Raises:
            CommunicationError: They differ.
        """
        values = [packed.read() for packed in self._packed]
        check_agreement(self.sharers, values, what, ranks=self.members, timeout_s=self.timeout_s)

    def verify_in_turn(self, info: StepInfo) -> None:
        """Call `verify` after every `verify_every` steps; called after a step by schemes that keep the ranks equal.

        Args:
            info: The step that has ended.
        """
        if self.verify_every and not (info.step + 1) % self.verify_every:
            self.verify(f"parameters after step {info.step + 1}")

    def settle(self) -> None:
        """Call `verify` if the scheme keeps ranks equal; called by every rank after the last step of an epoch.

        This detects a scheme that wrongly declares itself consistent, however few steps it takes.
        """
        if self.verify_every and self.keeps_equal and self.communicator.size > 1:
            self.verify("parameters at the end of an epoch")

    def share(self, info: StepInfo) -> float:
        """This rank's fraction of the step's samples: the weight of its gradients in the mean over all samples.

        Args:
            info: The step.

        Returns:
            The fraction, from 0 to 1; the fractions of all ranks add up to 1.
        """
        if info.global_batch_size:
            return info.batch_size / info.global_batch_size
        return 1.0 / self.communicator.size

    def backprop(
        self, inputs: Arrays, info: StepInfo, on_gradient: Callable[[str, Array], None] | None = None
    ) -> Arrays:
        """Forward and backward on this rank's part: the first half of the optimizer's step.

        Args:
            inputs: This rank's part of the batch.
            info: The step.
            on_gradient: Called with (name, gradient) as soon as each gradient is known.

        Returns:
            The network's outputs for this rank's part, native values; `gradients` returns the gradients.

        Raises:
            Unsupported: The optimizer has no halves: it evaluates the loss any number of times within its step.
        """
        with self.undisturbed(info):
            outputs: Arrays = self._halves.backprop(inputs, info, on_gradient)
        return outputs

    def undisturbed(self, info: StepInfo) -> AbstractContextManager[None]:
        """While inside, a rank without samples does not change its running statistics, because its sample is borrowed.

        Synchronized statistics, of the batch of all ranks, change on every rank alike.

        Args:
            info: The step.
        """
        borrows = without_samples(info) and not self.synchronise_batch_norm
        return kept_statistics(self.executor) if borrows else nullcontext()

    def step_together(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """A step of an optimizer that owns it, taken by all ranks alike: each evaluation uses all ranks' samples.

        Args:
            inputs: This rank's part of the batch.
            info: The step.

        Returns:
            The network's outputs for this rank's part, native values.

        Raises:
            UsageError: The optimizer does not own its step, or there is one rank.
        """
        if self._shared is None:
            raise UsageError(
                f"{type(self).__name__}: step_together is for several ranks, bound to an optimizer that owns its step; "
                "allowed: backprop and apply"
            )
        return self._shared.step(self.optimizer, inputs, info)

    @property
    def sharers(self) -> Communicator:
        """The ranks whose samples make up a step's gradient; the scheme keeps these equal if it keeps ranks equal."""
        return self.communicator

    @property
    def members(self) -> Sequence[int]:
        """The indices of `sharers` among all ranks."""
        return range(self.communicator.size)

    @property
    def keeps_equal(self) -> bool:
        """Whether all `sharers` hold the same parameters after every step."""
        return self.consistent

    def sum_for_all(self, buffer: np.ndarray, info: StepInfo) -> None:
        """Like `sum`, but in place on every rank, whichever rank makes the update, and without compression.

        Args:
            buffer: Flat, of the same size on every rank; receives the sum.
            info: The step.
        """
        self.sum(buffer, "shared", info)

    def gradients(self) -> Arrays:
        """Gradients of the last `backprop`, of the mean over this rank's samples, by name, as native values."""
        return self.executor.gradients()

    def mean(self, gradients: Arrays, info: StepInfo) -> Arrays:
        """The gradients of the mean over the samples of all ranks, equal on all of them.

        Args:
            gradients: This rank's, as returned by `gradients`.
            info: The step.

        Returns:
            NumPy arrays by name; the next call reuses their memory.
        """
        from deep5.distributed.buckets import Buckets

        found = self.__dict__.get("_buckets")
        if found is None:
            found = self._buckets = Buckets(self.trained)
        found.begin(self.share(info))
        for name, gradient in gradients.items():
            found.put(name, gradient)
        self.sum_buckets(found.buffers, info)
        views: Arrays = found.views
        return views

    def sum(self, buffer: np.ndarray, key: str, info: StepInfo) -> None:
        """The sum of a flat buffer over all ranks, in place, by the compression if there is one.

        Args:
            buffer: Flat, of the same size on every rank; receives the sum.
            key: Name of the buffer, by which a compression keeps its state.
            info: The step.
        """
        if self.compression is None:
            self.communicator.all_reduce(buffer, timeout_s=self.timeout_s)
        else:
            with unscaled(self.compression, buffer, self.gradient_scale):
                self.compression.all_reduce(
                    self.communicator, buffer, key=key, step=info.step, timeout_s=self.timeout_s
                )

    def sum_buckets(self, buffers: Sequence[np.ndarray], info: StepInfo) -> None:
        """`sum` of all gradients of a step; a compression keeps no state from a step that the loss scale will skip.

        Args:
            buffers: Flat, of the same sizes and in the same order on every rank; each receives its sum.
            info: The step.
        """
        compression: Any = self.compression
        may_skip = skips(compression, self.optimizer)
        if may_skip:
            compression.hold()
        for index, buffer in enumerate(buffers):
            self.sum(buffer, f"bucket-{index}", info)
        if may_skip and not finite(buffers):
            compression.take_back()

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The second half of the optimizer's step: the update with these gradients.

        Args:
            gradients: By parameter name, as returned by `mean`.
            info: The step.
        """
        self._halves.apply(gradients, info)

    def accumulated_step(self, batches: Sequence[Arrays | None], info: StepInfo) -> Arrays:
        """One step from several micro-batches of this rank, exchanged once.

        Args:
            batches: Micro-batches; None for each in which this rank has no sample.
            info: The step; its batch sizes are those of all micro-batches together.

        Returns:
            The network's outputs for this rank's samples.

        Raises:
            Unsupported: The scheme or its optimizer takes one batch per step.
        """
        if not self.accumulates:
            one = self.optimizer if type(self).accumulates else self
            raise Unsupported(
                f"{type(one).__name__} takes one batch a step; got several micro-batches; allowed: step(inputs, info)"
            )
        if self._statistics is not None:
            raise Unsupported(
                f"{type(self).__name__}: got several micro-batches with synchronise_batch_norm; allowed: one batch a "
                "step; remedy: accumulate=1, or synchronise_batch_norm=False"
            )
        layout = self.__dict__.get("_layout")
        self._layout = layout = batch_layout(self.executor.network, layout)
        # None represents a micro-batch in which this rank has no sample.
        own = [batch for batch in batches if batch is not None]
        with self.undisturbed(info):
            return accumulated_step(_Exchanged(self), self.executor, own, info, layout)


class _Exchanged:
    """The two halves of a step with the mean over all ranks between; see `deep5.training.accumulation.Halves`."""

    def __init__(self, scheme: DistributedOptimizer) -> None:
        self._scheme = scheme
        self.backprop = scheme._halves.backprop
        self.arithmetic = getattr(scheme._halves, "arithmetic", nullcontext)

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update with the mean of these gradients over all ranks."""
        self._scheme.apply(self._scheme.mean(gradients, info), info)
        self._scheme.verify_in_turn(info)
