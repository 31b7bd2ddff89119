"""Recurrent layers by torch's own; the cases that these do not support are composites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from deep5.frameworks.pytorch.composites import emit_of
from deep5.frameworks.pytorch.table import attribute, extents, operator
from deep5.networks.kernels.operators import COMPOSITES

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []

# Every call reorders the gates, which moves two to three times the memory that a step reads.
_SHORT = 4


def _check_short(node: ir.Node) -> str | None:
    """Short layers are faster as unrolled cells, even if torch supports them."""
    steps = extents(node)[0]
    if _beyond_torch(node) is None and node.op_type != "RNN" and isinstance(steps, int) and steps < _SHORT:
        return f"{steps} steps, in less time than reordering its weights for torch takes"
    return None


def _beyond_torch(node: ir.Node) -> str | None:
    """Cases that torch's own layers do not support."""
    default = {"activations": None, "clip": None, "input_forget": 0, "layout": 0}
    if node.op_type == "RNN":
        del default["activations"]
        if (names := _activations(node)) not in ({"tanh"}, {"relu"}):
            return f"activations={sorted(names)}"
    if node.op_type == "GRU":
        default["linear_before_reset"] = 1  # torch resets after the product; ONNX's default is before it
    for name, usual in default.items():
        given = attribute(node, name, 0 if name == "linear_before_reset" else usual)
        if given != usual:
            return f"{name}={given}"
    if attribute(node, "direction", "forward") not in ("forward", "bidirectional"):
        return "the direction reverse"
    inputs = (*node.inputs, *(None,) * 8)
    return "peepholes" if inputs[7] is not None else None


def _activations(node: ir.Node) -> set[str]:
    return {name.lower() for name in attribute(node, "activations", None) or ["Tanh"]}


def _ordered(weight: Any, order: tuple[int, ...]) -> Any:
    """The gates of a weight or bias, (directions, gates size, …), in another order."""
    if len(order) == 1:
        return weight
    parts = weight.chunk(len(order), 1)
    return torch.cat([parts[gate] for gate in order], 1)


def _by_directions(weight: Any) -> Any:
    """The matrices or biases of each direction; the gradient of a single one is a view, that of two one copy."""
    return weight.unbind() if len(weight) > 1 else (weight.squeeze(0),)


def _parameters(weight: Any, recurrence: Any, bias: Any, order: tuple[int, ...]) -> list[Any]:
    """The weights and biases of all directions in the form of torch's layers.

    Args:
        weight: Shape (directions, gates size, features).
        recurrence: Shape (directions, gates size, size).
        bias: Shape (directions, 2 gates size), or None.
        order: torch's gates, by their numbers in ONNX's order.
    """
    parts = [weight, recurrence, *(() if bias is None else bias.chunk(2, 1))]
    each = [_by_directions(_ordered(part, order)) for part in parts]
    return [part for direction in zip(*each, strict=True) for part in direction]


def _zeros(x: Any, recurrence: Any) -> Any:
    """An initial state of zeros, shape (directions, batch, size)."""
    return x.new_zeros(recurrence.shape[0], x.shape[1], recurrence.shape[2])


def _by_direction(y: Any, recurrence: Any) -> Any:
    """All hidden states in ONNX's shape, (length, directions, batch, size)."""
    return y.unflatten(2, (recurrence.shape[0], recurrence.shape[2])).transpose(1, 2)


def _long_short(x: Any, weight: Any, recurrence: Any, bias: Any, lengths: Any, hidden: Any, cell: Any) -> Any:
    """ONNX's LSTM by torch's; returns all hidden states, the last ones, and the last cell states.

    Args:
        x: Shape (length, batch, features).
        weight: As for `_parameters`.
        recurrence: Likewise.
        bias: Likewise.
        lengths: Steps of each sequence, shape (batch,), or None for all.
        hidden: Initial hidden state, shape (directions, batch, size), or None for zeros.
        cell: Initial cell state, likewise.
    """
    return _layered(torch.lstm, (0, 2, 3, 1), x, weight, recurrence, bias, lengths, (hidden, cell))


