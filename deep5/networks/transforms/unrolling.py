"""Recurrent layers, written as one cell after the other, or, over sequences of any length, as a Scan of cells."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute

__all__ = ["RECURRENT", "can_unroll", "is_plain", "unrolled"]

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""The layers that can be written as cells."""

# Of a row of the product with the input, the hidden state and the cell state (None: zeros): the new states.
_Cell = Callable[[ir.Value, ir.Value | None, ir.Value | None], tuple[ir.Value, ir.Value | None]]


def unrolled(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace an LSTM, GRU or RNN node by its cells.

    The product with the input is one Gemm for the whole sequence; a step is a Gemm with the state before it, and what
    the cell is made of. Steps of which only a run knows how many there are become a Scan.

    Args:
        graph: The graph that holds the node; changed in place.
        node: The node, with the shapes of its inputs.

    Returns:
        Whether it was replaced. It stays where the directions, the features or the hidden size are not known, or where
        its activations are not ONNX's, one set for each direction.

    References:
        ONNX operator specifications LSTM-14, GRU-14, RNN-14; Hochreiter and Schmidhuber, Long short-term memory,
        Neural Computation 9(8), 1997; Gers, Schmidhuber and Cummins, Learning to forget, Neural Computation 12(10),
        2000 (peepholes: Gers and Schmidhuber, Recurrent nets that time and count, IJCNN 2000); Cho et al., Learning
        phrase representations using RNN encoder-decoder, EMNLP 2014; Elman, Finding structure in time, Cognitive
        Science 14(2), 1990.
    """
    x, w, r, b, _, h, c, peepholes = _inputs(node)
    sizes = _writable(node)
    if x is None or sizes is None:
        return False
    _LAYERS[node.op_type](node, x, sizes).write(graph, (w, r, b, h, c, peepholes))
    return True


def can_unroll(node: ir.Node) -> bool:
    """Whether `unrolled` replaces a node by one cell after the other."""
    sizes = _writable(node)
    return sizes is not None and sizes.steps is not None


def _writable(node: ir.Node) -> _Sizes | None:
    """The sizes of a layer that can be written as cells; None of another."""
    x, w, r, *_ = _inputs(node)
    if x is None or w is None or r is None or (sizes := _sizes(x, r, _batch_first(node))) is None:
        return None
    if sizes.directions != _DIRECTIONS.get(attribute(node, "direction", "forward")):
        return None
    names = _activations(node, sizes.directions)
    fits = len(names) == len(_USUAL[node.op_type]) * sizes.directions and set(names) <= _FUNCTIONS.keys()
    return sizes if fits else None


def is_plain(node: ir.Node) -> bool:
    """Whether the cells of a node are those first published: whole sequences, no clipping, no coupled gates."""
    x, _, _, _, lengths, *_ = _inputs(node)
    steps = x.shape[int(_batch_first(node))] if x is not None and x.shape is not None else None
    return _usual(node) and _full(lengths, steps)


def _inputs(node: ir.Node) -> list[ir.Value | None]:
    inputs: list[ir.Value | None] = list(node.inputs)
    return inputs + [None] * (8 - len(inputs))


def _batch_first(node: ir.Node) -> bool:
    return "layout" in node.attributes and bool(node.attributes["layout"].as_int())


class _Sizes(NamedTuple):
    steps: int | None
    features: int
    directions: int
    hidden: int


def _sizes(x: ir.Value, r: ir.Value, batch_first: bool) -> _Sizes | None:
    """The sizes that must be known; (steps, N, features) is the shape of x, (directions, gates hidden, hidden) r's."""
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    steps, *others = (x.shape[int(batch_first)], x.shape[2], r.shape[0], r.shape[2])
    known = [extent for extent in others if isinstance(extent, int)]
    if len(known) < len(others) or steps == 0:
        return None
    return _Sizes(steps if isinstance(steps, int) else None, *known)


def _activations(node: ir.Node, directions: int) -> list[str]:
    """Names in small letters, those of the second direction behind those of the first."""
    given = attribute(node, "activations", None)
    return [str(name).lower() for name in given] if given else _USUAL[node.op_type] * directions


def _usual(node: ir.Node) -> bool:
    """Whether the activations are the usual ones, and nothing is clipped or coupled."""
    names, usual = _activations(node, 1), _USUAL[node.op_type]
    known = [usual, ["relu"]] if node.op_type == "RNN" else [usual]
    return (
        any(names in (each, each * 2) for each in known)
        and attribute(node, "clip", None) is None
        and not attribute(node, "input_forget", 0)
    )


def _full(lengths: ir.Value | None, steps: Any) -> bool:
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
        self.numbers = itertools.count()
        self.known: dict[tuple[Any, ...], ir.Value] = {}
        self.usual, lengths = _usual(node), _inputs(node)[4]
        # The number of steps of each sequence; None: all are whole.
        self.lengths = None if _full(lengths, self.steps) else lengths
        self.clip = attribute(node, "clip", None)
        self.functions = self.chosen()

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
        self.lead = None if self.steps else self.op("Shape", x, start=0, end=2)
        flat = self.op("Reshape", x, self.ints(-1, self.features))
        split = [self.split(value) for value in given]
        if self.lengths is not None:
            self.lengths = self.op("Unsqueeze", self.lengths, self.ints(1))
        first = ["reverse" if self.direction() == "reverse" else "forward", "reverse"][: self.directions]
        runs = []
        for d, way in enumerate(first):
            self.activations = self.functions[d]
            runs.append(self.run(flat, way, tuple(part[d] for part in split)))
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
        width = self.gates * self.hidden
        # The batch keeps its name, which inference cannot see through -1.
        batch = None if self.x.shape is None else self.x.shape[0 if _batch_first(self.node) else 1]
        if self.steps is None:
            gates = self.op("Reshape", gates, self.op("Concat", self.lead, self.ints(width), axis=0))
            gates.shape, gates.type = ir.Shape([None, batch, width]), self.x.type
            return self.scanned(gates, cell, direction, batch, h, c)
        gates = self.op("Reshape", gates, self.ints(self.steps, -1, width))
        gates.shape, gates.type = ir.Shape([self.steps, batch, width]), self.x.type
        rows = self.ops("Split", gates, outputs=self.steps, axis=0, num_outputs=self.steps)
        order = range(self.steps) if direction == "forward" else reversed(range(self.steps))
        states: dict[int, ir.Value] = {}
        for step in order:
            row = self.op("Squeeze", rows[step], self.ints(0))
            number = None if self.lengths is None else self.number(step, self.lengths)
            states[step], h, c = self.step(cell, row, number, h, c)
        assert h is not None  # noqa: S101 - `can_unroll` looked, and there is a step
        listed = [self.op("Unsqueeze", states[step], self.ints(0, 1)) for step in range(self.steps)]
        return self.op("Concat", *listed, axis=0), h, c

    def step(
        self, cell: _Cell, row: ir.Value, number: ir.Value | None, h: ir.Value | None, c: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """One step: what the sequence has of it, and the new states; the old ones behind a sequence's end."""
        new, cells = cell(row, h, c)
        if self.lengths is None:
            return new, new, cells
        runs, nothing = self.op("Less", number, self.lengths), self.number(0, self.x)
        shown = self.op("Where", runs, new, nothing)
        new = shown if h is None else self.op("Where", runs, new, h)
        return shown, new, cells and self.op("Where", runs, cells, nothing if c is None else c)

    def scanned(
        self, gates: ir.Value, cell: _Cell, direction: str, batch: Any, h: ir.Value | None, c: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """As `run`, of as many steps as `gates` has rows."""
        begin = [h, c][: self.outputs - 1]
        if None in begin:
            counted = self.op("Gather", self.lead, self.ints(1))
            shape = self.op("Concat", counted, self.ints(self.hidden), axis=0)
            zeros = self.op("Expand", self.number(0, self.x), shape)
            begin = [zeros if value is None else value for value in begin]
        wholes = [gates]
        if self.lengths is not None:
            count = self.op("Squeeze", self.op("Gather", self.lead, self.ints(0)))
            scalars = [self.op("Constant", value=ir.tensor(np.array(number, np.int64))) for number in (0, 1)]
            wholes.append(self.op("CastLike", self.op("Range", scalars[0], count, scalars[1]), self.lengths))
        outside, self.made, self.known = (self.made, self.known), [], {}
        states = [self.given([batch, self.hidden], self.x) for _ in begin]
        row = self.given([batch, gates.shape[2]], self.x)  # type: ignore[index]  # was declared
        number = None if self.lengths is None else self.given([], self.lengths)
        shown, *ends = self.step(cell, row, number, *states, *[None] * (2 - len(states)))
        results = [self.op("Identity", value) for value in (*ends[: len(begin)], shown)]
        inputs = [*states, row, *([] if number is None else [number])]
        body = ir.Graph(inputs, results, nodes=self.made, name=f"{self.node.name}/step")
        if self.node.graph is not None:
            body.opset_imports.update(self.node.graph.opset_imports)
        (self.made, self.known), way = outside, int(direction == "reverse")
        made = self.ops(
            "Scan",
            *begin,
            *wholes,
            outputs=len(results),
            body=body,
            num_scan_inputs=len(wholes),
            scan_input_directions=[way] * len(wholes),
            scan_output_directions=[way],
        )
        return self.op("Unsqueeze", made[-1], self.ints(1)), made[0], made[1] if len(begin) > 1 else None

    def given(self, extents: list[Any], like: ir.Value) -> ir.Value:
        """An input of a step."""
        name = f"{self.node.name}/given_{next(self.numbers)}"
        kind = like.type or ir.TensorType(ir.DataType.INT32)
        return ir.Value(name=name, shape=ir.Shape(extents), type=kind)

    def halves(self, bias: ir.Value) -> list[ir.Value]:
        """The parts of a bias that belong to the input and to the state."""
        return self.ops("Split", bias, outputs=2, axis=0, num_outputs=2)

    def with_state(self, row: ir.Value, h: ir.Value | None, r: ir.Value) -> ir.Value:
        """row + h r^T; h is 0 where None."""
        return row if h is None else self.op("Gemm", h, r, row, transB=1)

    def act(self, position: int, x: ir.Value) -> ir.Value:
        """One of the cell's activations of what is clipped first, if anything is."""
        if self.clip is not None:
            x = self.op("Clip", x, self.number(-self.clip, self.x), self.number(self.clip, self.x))
        name, numbers = self.activations[position]
        return _FUNCTIONS[name].write(self, x, *numbers)

    def chosen(self) -> list[list[tuple[str, list[float]]]]:
        """The activations of each direction, each with those of the node's alphas and betas that it reads."""
        names = _activations(self.node, self.directions)
        alphas, betas = (iter(attribute(self.node, f"activation_{which}", ())) for which in ("alpha", "beta"))
        found = []
        for name in names:
            usual = _FUNCTIONS[name].usual
            found.append((name, [next(source, value) for source, value in zip((alphas, betas), usual, strict=False)]))
        each = len(_USUAL[self.node.op_type])
        return [found[d * each : (d + 1) * each] for d in range(self.directions)]

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """A constant of the element type of another value."""
        kind = ir.DataType.INT32 if like.dtype is None else like.dtype
        key = (value, kind.name)
        if key not in self.known:
            self.known[key] = self.op("Constant", value=ir.tensor(np.array(value, kind.numpy()), dtype=kind))
        return self.known[key]

    def ints(self, *values: int) -> ir.Value:
        if values not in self.known:
            self.known[values] = self.op("Constant", value=ir.tensor(np.array(values, dtype=np.int64)))
        return self.known[values]

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: Any) -> list[ir.Value]:
        name = f"{self.node.name}/{op_type}_{next(self.numbers)}"
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

        def general(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
            """As `seeing`, of any activations, clipped, and the gate f as 1 - i where they are coupled."""
            i, o, f, g = self.ops("Split", self.with_state(row, h, r), outputs=4, axis=1, num_outputs=4)
            see = [] if peepholes is None else self.ops("Split", peepholes, outputs=3, axis=0, num_outputs=3)
            if see and c is not None:
                i, f = (self.op("Add", gate, self.op("Mul", part, c)) for gate, part in ((i, see[0]), (f, see[2])))
            i = self.act(0, i)
            new = self.op("Mul", i, self.act(1, g))
            if c is not None:
                kept = self.op("Sub", self.number(1, self.x), i) if coupled else self.act(0, f)
                new = self.op("Add", self.op("Mul", kept, c), new)
            o = self.act(0, self.op("Add", o, self.op("Mul", see[1], new)) if see else o)
            return self.op("Mul", o, self.act(2, new)), new

        coupled = bool(attribute(self.node, "input_forget", 0))
        chosen = general if not self.usual else cell if peepholes is None else seeing
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
            both = self.act(0, self.with_state(logistic, h, gating))
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
            n = self.act(1, proposal)
            if h is None:
                return self.op("Sub", n, self.op("Mul", z, n)), None
            return self.op("Add", n, self.op("Mul", z, self.op("Sub", h, n))), None

        return outer, cell


class _RNN(_Layer):
    """h' = f(x + h R^T + b), f the hyperbolic tangent or what is asked for."""

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, _Cell]:
        def cell(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
            return self.act(0, self.with_state(row, h, r)), None

        return None if bias is None else self.op("Add", *self.halves(bias)), cell


_LAYERS: dict[str, type[_Layer]] = {"GRU": _GRU, "LSTM": _LSTM, "RNN": _RNN}
_DIRECTIONS = {"bidirectional": 2, "forward": 1, "reverse": 1}
_USUAL = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}


class _Function(NamedTuple):
    """An activation: how it is written, and the alpha, or alpha and beta, where nobody says."""

    write: Callable[..., ir.Value]
    usual: tuple[float, ...] = ()


def _affine(layer: _Layer, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    return layer.op("Add", layer.op("Mul", x, layer.number(alpha, layer.x)), layer.number(beta, layer.x))


def _scaled_tanh(layer: _Layer, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    return layer.op(
        "Mul", layer.op("Tanh", layer.op("Mul", x, layer.number(beta, layer.x))), layer.number(alpha, layer.x)
    )


def _named(op_type: str, *names: str) -> Callable[..., ir.Value]:
    """An operator of ONNX, which takes the numbers as attributes."""
    return lambda layer, x, *numbers: layer.op(op_type, x, **dict(zip(names, numbers, strict=True)))


_FUNCTIONS = {
    "affine": _Function(_affine, (1.0, 0.0)),
    "elu": _Function(_named("Elu", "alpha"), (1.0,)),
    "hardsigmoid": _Function(_named("HardSigmoid", "alpha", "beta"), (0.2, 0.5)),
    "leakyrelu": _Function(_named("LeakyRelu", "alpha"), (0.01,)),
    "relu": _Function(_named("Relu")),
    "scaledtanh": _Function(_scaled_tanh, (1.0, 1.0)),
    "sigmoid": _Function(_named("Sigmoid")),
    "softplus": _Function(_named("Softplus")),
    "softsign": _Function(_named("Softsign")),
    "tanh": _Function(_named("Tanh")),
    "thresholdedrelu": _Function(_named("ThresholdedRelu", "alpha"), (1.0,)),
}
