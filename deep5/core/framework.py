"""What a back-end is: `Framework`, which says what it can do and makes executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from deep5.core.arguments import bounded_threads, of_a_network
from deep5.core.errors import UnknownName, Unsupported, UsageError
from deep5.core.executors import GraphExecutor, OperatorExecutor, StepOptimizer
from deep5.core.layer_clock import LayerClock
from deep5.core.network_spec import NetworkSpec
from deep5.core.operator import Operator
from deep5.core.tensors import Device

__all__ = ["Framework", "Support"]


class Support(NamedTuple):
    """The answer of `supports`: `Support(True)`, or `Support(False, reason)`; it is true where the answer is yes."""

    yes: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.yes


class Framework(ABC):
    """A back-end. Reached by name: `deep5.framework("pytorch")`; registered under `deep5.frameworks`.

    Args:
        mode: A key of `modes`, or nothing for the plain one.
    """

    name: str
    """The registered name; a mode follows a colon."""
    modes: ClassVar[Mapping[str, str]] = {}
    """Other ways to run, each with what it does in a few words: `"compiled"` is asked for as `"pytorch:compiled"`."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Distributions that must be installed; `deep5 list frameworks` looks for them without importing anything."""
    thread_variable: ClassVar[str] = ""
    """The variable of the environment, beside OMP_NUM_THREADS, that the library takes its number of threads from."""

    def __init_subclass__(cls) -> None:
        """Have what is asked of a back-end looked at before its own code sees it: every back-end refuses alike."""
        super().__init_subclass__()
        if "set_threads" in vars(cls):
            cls.set_threads = bounded_threads(cls.set_threads)  # type: ignore[method-assign, assignment]
        if "executor" in vars(cls):
            cls.executor = of_a_network(cls.executor)  # type: ignore[method-assign]

    def __init__(self, mode: str = "") -> None:
        self.mode = mode
        if mode:
            self.name = f"{type(self).name}:{mode}"

    @abstractmethod
    def version(self) -> str:
        """The version of the library underneath."""

    @abstractmethod
    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        """Make a network runnable.

        Args:
            network: The network; it is not changed.
            device: Where it runs.
            seed: Seed of noise alone; initial weights come from the network.

        Raises:
            UsageError: `network` is no `Network`, or `seed` no whole number from 0 to 2**63 - 1.
            Unsupported: Nodes that this framework cannot run, each with its reason; a device that is not there.
        """

    @abstractmethod
    def supports(self, node: Any) -> Support:
        """Whether a node (an `onnx_ir.Node`) can run, and if not, why."""

    @abstractmethod
    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The native, differentiable form of an operator: a callable on native arrays.

        Every call is held to what the operator's `specs` says.

        Raises:
            Unsupported: The framework cannot run it, with the reason.
        """

    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        """Make one operator runnable: a deep5 `Operator`, compiled or not, a `NativeOperator` of this framework, or an
        `ONNXOperator`.

        Raises:
            Unsupported: The framework cannot run it, with the reason; a device that is not there.
        """
        raise Unsupported(f"the back-end {self.name} runs no operators outside of a network")

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """Make a network runnable with instruments that time its layers; see `deep5.networks.layer_times`.

        Raises:
            Unsupported: Nothing tells how long a layer takes here, with the reason.
        """
        raise Unsupported(f"{self.name} does not tell how long a layer takes")

    def optimizer(self, name: str) -> Callable[..., StepOptimizer]:
        """The framework's own optimizer under one of deep5's names (`native:NAME` in a recipe).

        Raises:
            UnknownName: It has none of that name.
        """
        native: Mapping[str, Callable[..., StepOptimizer]] = self.optimizers()
        if name not in native:
            raise UnknownName(f"native optimizer of {self.name}", name, native)
        return native[name]

    def optimizers(self) -> Mapping[str, Callable[..., StepOptimizer]]:
        """The framework's own optimizers by deep5's names."""
        return {}

    def unsupported(self, nodes: Iterable[Any]) -> list[str]:
        """One line a node that cannot run: name, operator, reason."""
        return [
            f"{node.name or node.op_type} ({node.op_type}): {answer.reason}"
            for node in nodes
            if not (answer := self.supports(node))
        ]

    @abstractmethod
    def set_threads(self, threads: int) -> None:
        """Set how many threads an operator may use in this process; read it back through `settings`.

        Raises:
            UsageError: No integer from 1 to `deep5.core.arguments.most_threads()`, or the framework has started with
                another one.
        """

    def set_numerics(self, *, deterministic: bool, tf32: bool) -> None:
        """Set what accelerators may do to the bits, for this process; read it back through `settings`.

        Frameworks differ in what they do where nobody asks: products of float32 are rounded to TF32 by some and not by
        others. On the host there is nothing to set: every back-end gives the same bits again, and none uses TF32. It
        goes before `set_threads`, too, which starts some frameworks.

        Args:
            deterministic: Whether only kernels may run that give the same bits again; an operator that has none is
                refused when it runs.
            tf32: Whether products and convolutions of float32 may keep 10 bits of their factors' mantissas.

        Raises:
            UsageError: An argument is no bool, or the framework has started with other settings.
        """
        for name, value in (("deterministic", deterministic), ("tf32", tf32)):
            if not isinstance(value, bool):
                raise UsageError(f"got {name}={value!r:.60}; allowed: True or False")
        self._set_numerics(deterministic, tf32)

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:  # noqa: B027  # most have nothing to set
        """What `set_numerics` does; nothing, where a back-end runs on the host alone."""
