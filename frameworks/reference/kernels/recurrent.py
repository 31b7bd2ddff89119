"""Recurrent layers: LSTM, GRU and RNN, over sequences of any length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels import activation
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["ACTIVATIONS", "Activation", "Cell", "gru_cell", "lstm_cell", "recurrent", "rnn_cell"]

Activation = Callable[[Array], Array]
Cell = Callable[[Sequence[Activation], Array, Array, Array, Array | None, Array | None], tuple[Array, Array]]
"""Activations, the input product of the step, hidden and cell state (2, batch, hidden), recurrent weights (hidden,
gates hidden), their bias, peepholes -> the new states."""

# By name: the function of x, alpha and beta, and the defaults of the parameters that it reads.
ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float | None, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: activation.elu(x, alpha=a), 1.0, None),
    "hardsigmoid": (lambda x, a, b: activation.hard_sigmoid(x, alpha=a, beta=b), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: activation.leaky_relu(x, alpha=a), 0.01, None),
    "relu": (lambda x, a, b: activation.relu(x), None, None),
    "scaledtanh": (lambda x, a, b: np.asarray(a * np.tanh(b * x)), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: activation.sigmoid(x), None, None),
    "softplus": (lambda x, a, b: activation.softplus(x), None, None),
    "softsign": (lambda x, a, b: np.asarray(x / (1 + np.abs(x))), None, None),
    "tanh": (lambda x, a, b: np.asarray(np.tanh(x)), None, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0).astype(x.dtype), 1.0, None),
}


def recurrent(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    h: Array | None = None,
    c: Array | None = None,
    peepholes: Array | None = None,
    *,
    cell: Cell,
    activations: Sequence[Sequence[Activation]],
    reverse: bool,
    batch_first: bool,
) -> tuple[Array, Array, Array]:
    """Run a layer in one or two directions.

    Args:
        x: (steps, batch, features); (batch, steps, features) if `batch_first`.
        w: Input weights, (directions, gates hidden, features).
        r: Recurrent weights, (directions, gates hidden, hidden).
        bias: Of the input product, then of the recurrent one, (directions, 2 gates hidden); None: zeros.
        lengths: Steps of each sequence, (batch,); later outputs are zero. None: all steps.
        h: Initial hidden states, (directions, batch, hidden), or batch first; None: zeros.
        c: Initial cell states, like h.
        peepholes: (directions, 3 hidden).
        cell: The function of a step.
        activations: The activations of each direction.
        reverse: Whether the first direction is backward; the second always is.
        batch_first: Whether the batch is the first axis, also of outputs.

    Returns:
        The hidden states, (steps, directions, batch, hidden); the final hidden and cell states, like h.

    Raises:
        ShapeError: The shapes do not match.
    """
    if batch_first:
        x = x.swapaxes(0, 1)
        h, c = (None if value is None else value.swapaxes(0, 1) for value in (h, c))
    steps, batch, features = x.shape
    directions, rows, hidden = r.shape
    _check(x, w, r, bias, lengths, h, c, peepholes)
    live = None if lengths is None else np.arange(steps)[:, None, None] < lengths[:, None]
    y = np.zeros((steps, directions, batch, hidden), x.dtype)
    last_h, last_c = (np.zeros((directions, batch, hidden), x.dtype) for _ in range(2))
    for way in range(directions):
        state = last_h[way] if h is None else h[way]
        memory = last_c[way] if c is None else c[way]
        gates = x.reshape(-1, features) @ w[way].T
        inner = None
        if bias is not None:
            gates += bias[way, :rows]
            inner = bias[way, rows:]
        gates, weights = gates.reshape(steps, batch, rows), r[way].T
        peephole = None if peepholes is None else peepholes[way]
        backwards = way == 1 or reverse
        for step in reversed(range(steps)) if backwards else range(steps):
            new, kept = cell(activations[way], gates[step], np.stack([state, memory]), weights, inner, peephole)
            if live is not None:
                new, kept = np.where(live[step], new, state), np.where(live[step], kept, memory)
            state, memory = new, kept
            y[step, way] = new if live is None else np.where(live[step], new, 0)
        last_h[way], last_c[way] = state, memory
    if batch_first:
        return y.transpose(2, 0, 1, 3), last_h.swapaxes(0, 1), last_c.swapaxes(0, 1)
    return y, last_h, last_c


def lstm_cell(coupled: bool) -> Cell:
    """c' = f * c + i * g, h' = o * tanh(c'); the gates are in the order i, o, f, g.

    Args:
        coupled: Whether f is 1 - i.

    References:
        Gers, Schmidhuber and Cummins, Learning to forget, Neural Computation 12(10), 2000.
    """

    def cell(
        functions: Sequence[Activation],
        row: Array,
        states: Array,
        r: Array,
        bias: Array | None,
        peepholes: Array | None,
    ) -> tuple[Array, Array]:
        h, c = states
        gates = row + h @ r if bias is None else row + h @ r + bias
        i, o, f, g = np.split(gates, 4, axis=1)
        peep_i, peep_o, peep_f = (0, 0, 0) if peepholes is None else np.split(peepholes, 3)
        i = functions[0](i + peep_i * c)
        f = 1 - i if coupled else functions[0](f + peep_f * c)
        new = f * c + i * functions[1](g)
        return functions[0](o + peep_o * new) * functions[2](new), new

    return cell


def gru_cell(after: bool) -> Cell:
    """h' = (1 - z) * n + z * h; the gates are in the order z, r, n.

    Args:
        after: Whether r multiplies the recurrent product instead of the state.

    References:
        Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP 2014.
    """

    def cell(
        functions: Sequence[Activation],
        row: Array,
        states: Array,
        r: Array,
        bias: Array | None,
        peepholes: Array | None,
    ) -> tuple[Array, Array]:
        h = states[0]
        size = h.shape[1]
        inner = np.zeros(3 * size, row.dtype) if bias is None else bias
        z, reset = np.split(functions[0](row[:, : 2 * size] + h @ r[:, : 2 * size] + inner[: 2 * size]), 2, axis=1)
        late, own = r[:, 2 * size :], inner[2 * size :]
        past = reset * (h @ late + own) if after else (reset * h) @ late + own
        n = functions[1](row[:, 2 * size :] + past)
        return (1 - z) * n + z * h, states[1]

    return cell


def rnn_cell(
    functions: Sequence[Activation],
    row: Array,
    states: Array,
    r: Array,
    bias: Array | None,
    peepholes: Array | None,
) -> tuple[Array, Array]:
    """h' = f(x + h R^T + b).

    References:
        Elman, Finding structure in time, Cognitive Science 14(2), 1990.
    """
    gates = row + states[0] @ r
    return functions[0](gates if bias is None else gates + bias), states[1]


def _check(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    h: Array | None,
    c: Array | None,
    peepholes: Array | None,
) -> None:
    steps, batch, features = x.shape
    directions, rows, hidden = r.shape
    state = (directions, batch, hidden)
    expected = {
        "W": (w, (directions, rows, features)),
        "B": (bias, (directions, 2 * rows)),
        "sequence_lens": (lengths, (batch,)),
        "initial_h": (h, state),
        "initial_c": (c, state),
        "P": (peepholes, (directions, 3 * hidden)),
    }
    for name, (value, shape) in expected.items():
        if value is not None and value.shape != shape:
            raise ShapeError(f"{name} has shape {value.shape}; expected {shape}, as X and R say")
    if lengths is not None and batch and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise ShapeError(f"sequence_lens holds {lengths.tolist()}; allowed: 0 to {steps}")
