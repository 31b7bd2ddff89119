"""`ServedOptimizer`: the base of schemes in which one rank, the root, makes the updates for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, to_numpy
from deep5.distributed.packed import Packed
from deep5.distributed.schemes.base import DistributedOptimizer
from deep5.distributed.schemes.server_memory import Block, ServerMemory
from deep5.training.hyper_state import KEY
from deep5.training.optimizer import RuleOptimizer
from deep5.training.rule import UpdateRule

if TYPE_CHECKING:
    from deep5.distributed.compression import Compression

__all__ = ["SchemeHalves", "ServedOptimizer"]


class ServedOptimizer(DistributedOptimizer):
    """One rank holds the optimizer's state and makes the updates, with gradients that all ranks compute.

    An update rule works in place on memory of the root's host, by its compiled kernel: gradients are received into and
    parameters sent from that memory, which avoids copies. Frozen parameters are not sent. A gradient modifier gets
    NumPy arrays.

    Args:
        root: The rank that makes the updates; it computes gradients like all others.
        compression: See `DistributedOptimizer`.
        verify_every: See `DistributedOptimizer`.
        timeout_s: See `DistributedOptimizer`.
        synchronise_batch_norm: See `DistributedOptimizer`.
    """

    def __init__(
        self,
        root: int = 0,
        *,
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
        if not is_whole(root) or root < 0:
            raise UsageError(f"{type(self).__name__}: got root={brief(root)}; allowed: a rank, from 0")
        self.root = int(root)
        self._memory: ServerMemory | None = None

    @property
    def serves(self) -> bool:
        """Whether this rank makes the updates."""
        return self.communicator.rank == self.root

    def _prepare(self) -> None:
        size = self.communicator.size
        if self.root >= size:
            raise UsageError(
                f"{type(self).__name__}: got root={self.root} and {size} ranks; allowed: from 0 to {size - 1}"
            )

    def _bind_optimizer(self) -> None:
        optimizer, executor = self.optimizer, self.executor
        self._memory = None
        if self.communicator.size == 1 or not isinstance(optimizer, RuleOptimizer):
            super()._bind_optimizer()
            return
        # A bind to an empty memory determines which parameters are trained.
        optimizer.bind(_as_executor(ServerMemory(executor, {}, serves=False)))
        trained = self.trained
        if other := {spec.dtype for spec in trained.values()} - {"float32", "float64"}:
            raise Unsupported(
                f"{type(self).__name__} updates parameters on the host; got parameters of {', '.join(sorted(other))}; "
                "allowed: float32 and float64"
            )
        memory = ServerMemory(executor, trained, serves=self.serves)
        memory.block.read(executor)
        optimizer.bind(_as_executor(memory))
        self._memory = memory
        rule = type(optimizer.rule)
        self._prepares = rule.prepare_param is not UpdateRule.prepare_param
        self._averages = rule.eval_param is not UpdateRule.eval_param
        # Frozen parameters have no gradient; without any, the executor's fast path needs no selection.
        self._wrt: dict[str, Any] = (
            {} if len(trained) == len(executor.network.trained_specs) else {"wrt": tuple(trained)}
        )

    @property
    def memory(self) -> ServerMemory:
        """The memory on which the updates are made.

        Raises:
            UsageError: There is one rank, or the optimizer is not an update rule: it works on its executor.
        """
        if self._memory is None:
            raise UsageError(f"{type(self).__name__} keeps no parameters; allowed: several ranks, an update rule")
        return self._memory

    def gradient(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        """Forward and backward at the executor's parameters, on this rank's part."""
        optimizer: Any = self.optimizer
        options = dict(self._wrt)
        if accumulate or loss_scale != 1.0:
            options |= {"accumulate": accumulate, "loss_scale": loss_scale}
        if on_gradient is not None:
            options["on_gradient"] = on_gradient
        return self.executor.inference_and_backprop(inputs, optimizer.loss, info=info, **options)

    def share_out(self) -> None:
        """Copy the root's memory to every rank's executor; called by every rank."""
        block = self.memory.block
        self.communicator.broadcast(block.memory, root=self.root, timeout_s=self.timeout_s)
        block.write(self.executor)

    @abstractmethod
    def settle(self) -> None:
        """Wait until no gradient is pending; called by every rank."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While inside, the executor holds the root's evaluated parameters; all ranks enter together.

        See `DistributedOptimizer.averaged`.
        """
        if self._memory is None:
            with super().averaged(), self._root_as_judged():
                yield
            return
        self.settle()
        own = Block(self.trained) if self._averages else None
        if own is not None:
            own.read(self.executor)
        with super().averaged():
            if own is not None or not self.consistent:
                self.share_out()
            try:
                yield
            finally:
                if own is not None:
                    own.write(self.executor)

    @contextmanager
    def _root_as_judged(self) -> Iterator[None]:
        """While inside, every rank has the root's evaluated parameters, if only the root has the state for them."""
        if self.communicator.size == 1 or self._shared is not None or not hasattr(self.optimizer, "averaged"):
            yield
            return
        kept = [(packed, packed.read().copy()) for packed in self._packed]
        for packed in self._packed:
            buffer = packed.read()
            self.communicator.broadcast(buffer, root=self.root, timeout_s=self.timeout_s)
            packed.write(buffer)
        try:
            yield
        finally:
            for packed, own in kept:
                packed.write(own)

    def _differing(self) -> list[Packed]:
        # The root's parameters are those of the run, so there is no mean to take.
        return super()._differing() if self._memory is None else []

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; other ranks ignore the rule's state, which only the root has.

        Every rank's executor must have its parameters before the call.
        """
        if self._memory is None:
            super().load_state_dict(state)
            return
        kept = {
            name: value for name, value in state.items() if self.serves or name == KEY or name.startswith("scheme/")
        }
        super().load_state_dict(kept)
        self._memory.block.read(self.executor)


class SchemeHalves:
    """The halves of a scheme's step for micro-batches; see `deep5.training.accumulation.Halves`.

    Args:
        scheme: Its `first_half` takes the arguments of `TrainStep.backprop`.
    """

    def __init__(self, scheme: Any) -> None:
        self._scheme, self.apply = scheme, scheme.apply

    def backprop(self, inputs: Arrays, info: StepInfo, on_gradient: Any = None, **options: Any) -> Arrays:
        """Forward and backward."""
        outputs = self._scheme.first_half(inputs, info, on_gradient, **options)
        # NumPy values, because they are averaged outside of the framework's own step.
        return {name: to_numpy(value) for name, value in outputs.items()}


def _as_executor(memory: ServerMemory) -> Any:
    """A memory has what a rule needs to bind, and nothing else of an executor."""
    return memory
