"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import recurrent
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import Call, Operator, Site, by_position, first
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

_DEFAULTS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}
_DIRECTIONS = ("forward", "reverse", "bidirectional")


def _recurrent(site: Site) -> Call:
    names, kind = _activations(site.node), site.node.op_type
    numbers = [iter(site.attribute(f"activation_{which}", ())) for which in ("alpha", "beta")]
    functions = [_function(name, numbers[0], numbers[1], site.attribute("clip")) for name in names]
    each = len(_DEFAULTS[kind])
    cells: dict[str, recurrent.Cell] = {
        "GRU": recurrent.gru_cell(bool(site.attribute("linear_before_reset", 0))),
        "LSTM": recurrent.lstm_cell(bool(site.attribute("input_forget", 0))),
        "RNN": recurrent.rnn_cell,
    }
    function = partial(
        recurrent.recurrent,
        cell=cells[kind],
        activations=[functions[:each], functions[each:]],
        reverse=site.attribute("direction", "forward") == "reverse",
        batch_first=bool(site.attribute("layout", 0)),
    )
    return Call(first(by_position(function, site.given), site.outputs), site.given)


def _activations(node: ir.Node) -> list[str]:
    """Lower-case names, those of the second direction after those of the first."""
    twice = 2 if attribute(node, "direction", "forward") == "bidirectional" else 1
    given = [str(name).lower() for name in attribute(node, "activations", ())]
    return given or _DEFAULTS[node.op_type] * twice


def _function(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> recurrent.Activation:
    """An activation; it takes the parameters that it reads from `alphas` and `betas`, in order."""
    function, alpha, beta = recurrent.ACTIVATIONS[name]
    a = 0.0 if alpha is None else next(alphas, float(np.float32(alpha)))
    b = 0.0 if beta is None else next(betas, float(np.float32(beta)))

    def call(x: Array) -> Array:
        return function(x if clip is None else np.clip(x, -clip, clip), a, b)

    return call


def _refusal(node: ir.Node) -> str | None:
    direction, names = attribute(node, "direction", "forward"), _activations(node)
    if direction not in _DIRECTIONS:
        return f"got direction={direction!r}; allowed: {', '.join(_DIRECTIONS)}"
    count = len(_DEFAULTS[node.op_type]) * (2 if direction == "bidirectional" else 1)
    unknown = [name for name in names if name not in recurrent.ACTIVATIONS]
    if unknown or len(names) != count:
        return f"got activations {', '.join(names)}; allowed: {count} of {', '.join(recurrent.ACTIVATIONS)}"
    return None


OPERATORS: dict[str, Operator] = {kind: Operator(_recurrent, refusal=_refusal) for kind in _DEFAULTS}
