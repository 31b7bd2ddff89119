"""`Layer`: creates the nodes that replace a recurrent layer with any cell."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute
from deep5.networks.transforms.recurrent_node import (
    USUAL,
    Sizes,
    activations_of,
    are_whole,
    batch_first,
    inputs_of,
    is_usual,
)

__all__ = ["FUNCTIONS", "Cell", "Layer"]

# From a row of the product with the input, the hidden state and the cell state (None: zeros) to the new states.
Cell = Callable[[ir.Value, ir.Value | None, ir.Value | None], tuple[ir.Value, ir.Value | None]]


class Layer(ABC):
    """Creates the nodes that replace one recurrent layer."""

    gates = 1
    """Number of gates: products with the input per step."""
    outputs = 2
    """Number of outputs: the sequence, then each final state."""

    def __init__(self, node: ir.Node, x: ir.Value, sizes: Sizes) -> None:
        self.node, self.x = node, x
        self.steps, self.features, self.directions, self.hidden = sizes
        self.made: list[ir.Node] = []
        self.numbers = itertools.count()
        self.known: dict[tuple[Any, ...], ir.Value] = {}
        self.usual, lengths = is_usual(node), inputs_of(node)[4]
        # The number of steps of each sequence; None: all sequences have full length.
        self.lengths = None if are_whole(lengths, self.steps) else lengths
        self.clip = attribute(node, "clip", None)
        self.functions = self.chosen()

    @abstractmethod
    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, Cell]:
        """The values that a direction's cells share: the bias of the product with the input (None: none), and the cell.

        Args:
            r: Weights of the state, (gates hidden, hidden).
            bias: (2 gates hidden), first the part of the input, then that of the state.
            peepholes: (3 hidden), weights from the cell state to the gates i, o and f; LSTM only.
        """

    def write(self, graph: ir.Graph, given: tuple[ir.Value | None, ...]) -> None:
        """Replace the node by equivalent nodes; `given` are the inputs w, r, b, h, c and peepholes."""
        swapped, x = batch_first(self.node), self.x
        if swapped:
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
        if swapped:
            sequence = self.op("Transpose", sequence, perm=[2, 0, 1, 3])
            results = [self.op("Transpose", each, perm=[1, 0, 2]) for each in results]
        new = [sequence, *results][: len(self.node.outputs)]
        ir.convenience.replace_nodes_and_values(graph, self.node, [self.node], self.made, self.node.outputs, new)

    def direction(self) -> str:
        """The node's direction: forward, reverse or bidirectional."""
        attribute = self.node.attributes.get("direction")
        return "forward" if attribute is None else attribute.as_string()

    def split(self, value: ir.Value | None) -> list[ir.Value | None]:
        """Split a value along its leading axis of directions."""
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
        assert r is not None  # noqa: S101 - checked by `unrolled`
        bias, cell = self.start(r, b, peepholes)
        gates = self.op("Gemm", flat, w, *(() if bias is None else (bias,)), transB=1)
        width = self.gates * self.hidden
        # Keep the name of the batch dimension: shape inference loses it through -1.
        batch = None if self.x.shape is None else self.x.shape[0 if batch_first(self.node) else 1]
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
        assert h is not None  # noqa: S101 - checked by `can_unroll`, and there is a step
        listed = [self.op("Unsqueeze", states[step], self.ints(0, 1)) for step in range(self.steps)]
        return self.op("Concat", *listed, axis=0), h, c

    def step(
        self, cell: Cell, row: ir.Value, number: ir.Value | None, h: ir.Value | None, c: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """One step: its element of the sequence, and the new states; past a sequence's end the states stay."""
        new, cells = cell(row, h, c)
        if self.lengths is None:
            return new, new, cells
        runs, nothing = self.op("Less", number, self.lengths), self.number(0, self.x)
        shown = self.op("Where", runs, new, nothing)
        new = shown if h is None else self.op("Where", runs, new, h)
        return shown, new, cells and self.op("Where", runs, cells, nothing if c is None else c)

    def scanned(
        self, gates: ir.Value, cell: Cell, direction: str, batch: Any, h: ir.Value | None, c: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """Like `run`, with one step per row of `gates`."""
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
        """The two parts of a bias, for the input and for the state."""
        return self.ops("Split", bias, outputs=2, axis=0, num_outputs=2)

    def with_state(self, row: ir.Value, h: ir.Value | None, r: ir.Value) -> ir.Value:
        """row + h r^T; h is 0 if None."""
        return row if h is None else self.op("Gemm", h, r, row, transB=1)

    def act(self, position: int, x: ir.Value) -> ir.Value:
        """One of the cell's activations, after clipping if the node clips."""
        if self.clip is not None:
            x = self.op("Clip", x, self.number(-self.clip, self.x), self.number(self.clip, self.x))
        name, numbers = self.activations[position]
        return FUNCTIONS[name].write(self, x, *numbers)

    def chosen(self) -> list[list[tuple[str, list[float]]]]:
        """The activations of each direction, each with the alphas and betas of the node that it reads."""
        names = activations_of(self.node, self.directions)
        alphas, betas = (iter(attribute(self.node, f"activation_{which}", ())) for which in ("alpha", "beta"))
        found = []
        for name in names:
            usual = FUNCTIONS[name].usual
            found.append((name, [next(source, value) for source, value in zip((alphas, betas), usual, strict=False)]))
        each = len(USUAL[self.node.op_type])
        return [found[d * each : (d + 1) * each] for d in range(self.directions)]

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """A constant with the element type of another value."""
        kind = ir.DataType.INT32 if like.dtype is None else like.dtype
        key = (value, kind.name)
        if key not in self.known:
            self.known[key] = self.op("Constant", value=ir.tensor(np.array(value, kind.numpy()), dtype=kind))
        return self.known[key]

    def ints(self, *values: int) -> ir.Value:
        """A constant vector of integers."""
        if values not in self.known:
            self.known[values] = self.op("Constant", value=ir.tensor(np.array(values, dtype=np.int64)))
        return self.known[values]

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: Any) -> list[ir.Value]:
        """The outputs of a new node."""
        name = f"{self.node.name}/{op_type}_{next(self.numbers)}"
        made = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=name)
        self.made.append(made)
        for index, value in enumerate(made.outputs):
            value.name = f"{name}_{index}"
        return list(made.outputs)


class _Function(NamedTuple):
    """An activation: how to create its nodes, and the default alpha, or alpha and beta."""

    write: Callable[..., ir.Value]
    usual: tuple[float, ...] = ()


def _affine(layer: Layer, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    return layer.op("Add", layer.op("Mul", x, layer.number(alpha, layer.x)), layer.number(beta, layer.x))


def _scaled_tanh(layer: Layer, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    return layer.op(
        "Mul", layer.op("Tanh", layer.op("Mul", x, layer.number(beta, layer.x))), layer.number(alpha, layer.x)
    )


def _thresholded_relu(layer: Layer, x: ir.Value, alpha: float) -> ir.Value:
    """x from alpha on; the operator ThresholdedRelu is 0 at alpha."""
    passes = layer.op("GreaterOrEqual", x, layer.number(alpha, layer.x))
    return layer.op("Where", passes, x, layer.number(0.0, layer.x))


def _named(op_type: str, *names: str) -> Callable[..., ir.Value]:
    """An ONNX operator that takes the numbers as attributes."""
    return lambda layer, x, *numbers: layer.op(op_type, x, **dict(zip(names, numbers, strict=True)))


FUNCTIONS = {
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
    "thresholdedrelu": _Function(_thresholded_relu, (1.0,)),
}
