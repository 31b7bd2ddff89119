"""`Draft`: what is written in the place of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value

__all__ = ["Draft"]


class Draft:
    """New nodes that are to compute what a node does.

    Args:
        graph: The node's; `replace` changes it.
        node: The node.
    """

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph, self._node, self._tape = graph, node, ir.tape.Tape()

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The output of one more node."""
        value: ir.Value = self._tape.op(op_type, list(inputs), attributes)
        return value

    def constant(self, numbers: Any, dtype: Any) -> ir.Value:
        """A constant of ONNX's or NumPy's element type."""
        kind = dtype.numpy() if isinstance(dtype, ir.DataType) else dtype
        return self.op("Constant", value=ir.tensor(np.array(numbers, kind)))

    def setting(self, value: ir.Value | None) -> Any:
        """An input that says how the node works, for another operator to read, which must not make it a parameter."""
        known = constant_value(value)
        return value if known is None else self.constant(known, known.dtype)

    def cast(self, value: ir.Value | None, dtype: ir.DataType) -> ir.Value:
        """A value in another element type; None, for an input that an operator may leave out, is none of these."""
        return self.op("Cast", value, to=int(dtype))

    def same(self, inputs: Sequence[ir.Value | None], **changes: Any) -> list[ir.Value | None]:
        """The outputs of the node itself on other inputs; None where it leaves one out.

        Args:
            inputs: Instead of the node's own.
            changes: Of attributes; None takes one away.
        """
        attributes = {name: value.value for name, value in self._node.attributes.items()} | changes
        kept = {name: value for name, value in attributes.items() if value is not None}
        made: Sequence[ir.Value] = self._tape.op_multi_out(
            self._node.op_type, list(inputs), kept, num_outputs=len(self._node.outputs)
        )
        for value, old in zip(made, self._node.outputs, strict=True):
            value.name = None if old.name else ""
        return [value if value.name != "" else None for value in made]

    def replace(self, *outputs: ir.Value | None) -> None:
        """Put what was drafted in the node's place.

        Args:
            outputs: For each of the node's; None where it leaves one out.
        """
        pairs = [(old, new) for old, new in zip(self._node.outputs, outputs, strict=True) if new is not None]
        for old, new in pairs:
            new.name, new.type, new.shape = old.name, old.type, old.shape
        ir.convenience.replace_nodes_and_values(
            self._graph, self._node, [self._node], self._tape.nodes, *zip(*pairs, strict=True)
        )
