"""Sizes that Resize and Upsample get by factors, in float32 as back-ends compute them.

The size is the floor of the old size times the factor. The factor is a float32 number: 10 times 0.7 is 7 in float32,
as ONNX Runtime computes it, and less in float64, as onnx 1.23 infers it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from deep5.networks.onnx.protos import declared_values, graphs_of, without_shapes

__all__ = ["resized_extent", "step_up_factors"]

# The index of the factors among the inputs.
_FACTORS = {"Resize": 2, "Upsample": 1}


def resized_extent(extent: int, factor: float) -> int:
    """The size of an axis resized by a factor."""
    return math.floor(np.float32(extent) * np.float32(factor))


def step_up_factors(proto: onnx.ModelProto) -> None:
    """Let onnx infer the sizes that factors give in float32: where float64 gives less, one float32 step more does not.

    Args:
        proto: A model for nothing but inference; its factors are changed in place.
    """
    while True:
        found = [node for graph in graphs_of(proto) for node in _resized(graph)]
        if not found:
            return
        shapes = _shapes(proto)
        short = [(node, raised) for node in found if (raised := node.raised(shapes)) is not None]
        if not short:
            return
        for node, raised in short:
            node.replace(raised)


@dataclass(frozen=True, kw_only=True)
class _Resized:
    """A node with constant factors that are not whole, and its graph."""

    graph: onnx.GraphProto
    node: onnx.NodeProto
    factors: np.ndarray

    def raised(self, shapes: dict[str, Sequence[int | None]]) -> np.ndarray | None:
        """The factors with those a step higher whose float64 product is too small; None if there is none."""
        extents = shapes.get(self.node.input[0], ())
        axes = next((list(each.ints) for each in self.node.attribute if each.name == "axes"), range(len(extents)))
        if len(axes) != len(self.factors) or not all(-len(extents) <= axis < len(extents) for axis in axes):
            return None
        raised = self.factors.copy()
        for index, (axis, factor) in enumerate(zip(axes, self.factors, strict=True)):
            extent = extents[axis]
            if extent is not None and resized_extent(extent, factor) > math.floor(extent * float(factor)):
                raised[index] = np.nextafter(factor, np.float32(np.inf))
        return None if np.array_equal(raised, self.factors) else raised

    def replace(self, factors: np.ndarray) -> None:
        """Give the node other factors, which no other node reads."""
        for attribute in self.node.attribute:
            if attribute.name == "scales":
                attribute.floats[:] = factors.tolist()
                return
        name = f"{self.node.output[0]}: factors"
        kept = [tensor for tensor in self.graph.initializer if tensor.name != name]
        del self.graph.initializer[:]
        self.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(factors, name)])
        self.node.input[_FACTORS[self.node.op_type]] = name


def _resized(graph: onnx.GraphProto) -> Iterator[_Resized]:
    nodes = [node for node in graph.node if node.op_type in _FACTORS and node.domain in ("", "ai.onnx")]
    if not nodes:
        return
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            known.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
    for node in nodes:
        factors = np.array([each for entry in node.attribute if entry.name == "scales" for each in entry.floats])
        index = _FACTORS[node.op_type]
        if index < len(node.input) and (tensor := known.get(node.input[index])) is not None:
            factors = onnx.numpy_helper.to_array(tensor)
        factors = factors.astype(np.float32)
        if factors.ndim == 1 and np.isfinite(factors).all() and (factors != np.floor(factors)).any():
            yield _Resized(graph=graph, node=node, factors=factors)


def _shapes(proto: onnx.ModelProto) -> dict[str, Sequence[int | None]]:
    """The sizes of values, as far as they follow from the inputs and not from what the file declares.

    Names that several nested graphs use are left out.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(without_shapes(proto))
    except Exception:  # onnx raises its own private classes; the caller's own inference reports it
        return {}
    declared = [value for value in declared_values(inferred) if value.type.HasField("tensor_type")]
    times = Counter(value.name for value in declared)
    return {
        value.name: [
            each.dim_value if each.HasField("dim_value") else None for each in value.type.tensor_type.shape.dim
        ]
        for value in declared
        if times[value.name] == 1
    }
