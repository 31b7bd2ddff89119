"""Floating-point operations of a network's matrix products, from its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.core.errors import Deep5Error, Unsupported
from deep5.core.tensors import TensorSpec
from deep5.operators.work import RECURRENT, flops

__all__ = ["forward_flops"]

_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")) | RECURRENT
# Operators that contain matrix products without a formula to count them.
_UNKNOWN = frozenset(
    (
        *("Attention", "ConvInteger", "DeformConv", "Einsum", "If", "Loop", "MatMulInteger", "QLinearConv"),
        *("QLinearMatMul", "Scan"),
    )
)


def forward_flops(network: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Operations of one forward pass in convolutions, matrix products and recurrent layers.

    A multiplication and an addition count as two. Elementwise operators are not counted, as is usual when a network's
    work is compared with a processor's peak.

    Args:
        network: A `deep5.networks.network.Network`.
        shapes: The shapes of its inputs by name, including the batch dimension.

    Raises:
        Unsupported: The network has no graph, or nodes without a formula.
    """
    if not hasattr(network, "model"):
        raise Unsupported("not available here: the network is native code, whose operations are not known")
    total = 0
    for node in _with_shapes(network, shapes).graph:
        if node.op_type in _UNKNOWN or node.domain not in ("", "ai.onnx"):
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise Unsupported(f"not available here: how many operations the network's {name} takes is not known")
        if node.op_type not in _PRODUCTS:
            continue
        inputs, outputs = ([_spec(value) for value in values] for values in (node.inputs, node.outputs))
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        # The bias is an elementwise addition.
        found = flops(node.op_type, inputs if node.op_type in RECURRENT else inputs[:2], outputs, attributes)
        total += found or 0
    return total


def _with_shapes(network: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """The graph with static shapes everywhere."""
    import onnx_ir as ir

    from deep5.networks.onnx.shapes import infer_shapes

    model = network.model.clone()
    for value in model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    try:
        infer_shapes(model, "the network")
    except Deep5Error as error:
        raise Unsupported(f"not available here: the shapes of the network are not known ({error})") from error
    return model


def _spec(value: Any) -> TensorSpec:
    if value is None:  # an omitted input
        return TensorSpec(shape=(0,))
    constant = value.const_value
    if value.shape is None and constant is not None:
        return TensorSpec(shape=tuple(constant.shape.numpy()))
    if value.shape is None or not all(isinstance(extent, int) for extent in value.shape):
        raise Unsupported(f"not available here: the shape of {value.name!r} in the network is not known")
    return TensorSpec(shape=tuple(int(extent) for extent in value.shape))
