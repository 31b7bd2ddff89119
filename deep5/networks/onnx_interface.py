"""`onnx_backend`: a framework with the back-end interface of ONNX's own test suite and tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from deep5.core.errors import NetworkError, ShapeError, Unsupported, UsageError, brief
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import to_numpy
from deep5.networks.arguments import framework_of
from deep5.networks.custom import standing_in
from deep5.networks.diagnostics.refusals import first_line, unknown_operator, unregistered
from deep5.networks.network import Network
from deep5.operators.registry import registered_operator

__all__ = ["onnx_backend"]


def onnx_backend(framework: Any) -> type[Backend]:
    """A framework of deep5 as an `onnx.backend.base.Backend`, on the host.

    Args:
        framework: Its name, or the framework itself.

    Returns:
        A class whose `prepare(model)` returns an object with `run([array, …])`, whose `run_model` does both, and whose
        `run_node` runs one node; it raises deep5's errors.

    References:
        ONNX, Implementing an ONNX backend; `onnx.backend.base`.

    >>> import numpy as np, onnx
    >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    >>> model = onnx.parser.parse_model(text)
    >>> onnx_backend("reference").run_model(model, [np.array([1, -2], np.float32)])[0].tolist()
    [-1.0, 2.0]
    >>> node = onnx.helper.make_node("Neg", ["x"], ["y"])
    >>> onnx_backend("reference").run_node(node, [np.array([1, -2], np.float32)])[0].tolist()
    [-1.0, 2.0]
    """
    chosen = framework_of(framework, "onnx_backend")

    class FrameworkBackend(Backend):  # type: ignore[misc]  # onnx has no types here
        """Prepares models for one framework."""

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
            if not isinstance(model, onnx.ModelProto):
                raise UsageError(
                    f"prepare: got {brief(model)}; allowed: an onnx.ModelProto; remedy: onnx.load of the file"
                )
            if not cls.supports_device(device):
                raise Unsupported(f"the device {device!r}; allowed: CPU")
            return _Prepared(chosen.executor(Network.from_onnx(model)), [value.name for value in model.graph.output])

        @classmethod
        def run_node(
            cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **settings: Any
        ) -> tuple[Any, ...]:
            model = _model_of(node, inputs, settings.get("opset_version"), outputs_info)
            return tuple(cls.run_model(model, inputs, device))

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    FrameworkBackend.__name__ = f"{type(chosen).__name__}Backend"
    return FrameworkBackend


class _Prepared(BackendRep):  # type: ignore[misc]
    def __init__(self, executor: GraphExecutor, outputs: Sequence[str]) -> None:
        self.executor, self.outputs = executor, outputs

    def run(self, inputs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
        _check_listed("run", inputs)
        expected = self.executor.network.inputs
        if len(inputs) != len(expected):
            raise ShapeError(f"got {len(inputs)} inputs; expected {len(expected)}: {', '.join(expected)}")
        results = self.executor.inference(dict(zip(expected, inputs, strict=True)))
        return tuple(_on_host(results[name]) for name in self.outputs)


def _check_listed(what: str, inputs: Any) -> None:
    if not isinstance(inputs, (list, tuple)):
        raise UsageError(f"{what}: got inputs={brief(inputs)}; allowed: a list of arrays, in the order of the inputs")


def _model_of(node: Any, inputs: Any, version: int | None, results: Any) -> onnx.ModelProto:
    """A model of one node, whose inputs have the types and shapes of the arrays.

    Args:
        node: The node.
        inputs: An array for each name that it reads.
        version: Version of ONNX's operators; None for the newest.
        results: Element type and shape of each output; None if they follow from the inputs.
    """
    if not isinstance(node, onnx.NodeProto):
        raise UsageError(
            f"run_node: got node={brief(node)}; allowed: an onnx.NodeProto; remedy: onnx.helper.make_node(…)"
        )
    _check_listed("run_node", inputs)
    domain, version = "" if node.domain == "ai.onnx" else node.domain, version or onnx.defs.onnx_opset_version()
    if not onnx.defs.has(node.op_type, domain) and (not domain or registered_operator(domain, node.op_type) is None):
        said = unregistered(domain, node.op_type) if domain else unknown_operator(node.op_type, version)
        raise NetworkError(f"run_node: {said}")
    names = [name for name in dict.fromkeys(node.input) if name]
    if len(inputs) != len(names):
        raise ShapeError(f"run_node: got {len(inputs)} inputs; expected {len(names)}: {', '.join(names)}")
    if any(isinstance(each, (list, tuple)) for each in inputs):
        raise Unsupported("run_node: an input is a list; allowed: arrays; remedy: run_model, with types declared")
    arrays = [to_numpy(each) for each in inputs]
    given = [_declared(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)]
    if results is None:
        made = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    else:
        made = [_declared(name, *reported) for name, reported in zip(node.output, results, strict=True)]
    graph = onnx.helper.make_graph([node], node.op_type, given, made)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    if domain:
        versions = (schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == domain)
        model.opset_import.add(domain=domain, version=max(versions, default=1))
    try:
        free = onnx.ModelProto.FromString(model.SerializeToString())
        with standing_in(free):
            outputs = onnx.shape_inference.infer_shapes(free, check_type=True, strict_mode=True).graph.output
    except onnx.shape_inference.InferenceError as error:
        raise NetworkError(f"run_node: {node.op_type}: {first_line(error)}") from error
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return model


def _declared(name: str, kind: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)


def _on_host(value: Any) -> Any:
    return [_on_host(each) for each in value] if isinstance(value, (list, tuple)) else to_numpy(value)
