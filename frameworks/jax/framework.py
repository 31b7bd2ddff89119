"""`JAX`: the entry point of the back-end. Creating an instance imports jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from deep5.core.errors import Unsupported
from deep5.core.executors import OperatorExecutor, StepOptimizer
from deep5.core.framework import Framework, Support
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_model import OwnModel
from deep5.core.tensors import Device, TensorSpec
from deep5.core.tensors import device as read_device

if TYPE_CHECKING:
    from deep5.core.layer_clock import LayerClock
    from deep5.core.operator import Operator
    from deep5.frameworks.jax.executor import JAXExecutor
    from deep5.networks.network import Network

__all__ = ["JAX", "from_model"]


class JAX(Framework):
    """JAX: a network becomes generated source that `jax.jit` traces; a training step is one compiled function."""

    name = "jax"
    requires = ("jax",)
    owns_arrays = True
    thread_variable = "PJRT_NPROC"
    modes: ClassVar[Mapping[str, str]] = {
        "exported": "a model of Flax or of JAX functions is exported to ONNX and runs as that network",
    }

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        # Imported here, so a missing jax is reported first.
        import jax

        self._jax = jax

    def version(self) -> str:
        """The version of jax."""
        return str(self._jax.__version__)

    @override
    def owns_array(self, value: object) -> bool:
        return isinstance(value, self._jax.Array) and not isinstance(value, self._jax.core.Tracer)

    @override
    def wait(self, value: Any) -> None:
        value.block_until_ready()

    @override
    def process_settings(self, value: Any) -> dict[str, Any]:
        from deep5.frameworks.jax.settings import read_settings

        place = self._jax.devices()[0] if value is None else next(iter(value.devices()))
        device = Device() if place.platform == "cpu" else Device(kind="cuda", index=place.id)
        found = read_settings(device)
        known = {name: found[name] for name in ("version", "threads", "tf32", "deterministic")}
        return {**known, "device": None if value is None else str(device), "asynchronous": True}

    @override
    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> JAXExecutor:
        from deep5.frameworks.jax.custom import on_arrays
        from deep5.frameworks.jax.executor import JAXExecutor
        from deep5.frameworks.jax.graph_program import GraphProgram
        from deep5.networks.arguments import as_network

        graph, place = as_network(network), read_device(device)
        program = GraphProgram(graph, self, partial(on_arrays, framework=self), place)
        return JAXExecutor(graph, program, device=place, seed=seed).with_feeding(
            partial(self.executor, device=device, seed=seed)
        )

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """JAX has no layer clock; see `Framework.layer_clock`."""
        raise Unsupported(
            "jax compiles a pass as one function, which fuses layers; no layer can be timed there; "
            "remedy: 'pytorch' or 'tensorflow', which run them one by one"
        )

    def supports(self, node: Any) -> Support:
        """Whether the operator table supports the node with these attributes."""
        from deep5.frameworks.jax.operators import supports

        return supports(node)

    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The operator as a function of arrays that JAX can trace and differentiate; see `Framework.operator`."""
        from deep5.frameworks.jax.custom import native_operator

        return native_operator(operator, self)

    @override
    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        from deep5.frameworks.jax.operator_executor import JAXOperatorExecutor

        return JAXOperatorExecutor(operator, self, device=read_device(device))

    @override
    @classmethod
    def owns(cls, model: object) -> bool:
        from deep5.networks.flax_state import is_flax

        pair = isinstance(model, (list, tuple)) and len(model) == 2 and all(map(callable, model))
        return pair or is_flax(model)

    @override
    def own_model(
        self,
        model: Any,
        loss: str | Callable[..., Any],
        inputs: Mapping[str, TensorSpec],
        *,
        device: str | Device,
        seed: int,
    ) -> OwnModel:
        from deep5.frameworks.jax.own_model import JAXModel

        return JAXModel(model, loss, inputs, device, seed)

    def optimizers(self) -> Mapping[str, Callable[..., StepOptimizer]]:
        """Optax's optimizers."""
        from deep5.frameworks.jax.optimizers import NATIVE

        return NATIVE

    def set_threads(self, threads: int) -> None:
        """Set the threads within an operator; fixed for the process once JAX computes for the first time.

        Raises:
            UsageError: Same as for `Framework.set_threads`, or JAX has started with another number.
        """
        from deep5.frameworks.jax.threads import start_with_threads

        start_with_threads(threads)

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:
        from deep5.frameworks.jax.settings import set_numerics

        set_numerics(deterministic, tf32)


def from_model(network: Network, *, device: str | Device = "cpu", seed: int = 0) -> JAXExecutor:
    """The executor of a network on JAX, under the name in the tutorial's recipes."""
    return JAX().executor(network, device=device, seed=seed)
