"""Recurrent layers over sequences of fixed length, written as one cell after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value

__all__ = ["unrolled"]


def unrolled(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace an LSTM node by its cells.

    The product with the input is one Gemm for the whole sequence; a step is a Gemm with the state before it, sigmoid,
    hyperbolic tangent and products.

    Args:
        graph: The graph that holds the node; changed in place.
        node: The LSTM node, with the shapes of its inputs.

    Returns:
        Whether it was replaced. It stays where the length of the sequence, the directions or the hidden size are not
        known, sequences end early, or peepholes, other activations, clipping, coupled gates or the batch-first layout
        are asked for.

    References:
        ONNX operator specification LSTM-14; Hochreiter and Schmidhuber, Long short-term memory, Neural Computation
        9(8), 1997; Gers, Schmidhuber and Cummins, Learning to forget, Neural Computation 12(10), 2000.
    """
    inputs: list[ir.Value | None] = list(node.inputs)
    x, w, r, b, lengths, h, c, peepholes = inputs + [None] * (8 - len(inputs))
    if x is None or w is None or r is None or peepholes is not None or not _plain(node):
        return False
    sizes = _sizes(x, r)
    if sizes is None or not _full(lengths, sizes.steps):
        return False
    _Layer(node, x, sizes).write(graph, (w, r, b, h, c))
    return True


class _Sizes(NamedTuple):
    steps: int
    features: int
    directions: int
    hidden: int


def _sizes(x: ir.Value, r: ir.Value) -> _Sizes | None:
    """The sizes that must be known; (steps, N, features) is the shape of x, (directions, 4 hidden, hidden) r's."""
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    found = (x.shape[0], x.shape[2], r.shape[0], r.shape[2])
    known = [extent for extent in found if isinstance(extent, int)]
    return _Sizes(*known) if len(known) == len(found) else None


def _plain(node: ir.Node) -> bool:
    attributes = {name: value.value for name, value in node.attributes.items()}
    activations = [str(name).lower() for name in attributes.get("activations", ())]
    return (
        activations in ([], ["sigmoid", "tanh", "tanh"], ["sigmoid", "tanh", "tanh"] * 2)
        and "clip" not in attributes
        and not attributes.get("input_forget", 0)
        and not attributes.get("layout", 0)
    )


def _full(lengths: ir.Value | None, steps: int) -> bool:
    """Whether every sequence goes to the end."""
    array = constant_value(lengths)
    return lengths is None or (array is not None and bool((array == steps).all()))


class _Layer:
    """Writes the nodes that stand for one LSTM node."""

    def __init__(self, node: ir.Node, x: ir.Value, sizes: _Sizes) -> None:
        self.node, self.x = node, x
        self.steps, self.features, self.directions, self.hidden = sizes
        self.made: list[ir.Node] = []
        self.known: dict[tuple[int, ...], ir.Value] = {}

    def write(self, graph: ir.Graph, given: tuple[ir.Value | None, ...]) -> None:
        flat = self.op("Reshape", self.x, self.ints(-1, self.features))
        split = [self.split(value) for value in given]
        first = ["reverse" if self.direction() == "reverse" else "forward", "reverse"][: self.directions]
        runs = [self.run(flat, way, tuple(part[d] for part in split)) for d, way in enumerate(first)]
        results = [self.stack([run[i] for run in runs]) for i in (1, 2)]
        sequence = self.op("Concat", *(run[0] for run in runs), axis=1) if self.directions > 1 else runs[0][0]
        new = [sequence, *results][: len(self.node.outputs)]
        ir.convenience.replace_nodes_and_values(graph, self.node, [self.node], self.made, self.node.outputs, new)

    def direction(self) -> str:
        attribute = self.node.attributes.get("direction")
        return "forward" if attribute is None else attribute.as_string()

    def split(self, value: ir.Value | None) -> list[ir.Value | None]:
        """A value with an axis for directions in front: what belongs to each."""
        if value is None:
            return [None] * self.directions
        parts = [value] if self.directions == 1 else self.ops("Split", value, outputs=2, axis=0, num_outputs=2)
        return [self.op("Squeeze", part, self.ints(0)) for part in parts]

    def stack(self, values: list[ir.Value | None]) -> ir.Value:
        """The reverse of `split`."""
        parts = [self.op("Unsqueeze", value, self.ints(0)) for value in values]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def run(
        self, flat: ir.Value, direction: str, given: tuple[ir.Value | None, ...]
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """One direction: hidden states (steps, 1, N, hidden), and the last hidden and cell states (N, hidden)."""
        w, r, b, h, c = given
        bias = () if b is None else (self.op("Add", *self.ops("Split", b, outputs=2, axis=0, num_outputs=2)),)
        gates = self.op("Gemm", flat, w, *bias, transB=1)
        gates = self.op("Reshape", gates, self.ints(self.steps, -1, 4 * self.hidden))
        # The batch keeps its name, which inference cannot see through -1.
        batch = None if self.x.shape is None else self.x.shape[1]
        gates.shape, gates.type = ir.Shape([self.steps, batch, 4 * self.hidden]), self.x.type
        rows = self.ops("Split", gates, outputs=self.steps, axis=0, num_outputs=self.steps)
        order = range(self.steps) if direction == "forward" else reversed(range(self.steps))
        states: dict[int, ir.Value] = {}
        for step in order:
            row = self.op("Squeeze", rows[step], self.ints(0))
            h, c = self.cell(row if h is None else self.op("Gemm", h, r, row, transB=1), c)
            states[step] = h
        last = states[0 if direction == "reverse" else self.steps - 1]
        listed = [self.op("Unsqueeze", states[step], self.ints(0, 1)) for step in range(self.steps)]
        return self.op("Concat", *listed, axis=0), last, c

    def cell(self, gates: ir.Value, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """c' = f * c + i * tanh(g), h' = o * tanh(c'), from the gates in the order i, o, f, g; c is 0 where None."""
        sizes = self.ints(3 * self.hidden, self.hidden)
        logistic, candidate = self.ops("Split", gates, sizes, outputs=2, axis=1)
        i, o, f = self.ops("Split", self.op("Sigmoid", logistic), outputs=3, axis=1, num_outputs=3)
        new = self.op("Mul", i, self.op("Tanh", candidate))
        new = new if c is None else self.op("Add", self.op("Mul", f, c), new)
        return self.op("Mul", o, self.op("Tanh", new)), new

    def ints(self, *values: int) -> ir.Value:
        if values not in self.known:
            self.known[values] = self.op("Constant", value=ir.tensor(np.array(values, dtype=np.int64)))
        return self.known[values]

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: Any) -> list[ir.Value]:
        name = f"{self.node.name}/{op_type}_{len(self.made)}"
        made = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=name)
        self.made.append(made)
        for index, value in enumerate(made.outputs):
            value.name = f"{name}_{index}"
        return list(made.outputs)