def _recurrent(
    layer: Any, order: tuple[int, ...], x: Any, weight: Any, recurrence: Any, bias: Any, lengths: Any, hidden: Any
) -> Any:
    """ONNX's GRU or RNN by torch's; returns all hidden states and the last ones, like `_long_short`."""
    return _layered(layer, order, x, weight, recurrence, bias, lengths, (hidden,))


def _layered(
    layer: Any, order: tuple[int, ...], x: Any, weight: Any, recurrence: Any, bias: Any, lengths: Any, first: Any
) -> Any:
    """A layer of torch: all hidden states, and the last states; `first` are the initial ones, each None for zeros."""
    parameters = _parameters(weight, recurrence, bias, order)
    states = [_zeros(x, recurrence) if given is None else given for given in first]
    # Training mode, so that gradients exist everywhere; without dropout it has no other effect.
    options = bias is not None, 1, 0.0, True, recurrence.shape[0] == 2

    def given(own: Sequence[Any]) -> Any:
        return tuple(own) if layer is torch.lstm else own[0]

    if lengths is None or not x.shape[0] or not x.shape[1]:
        y, *last = layer(x, given(states), parameters, *options, False)
        return _by_direction(y, recurrence), *last
    steps = lengths.to("cpu", torch.int64)
    empty = bool(steps.min() < 1)
    if empty:
        # Packed sequences have at least one step: one of none has a step of zeros here, whose results are replaced.
        some = (lengths > 0)[:, None]
        x = torch.where(some, x, 0)
    packed = pack_padded_sequence(x, steps.clamp(1, x.shape[0]), enforce_sorted=False)
    sizes, there, back = packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
    y, *last = layer(packed.data, sizes, given([each.index_select(1, there) for each in states]), parameters, *options)
    y, _ = pad_packed_sequence(PackedSequence(y, sizes, there, back), total_length=x.shape[0])
    last = [each.index_select(1, back) for each in last]
    if empty:
        y = torch.where(some, y, 0)
        last = [torch.where(some, found, before) for found, before in zip(last, states, strict=True)]
    return _by_direction(y, recurrence), *last


def _gated(*values: Any) -> Any:
    return _recurrent(torch.gru, (1, 0, 2), *values)


def _rnn(*values: Any) -> Any:
    return _recurrent(torch.rnn_tanh, (0,), *values)


def _rnn_relu(*values: Any) -> Any:
    return _recurrent(torch.rnn_relu, (0,), *values)


def _emit_recurrent(emitter: Emitter, node: ir.Node) -> str | None:
    if _beyond_torch(node):
        return emit_of(COMPOSITES[node.op_type])(emitter, node)
    function, states, _ = _LAYERS[node.op_type]
    function = _rnn_relu if node.op_type == "RNN" and "relu" in _activations(node) else function
    given = (*node.inputs, *(None,) * 4)[: 5 + states]
    inputs = ", ".join(emitter.name(value) for value in given)
    outputs = [emitter.name(value) if value.name else "_" for value in node.outputs]
    targets = ", ".join([*outputs, *["_"] * (1 + states - len(outputs))])
    emitter.line(f"{targets} = {emitter.function(function)}({inputs})")
    return None


_LAYERS: dict[str, tuple[Callable[..., Any], int, str]] = {
    "GRU": (_gated, 1, "4.6 and 2.3 times at (16, 4, 16), 1.3 and 1.6 at (32, 32, 128), 32 and 256 hidden"),
    "LSTM": (_long_short, 2, "7.4 and 5.9 times at (16, 4, 16), 2.3 and 1.7 at (32, 32, 128), 32 and 256 hidden"),
    "RNN": (_rnn, 1, "2.8 and 1.8 times at (16, 4, 16), 1.4 and 1.2 at (32, 32, 128), 32 and 256 hidden"),
}
for _name, _layer in _LAYERS.items():
    operator(_name, _check_short, ranked=True, override=_layer[2])(_emit_recurrent)
