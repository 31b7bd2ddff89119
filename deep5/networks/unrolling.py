"""Recurrent layers over sequences of fixed length, written as one cell after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value

__all__ = ["RECURRENT", "can_unroll", "unrolled"]

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""The layers that can be written as cells."""

# Of a row of the product with the input, the hidden state and the cell state (None: zeros): the new states.
_Cell = Callable[[ir.Value, ir.Value | None, ir.Value | None], tuple[ir.Value, ir.Value | None]]


def unrolled(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace an LSTM, GRU or RNN node by its cells.

    The product with the input is one Gemm for the whole sequence; a step is a Gemm with the state before it, and what
    the cell is made of.

    Args:
        graph: The graph that holds the node; changed in place.
        node: The node, with the shapes of its inputs.

    Returns:
        Whether it was replaced. It stays where the length of the sequence, the directions or the hidden size are not
        known, sequences end early, or other activations, clipping or coupled gates are asked for.

    References:
        ONNX operator specifications LSTM-14, GRU-14, RNN-14; Hochreiter and Schmidhuber, Long short-term memory,
        Neural Computation 9(8), 1997; Gers, Schmidhuber and Cummins, Learning to forget, Neural Computation 12(10),
        2000 (peepholes: Gers and Schmidhuber, Recurrent nets that time and count, IJCNN 2000); Cho et al., Learning
        phrase representations using RNN encoder-decoder, EMNLP 2014; Elman, Finding structure in time, Cognitive
        Science 14(2), 1990.
    """
    x, w, r, b, _, h, c, peepholes = _inputs(node)
    sizes = _sizes(x, r, _batch_first(node)) if can_unroll(node) and x is not None and r is not None else None
    if x is None or sizes is None:
        return False
    _LAYERS[node.op_type](node, x, sizes).write(graph, (w, r, b, h, c, peepholes))
    return True


def can_unroll(node: ir.Node) -> bool:
    """Whether `unrolled` replaces a node."""
    x, w, r, _, lengths, _, _, _ = _inputs(node)
    if x is None or w is None or r is None or not _plain(node):
        return False
    sizes = _sizes(x, r, _batch_first(node))
    return sizes is not None and _full(lengths, sizes.steps)


def _inputs(node: ir.Node) -> list[ir.Value | None]:
    inputs: list[ir.Value | None] = list(node.inputs)
    return inputs + [None] * (8 - len(inputs))


def _batch_first(node: ir.Node) -> bool:
    return "layout" in node.attributes and bool(node.attributes["layout"].as_int())


class _Sizes(NamedTuple):
    steps: int
    features: int
    directions: int
    hidden: int


def _sizes(x: ir.Value, r: ir.Value, batch_first: bool) -> _Sizes | None:
    """The sizes that must be known; (steps, N, features) is the shape of x, (directions, gates hidden, hidden) r's."""
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    found = (x.shape[int(batch_first)], x.shape[2], r.shape[0], r.shape[2])
    known = [extent for extent in found if isinstance(extent, int)]
    return _Sizes(*known) if len(known) == len(found) else None


def _plain(node: ir.Node) -> bool:
    attributes = {name: value.value for name, value in node.attributes.items()}
    activations = [str(name).lower() for name in attributes.get("activations", ())]
    known = _ACTIVATIONS[node.op_type]
    return (
        activations in ([], *known, *(each * 2 for each in known))
        and "clip" not in attributes
        and not attributes.get("input_forget", 0)
    )


def _full(lengths: ir.Value | None, steps: int) -> bool:
    """Whether every sequence goes to the end."""
    array = constant_value(lengths)
    return lengths is None or (array is not None and bool((array == steps).all()))


class _Layer(ABC):
    """Writes the nodes that stand for one recurrent layer."""

    gates = 1
    """How many products with the input a step has."""
    outputs = 2
    """How many outputs the layer has: the sequence, then each state at its end."""

    def __init__(self, node: ir.Node, x: ir.Value, sizes: _Sizes) -> None:
        self.node, self.x = node, x
        self.steps, self.features, self.directions, self.hidden = sizes
        self.made: list[ir.Node] = []
        self.known: dict[tuple[int, ...], ir.Value] = {}

    @abstractmethod
    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, _Cell]:
        """What a direction's cells share: the bias of the product with the input (None: none), and the cell.

        Args:
            r: Weights of the state, (gates hidden, hidden).
            bias: (2 gates hidden), of the input's part and of the state's.
            peepholes: (3 hidden), what the gates i, o and f see of the cell state; of an LSTM alone.
        """

    def write(self, graph: ir.Graph, given: tuple[ir.Value | None, ...]) -> None:
        batch_first, x = _batch_first(self.node), self.x
        if batch_first:
            w, r, b, h, c, peepholes = given
            x = self.op("Transpose", x, perm=[1, 0, 2])
            h, c = (each and self.op("Transpose", each, perm=[1, 0, 2]) for each in (h, c))
            given = (w, r, b, h, c, peepholes)
        flat = self.op("Reshape", x, self.ints(-1, self.features))
        split = [self.split(value) for value in given]
        first = ["reverse" if self.direction() == "reverse" else "forward", "reverse"][: self.directions]
        runs = [self.run(flat, way, tuple(part[d] for part in split)) for d, way in enumerate(first)]
        results = [self.stack([run[i] for run in runs]) for i in range(1, self.outputs)]
        sequence = self.op("Concat", *(run[0] for run in runs), axis=1) if self.directions > 1 else runs[0][0]
        if batch_first:
            sequence = self.op("Transpose", sequence, perm=[2, 0, 1, 3])
            results = [self.op("Transpose", each, perm=[1, 0, 2]) for each in results]
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
        w, r, b, h, c, peepholes = given
        assert r is not None  # noqa: S101 - `unrolled` looked
        bias, cell = self.start(r, b, peepholes)
        gates = self.op("Gemm", flat, w, *(() if bias is None else (bias,)), transB=1)
        gates = self.op("Reshape", gates, self.ints(self.steps, -1, self.gates * self.hidden))
        # The batch keeps its name, which inference cannot see through -1.
        batch = None if self.x.shape is None else self.x.shape[0 if _batch_first(self.node) else 1]
        gates.shape, gates.type = ir.Shape([self.steps, batch, self.gates * self.hidden]), self.x.type
        rows = self.ops("Split", gates, outputs=self.steps, axis=0, num_outputs=self.steps)
        order = range(self.steps) if direction == "forward" else reversed(range(self.steps))
        states: dict[int, ir.Value] = {}
        for step in order:
            h, c = cell(self.op("Squeeze", rows[step], self.ints(0)), h, c)
            states[step] = h
        last = states[0 if direction == "reverse" else self.steps - 1]
        listed = [self.op("Unsqueeze", states[step], self.ints(0, 1)) for step in range(self.steps)]
        return self.op("Concat", *listed, axis=0), last, c

    def halves(self, bias: ir.Value) -> list[ir.Value]:
        """The parts of a bias that belong to the input and to the state."""
        return self.ops("Split", bias, outputs=2, axis=0, num_outputs=2)

    def with_state(self, row: ir.Value, h: ir.Value | None, r: ir.Value) -> ir.Value:
        """row + h r^T; h is 0 where None."""
        return row if h is None else self.op("Gemm", h, r, row, transB=1)

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


