"""Networks of operators that ONNX writes as functions, forward and with the gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from registry import register

BATCH, HEADS, LENGTH, SIZE, CLASSES = 16, 8, 64, 32, 1000
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "Attention": dict.fromkeys(("q", "k", "v"), (BATCH, HEADS, LENGTH, SIZE)),
    "LayerNormalization": {"x": (64, 128, 256), "scale": (256,), "bias": (256,)},
    "Gelu": {"x": (32, 128, 256)},
    "SoftmaxCrossEntropyLoss": {"x": (4096, CLASSES), "label": (4096,)},
}
ATTRIBUTES: dict[str, dict[str, Any]] = {"Attention": {"is_causal": 1}}


def network(op: str) -> Any:
    """The operator between inputs, and a loss."""
    from onnx import TensorProto, helper

    import deep5 as d5

    shapes, is_loss = SHAPES[op], op.endswith("Loss")
    nodes = [helper.make_node(op, list(shapes), ["loss" if is_loss else "y"], **ATTRIBUTES.get(op, {}))]
    if not is_loss:
        nodes.append(helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "label" else TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(nodes, op, inputs, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])])
    return d5.Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11))


def feed(op: str) -> dict[str, Any]:
    """Random inputs."""
    draw = np.random.default_rng(0)
    return {
        name: draw.integers(0, CLASSES, shape) if name == "label" else draw.standard_normal(shape).astype(np.float32)
        for name, shape in SHAPES[op].items()
    }


def _function(framework: str, op: str, *, backward: bool) -> None:
    @register(f"{framework}.{op}{'_gradient' if backward else ''}", group=framework, quick=backward)
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        executor, inputs = d5.framework(framework).executor(network(op)), feed(op)
        first = next(iter(inputs))

        def forward() -> None:
            executor.inference(inputs)
            executor.synchronize()

        def both() -> None:
            executor.inference_and_backprop(inputs, wrt=[first])
            executor.synchronize()

        return both if backward else forward


for _framework in ("pytorch", "tensorflow", "jax"):
    for _op in SHAPES:
        for _backward in (False, True):
            _function(_framework, _op, backward=_backward)
