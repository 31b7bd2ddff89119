"""`TensorFlow`: the entry point of the back-end. Creating the first instance imports TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from deep5.core.errors import Unsupported, UsageError
from deep5.core.executors import GraphExecutor, OperatorExecutor, StepOptimizer
from deep5.core.framework import Framework, Support
from deep5.core.library_reports import hide_reports, without_reports
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_model import OwnModel
from deep5.core.tensors import NAMESPACES, Device, TensorSpec
from deep5.core.tensors import device as read_device

if TYPE_CHECKING:
    from deep5.core.layer_clock import LayerClock
    from deep5.core.operator import Operator
    from deep5.networks.network import Network

__all__ = ["TensorFlow", "from_model"]


class TensorFlow(Framework):
    """TensorFlow: a network becomes generated source, traced once into a `tf.function` over variables."""

    name = "tensorflow"
    requires = ("tensorflow",)
    owns_arrays = True
    thread_variable = "TF_NUM_INTRAOP_THREADS"
    modes: ClassVar[Mapping[str, str]] = {
        "xla": "compiled by XLA (jit_compile=True); a new batch size compiles again",
        "exported": "a model of Keras is exported to ONNX and runs as that network",
    }

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        hide_reports()
        # Imported here, so a missing TensorFlow is reported first.
        import tensorflow

        self._tf, self._found = tensorflow, _processors()
        NAMESPACES["tensorflow"] = _namespace

    def version(self) -> str:
        """The version of TensorFlow."""
        return str(self._tf.__version__)

    @override
    def owns_array(self, value: object) -> bool:
        # Only eager values: those of a graph have no numbers.
        return self._tf.is_tensor(value) and hasattr(value, "numpy")

    @override
    def kept(self, value: Any) -> Any:
        return float(value) if "GPU" not in value.device else self._tf.identity(value)

    @override
    def wait(self, value: Any) -> None:
        self._tf.test.experimental.sync_devices()

    @override
    def process_settings(self, value: Any) -> dict[str, Any]:
        from deep5.frameworks.tensorflow.settings import read_settings

        place = "" if value is None else str(value.device)
        device = Device(kind="cuda", index=int(place.rpartition(":")[2])) if "GPU" in place else Device()
        found = read_settings(device, xla=False)
        known = {name: found[name] for name in ("version", "threads", "tf32", "deterministic")}
        on_gpu = bool(self._tf.config.list_physical_devices("GPU"))
        return {**known, "device": str(device) if place else None, "asynchronous": on_gpu}

    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        """A network on TensorFlow; see `Framework.executor`.

        On a GPU nothing silently falls back to the host: this disables TensorFlow's soft placement, which would run
        operators without a GPU kernel on the host, for the whole process (`tf.config.set_soft_device_placement`); such
        an operator raises an error at its first call. On the host the process's setting does not change.
        """
        from deep5.frameworks.tensorflow.executor import TensorFlowExecutor
        from deep5.frameworks.tensorflow.operators_custom import refuse_compiled
        from deep5.networks.arguments import as_network

        graph, place = as_network(network), self._place(device)
        if place.kind == "cuda":
            refuse_compiled(graph)
        made = TensorFlowExecutor(graph, self, device=place, seed=seed, xla=self.mode == "xla")
        return made.with_feeding(partial(self.executor, device=device, seed=seed))

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """TensorFlow's own profiler; see `Framework.layer_clock`."""
        if self.mode == "xla":
            raise Unsupported(
                "tensorflow:xla compiles a pass as one function, which fuses layers; no layer can be "
                "timed there; remedy: 'tensorflow', which runs them one by one"
            )
        from deep5.frameworks.tensorflow.layer_clock import TensorFlowLayerClock
        from deep5.networks.arguments import as_network

        return TensorFlowLayerClock(as_network(network), self, device=self._place(device), seed=seed)

    def supports(self, node: Any) -> Support:
        """Whether the operator table supports the node with these attributes."""
        from deep5.frameworks.tensorflow.operators import of_data, supports
        from deep5.frameworks.tensorflow.operators_custom import supports_custom
        from deep5.frameworks.tensorflow.table import needs_host
        from deep5.networks.custom import is_custom
        from deep5.networks.nodes import poisonless

        if is_custom(node):
            return supports_custom(node, xla=self.mode == "xla")
        answer = supports(node)
        if answer and self.mode == "xla":
            if node.op_type == "Gather" and (reason := poisonless(node)) is not None:
                return Support(False, reason)
            if (reason := needs_host(node) or of_data(node)) is not None:
                return Support(False, f"{reason}; XLA compiles a network before it runs; remedy: 'tensorflow'")
        return answer

    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The operator as a function of tensors that TensorFlow can differentiate; see `Framework.operator`.

        A C++ operator becomes a TensorFlow operation on the host; XLA cannot compile it.
        """
        from deep5.frameworks.tensorflow.custom import native_operator

        return native_operator(operator, self)

    @override
    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        from deep5.frameworks.tensorflow.operator_executor import TensorFlowOperator

        return TensorFlowOperator(operator, self, device=self._place(device))

    @override
    @classmethod
    def owns(cls, model: object) -> bool:
        from deep5.networks.keras_structure import is_keras

        return is_keras(model)

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
        from deep5.frameworks.tensorflow.own_model import KerasModel

        self._place(device)
        return KerasModel(model, loss, inputs)

    def optimizers(self) -> Mapping[str, Callable[..., StepOptimizer]]:
        """Keras's optimizers, compiled into the step."""
        from deep5.frameworks.tensorflow.optimizers import NATIVE

        return NATIVE

    def set_threads(self, threads: int) -> None:
        """Set the threads within an operator; operators run one after another.

        Raises:
            UsageError: Same as for `Framework.set_threads`, or TensorFlow has started with another number.
        """
        from deep5.frameworks.tensorflow.threads import set_threads

        set_threads(threads)

    def _place(self, device: str | Device) -> Device:
        place = read_device(device)
        if place.kind == "cuda" and place.index >= self._found:
            allowed = ["cpu", *(f"cuda:{index}" for index in range(self._found))]
            raise Unsupported(f"no device {place} for tensorflow here; allowed: {', '.join(allowed)}")
        if place.kind == "cuda":
            self._tf.config.set_soft_device_placement(False)
        return place

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:
        from tensorflow.python.framework.config import is_op_determinism_enabled

        if is_op_determinism_enabled() and not deterministic:
            raise UsageError(
                "got deterministic=False, but this process requested determinism from TensorFlow, which it "
                "cannot revoke; remedy: a new process"
            )
        if deterministic:
            self._tf.config.experimental.enable_op_determinism()
        self._tf.config.experimental.enable_tensor_float_32_execution(tf32)


@cache
def _processors() -> int:
    """Number of GPUs that TensorFlow finds; TensorFlow writes its reports when it first looks for them."""
    import tensorflow

    with without_reports():
        return len(tensorflow.config.list_physical_devices("GPU"))


def from_model(network: Network, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
    """The executor of a network on TensorFlow, under the name in the tutorial's recipes."""
    return TensorFlow().executor(network, device=device, seed=seed)


def _namespace() -> Any:
    from deep5.frameworks.tensorflow.namespace import NAMESPACE

    return NAMESPACE
