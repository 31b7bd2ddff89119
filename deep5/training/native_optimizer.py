"""What the native optimizers of all frameworks share: deep5's names and defaults of their hyperparameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from deep5.arguments import is_finite
from deep5.errors import UsageError
from deep5.events import StepInfo
from deep5.executors import GraphExecutor
from deep5.tensors import Arrays

__all__ = ["AdamSignature", "GradientDescentSignature", "MomentumSignature", "NativeOptimizer", "Unbound"]


class Unbound:
    """Stands where the executor will, and says so."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")


class NativeOptimizer(ABC):
    """An optimizer of a framework's own that owns its step; a `StepOptimizer`.

    Args:
        loss: Name of the scalar output to differentiate.
        hyper: Its hyperparameters by deep5's names.

    Raises:
        UsageError: One is no finite number.

    Attributes:
        framework: Name of the back-end whose executors it drives.
        hyper: As given, for `native` and for the record.
    """

    framework: ClassVar[str]

    def __init__(self, loss: str = "loss", **hyper: float | bool) -> None:
        for name, value in hyper.items():
            if not isinstance(value, bool) and not is_finite(value):
                raise UsageError(f"{type(self).__name__}: got {name}={value!r:.60}; allowed: a finite number")
        self.loss, self.hyper = loss, hyper
        self._executor: Any = Unbound()
        self._optimizer: Any = Unbound()

    @abstractmethod
    def native(self, given: Any) -> Any:
        """Make the framework's optimizer, from what its back-end hands over when it binds."""

    @abstractmethod
    def bind(self, executor: GraphExecutor) -> None:
        """Make the framework's optimizer over the executor's parameters."""

    @abstractmethod
    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and the framework's update."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The framework's state as NumPy arrays."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit."""

    def describe(self) -> dict[str, Any]:
        """The optimizer and its hyperparameters."""
        return {"native": self.framework, "optimizer": type(self).__name__, **self.hyper}


class GradientDescentSignature(NativeOptimizer):
    """How gradient descent is called in every framework."""

    def __init__(self, lr: float = 0.01, *, loss: str = "loss") -> None:
        super().__init__(loss, lr=lr)


class MomentumSignature(NativeOptimizer):
    """How momentum is called in every framework."""

    def __init__(self, lr: float = 0.01, momentum: float = 0.9, *, nesterov: bool = False, loss: str = "loss") -> None:
        super().__init__(loss, lr=lr, momentum=momentum, nesterov=nesterov)


class AdamSignature(NativeOptimizer):
    """How Adam is called in every framework."""

    def __init__(
        self, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, *, loss: str = "loss"
    ) -> None:
        super().__init__(loss, lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon)
