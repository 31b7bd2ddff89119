"""`OptaxOptimizer`: an Optax optimizer that runs the whole step; Optax is imported on binding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import Arrays
from deep5.training.native_optimizer import NativeOptimizer, Unbound

if TYPE_CHECKING:
    from deep5.frameworks.jax.native_step import NativeStep, Point

__all__ = ["OptaxOptimizer"]


class OptaxOptimizer(NativeOptimizer):
    """An Optax optimizer that runs the whole step, one compiled function.

    Hyperparameters enter the compiled step as numbers, so that all of them can change without a second trace.
    """

    framework, library = "jax", "optax"

    @abstractmethod
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        """The transformation from the Optax module; hyperparameters may be traced numbers."""

    def bind(self, executor: GraphExecutor) -> None:
        """Create the compiled step over the executor's parameters.

        Raises:
            UsageError: The executor belongs to another framework, or Optax rejects a hyperparameter.
            MissingDependency: Optax is not installed.
        """
        if getattr(executor, "differentiated", None) is None or not hasattr(executor, "program"):
            raise self._foreign(executor)
        optax = _optax()
        from deep5.frameworks.jax.native_step import NativeStep

        own: Any = executor
        own._check_loss(self.loss)
        constants = {name: value for name, value in self.hyper.items() if name not in self.changeable}

        def initial(values: dict[str, Any], numbers: Mapping[str, Any]) -> Any:
            return self.native(optax, {**constants, **numbers}).init(values)

        def update(point: Point, state: Any, numbers: Mapping[str, Any]) -> Any:
            optimizer = optax.with_extra_args_support(self.native(optax, {**constants, **numbers}))
            changes, state = optimizer.update(
                point.gradients,
                state,
                point.values,
                value=point.loss,
                grad=point.gradients,
                value_fn=point.function,
            )
            return optax.apply_updates(point.values, changes), state

        numbers = {name: float(self.hyper[name]) for name in self.changeable}
        with self._making():
            self._optimizer = NativeStep(own, self.loss, initial, update, numbers)
        self._executor, self._now = executor, dict(self.hyper)

    @property
    def train_step(self) -> NativeStep:
        """The compiled step."""
        if isinstance(self._optimizer, Unbound):
            _ = self._optimizer.any  # raises if not bound
        found: NativeStep = self._optimizer
        return found

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and Optax's update in one function."""
        return self.train_step(inputs, info)

    def _apply(self, gradients: Arrays) -> None:
        self.train_step.apply(gradients)

    def _arithmetic(self) -> AbstractContextManager[None]:
        import jax

        # JAX has 64-bit types only on request.
        found: AbstractContextManager[None] = jax.enable_x64(True)
        return found

    def _change(self, hyper: Mapping[str, Any]) -> None:
        self.train_step.numbers = {name: float(hyper[name]) for name in self.changeable}

    def _state(self) -> dict[str, Any]:
        """Optax's state as NumPy arrays in the network's axis order, by their path in its tree."""
        return self.train_step.state_dict()

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state` bit-identically.

        Raises:
            ShapeError: An entry is missing, unknown, or has another shape or dtype.
        """
        self.train_step.load_state_dict(state)


def _optax() -> Any:
    try:
        import optax
    except ModuleNotFoundError as error:
        raise missing_dependency("a native optimizer of jax", error) from error
    return optax
