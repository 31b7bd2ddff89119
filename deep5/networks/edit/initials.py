"""Replace or add initial values of a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief
from deep5.core.tensors import TensorSpec
from deep5.networks.edit.edited import edited, unused, values_of
from deep5.networks.nodes import nested, reads
from deep5.networks.onnx.specs import spec_of_value

__all__ = ["add_parameter", "with_defaults", "with_values"]


def with_values(model: ir.Model, values: Mapping[str, np.ndarray]) -> ir.Model:
    """See `Network.with_values`."""
    if not isinstance(values, Mapping):
        raise NetworkError(f"got {type(values).__name__} as values; allowed: a dict of arrays by name")
    model = model.clone()
    for name, given in values.items():
        value = model.graph.initializers.get(name)
        if value is None:
            raise NetworkError(f"no initial value {name!r}; allowed: {', '.join(model.graph.initializers)}")
        array = np.array(given, order="C")
        wanted, got = spec_of_value(value), TensorSpec(shape=array.shape, dtype=str(array.dtype))
        if wanted.mismatch(array.shape, got.dtype):
            remedy = f"astype({wanted.dtype!r})" if array.shape == wanted.shape else "a value of that shape"
            raise NetworkError(
                f"the value for {name!r} does not fit: got {got}; allowed: {wanted}, shape and dtype; remedy: {remedy}"
            )
        value.const_value = ir.tensor(array, name=name)
    return model


def with_defaults(model: ir.Model, values: Mapping[str, np.ndarray]) -> ir.Model:
    """A copy with other initial values, possibly of other shapes; shapes that depend on them are inferred again.

    Args:
        model: The model; it is not changed.
        values: New values by name, with the same element types.

    Raises:
        NetworkError: A value does not fit the nodes that read it.
    """

    def change(copy: ir.Model) -> list[ir.Node]:
        for name, given in values.items():
            value = copy.graph.initializers[name]
            value.const_value = ir.tensor(np.array(given, order="C"), name=name)
            value.shape = ir.Shape(given.shape)
        changed = {copy.graph.initializers[name] for name in values}
        reading = [node for node in copy.graph if not changed.isdisjoint(reads(node))]
        return [*reading, *(inner for node in reading for inner in nested(node))]

    return edited(model, f"the network with a fed value for {', '.join(map(repr, values))}", change)


def add_parameter(model: ir.Model, name: str, value: np.ndarray) -> ir.Model:
    """See `Network.add_parameter`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        unused(name, values_of(copy), "value", "add_parameter")
        tensor = ir.Tensor(np.array(value, order="C"), name=name)
        copy.graph.initializers[name] = ir.Value(
            name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        return []

    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind in "OSUMm":
        raise NetworkError(f"add_parameter: got {brief(value)} as {name!r}; allowed: a NumPy array of numbers")
    return edited(model, f"the network after add_parameter({name!r}, …)", change)
