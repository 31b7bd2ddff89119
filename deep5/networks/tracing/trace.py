"""`Trace`: the nodes that an operator is traced to, and their values as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.extents import Shape, TracedExtent, static
from deep5.networks.tracing.shapes import named

__all__ = ["Trace"]

_SIGNS = {"+": "Add", "-": "Sub", "*": "Mul", "//": "Div", "%": "Mod"}


class Trace:
    """A graph under construction.

    Args:
        name: Prefix of the names of nodes and values.

    Attributes:
        nodes: The created nodes, in order.
        namespace: The array API on it; set by the creator of the trace.
        symbols: Names that determine the dimensions of all inputs.
    """

    def __init__(self, name: str) -> None:
        self.nodes: list[ir.Node] = []
        self.namespace: Any = None
        self.symbols: set[str] = set()
        self._name = name
        self._places: dict[str, tuple[ir.Value, int]] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], TracedArray] = {}
        self._extents: dict[str, ir.Value] = {}

    def input(self, value: ir.Value, shape: Sequence[int | str], dtype: Any) -> TracedArray:
        """An input array; a string dimension is symbolic."""
        extents: list[int | TracedExtent] = []
        for extent in shape:
            if isinstance(extent, str):
                symbolic, symbols = named(extent)
                self.symbols |= symbols
                extents.append(symbolic)
            else:
                extents.append(int(extent))
        return self._array(value, tuple(extents), np.dtype(dtype))

    def constant(self, array: Any) -> TracedArray:
        """An array with known values; a Constant node, so that they are not taken for parameters."""
        array = np.asarray(array)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            tensor = ir.tensor(np.array(array))  # a copy: the operator may change the original
            self._constants[key] = self.emit("Constant", [], array.dtype, array.shape, value=tensor)
        return self._constants[key]

    def emit(
        self, op_type: str, inputs: Sequence[TracedArray | ir.Value | None], dtype: Any, shape: Shape, **attributes: Any
    ) -> TracedArray:
        """The output of a new node."""
        name = f"{self._name}/{op_type}_{len(self.nodes)}"
        given = [each.value if isinstance(each, TracedArray) else each for each in inputs]
        node = ir.node(op_type, given, attributes, num_outputs=1, name=name)
        value = node.outputs[0]
        value.name = name
        self.nodes.append(node)
        return self._array(value, shape, np.dtype(dtype))

    def ints(self, numbers: Sequence[int]) -> ir.Value:
        """Integers as a vector: axes, a shape, bounds."""
        return self.constant(np.array(numbers, np.int64)).value

    def shape(self, shape: Sequence[int | TracedExtent]) -> ir.Value:
        """Dimensions as a vector; symbolic ones are read from shapes when the network runs."""
        if static(shape):
            return self.ints([int(extent) for extent in shape])
        parts = [self.extent(extent) for extent in shape]
        return parts[0] if len(parts) == 1 else self._vector("Concat", parts, len(parts), axis=0)

    def extent(self, extent: int | TracedExtent) -> ir.Value:
        """A dimension as a vector of one element."""
        if isinstance(extent, int):
            return self.ints([extent])
        text = str(extent)
        if text not in self._extents:
            sign, *parts = extent.tree
            if sign:
                made = self._vector(_SIGNS[sign], [self.extent(part) for part in parts], 1)
            else:
                value, axis = self._place(text)
                made = self._vector("Shape", [value], 1, start=axis, end=axis + 1)
            self._extents[text] = made
        return self._extents[text]

    def number(self, extent: TracedExtent, dtype: Any) -> TracedArray:
        """A dimension as a rank-0 array of an element type."""
        single = self.emit("Squeeze", [self.extent(extent), self.ints([0])], np.int64, ())
        if np.dtype(dtype) == np.int64:
            return single
        return self.emit("Cast", [single], dtype, (), to=int(ir.DataType.from_numpy(np.dtype(dtype))))

    def _vector(self, op_type: str, inputs: list[ir.Value], count: int, **attributes: int) -> ir.Value:
        return self.emit(op_type, inputs, np.int64, (count,), **attributes).value

    def _place(self, text: str) -> tuple[ir.Value, int]:
        if text not in self._places:
            raise Unsupported(
                f"no array here has the dimension {text}; allowed: dimensions of the operator's own arrays"
            )
        return self._places[text]

    def _array(self, value: ir.Value, shape: Shape, dtype: Any) -> TracedArray:
        for axis, extent in enumerate(shape):
            if isinstance(extent, TracedExtent) and not extent.tree[0]:
                self._places.setdefault(str(extent), (value, axis))
        if value.producer() in self.nodes[-1:]:
            value.type = ir.TensorType(ir.DataType.from_numpy(dtype))
            value.shape = ir.Shape([extent if isinstance(extent, int) else _named(extent) for extent in shape])
        return TracedArray(self, value, shape, dtype)


def _named(extent: TracedExtent) -> str | None:
    """The name in the graph of a dimension of the network; None for others, which are inferred."""
    return str(extent) if extent.tree == ("", None) and not extent.startswith("?") else None
