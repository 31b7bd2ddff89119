"""`PyTorch`: the back-end's entry point. torch itself is imported by the first call that needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from deep5.core.errors import Unsupported
from deep5.core.executors import GraphExecutor, OperatorExecutor, StepOptimizer
from deep5.core.framework import Framework, Support
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_model import OwnModel
from deep5.core.tensors import Device, TensorSpec
from deep5.core.tensors import device as read_device
from deep5.core.worker_threads import at_start

if TYPE_CHECKING:
    from deep5.core.layer_clock import LayerClock
    from deep5.core.operator import Operator
    from deep5.frameworks.pytorch.compiled import Compiler
    from deep5.networks.network import Network

__all__ = ["PyTorch", "from_model"]


class PyTorch(Framework):
    """PyTorch, eager: a network becomes generated straight-line source of calls of torch's functions."""

    name = "pytorch"
    modes: ClassVar[Mapping[str, str]] = {
        "compiled": "torch.compile over the forward and the backward pass; the first call takes seconds",
        "exported": "a model that is a torch.nn.Module is exported to ONNX and runs as that network",
    }
    requires = ("torch",)
    owns_arrays = True
    thread_variable = "MKL_NUM_THREADS"

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        # Imported here, so that a missing torch is reported before anything else is created.
        import torch

        # A new thread uses all cores until it requests the number: its convolutions would ignore `set_num_threads`.
        at_start(torch.get_num_threads)
        self._torch = torch

    def version(self) -> str:
        """The version of torch."""
        return str(self._torch.__version__)

    @override
    def executor(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
        from deep5.frameworks.pytorch.executor import PyTorchExecutor
        from deep5.networks.arguments import as_network

        graph = as_network(network)
        made = PyTorchExecutor(graph, self, device=self._place(device), seed=seed, compiler=self._compiler())
        return made.with_feeding(partial(self.executor, device=device, seed=seed))

    def layer_clock(self, network: NetworkSpec, *, device: str | Device = "cpu", seed: int = 0) -> LayerClock:
        """Time stamps between the steps of the program and of torch's backward pass; see `Framework.layer_clock`."""
        if self.mode == "compiled":
            raise Unsupported(
                "pytorch:compiled compiles a pass as one function, which fuses layers; no layer can be "
                "timed there; remedy: 'pytorch', which runs them one by one"
            )
        from deep5.frameworks.pytorch.layer_clock import layer_clock
        from deep5.networks.arguments import as_network

        return layer_clock(as_network(network), self, device=self._place(device), seed=seed)

    def supports(self, node: Any) -> Support:
        """Whether the operator table has this operator, with these attributes."""
        from deep5.frameworks.pytorch.operators import supports

        if self.mode == "compiled" and node.op_type in ("GRU", "LSTM", "RNN") and node.domain in ("", "ai.onnx"):
            # LSTM fails to compile (torch 2.13: mkldnn_rnn_layer); deep5 expands the layer into cells, which compile.
            return Support(False, "torch.compile does not run torch's own recurrent layers")
        return supports(node, compiled=self.mode == "compiled")

    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The operator as a function of tensors that torch can differentiate and compile; see `Framework.operator`."""
        from deep5.frameworks.pytorch.custom import native_operator

        return native_operator(operator, PyTorch())

    @override
    def operator_executor(self, operator: Operator, *, device: str | Device = "cpu") -> OperatorExecutor:
        from deep5.frameworks.pytorch.operator_executor import PyTorchOperatorExecutor

        return PyTorchOperatorExecutor(operator, self, device=self._place(device), compiler=self._compiler())

    @override
    @classmethod
    def owns(cls, model: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(model, torch.nn.Module)

    @override
    def owns_array(self, value: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.Tensor)

    @override
    def kept(self, value: Any) -> Any:
        return float(value.item()) if value.is_cpu else value.detach().clone()

    @override
    def wait(self, value: Any) -> None:
        if value.device.type != "cpu":
            self._torch.accelerator.synchronize(value.device)

    @override
    def process_settings(self, value: Any) -> dict[str, Any]:
        from deep5.frameworks.pytorch.numerics import deterministic, tf32

        device = None if value is None else str(value.device)
        # Without a value, a process that has not used a graphics processor ran on the host.
        on_host = device == "cpu" or (device is None and not self._torch.cuda.is_initialized())
        return {
            "version": self.version(),
            "device": device,
            "threads": self._torch.get_num_threads(),
            "tf32": not on_host and self._torch.cuda.is_available() and tf32(),
            "deterministic": on_host or deterministic(),
            "asynchronous": self._torch.cuda.is_initialized(),
        }

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
        from deep5.frameworks.pytorch.own_model import TorchModel

        return TorchModel(model, loss, inputs, str(self._place(device)))

    def optimizers(self) -> Mapping[str, Callable[..., StepOptimizer]]:
        """torch.optim's own optimizers, fused if there is a fused version."""
        from deep5.frameworks.pytorch.optimizers import NATIVE

        return NATIVE

    def set_threads(self, threads: int) -> None:
        """Set the threads per operator.

        Raises:
            UsageError: As for `Framework.set_threads`.
        """
        self._torch.set_num_threads(threads)

    def _place(self, device: str | Device) -> Device:
        """An available device."""
        place = read_device(device)
        if place.kind == "cuda" and place.index >= self._torch.cuda.device_count():
            found = [f"cuda:{index}" for index in range(self._torch.cuda.device_count())]
            raise Unsupported(f"no device {place} for pytorch here; allowed: {', '.join(['cpu', *found])}")
        return place

    def _compiler(self) -> Compiler | None:
        """The compiler of the mode `compiled`."""
        if self.mode != "compiled":
            return None
        from deep5.frameworks.pytorch.compiled import Compiler

        return Compiler()

    def _set_numerics(self, deterministic: bool, tf32: bool) -> None:
        from deep5.frameworks.pytorch.numerics import set_numerics

        set_numerics(deterministic, tf32)


def from_model(network: Network, *, device: str | Device = "cpu", seed: int = 0) -> GraphExecutor:
    """The executor of a network on PyTorch, under the name of the tutorial's recipes."""
    return PyTorch().executor(network, device=device, seed=seed)