class _LSTM(_Layer):
    """c' = f * c + i * tanh(g), h' = o * tanh(c'); the gates are in the order i, o, f, g."""

    gates, outputs = 4, 3

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, _Cell]:
        def cell(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
            sizes = self.ints(3 * self.hidden, self.hidden)
            logistic, candidate = self.ops("Split", self.with_state(row, h, r), sizes, outputs=2, axis=1)
            i, o, f = self.ops("Split", self.op("Sigmoid", logistic), outputs=3, axis=1, num_outputs=3)
            new = self.op("Mul", i, self.op("Tanh", candidate))
            new = new if c is None else self.op("Add", self.op("Mul", f, c), new)
            return self.op("Mul", o, self.op("Tanh", new)), new

        def seeing(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
            """The gates i and f see the cell state before the step, o that behind it."""
            assert peepholes is not None  # noqa: S101 - else it is `cell` that runs
            see_i, see_o, see_f = self.ops("Split", peepholes, outputs=3, axis=0, num_outputs=3)
            i, o, f, g = self.ops("Split", self.with_state(row, h, r), outputs=4, axis=1, num_outputs=4)
            if c is not None:
                i, f = (self.op("Add", gate, self.op("Mul", see, c)) for gate, see in ((i, see_i), (f, see_f)))
            new = self.op("Mul", self.op("Sigmoid", i), self.op("Tanh", g))
            new = new if c is None else self.op("Add", self.op("Mul", self.op("Sigmoid", f), c), new)
            o = self.op("Sigmoid", self.op("Add", o, self.op("Mul", see_o, new)))
            return self.op("Mul", o, self.op("Tanh", new)), new

        chosen = cell if peepholes is None else seeing
        return None if bias is None else self.op("Add", *self.halves(bias)), chosen


class _GRU(_Layer):
    """h' = n + z * (h - n), with z and r logistic; n = tanh(x + r * (h R^T + b)) or, as it was first published,
    tanh(x + (r * h) R^T + b)."""

    gates = 3

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, _Cell]:
        late = self.node.attributes.get("linear_before_reset")
        after = late is not None and bool(late.as_int())
        two, one = 2 * self.hidden, self.hidden
        gating, proposing = self.ops("Split", r, self.ints(two, one), outputs=2, axis=0)
        outer, inner = bias, None
        if bias is not None:
            outer, recurrent = self.halves(bias)
            shared, inner = self.ops("Split", recurrent, self.ints(two, one), outputs=2, axis=0)
            first, last = self.ops("Split", outer, self.ints(two, one), outputs=2, axis=0)
            last = last if after else self.op("Add", last, inner)
            outer = self.op("Concat", self.op("Add", first, shared), last, axis=0)

        def cell(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
            logistic, proposal = self.ops("Split", row, self.ints(two, one), outputs=2, axis=1)
            both = self.op("Sigmoid", self.with_state(logistic, h, gating))
            z, reset = self.ops("Split", both, outputs=2, axis=1, num_outputs=2)
            if after:
                given = () if inner is None else (inner,)
                if h is not None:
                    term = self.op("Gemm", h, proposing, *given, transB=1)
                    proposal = self.op("Add", proposal, self.op("Mul", reset, term))
                elif inner is not None:
                    proposal = self.op("Add", proposal, self.op("Mul", reset, inner))
            elif h is not None:
                proposal = self.op("Gemm", self.op("Mul", reset, h), proposing, proposal, transB=1)
            n = self.op("Tanh", proposal)
            if h is None:
                return self.op("Sub", n, self.op("Mul", z, n)), None
            return self.op("Add", n, self.op("Mul", z, self.op("Sub", h, n))), None

        return outer, cell


class _RNN(_Layer):
    """h' = f(x + h R^T + b), f the hyperbolic tangent or the rectifier."""

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, _Cell]:
        named = self.node.attributes.get("activations")
        kinds = [str(name).lower() for name in named.value] if named is not None else ["tanh"]
        function = "Relu" if kinds[0] == "relu" else "Tanh"

        def cell(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
            return self.op(function, self.with_state(row, h, r)), None

        return None if bias is None else self.op("Add", *self.halves(bias)), cell


_LAYERS: dict[str, type[_Layer]] = {"GRU": _GRU, "LSTM": _LSTM, "RNN": _RNN}
_ACTIVATIONS = {"GRU": [["sigmoid", "tanh"]], "LSTM": [["sigmoid", "tanh", "tanh"]], "RNN": [["tanh"], ["relu"]]}
