"""`Framework`: the base class of back-ends, which reports what a back-end supports and creates executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from deep5.core.arguments import bounded_threads, of_a_network
from deep5.core.complete import check_complete
from deep5.core.errors import UnknownName, Unsupported, UsageError
from deep5.core.executors import GraphExecutor, OperatorExecutor, StepOptimizer
from deep5.core.layer_clock import LayerClock
from deep5.core.network_spec import NetworkSpec
from deep5.core.operator import Operator
from deep5.core.own_model import OwnModel
from deep5.core.tensors import Device, TensorSpec

__all__ = ["Framework", "Support"]


class Support(NamedTuple):
    """The result of `supports`: `Support(True)`, or `Support(False, reason)`; truthy if supported.

    Attributes:
        yes: Whether it is supported.
        reason: Why not; empty if it is.

    >>> import deep5 as d5
    >>> answer = d5.Support(False, "the engine has no 3-D convolution")
    >>> bool(answer), answer.reason
    (False, 'the engine has no 3-D convolution')
    >>> network = d5.networks.mlp()
    >>> all(d5.framework("reference").supports(node) for node in network.nodes)
    True
    """

    yes: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.yes


class Framework(ABC):
    """A back-end. Get one by name with `deep5.framework("pytorch")`; registered under `deep5.frameworks`.

    Args:
        mode: A key of `modes`, or empty for the default.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> reference = d5.framework("reference")
    >>> isinstance(reference, d5.Framework), reference.unsupported(d5.networks.lenet().nodes)
    (True, [])
    >>> executor = reference.executor(d5.networks.mlp(features=4, hidden=3, classes=2), device="cpu")
    >>> executor.inference({"input": np.ones((5, 4), np.float32), "label": np.zeros(5, np.int64)})["logits"].shape
    (5, 2)
    >>> sorted(d5.Framework.__abstractmethods__)  # what a class of your own defines, besides `name`
    ['executor', 'operator', 'set_threads', 'supports', 'version']
    """

    name: str
    """The registered name; a mode follows a colon."""
    modes: ClassVar[Mapping[str, str]] = {}
    """Other modes, each with a short description: `"compiled"` is selected by `"pytorch:compiled"`."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Required distributions; `deep5 list frameworks` looks for them without importing them."""
    owns_arrays: ClassVar[bool] = False
    """Whether the library has arrays, which `owns_array`, `kept` and `wait` know."""
    thread_variable: ClassVar[str] = ""
    """The environment variable, besides OMP_NUM_THREADS, that sets the library's number of threads."""

    def __init_subclass__(cls) -> None:
        """Check arguments before the back-end's own code runs, so that every back-end rejects them alike."""
        super().__init_subclass__()
        if "set_threads" in vars(cls):
            cls.set_threads = bounded_threads(cls.set_threads)  # type: ignore[method-assign, assignment]
        if "executor" in vars(cls):
            cls.executor = of_a_network(cls.executor)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse a class without a name, or without one of the methods.

        Raises:
            PartialClassError: One of them is missing.
        """
        check_complete(cls, Framework, ("name",))
        return super().__new__(cls)

    def __init__(self, mode: str = "") -> None:
        self.mode = mode
        if mode:
            self.name = f"{type(self).name}:{mode}"

    @abstractmethod
    def version(self) -> str:
        """The version of the underlying library."""

    @abstractmethod
    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        """Make a network executable.

        Args:
            network: The network; it is not changed.
            device: Where it runs.
            seed: Seed of noise only; initial weights come from the network.

        Raises:
            UsageError: `network` is not a `Network`, or `seed` is not an integer from 0 to 2**63 - 1.
            Unsupported: Nodes that this framework cannot run, each with its reason; a device that does not exist.
        """

    @abstractmethod
    def supports(self, node: Any) -> Support:
        """Whether a node (an `onnx_ir.Node`) can run, and if not, why.

        Args:
            node: The node, with the shapes and dtypes of its inputs as far as they are known.
        """

    @abstractmethod
    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The native, differentiable form of an operator: a callable on native arrays.

        Every call is checked against the operator's `specs`.

        Args:
            operator: The operator.

        Raises:
            Unsupported: The framework cannot run it, with the reason.
        """

    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        """Make one operator executable: a deep5 `Operator`, compiled or not, a `NativeOperator` of this framework, or
        an `ONNXOperator`.

        Args:
            operator: The operator.
            device: Where it runs.

        Raises:
            Unsupported: The framework cannot run it, with the reason; a device that does not exist.
        """
        raise Unsupported(f"the back-end {self.name} runs operators only within a network")

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """Make a network executable with instrumentation that times its layers; see `deep5.networks.layer_times`.

        Args:
            network: The network; it is not changed.
            device: Where it runs.
            seed: Seed of noise, as for `executor`.

        Raises:
            Unsupported: The time of a layer cannot be measured here, with the reason.
        """
        raise Unsupported(f"{self.name} does not measure the time of a layer")

    @classmethod
    def owns(cls, model: object) -> bool:
        """Whether an object is a model of this framework's library, which `own_model` takes; loads no library.

        Args:
            model: Any object.
        """
        return False

    def own_model(
        self,
        model: Any,
        loss: str | Callable[..., Any],
        inputs: Mapping[str, TensorSpec],
        *,
        device: str | Device,
        seed: int,
    ) -> OwnModel:
        """A model of this framework's library with a loss, which runs here without being rewritten.

        Args:
            model: The model; it is trained in place.
            loss: A key of `deep5.networks.edit.loss.LOSSES`, or a function in the library's convention.
            inputs: A specification of each input with the batch dimension; the last one is the label.
            device: Where it runs.
            seed: Seed of the initial weights of a model that holds none.

        Raises:
            UsageError: The model or the loss does not fit.
        """
        raise Unsupported(f"{self.name} runs ONNX networks only")

    def owns_array(self, value: object) -> bool:
        """Whether an object is an array of this framework's library; loads no library.

        Args:
            value: Any object.
        """
        return False

    def kept(self, value: Any) -> Any:
        """A scalar array of this library as a `float`, if reading it waits for no device; else an array that stays.

        Args:
            value: The array; later operations may change it in place, but not what is returned.
        """
        return value

    def wait(self, value: Any) -> None:  # noqa: B027  # on the host there is nothing to wait for
        """Wait until the device has computed an array of this library.

        Args:
            value: The array.
        """

    def process_settings(self, value: Any) -> dict[str, Any]:
        """Settings of this process as read back from the loaded library, for a loop that deep5 does not run.

        Args:
            value: An array of the loop, which has its device; None: no array is known.

        Returns:
            `version`, and those known of `device`, `threads`, `tf32`, `deterministic`; and `asynchronous`, whether the
            host may return before a device has computed.
        """
        return {"version": self.version()}

    def optimizer(self, name: str) -> Callable[..., StepOptimizer]:
        """The framework's own optimizer under one of deep5's names (`native:NAME` in a recipe).

        Args:
            name: A key of `optimizers()`.

        Returns:
            The function or class that makes it from its arguments, such as the learning rate.

        Raises:
            UnknownName: It has no optimizer of that name.
        """
        native: Mapping[str, Callable[..., StepOptimizer]] = self.optimizers()
        if name not in native:
            raise UnknownName(f"native optimizer of {self.name}", name, native)
        return native[name]

    def optimizers(self) -> Mapping[str, Callable[..., StepOptimizer]]:
        """The framework's own optimizers by deep5's names."""
        return {}

    def unsupported(self, nodes: Iterable[Any]) -> list[str]:
        """One line per node that cannot run: name, operator, reason.

        Args:
            nodes: Nodes of a network, such as `network.nodes`.
        """
        return [
            f"{node.name or node.op_type} ({node.op_type}): {answer.reason}"
            for node in nodes
            if not (answer := self.supports(node)).yes
        ]

    @abstractmethod
    def set_threads(self, threads: int) -> None:
        """Set how many threads an operator may use in this process; read it back through `settings`.

        Args:
            threads: The number of threads.

        Raises:
            UsageError: `threads` is not an integer from 1 to `deep5.core.arguments.most_threads()`, or the framework
                has already started with another number.
        """

    def set_numerics(self, *, deterministic: bool, tf32: bool) -> None:
        """Set the numerical settings of accelerators for this process; read them back through `settings`.

        Frameworks have different defaults: some round products of float32 to TF32, others do not. On the host there is
        nothing to set: every back-end is deterministic, and none uses TF32. Call it before `set_threads`, which starts
        some frameworks.

        Args:
            deterministic: Whether only deterministic kernels may run; an operator without one raises an error when it
                runs.
            tf32: Whether products and convolutions of float32 may round the mantissas of their factors to 10 bits.

        Raises:
            UsageError: An argument is not a bool, or the framework has already started with other settings.
        """
        for name, value in (("deterministic", deterministic), ("tf32", tf32)):
            if not isinstance(value, bool):
                raise UsageError(f"got {name}={value!r:.60}; allowed: True or False")
        self._set_numerics(deterministic, tf32)

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:  # noqa: B027  # most have nothing to set
        """The implementation of `set_numerics`; does nothing for back-ends that run only on the host."""
