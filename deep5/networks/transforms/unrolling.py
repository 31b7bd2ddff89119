"""Unroll recurrent layers into one cell per step or, for sequences of any length, into a Scan over a cell."""

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
"""The layers that can be unrolled."""


def unrolled(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace an LSTM, GRU or RNN node by its cells.

    One Gemm computes the product with the input for the whole sequence; each step is a Gemm with the previous state and
    the operations of the cell. If the number of steps is known only at run time, they become a Scan.

    Args:
        graph: The graph that contains the node; changed in place.
        node: The node, with the shapes of its inputs.

    Returns:
        Whether the node was replaced. It stays if the directions, the features or the hidden size are unknown, or if
        its activations are not one set of ONNX's activations per direction.

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
    """Whether `unrolled` replaces a node by one cell per step."""
    sizes = _writable(node)
    return sizes is not None and sizes.steps is not None


def _writable(node: ir.Node) -> Sizes | None:
    """The sizes of a layer that can be unrolled; None for any other."""
    x, w, r, *_ = inputs_of(node)
    if x is None or w is None or r is None or (sizes := sizes_of(x, w, r, swapped=batch_first(node))) is None:
        return None
    if sizes.directions != _DIRECTIONS.get(attribute(node, "direction", "forward")):
        return None
    names = activations_of(node, sizes.directions)
    fits = len(names) == len(USUAL[node.op_type]) * sizes.directions and set(names) <= FUNCTIONS.keys()
    return sizes if fits else None


def is_plain(node: ir.Node) -> bool:
    """Whether a node's cells are the original ones: full-length sequences, no clipping, no coupled gates."""
    x, _, _, _, lengths, *_ = inputs_of(node)
    steps = x.shape[int(batch_first(node))] if x is not None and x.shape is not None else None
    return is_usual(node) and are_whole(lengths, steps)


_DIRECTIONS = {"bidirectional": 2, "forward": 1, "reverse": 1}
