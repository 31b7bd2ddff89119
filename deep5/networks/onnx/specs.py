"""The specifications of a model's values, and which initial values are parameters or buffers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.core.tensors import TensorSpec
from deep5.networks.constants import FLOATS, role
from deep5.networks.onnx.element_types import element_type

__all__ = ["InitialSpecs", "initial_specs", "named_specs", "spec_of_value"]


class InitialSpecs(NamedTuple):
    """Specifications of initial values by name, in the order of first use.

    Attributes:
        parameters: The trained ones.
        buffers: Those that training changes without a gradient (running statistics).
    """

    parameters: dict[str, TensorSpec]
    buffers: dict[str, TensorSpec]


def initial_specs(graph: ir.Graph) -> InitialSpecs:
    """The parameters and buffers of a graph in which each role has a separate initial value (`separate_roles`).

    Raises:
        NetworkError: An initial value has no name.
    """
    found = InitialSpecs({}, {})
    for node in graph.all_nodes():
        for position, value in enumerate(node.inputs):
            if value is None or not value.is_initializer() or value.graph is not graph:
                continue
            kind = role(node, position)
            if kind == "statistics":
                found.buffers[_name(value)] = spec_of_value(value)
            elif kind == "value" and value.dtype in FLOATS:
                found.parameters[_name(value)] = spec_of_value(value)
    return found


def named_specs(values: Iterable[ir.Value]) -> dict[str, TensorSpec]:
    """Specifications by name.

    Raises:
        NetworkError: A value has no name, shape or element type.
    """
    return {_name(value): spec_of_value(value) for value in values}


def _name(value: ir.Value) -> str:
    if not value.name:
        raise NetworkError("a value of the network has no name; remedy: name every input, output and initial value")
    return value.name


def spec_of_value(value: ir.Value) -> TensorSpec:
    """The specification of a value; a dimension that is neither known nor named gets a unique name.

    Raises:
        NetworkError: The element type is unknown.
    """
    if value.dtype is None and value.const_value is not None:
        shape, kind = tuple(value.const_value.shape.numpy()), value.const_value.dtype
        return TensorSpec(shape=shape, dtype=element_type(kind))
    collection = _collection(value.type)
    if value.dtype is None:
        raise NetworkError(f"the value {value.name!r} has no dtype; remedy: declare it, or infer shapes")
    if value.shape is None and not collection:
        return TensorSpec(shape=(f"{value.name}:*",), dtype=element_type(value.dtype), ranked=False)
    # Two unknown dimensions need not be equal.
    dimensions: list[int | str] = []
    for axis, dimension in enumerate(() if value.shape is None or collection else value.shape):
        dimensions.append(dimension if isinstance(dimension, int) else str(dimension.value or f"{value.name}:{axis}"))
    return TensorSpec(shape=tuple(dimensions), dtype=element_type(value.dtype), collection=collection)


def _collection(kind: ir.TypeProtocol | None) -> str:
    """The name in `TensorSpec` for a value that is not a tensor; empty for a tensor."""
    if isinstance(kind, ir.OptionalType):
        return "optional sequence" if isinstance(kind.elem_type, ir.SequenceType) else "optional"
    return "sequence" if isinstance(kind, ir.SequenceType) else ""
