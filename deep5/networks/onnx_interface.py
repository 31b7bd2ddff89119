"""`onnx_backend`: a framework under the interface that ONNX's own test suite and tools know a back-end by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

from deep5.errors import ShapeError, Unsupported
from deep5.executors import GraphExecutor
from deep5.networks.given import framework_of
from deep5.networks.network import Network
from deep5.tensors import to_numpy

__all__ = ["onnx_backend"]


def onnx_backend(framework: Any) -> type[Backend]:
    """A framework of deep5 as an `onnx.backend.base.Backend`, on the host.

    Args:
        framework: Its name, or the framework itself.

    Returns:
        A class whose `prepare(model)` gives what `run([array, …])` evaluates; it raises deep5's own errors.

    References:
        ONNX, Implementing an ONNX backend; `onnx.backend.base`.

    >>> import numpy as np, onnx
    >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    >>> model = onnx.parser.parse_model(text)
    >>> onnx_backend("reference").run_model(model, [np.array([1, -2], np.float32)])[0].tolist()
    [-1.0, 2.0]
    """
    chosen = framework_of(framework, "onnx_backend")

    class FrameworkBackend(Backend):  # type: ignore[misc]  # onnx tells no types here
        """Prepares models for one framework."""

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
            if not cls.supports_device(device):
                raise Unsupported(f"the device {device!r}; allowed: CPU")
            return _Prepared(chosen.executor(Network.from_onnx(model)), [value.name for value in model.graph.output])

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    FrameworkBackend.__name__ = f"{type(chosen).__name__}Backend"
    return FrameworkBackend


class _Prepared(BackendRep):  # type: ignore[misc]
    def __init__(self, executor: GraphExecutor, outputs: Sequence[str]) -> None:
        self.executor, self.outputs = executor, outputs

    def run(self, inputs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
        expected = self.executor.network.inputs
        if len(inputs) != len(expected):
            raise ShapeError(f"got {len(inputs)} inputs; expected {len(expected)}: {', '.join(expected)}")
        results = self.executor.inference(dict(zip(expected, inputs, strict=True)))
        return tuple(_on_host(results[name]) for name in self.outputs)


def _on_host(value: Any) -> Any:
    return [_on_host(each) for each in value] if isinstance(value, (list, tuple)) else to_numpy(value)
