"""`Draft`: the replacement of a node; and `changed`: a model with some of its nodes replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value

__all__ = ["Change", "Draft", "changed"]

Change = Callable[[ir.Graph, ir.Node], None]
"""Replaces a node in its graph."""


class Draft:
    """New nodes that compute the same as a given node.

    Args:
        graph: The node's graph; `replace` changes it.
        node: The node to replace.
    """

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph, self._node, self._tape = graph, node, ir.tape.Tape()

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node, and return its output."""
        value: ir.Value = self._tape.op(op_type, list(inputs), attributes)
        return value

    def ops(self, op_type: str, inputs: Sequence[ir.Value | None], count: int, **attributes: Any) -> Sequence[ir.Value]:
        """Add a node with several outputs, and return them."""
        made: Sequence[ir.Value] = self._tape.op_multi_out(op_type, list(inputs), attributes, num_outputs=count)
        return made

    def constant(self, numbers: Any, dtype: Any) -> ir.Value:
        """A constant of an ONNX or NumPy dtype."""
        kind = dtype.numpy() if isinstance(dtype, ir.DataType) else dtype
        return self.op("Constant", value=ir.tensor(np.array(numbers, kind)))

    def setting(self, value: ir.Value | None) -> Any:
        """An input with settings of the node, as a constant if known, so it does not become a parameter."""
        known = constant_value(value)
        return value if known is None else self.constant(known, known.dtype)

    def cast(self, value: ir.Value | None, dtype: ir.DataType) -> ir.Value:
        """A value cast to another dtype. None, an omitted optional input, is not allowed."""
        return self.op("Cast", value, to=int(dtype))

    def same(self, inputs: Sequence[ir.Value | None], **changes: Any) -> list[ir.Value | None]:
        """The outputs of a copy of the node on other inputs; None for omitted outputs.

        Args:
            inputs: The new inputs.
            changes: Changed attributes; None removes one.
        """
        attributes = {name: value.value for name, value in self._node.attributes.items()} | changes
        kept = {name: value for name, value in attributes.items() if value is not None}
        made: Sequence[ir.Value] = self._tape.op_multi_out(
            self._node.op_type, list(inputs), kept, num_outputs=len(self._node.outputs), domain=self._node.domain
        )
        for value, old in zip(made, self._node.outputs, strict=True):
            value.name = None if old.name else ""
        return [value if value.name != "" else None for value in made]

    def replace(self, *outputs: ir.Value | None) -> None:
        """Replace the node by the new nodes.

        Args:
            outputs: One for each output of the node; None for omitted outputs.
        """
        pairs = [(old, new) for old, new in zip(self._node.outputs, outputs, strict=True) if new is not None]
        for old, new in pairs:
            new.name, new.type, new.shape = old.name, old.type, old.shape
        ir.convenience.replace_nodes_and_values(
            self._graph, self._node, [self._node], self._tape.nodes, *zip(*pairs, strict=True)
        )


def changed(model: ir.Model, chosen: Callable[[ir.Node], Change | None]) -> ir.Model:
    """The model with some of its nodes rewritten, including those in subgraphs.

    Args:
        model: The model; it is not changed.
        chosen: Returns the rewrite of a node; None to keep it.

    Returns:
        A model with the same inputs and outputs; the model itself if no node changes.
    """
    changes = {
        index: change for index, node in enumerate(model.graph.all_nodes()) if (change := chosen(node)) is not None
    }
    if not changes:
        return model
    model = model.clone()
    nodes = list(model.graph.all_nodes())
    for index, change in changes.items():
        graph = nodes[index].graph
        assert isinstance(graph, ir.Graph)  # noqa: S101 - every node is in a graph
        if graph is model.graph:
            change(graph, nodes[index])
            continue
        before, kept = set(graph), {value.name for value in nodes[index].outputs}
        change(graph, nodes[index])
        # A graph names new values automatically, and may reuse names of an enclosing graph.
        for number, made in enumerate(node for node in graph if node not in before):
            for value in made.outputs:
                if value.name and value.name not in kept:
                    value.name = f"changed:{index}/{number}/{value.index()}"
    return model
