"""`OptimizerWrapper`: the part of a scheme other than its step: delegation to the wrapped optimizer."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from deep5.core.communicator import Communicator
from deep5.core.deep500 import NAMES, missing_attribute, replaced
from deep5.core.errors import Unsupported, UsageError
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.distributed.packed import Packed

if TYPE_CHECKING:
    from deep5.distributed.compression import Compression

__all__ = ["OptimizerWrapper"]

# Prefix of the scheme's own entries in a state.
_OWN = "scheme/"


class OptimizerWrapper(ABC):
    """Wraps an optimizer: its executor, its state, and the parameters used for evaluation.

    Attributes:
        consistent: Whether all ranks hold the same parameters after every step.
        compression: Compression of the gradients for communication; None: none.
        communicator: Connects the ranks.
        timeout_s: Time limit of every wait for other ranks.
    """

    consistent: ClassVar[bool] = False
    compression: Compression | None
    communicator: Communicator
    timeout_s: float
    _optimizer: StepOptimizer | None
    _executor: GraphExecutor | None
    # The parameters that the optimizer changes.
    _moving: list[Packed]

    @property
    def optimizer(self) -> StepOptimizer:
        """The wrapped optimizer.

        Raises:
            UsageError: No optimizer is wrapped.
        """
        if self._optimizer is None:
            raise UsageError(
                f"{type(self).__name__} wraps no optimizer; remedy: {type(self).__name__}(…).wrap(d5.Adam(), "
                "communicator)"
            )
        return self._optimizer

    @property
    def executor(self) -> GraphExecutor:
        """The executor that runs the network.

        Raises:
            UsageError: `bind` was not called.
        """
        if self._executor is None:
            raise UsageError(f"{type(self).__name__} is not bound to an executor; remedy: call bind(executor) first")
        return self._executor

    @property
    def gradient_scale(self) -> float:
        """The factor of this step's gradients: the optimizer's loss scale."""
        scaled = getattr(getattr(self.optimizer, "pipeline", None), "loss_scale", None) is not None
        return float(self.optimizer.loss_scale) if scaled else 1.0  # type: ignore[attr-defined]

    @property
    def trained(self) -> dict[str, Any]:
        """Specifications of the parameters that the optimizer changes, by name: those with a gradient."""
        from deep5.training.optimizer import RuleOptimizer

        specs = dict(self.executor.network.trained_specs)
        optimizer = self.optimizer
        if isinstance(optimizer, RuleOptimizer):
            return {name: spec for name, spec in specs.items() if name not in optimizer.frozen()}
        return specs

    @property
    def _halves(self) -> Any:
        halves = getattr(self.optimizer, "halves", None)
        if halves is None:
            raise Unsupported(
                f"{type(self).__name__} exchanges gradients between the two halves of a step, and "
                f"{type(self.optimizer).__name__} owns its step; allowed: an update rule, a native optimizer of one "
                "gradient a step, or a scheme that averages parameters or has step_together"
            )
        return halves

    def average_parameters(self) -> None:
        """Give every rank the mean of all ranks' parameters, except for frozen ones."""
        communicator = self.communicator
        for packed in self._moving:
            buffer = packed.read()
            communicator.all_reduce(buffer, timeout_s=self.timeout_s)
            buffer /= communicator.size
            packed.write(buffer)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While inside, the executor holds the parameters used for evaluation; every rank enters together.

        These are the optimizer's evaluation parameters, averaged over the ranks if they differ, with the mean of the
        ranks' running statistics.
        """
        executor, communicator = self.executor, self.communicator
        with ExitStack() as stack:
            stack.enter_context(getattr(self.optimizer, "averaged", nullcontext)())
            if communicator.size > 1:
                parts = [*Packed.of(executor, buffers=True), *self._differing()]
                for packed in (part for part in parts if part.floating):
                    own = packed.read().copy()
                    stack.callback(packed.write, own)
                    mean = packed.read()
                    communicator.all_reduce(mean, timeout_s=self.timeout_s)
                    mean /= communicator.size
                    packed.write(mean)
            yield

    def _differing(self) -> list[Packed]:
        """The parameters of which `averaged` takes the mean over the ranks."""
        return [] if self.consistent else self._moving

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and this rank's state of the scheme."""
        own = {f"{_OWN}{name}": value for name, value in self._own_state().items()}
        return {**self.optimizer.state_dict(), **own}

    def state_views(self) -> dict[str, Any]:
        """Like `state_dict`, with the optimizer's live memory if it is accessible: read it before the next step."""
        own = {f"{_OWN}{name}": value for name, value in self._own_state().items()}
        views: dict[str, Any] = getattr(self.optimizer, "state_views", self.optimizer.state_dict)()
        return {**views, **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit."""
        own = {name.removeprefix(_OWN): value for name, value in state.items() if name.startswith(_OWN)}
        self.optimizer.load_state_dict({name: value for name, value in state.items() if not name.startswith(_OWN)})
        self._load_own_state(own)

    def _own_state(self) -> dict[str, Any]:
        return {} if self.compression is None else self.compression.state_dict()

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        if self.compression is not None:
            self.compression.load_state_dict(state)

    def describe(self) -> dict[str, Any]:
        """Scheme, compression and optimizer, in JSON types."""
        known = ("communicator", "seed", "compression", "step")
        own = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name not in known and isinstance(value, (bool, int, float, str, type(None)))
        }
        compression = None if self.compression is None else self.compression.describe()
        found: dict[str, Any] = {"scheme": type(self).__name__, **own, "compression": compression}
        if self._optimizer is not None and hasattr(self._optimizer, "describe"):
            return {**self._optimizer.describe(), **found, "ranks": self.communicator.size}
        return found

    def __getattr__(self, name: str) -> Any:
        # Other attributes of the optimizer: its rule, hyperparameters, and setters for schedules.
        if name.startswith("_") or (optimizer := self.__dict__.get("_optimizer")) is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{replaced(name)}")
        if name in NAMES and not hasattr(optimizer, name):
            missing_attribute(self, name)
        return getattr(optimizer, name)
