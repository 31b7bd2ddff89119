"""Recurrent layers, written as one cell after the other, or, over sequences of any length, as a Scan of cells."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute
from deep5.networks.transforms.recurrent_cells import LAYERS
from deep5.networks.transforms.recurrent_layer import FUNCTIONS
from deep5.networks.transforms.recurrent_node import (
    USUAL,
    Sizes,
    activations_of,
    are_whole,
    batch_first,
    inputs_of,
    is_usual,
    sizes_of,
)

__all__ = ["RECURRENT", "can_unroll", "is_plain", "unrolled"]

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""The layers that can be written as cells."""


def unrolled(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace an LSTM, GRU or RNN node by its cells.

    The product with the input is one Gemm for the whole sequence; a step is a Gemm with the state before it, and what
    the cell is made of. Steps of which only a run knows how many there are become a Scan.

    Args:
        graph: The graph that holds the node; changed in place.
        node: The node, with the shapes of its inputs.

    Returns:
        Whether it was replaced. It stays where the directions, the features or the hidden size are not known, or where
        its activations are not ONNX's, one set for each direction.

    References:
        ONNX operator specifications LSTM-14, GRU-14, RNN-14; Hochreiter and Schmidhuber, Long short-term memory,
        Neural Computation 9(8), 1997; Gers, Schmidhuber and Cummins, Learning to forget, Neural Computation 12(10),
        2000 (peepholes: Gers and Schmidhuber, Recurrent nets that time and count, IJCNN 2000); Cho et al., Learning
        phrase representations using RNN encoder-decoder, EMNLP 2014; Elman, Finding structure in time, Cognitive
        Science 14(2), 1990.
    """
    x, w, r, b, _, h, c, peepholes = inputs_of(node)
    sizes = _writable(node)
    if x is None or sizes is None:
        return False
    LAYERS[node.op_type](node, x, sizes).write(graph, (w, r, b, h, c, peepholes))
    return True


def can_unroll(node: ir.Node) -> bool:
    """Whether `unrolled` replaces a node by one cell after the other."""
    sizes = _writable(node)
    return sizes is not None and sizes.steps is not None


def _writable(node: ir.Node) -> Sizes | None:
    """The sizes of a layer that can be written as cells; None of another."""
    x, w, r, *_ = inputs_of(node)
    if x is None or w is None or r is None or (sizes := sizes_of(x, r, swapped=batch_first(node))) is None:
        return None
    if sizes.directions != _DIRECTIONS.get(attribute(node, "direction", "forward")):
        return None
    names = activations_of(node, sizes.directions)
    fits = len(names) == len(USUAL[node.op_type]) * sizes.directions and set(names) <= FUNCTIONS.keys()
    return sizes if fits else None


def is_plain(node: ir.Node) -> bool:
    """Whether the cells of a node are those first published: whole sequences, no clipping, no coupled gates."""
    x, _, _, _, lengths, *_ = inputs_of(node)
    steps = x.shape[int(batch_first(node))] if x is not None and x.shape is not None else None
    return is_usual(node) and are_whole(lengths, steps)


_DIRECTIONS = {"bidirectional": 2, "forward": 1, "reverse": 1}
