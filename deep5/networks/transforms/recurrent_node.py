"""What a node of a recurrent layer says: its inputs, sizes and activations."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute

__all__ = ["USUAL", "Sizes", "activations_of", "are_whole", "batch_first", "inputs_of", "is_usual", "sizes_of"]


def inputs_of(node: ir.Node) -> list[ir.Value | None]:
    """All eight inputs, None for one that is left out."""
    inputs: list[ir.Value | None] = list(node.inputs)
    return inputs + [None] * (8 - len(inputs))


def batch_first(node: ir.Node) -> bool:
    """Whether the batch is the first axis of the layer's sequences, and not the second."""
    return "layout" in node.attributes and bool(node.attributes["layout"].as_int())


class Sizes(NamedTuple):
    """Sizes of a layer; `steps` is None where only a run knows it."""

    steps: int | None
    features: int
    directions: int
    hidden: int


def sizes_of(x: ir.Value, r: ir.Value, *, swapped: bool) -> Sizes | None:
    """The sizes that must be known; (steps, N, features) is the shape of x, (directions, gates hidden, hidden) r's."""
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    steps, *others = (x.shape[int(swapped)], x.shape[2], r.shape[0], r.shape[2])
    known = [extent for extent in others if isinstance(extent, int)]
    if len(known) < len(others) or steps == 0:
        return None
    return Sizes(steps if isinstance(steps, int) else None, *known)


def activations_of(node: ir.Node, directions: int) -> list[str]:
    """Names in small letters, those of the second direction behind those of the first."""
    given = attribute(node, "activations", None)
    return [str(name).lower() for name in given] if given else USUAL[node.op_type] * directions


def is_usual(node: ir.Node) -> bool:
    """Whether the activations are the usual ones, and nothing is clipped or coupled."""
    names, usual = activations_of(node, 1), USUAL[node.op_type]
    known = [usual, ["relu"]] if node.op_type == "RNN" else [usual]
    return (
        any(names in (each, each * 2) for each in known)
        and attribute(node, "clip", None) is None
        and not attribute(node, "input_forget", 0)
    )


def are_whole(lengths: ir.Value | None, steps: Any) -> bool:
    """Whether every sequence goes to the end."""
    array = constant_value(lengths)
    return lengths is None or (array is not None and bool((array == steps).all()))


USUAL = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}
