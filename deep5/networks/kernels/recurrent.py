"""Recurrent layers: RNN, GRU and LSTM, with any activations, clipping, and sequences of different lengths."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.networks.kernels import elementwise
from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.transforms.recurrent_node import USUAL, activations_of
from deep5.networks.transforms.unrolling import can_unroll, is_plain

__all__ = ["OPERATORS", "multiplied"]

States = tuple[Array, ...]


def _affine(xp: Primitives, x: Array, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    return alpha * x + beta


def _scaled_tanh(xp: Primitives, x: Array, *, alpha: float = 1.0, beta: float = 1.0) -> Array:
    return alpha * xp.tanh(beta * x)


def _thresholded_relu(xp: Primitives, x: Array, *, alpha: float = 1.0) -> Array:
    """x from the threshold on; the operator ThresholdedRelu begins above it."""
    return xp.where(x >= alpha, x, xp.zeros_like(x))


_NAMES = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_ACTIVATIONS = {
    **{name.lower(): elementwise.OPERATORS[name] for name in _NAMES},
    "affine": Composite(function=_affine),
    "scaledtanh": Composite(function=_scaled_tanh),
    "thresholdedrelu": Composite(function=_thresholded_relu),
}


class _Direction(NamedTuple):
    """What the cells of one direction compute with.

    Attributes:
        weight: The weight of the state, shape (hidden, gates hidden).
        bias: The bias of the state, shape (gates hidden,); None: there is none, or it is added to the rows.
        peepholes: Weights from the cell state to the gates i, o and f, shape (3, hidden); None: there are none.
        activations: The functions, each applied after the clip.
        special: Whether an LSTM's gate f is 1 - i, or a GRU resets after the product.
    """

    weight: Array
    bias: Array | None
    peepholes: Array | None
    activations: Sequence[Callable[[Array], Array]]
    special: bool

    def part(self, gates: slice) -> tuple[Array, Array | None]:
        """Weight and bias of some of the gates."""
        return self.weight[:, gates], None if self.bias is None else self.bias[gates]


def _product(xp: Primitives, h: Array, weight: Array, bias: Array | None) -> Array:
    """The state times its weight, plus its bias."""
    y = xp.matmul(h, weight)
    return y if bias is None else y + bias


def _gates(xp: Primitives, x: Array, count: int) -> Any:
    """Gates as separate arrays, from shape (batch, gates hidden)."""
    return xp.split(x, (x.shape[1] // count,) * count, 1)


def _rnn(xp: Primitives, total: Array, states: States, of: _Direction) -> States:
    """The states after a step, from the product of its input plus that of the state before it."""
    return (of.activations[0](total),)


def _gru(xp: Primitives, row: Array, whole: Array, states: States, of: _Direction) -> States:
    """Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP 2014, equations 5 to 8.

    The gate is reset after the product `whole` of the state, as cuDNN does it.
    """
    (h,), (gate, candidate) = states, of.activations
    (z, r, n), (whole_z, whole_r, whole_n) = _gates(xp, row, 3), _gates(xp, whole, 3)
    update = gate(z + whole_z)
    return ((1 - update) * candidate(n + gate(r + whole_r) * whole_n) + update * h,)


def _gru_reset_first(xp: Primitives, row: Array, states: States, of: _Direction) -> States:
    """The same, reset before the product, as the paper does it."""
    (h,), (gate, candidate), two = states, of.activations, 2 * (row.shape[1] // 3)
    update, reset = _gates(xp, gate(row[:, :two] + _product(xp, h, *of.part(slice(0, two)))), 2)
    new = candidate(row[:, two:] + _product(xp, reset * h, *of.part(slice(two, None))))
    return ((1 - update) * new + update * h,)


def _lstm(xp: Primitives, total: Array, states: States, of: _Direction) -> States:
    """Gers, Schraudolph and Schmidhuber, Learning precise timing with LSTM recurrent networks, JMLR 3, 2002."""
    (_, c), (gate, candidate, out) = states, of.activations
    i, o, f, g = _gates(xp, total, 4)
    see = of.peepholes
    i, f = (i, f) if see is None else (i + see[0] * c, f + see[2] * c)
    i = gate(i)
    c = (1 - i if of.special else gate(f)) * c + i * candidate(g)
    return gate(o if see is None else o + see[1] * c) * out(c), c


def _functions(
    xp: Primitives, names: Iterable[str], alphas: Sequence[float] | None, betas: Sequence[float] | None, clip: Any
) -> list[Callable[[Array], Array]]:
    """The activations of all directions in order; those with an alpha or a beta take the next one that is given."""
    given, found = {"alpha": iter(alphas or ()), "beta": iter(betas or ())}, list[Callable[[Array], Array]]()
    for entry in (_ACTIVATIONS[name.lower()] for name in names):
        how = {key: next(given[key], default) for key, default in entry.keywords.items()}
        found.append(functools.partial(_clipped, xp, entry.function, how, clip))
    return found


def _clipped(xp: Primitives, function: Callable[..., Array], how: Any, clip: float | None, x: Array) -> Array:
    return function(xp, x if clip is None else xp.clamp(x, -clip, clip), **how)


def _layer(op_type: str, count: int) -> Composite:
    """A layer with a number of states."""

    def run(
        xp: Primitives,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        h: Array | None = None,
        c: Array | None = None,
        p: Array | None = None,
        *,
        activation_alpha: Any = None,
        activation_beta: Any = None,
        activations: Any = None,
        clip: float | None = None,
        direction: str = "forward",
        input_forget: int = 0,
        layout: int = 0,
        linear_before_reset: int = 0,
        outputs: int,
    ) -> tuple[Array, ...]:
        if layout:
            x, h, c = (each if each is None else xp.moveaxis(each, 0, 1) for each in (x, h, c))
        backwards = {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))
        names = activations or USUAL[op_type] * len(backwards)
        functions, each = _functions(xp, names, activation_alpha, activation_beta, clip), len(USUAL[op_type])
        w, r = (xp.permute_dims(weight, (0, 2, 1)) for weight in (w, r))
        hidden, size = r.shape[1], r.shape[2]
        inside = None if lengths is None else _inside(xp, x, lengths)
        rows, ends = [], []
        for at, back in enumerate(backwards):
            given, bias = xp.matmul(x, w[at]), None if b is None else b[at, size:]
            if b is not None and op_type == "GRU":
                given = given + b[at, :size]
            elif b is not None:  # both are added to the same sum: once for all steps
                given, bias = given + (b[at, :size] + bias), None
            see = None if p is None else xp.reshape(p[at], (3, hidden))
            own = functions[at * each : (at + 1) * each]
            of = _Direction(r[at], bias, see, own, bool(input_forget or linear_before_reset))
            states = tuple(xp.blank((x.shape[1], hidden), x) if each is None else each[at] for each in (h, c)[:count])
            last, y = _direction(xp, op_type, of, states, given, inside, back)
            rows.append(y)
            ends.append(last)
        y, found = xp.stack(rows, axis=1), [xp.stack(each, axis=0) for each in zip(*ends, strict=True)]
        if layout:
            y, found = xp.moveaxis(y, 2, 0), [xp.moveaxis(each, 0, 1) for each in found]
        return (y, *found)[:outputs]

    run.__name__ = op_type.lower()
    return Composite(function=run, check=_check)


def _inside(xp: Primitives, x: Array, lengths: Array) -> Array:
    """Whether a sequence has not ended yet, shape (length, batch, 1)."""
    places = xp.table(_range, x.shape[0], like=x)
    return places[:, None, None] < xp.astype(lengths, xp.int64)[:, None]


def _direction(
    xp: Primitives, op_type: str, of: _Direction, states: States, rows: Array, inside: Array | None, back: bool
) -> tuple[States, Array]:
    """The last state of each kind, and all hidden states, shape (length, batch, hidden)."""
    if op_type == "GRU" and not of.special:
        return _stepwise(xp, lambda row, held: _gru_reset_first(xp, row, held, of), states, rows, inside, back)
    if of.peepholes is not None:

        def step(row: Array, held: States) -> States:
            return _lstm(xp, row + _product(xp, held[0], of.weight, of.bias), held, of)

        return _stepwise(xp, step, states, rows, inside, back)
    cell = functools.partial(_CELLS[op_type], xp, of=of._replace(weight=None, bias=None))
    return xp.recurrent(cell, of.weight, of.bias, states, rows, inside, apart=op_type == "GRU", back=back)


def multiplied(
    xp: Primitives,
    cell: Callable[..., States],
    weight: Array,
    bias: Array | None,
    states: States,
    rows: Array,
    inside: Array | None,
    *,
    apart: bool,
    back: bool,
) -> tuple[States, Array]:
    """`Primitives.recurrent` in terms of the other functions."""

    def step(row: Array, held: States) -> States:
        whole = _product(xp, held[0], weight, bias)
        return cell(row, whole, held) if apart else cell(row + whole, held)

    return _stepwise(xp, step, states, rows, inside, back)


def _stepwise(
    xp: Primitives, step: Callable[..., States], states: States, rows: Array, inside: Array | None, back: bool
) -> tuple[States, Array]:
    """All steps of a layer; a sequence that has ended keeps its states, and its results are 0."""
    if inside is None:
        return xp.scan(lambda held, row: step(row[0], held), states, (rows,), back)

    def masked(held: States, row: tuple[Array, ...]) -> States:
        new = step(row[0], held)
        return tuple(xp.where(row[1], after, before) for after, before in zip(new, held, strict=True))

    states, y = xp.scan(masked, states, (rows, inside), back)
    return states, xp.where(inside, y, xp.zeros_like(y))


def _range(xp: Any, count: Any) -> Any:
    return xp.arange(0, count, dtype=xp.int64)


def _check(node: ir.Node) -> str | None:
    if can_unroll(node) and is_plain(node):
        return "it is written as cells"
    unknown = [name for name in activations_of(node, 1) if name not in _ACTIVATIONS]
    return f"the activation {unknown[0]}; allowed: {', '.join(_ACTIVATIONS)}" if unknown else None


_CELLS: dict[str, Callable[..., States]] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}

OPERATORS = {"GRU": _layer("GRU", 1), "LSTM": _layer("LSTM", 2), "RNN": _layer("RNN", 1)}
