"""The inputs, sizes and activations of a recurrent node."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute

__all__ = ["USUAL", "Sizes", "activations_of", "are_whole", "batch_first", "inputs_of", "is_usual", "sizes_of"]


def inputs_of(node: ir.Node) -> list[ir.Value | None]:
    """All eight inputs, None for an omitted one."""
    inputs: list[ir.Value | None] = list(node.inputs)
    return inputs + [None] * (8 - len(inputs))


def batch_first(node: ir.Node) -> bool:
    """Whether the batch is the first axis of the layer's sequences instead of the second."""
    return "layout" in node.attributes and bool(node.attributes["layout"].as_int())


class Sizes(NamedTuple):
    """Sizes of a layer; `steps` is None if it is known only at run time."""

    steps: int | None
    features: int
    directions: int
    hidden: int


def sizes_of(x: ir.Value, w: ir.Value, r: ir.Value, *, swapped: bool) -> Sizes | None:
    """The required sizes, or None.

    Args:
        x: (steps, N, features).
        w: (directions, gates hidden, features).
        r: (directions, gates hidden, hidden).
        swapped: Whether x has the shape (N, steps, features).
    """
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    # After an If whose branches differ in rank only the weight knows the number of features.
    features = w.shape[2] if w.shape is not None and len(w.shape) == 3 else x.shape[2]
    steps, *others = (x.shape[int(swapped)], features, r.shape[0], r.shape[2])
    known = [extent for extent in others if isinstance(extent, int)]
    if len(known) < len(others) or steps == 0:
        return None
    return Sizes(steps if isinstance(steps, int) else None, *known)


def activations_of(node: ir.Node, directions: int) -> list[str]:
    """Lower-case names, those of the first direction before those of the second."""
    given = attribute(node, "activations", None)
    return [str(name).lower() for name in given] if given else USUAL[node.op_type] * directions


def is_usual(node: ir.Node) -> bool:
    """Whether the activations are the default ones, without clipping or coupling."""
    names, usual = activations_of(node, 1), USUAL[node.op_type]
    known = [usual, ["relu"]] if node.op_type == "RNN" else [usual]
    return (
        any(names in (each, each * 2) for each in known)
        and attribute(node, "clip", None) is None
        and not attribute(node, "input_forget", 0)
    )


def are_whole(lengths: ir.Value | None, steps: Any) -> bool:
    """Whether every sequence has full length."""
    array = constant_value(lengths)
    return lengths is None or (array is not None and bool((array == steps).all()))


USUAL = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}
