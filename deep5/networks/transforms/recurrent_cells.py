"""The cells of LSTM, GRU and RNN layers, as ONNX defines them."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute
from deep5.networks.transforms.recurrent_layer import Cell, Layer

__all__ = ["LAYERS"]


class _LSTM(Layer):
    """c' = f * c + i * tanh(g), h' = o * tanh(c'); the gates are in the order i, o, f, g."""

    gates, outputs = 4, 3

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, Cell]:
        def cell(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
            sizes = self.ints(3 * self.hidden, self.hidden)
            logistic, candidate = self.ops("Split", self.with_state(row, h, r), sizes, outputs=2, axis=1)
            i, o, f = self.ops("Split", self.op("Sigmoid", logistic), outputs=3, axis=1, num_outputs=3)
            new = self.op("Mul", i, self.op("Tanh", candidate))
            new = new if c is None else self.op("Add", self.op("Mul", f, c), new)
            return self.op("Mul", o, self.op("Tanh", new)), new

        def seeing(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
            """The gates i and f see the cell state before the step, the gate o sees the new one."""
            assert peepholes is not None  # noqa: S101 - without them `cell` runs
            see_i, see_o, see_f = self.ops("Split", peepholes, outputs=3, axis=0, num_outputs=3)
            i, o, f, g = self.ops("Split", self.with_state(row, h, r), outputs=4, axis=1, num_outputs=4)
            if c is not None:
                i, f = (self.op("Add", gate, self.op("Mul", see, c)) for gate, see in ((i, see_i), (f, see_f)))
            new = self.op("Mul", self.op("Sigmoid", i), self.op("Tanh", g))
            new = new if c is None else self.op("Add", self.op("Mul", self.op("Sigmoid", f), c), new)
            o = self.op("Sigmoid", self.op("Add", o, self.op("Mul", see_o, new)))
            return self.op("Mul", o, self.op("Tanh", new)), new

        def general(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value]:
            """Like `seeing`, with any activations, clipping, and the gate f = 1 - i if the gates are coupled."""
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


class _GRU(Layer):
    """h' = n + z * (h - n), with z and r logistic; n = tanh(x + r * (h R^T + b)) or, as first published,
    tanh(x + (r * h) R^T + b)."""

    gates = 3

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, Cell]:
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


class _RNN(Layer):
    """h' = f(x + h R^T + b), where f is tanh or the requested activation."""

    def start(self, r: ir.Value, bias: ir.Value | None, peepholes: ir.Value | None) -> tuple[ir.Value | None, Cell]:
        def cell(row: ir.Value, h: ir.Value | None, c: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
            return self.act(0, self.with_state(row, h, r)), None

        return None if bias is None else self.op("Add", *self.halves(bias)), cell


LAYERS: dict[str, type[Layer]] = {"GRU": _GRU, "LSTM": _LSTM, "RNN": _RNN}
