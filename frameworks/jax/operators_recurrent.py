"""Recurrent layers other than plain cells: variable sequence lengths, peepholes, clipping, other activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import attribute, given, operator, results
from deep5.networks.transforms.unrolling import can_unroll, is_plain

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any
# Functions of x, alpha and beta; with the default alpha and beta.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: jnp.where(x > 0, x, a * jnp.expm1(jnp.minimum(x, 0))), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: jnp.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: jnp.where(x > 0, x, a * x), 0.01, 0.0),
    "relu": (lambda x, a, b: jax.nn.relu(x), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * jnp.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: jax.nn.sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: jax.nn.softplus(x), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + jnp.abs(x)), 0.0, 0.0),
    "tanh": (lambda x, a, b: jnp.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: jnp.where(x > a, x, 0), 1.0, 0.0),
}
_WITH_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu")
_WITH_BETA = ("affine", "hardsigmoid", "scaledtanh")
_DEFAULTS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}
_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


class _How(NamedTuple):
    """A layer's attributes: activations of each direction, and which directions are reversed."""

    kind: str
    activations: tuple[tuple[Callable[[Array], Array], ...], ...]
    backwards: tuple[bool, ...]
    clip: float
    coupled: bool
    late_reset: bool
    batch_first: bool


def _layer(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h: Array | None,
    c: Array | None,
    p: Array | None,
    how: _How,
) -> tuple[Array, ...]:
    """ONNX's RNN, GRU or LSTM: the sequence, and the final states.

    References:
        ONNX operator specifications RNN-22, GRU-22, LSTM-22, section Equations.
    """
    if how.batch_first:
        x, h, c = (value if value is None else jnp.swapaxes(value, 0, 1) for value in (x, h, c))
    (steps, batch, _), hidden = x.shape, r.shape[-1]
    zeros = jnp.zeros((batch, hidden), x.dtype)
    runs = []
    for d, back in enumerate(how.backwards):
        row = _turned(x, lengths) if back else x
        own = [None if value is None else value[d] for value in (b, h, c, p)]
        states = (zeros if own[1] is None else own[1], zeros if own[2] is None else own[2])
        cell = _CELLS[how.kind](w[d], r[d], own[0], own[3], how.activations[d], how)

        def step(
            carried: tuple[Array, Array], given_step: tuple[Array, Array], cell: Any = cell
        ) -> tuple[tuple[Array, Array], Array]:
            number, inputs = given_step
            new = cell(inputs, *carried)
            if lengths is None:
                return new, new[0]
            there = (number < lengths)[:, None]
            held = (jnp.where(there, new[0], carried[0]), jnp.where(there, new[1], carried[1]))
            return held, jnp.where(there, new[0], 0)

        last, sequence = lax.scan(step, states, (jnp.arange(steps), row))
        runs.append((_turned(sequence, lengths) if back else sequence, *last))
    sequence, *ends = (jnp.stack(parts, axis) for parts, axis in zip(zip(*runs, strict=True), (1, 0, 0), strict=True))
    if how.batch_first:
        return (jnp.moveaxis(sequence, 2, 0), *(jnp.swapaxes(end, 0, 1) for end in ends))
    return (sequence, *ends)


def _turned(x: Array, lengths: Array | None) -> Array:
    """Reverses each sequence within its length."""
    if lengths is None:
        return jnp.flip(x, 0)
    steps = jnp.arange(x.shape[0])[:, None]
    places = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    return jnp.take_along_axis(x, places[:, :, None], axis=0)


def _biases(b: Array | None) -> Any:
    """The parts of a bias for the input and for the state."""
    return (0, 0) if b is None else jnp.split(b, 2)


def _bounded(x: Array, how: _How) -> Array:
    return jnp.clip(x, -how.clip, how.clip) if how.clip else x


def _rnn(w: Array, r: Array, b: Any, p: Any, functions: Any, how: _How) -> Any:
    outer, inner = _biases(b)

    def cell(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        return functions[0](_bounded(x @ w.T + outer + h @ r.T + inner, how)), c

    return cell


def _gru(w: Array, r: Array, b: Any, p: Any, functions: Any, how: _How) -> Any:
    outer, inner = _biases(b)
    size = r.shape[-1]
    first, last = slice(0, 2 * size), slice(2 * size, None)
    outer_parts = (outer[first], outer[last]) if b is not None else (0, 0)
    inner_parts = (inner[first], inner[last]) if b is not None else (0, 0)

    def cell(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        both = x @ w[first].T + outer_parts[0] + h @ r[first].T + inner_parts[0]
        z, reset = jnp.split(functions[0](_bounded(both, how)), 2, axis=1)
        part = (h if how.late_reset else reset * h) @ r[last].T + inner_parts[1]
        part = reset * part if how.late_reset else part
        n = functions[1](_bounded(x @ w[last].T + outer_parts[1] + part, how))
        return (1 - z) * n + z * h, c

    return cell


def _lstm(w: Array, r: Array, b: Any, p: Any, functions: Any, how: _How) -> Any:
    outer, inner = _biases(b)
    peep = (0, 0, 0) if p is None else jnp.split(p, 3)  # for the gates i, o and f

    def cell(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, o, f, g = jnp.split(x @ w.T + outer + h @ r.T + inner, 4, axis=1)
        i = functions[0](_bounded(i + peep[0] * c, how))
        f = 1 - i if how.coupled else functions[0](_bounded(f + peep[2] * c, how))
        new = f * c + i * functions[1](_bounded(g, how))
        o = functions[0](_bounded(o + peep[1] * new, how))
        return o * functions[2](new), new

    return cell


_CELLS = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}


def _activations(node: ir.Node, directions: int) -> tuple[tuple[Callable[[Array], Array], ...], ...]:
    """The functions of each direction, with their alpha and beta."""
    names = [str(name).lower() for name in attribute(node, "activations", ())] or _DEFAULTS[node.op_type] * directions
    alphas, betas = iter(attribute(node, "activation_alpha", ())), iter(attribute(node, "activation_beta", ()))
    made = []
    for name in names:
        function, alpha, beta = _ACTIVATIONS[name]
        alpha = next(alphas, alpha) if name in _WITH_ALPHA else alpha
        beta = next(betas, beta) if name in _WITH_BETA else beta
        made.append(functools.partial(lambda x, f, a, b: f(x, a, b), f=function, a=alpha, b=beta))
    each = len(names) // directions
    return tuple(tuple(made[d * each : (d + 1) * each]) for d in range(directions))


def _check(node: ir.Node) -> str | None:
    if can_unroll(node) and is_plain(node):
        return "it is written as cells"
    unknown = [str(name) for name in attribute(node, "activations", ()) if str(name).lower() not in _ACTIVATIONS]
    return f"the activation {unknown[0]}; allowed: {', '.join(_ACTIVATIONS)}" if unknown else None


def _recurrent(emitter: Emitter, node: ir.Node) -> None:
    direction = attribute(node, "direction", "forward")
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    how = _How(
        node.op_type,
        _activations(node, len(backwards)),
        backwards,
        float(attribute(node, "clip", 0.0)),
        bool(attribute(node, "input_forget", 0)),
        bool(attribute(node, "linear_before_reset", 0)),
        bool(attribute(node, "layout", 0)),
    )
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(8))
    results(emitter, node, f"{emitter.bind(_layer)}({inputs}, {emitter.bind(how)})")


for _name in _CELLS:
    operator(_name, _check)(_recurrent)
