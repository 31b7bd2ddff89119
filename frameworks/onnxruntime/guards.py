"""Guards against silent errors of ONNX Runtime: labels below 0, large integers, sums at repeated indices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.onnxruntime.arrangements import corners, may_be_copied
from deep5.frameworks.onnxruntime.padding import overhanging, unpadded
from deep5.frameworks.onnxruntime.recurrent import miscomputed
from deep5.frameworks.onnxruntime.reductions import count_forward, counts_back
from deep5.frameworks.onnxruntime.scatter import combine_in_order, combines, racing
from deep5.frameworks.onnxruntime.stopping import with_a_node
from deep5.frameworks.onnxruntime.substitutes import substitute
from deep5.networks.draft import Change, changed
from deep5.networks.labels import open_losses
from deep5.networks.network import Network
from deep5.networks.nodes import of_shapes
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.contributed_types import CONTRIBUTED

__all__ = ["guard", "guarded", "wrong"]

# Operators computed in float64, which is exact for integers up to 2^53.
_INEXACT = {
    *("Mean", "Pow", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"),
    "ReduceSumSquare",
}
_LONG = {ir.DataType.INT64, ir.DataType.UINT64}
_HALF = 1 << 32


def wrong(node: ir.Node) -> str | None:
    """Why a node would give wrong values and cannot be rewritten; else None.

    Large integers would be wrong; sizes are never that large.
    """
    if (reason := racing(node)) is not None:
        return reason
    if node.domain == CONTRIBUTED and node.op_type == "Attention" and (len(node.inputs) < 3 or node.inputs[2] is None):
        return "got no bias, without which ONNX Runtime reads memory of others; allowed: one, also of zeros"
    if node.domain:
        return None
    if node.op_type == "Attention":
        return _attention(node)
    if node.op_type == "Resize":
        return _resize(node)
    if node.op_type == "LRN" and (size := attribute(node, "size", 1)) % 2 == 0:
        return (
            f"got size={size}, and ONNX Runtime runs no even size; allowed: odd; remedy: framework 'pytorch' or 'jax'"
        )
    if node.op_type == "Col2Im":
        return _columns(node)
    if (reason := unpadded(node) or overhanging(node) or miscomputed(node)) is not None:
        return reason
    kind = node.outputs[0].dtype or (node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None)
    rounded = node.op_type in _INEXACT or (node.op_type == "Mod" and bool(attribute(node, "fmod", 0)))
    if not rounded or kind not in _LONG or all(map(of_shapes, node.inputs)):
        return None
    return (
        f"ONNX Runtime computes what is {kind.name} in float64, which changes numbers beyond 2^53; "
        "allowed: INT32, or floating-point numbers"
    )


def guarded(network: Network) -> Network:
    """A network with correct sums that rejects labels below 0 at run time.

    A label that cannot be checked beforehand becomes larger than all classes if it is below 0. Sums add the lower and
    upper halves of their terms separately, each exact in float64. Updates at repeated indices are combined in order.

    Args:
        network: The network; it is not changed.

    Returns:
        A network with the same inputs and outputs; the network itself if nothing changes.
    """
    losses = open_losses(network)
    model = changed(network.model, lambda node: guard(node, is_open=node in losses))
    return network if model is network.model else Network(model)


def guard(node: ir.Node, *, is_open: bool) -> Change | None:
    """The rewrite of a node into others with correct values; None if the node is correct.

    Args:
        node: The node.
        is_open: Whether it is a loss with unchecked labels.
    """
    change = _replacement(node, is_open=is_open)
    return partial(_counted_forward, change) if counts_back(node) else change


def _counted_forward(change: Change | None, graph: ir.Graph, node: ir.Node) -> None:
    count_forward(graph, node)
    if change is not None:
        change(graph, node)


def _replacement(node: ir.Node, *, is_open: bool) -> Change | None:
    if is_open:
        return _refuse_below_0
    if _is_sum(node):
        return _sum_by_halves
    if (stoppable := with_a_node(node)) is not None:
        return stoppable
    return combine_in_order if combines(node) else substitute(node)


def _attention(node: ir.Node) -> str | None:
    """Why attention would miss the infinities of causality, fail for a mask that needs padding, or give NaN."""
    if node.outputs[0].dtype == ir.DataType.DOUBLE:
        # Version 1.31: the result of a query without keys is NaN, and the scale has float32 precision.
        return (
            "ONNX Runtime has no kernel for it in float64, and writes it in operators that give NaN; allowed: float32"
        )
    queries, keys, past = ([*node.inputs, None, None, None, None][position] for position in (0, 1, 4))
    if attribute(node, "is_causal", 0) and past is not None and not _as_long(queries, keys):
        return (
            "got is_causal=1 and cached keys, and ONNX Runtime counts the cached keys otherwise where the queries are "
            "not as many as the new keys; allowed: as many, of fixed size; remedy: a mask instead of is_causal, or "
            "framework 'pytorch', 'jax', 'tensorflow' or 'reference'"
        )
    mask, keys, past = ([*node.inputs, None, None, None, None][position] for position in (3, 1, 4))
    if len(node.outputs) > 3 and node.outputs[3].name and attribute(node, "is_causal", 0):
        return "ONNX Runtime gives scores without the causal mask; allowed: no scores"
    if mask is not None and past is None and keys is not None and mask.shape is not None and keys.shape is not None:
        seen, length = mask.shape[-1], keys.shape[-2]
        if isinstance(seen, int) and isinstance(length, int) and seen < length:
            return f"ONNX Runtime takes no mask of {seen} keys for {length}; allowed: {length}"
    return None


def _as_long(queries: ir.Value | None, keys: ir.Value | None) -> bool:
    """Whether two sequences are known to have the same length."""
    if queries is None or keys is None or queries.shape is None or keys.shape is None:
        return False
    return bool(queries.shape[-2] == keys.shape[-2])


def _resize(node: ir.Node) -> str | None:
    """Why a resize would misplace its corners, as the kernel uses the rounded size if the scale gives a fractional one,
    or would be a copy.
    """
    found = corners(node)
    if may_be_copied(node):
        return (
            "got sizes that stay and coordinates that move, and ONNX Runtime copies the image; allowed: another size, "
            "known before the network runs; remedy: framework 'pytorch', 'jax', 'tensorflow' or 'reference'"
        )
    if not isinstance(found, tuple):
        return None
    extent, scale = found
    return f"ONNX Runtime rounds {extent} · {scale:.6g} to a whole extent where corners are aligned; allowed: sizes"


def _columns(node: ir.Node) -> str | None:
    """Why columns would be put where windows without dilations have them."""
    dilations = list(attribute(node, "dilations", ()))
    if len(dilations) <= 2 or set(dilations) == {1}:
        return None
    return (
        f"got dilations={dilations}, and ONNX Runtime ignores dilations of more than two dimensions; allowed: "
        "dilations of 1; remedy: framework 'pytorch', 'jax', 'tensorflow' or 'reference'"
    )


def _is_sum(node: ir.Node) -> bool:
    """Whether a node sums integers that may be large."""
    whole = node.op_type == "ReduceSum" and not node.domain and node.outputs[0].dtype == ir.DataType.INT64
    return whole and not of_shapes(node.inputs[0])


def _refuse_below_0(graph: ir.Graph, node: ir.Node) -> None:
    tape, label = ir.tape.Tape(), node.inputs[1]
    assert label is not None and label.dtype is not None  # noqa: S101, PT018 - a loss has labels, and types were inferred
    kind = label.dtype.numpy()
    below = tape.op("Less", [label, _constant(tape, 0, kind)])
    if (ignored := attribute(node, "ignore_index")) is not None:
        other = tape.op("Not", [tape.op("Equal", [label, _constant(tape, ignored, kind)])])
        below = tape.op("And", [below, other])
    kept = tape.op("Where", [below, _constant(tape, np.iinfo(kind).max, kind), label])
    kept.type, kept.shape = label.type, label.shape
    graph.insert_before(node, tape.nodes)
    node.replace_input_with(1, kept)


def _sum_by_halves(graph: ir.Graph, node: ir.Node) -> None:
    tape, (x, *axes), old = ir.tape.Tape(), node.inputs, node.outputs[0]
    kind, settings = np.dtype(np.int64), {name: value.value for name, value in node.attributes.items()}
    half = _constant(tape, _HALF, kind)
    low = tape.op("Mod", [x, half])
    high = tape.op("Div", [tape.op("Sub", [x, low]), half])
    totals = [tape.op("ReduceSum", [part, *axes], dict(settings)) for part in (low, high)]
    total = tape.op("Add", [totals[0], tape.op("Mul", [totals[1], half])])
    total.name, total.type, total.shape = old.name, old.type, old.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, [old], [total])


def _constant(tape: ir.tape.Tape, number: int, kind: np.dtype[Any]) -> ir.Value:
    value: ir.Value = tape.op("Constant", [], {"value": ir.tensor(np.array(number, kind))})
    return value
