"""Transposed convolutions whose kernel is smaller than its stride, of which ONNX infers too small a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute
from deep5.networks.same_padding import is_same, kernel_of, transposed_pads
from deep5.networks.window import Window

__all__ = ["write_transposed_pads"]


def _has_gaps(node: ir.Node) -> bool:
    """Whether a transposed convolution with SAME padding leaves elements of its result without any term."""
    kernel = kernel_of(node)
    if kernel is None or not is_same(node) or attribute(node, "output_shape") is not None:
        return False
    window = Window.of(node, len(kernel))
    more = attribute(node, "output_padding", (0,) * len(kernel))
    steps = zip(window.spans(kernel), more, window.strides, strict=True)
    return any(span + extra < stride for span, extra, stride in steps)


def write_transposed_pads(proto: onnx.ModelProto) -> None:
    """Write what SAME padding means where a kernel is smaller than its stride.

    Args:
        proto: A temporary model, which is changed.
    """
    sizes = None
    for node in _nodes(proto.graph.node):
        if node.op_type != "ConvTranspose" or node.domain or len(node.input) < 2:
            continue
        sizes = _sizes(proto.graph) if sizes is None else sizes
        known = sizes.get(node.input[1])
        weights = ir.Value(name="weights", shape=None if known is None else ir.Shape(known))
        attributes = ir.from_proto(onnx.NodeProto(op_type=node.op_type, attribute=node.attribute)).attributes
        made = ir.Node("", node.op_type, [None, weights], attributes=list(attributes.values()))
        if _has_gaps(made) and (changes := transposed_pads(made)) is not None:
            kept = [entry for entry in node.attribute if entry.name not in changes]
            del node.attribute[:]
            node.attribute.extend(kept)
            for name, value in changes.items():
                if value is not None:
                    node.attribute.append(onnx.helper.make_attribute(name, value))


def _sizes(graph: onnx.GraphProto) -> dict[str, list[int | None]]:
    """The dimensions of inputs and initial values, as far as they are known."""
    found: dict[str, list[int | None]] = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in graph.input:
        if value.type.tensor_type.HasField("shape"):
            found[value.name] = [
                size.dim_value if size.HasField("dim_value") else None for size in value.type.tensor_type.shape.dim
            ]
    return found


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for entry in node.attribute:
            yield from _nodes(entry.g.node)
