"""ONNX's recurrent layers, step by step: the cases that torch's own layers do not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

__all__ = ["gated_recurrent", "long_short_term", "simple_recurrent"]

# By name: a function of x, alpha and beta, and the default values of alpha and beta.
_ACTIVATIONS: dict[str, tuple[Callable[[Any, float, float], Any], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: F.elu(x, a), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: (a * x + b).clamp(0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: F.leaky_relu(x, a), 0.01, 0.0),
    "relu": (lambda x, a, b: x.relu(), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: x.sigmoid(), 0.0, 0.0),
    "softplus": (lambda x, a, b: F.softplus(x, 1.0, 40.0), 0.0, 0.0),
    "softsign": (lambda x, a, b: F.softsign(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: x.tanh(), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: F.threshold(x, a, 0.0), 1.0, 0.0),
}
# The activations that consume a value of activation_alpha and of activation_beta.
_ALPHAS = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu")
_BETAS = ("affine", "hardsigmoid", "scaledtanh")

Step = Callable[[int, Any, tuple[Any, ...]], tuple[Any, ...]]


def _functions(
    names: Any, default: list[str], directions: int, alphas: Any, betas: Any, clip: float | None
) -> list[Callable[[Any], Any]]:
    """The activations of all directions in order, each applied after the clip."""
    names = list(names) if names else default * directions
    alphas, betas = list(alphas or ()), list(betas or ())
    found: list[Callable[[Any], Any]] = []
    for name in map(str.lower, names):
        function, alpha, beta = _ACTIVATIONS[name]
        if name in _ALPHAS and alphas:
            alpha = alphas.pop(0)
        if name in _BETAS and betas:
            beta = betas.pop(0)

        def run(x: Any, function: Any = function, alpha: float = alpha, beta: float = beta) -> Any:
            return function(x if clip is None else x.clamp(-clip, clip), alpha, beta)

        found.append(run)
    return found


def _run(
    x: Any, lengths: Any, states: tuple[Any, ...], directions: tuple[bool, ...], step: Step, layout: int
) -> tuple[Any, tuple[Any, ...]]:
    """All hidden states, (length, directions, batch, size), and the last of each kind, (directions, batch, size).

    Args:
        x: Shape (length, batch, features).
        lengths: The sequences' lengths, shape (batch,); None: all have full length.
        states: The initial ones, each (directions, batch, size).
        directions: Whether each runs backward.
        step: Takes the direction, a step's input and the states; returns the new states.
        layout: 1: the batch comes first in all of them.
    """
    count, rows, ends = x.shape[0], [], []
    for number, backward in enumerate(directions):
        state, kept = tuple(each[number] for each in states), [Any] * 0
        for at in reversed(range(count)) if backward else range(count):
            new = step(number, x[at], state)
            if lengths is None:
                state = new
                kept.append(state[0])
            else:
                runs = (at < lengths)[:, None]
                state = tuple(torch.where(runs, after, before) for after, before in zip(new, state, strict=True))
                kept.append(torch.where(runs, state[0], 0.0))
        rows.append(torch.stack(kept[::-1] if backward else kept))
        ends.append(state)
    y, last = torch.stack(rows, 1), tuple(map(torch.stack, zip(*ends, strict=True)))
    if layout:
        return y.permute(2, 0, 1, 3), tuple(each.transpose(0, 1) for each in last)
    return y, last


def _arranged(x: Any, states: tuple[Any, ...], weights: Any, layout: int) -> tuple[Any, tuple[Any, ...]]:
    """Input and initial states with the batch second; omitted states are zero."""
    directions, _, size = weights.shape
    if layout:
        x = x.transpose(0, 1)
        states = tuple(None if state is None else state.transpose(0, 1) for state in states)
    zeros = x.new_zeros(directions, x.shape[1], size)
    return x, tuple(zeros if state is None else state for state in states)


def _backwards(direction: str) -> tuple[bool, ...]:
    return {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]


def _halves(bias: Any, number: int, like: Any) -> tuple[Any, Any]:
    if bias is None:
        zero = like.new_zeros(())
        return zero, zero
    first, second = bias[number].chunk(2)
    return first, second


def simple_recurrent(
    x: Any,
    weight: Any,
    recurrence: Any,
    bias: Any = None,
    lengths: Any = None,
    hidden: Any = None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: float | None = None,
    direction: str = "forward",
    layout: int = 0,
    outputs: int,
) -> tuple[Any, ...]:
    """ONNX's RNN."""
    backwards = _backwards(direction)
    functions = _functions(activations, ["Tanh"], len(backwards), activation_alpha, activation_beta, clip)
    x, states = _arranged(x, (hidden,), recurrence, layout)

    def step(number: int, row: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        of_input, of_state = _halves(bias, number, x)
        total = row @ weight[number].t() + state[0] @ recurrence[number].t() + of_input + of_state
        return (functions[number](total),)

    y, last = _run(x, lengths, states, backwards, step, layout)
    return (y, *last)[:outputs]


def gated_recurrent(
    x: Any,
    weight: Any,
    recurrence: Any,
    bias: Any = None,
    lengths: Any = None,
    hidden: Any = None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: float | None = None,
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: int = 0,
    outputs: int,
) -> tuple[Any, ...]:
    """ONNX's GRU: gates update, reset, hidden.

    References:
        Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP 2014, equations 5 to 8.
    """
    backwards = _backwards(direction)
    functions = _functions(activations, ["Sigmoid", "Tanh"], len(backwards), activation_alpha, activation_beta, clip)
    x, states = _arranged(x, (hidden,), recurrence, layout)
    size = recurrence.shape[-1]

    def step(number: int, row: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (before,), (gate, candidate) = state, functions[2 * number : 2 * number + 2]
        of_input, of_state = _halves(bias, number, x)
        given = row @ weight[number].t() + of_input
        gates, last = recurrence[number].split((2 * size, size))
        biases = of_state.split((2 * size, size)) if of_state.ndim else (of_state, of_state)
        update, reset = gate(given[:, : 2 * size] + before @ gates.t() + biases[0]).chunk(2, 1)
        if linear_before_reset:
            new = candidate(given[:, 2 * size :] + reset * (before @ last.t() + biases[1]))
        else:
            new = candidate(given[:, 2 * size :] + (reset * before) @ last.t() + biases[1])
        return ((1 - update) * new + update * before,)

    y, last = _run(x, lengths, states, backwards, step, layout)
    return (y, *last)[:outputs]


def long_short_term(
    x: Any,
    weight: Any,
    recurrence: Any,
    bias: Any = None,
    lengths: Any = None,
    hidden: Any = None,
    cell: Any = None,
    peepholes: Any = None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: float | None = None,
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
    outputs: int,
) -> tuple[Any, ...]:
    """ONNX's LSTM: gates input, output, forget, cell; peepholes input, output, forget.

    References:
        Gers, Schraudolph and Schmidhuber, Learning precise timing with LSTM recurrent networks, JMLR 3, 2002.
    """
    backwards = _backwards(direction)
    default = ["Sigmoid", "Tanh", "Tanh"]
    functions = _functions(activations, default, len(backwards), activation_alpha, activation_beta, clip)
    x, states = _arranged(x, (hidden, cell), recurrence, layout)

    def step(number: int, row: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (before, held), (gate, candidate, out) = state, functions[3 * number : 3 * number + 3]
        of_input, of_state = _halves(bias, number, x)
        total = row @ weight[number].t() + before @ recurrence[number].t() + of_input + of_state
        enter, leave, forget, new = total.chunk(4, 1)
        look = (0.0, 0.0, 0.0) if peepholes is None else peepholes[number].chunk(3)
        entered = gate(enter + look[0] * held)
        kept = 1 - entered if input_forget else gate(forget + look[2] * held)
        held = kept * held + entered * candidate(new)
        return gate(leave + look[1] * held) * out(held), held

    y, last = _run(x, lengths, states, backwards, step, layout)
    return (y, *last)[:outputs]
