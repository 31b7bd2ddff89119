"""Attention written out in nodes, as exporters write it, as one call of torch's attention kernel.

softmax(scale (Q K^T) + mask) V, and softmax(where(seen, scale (Q K^T), fill)) V. The function stays the same: for a
query that sees no key, torch's kernel returns 0 where a mask is -inf and a wrong gradient where it is a large number;
the nodes return NaN or the mean of the values. So each query must see a key. For a mask known only when the network
runs, queries without keys get what the nodes return.

References:
    Vaswani et al., Attention is all you need, NeurIPS 2017, equation 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.core.python_source import number
from deep5.frameworks.pytorch.table import attribute
from deep5.networks.constants import constant_value
from deep5.networks.nodes import extents, only_for

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__ = ["Attention", "find_attention"]

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
# A fill from this number on gives keys that are not seen a weight of exactly 0 next to scores of any real network.
_FILL = -1e8
# A query sees a key if the number that is added to its score is at least this. Below it, rounding becomes noticeable:
# torch's kernel stores the logarithm of a sum that the mask dominates, and its gradient is wrong (by a factor of the
# number of keys for a mask of -1e9 in float32).
_SEEN = -16.0
# Nodes that are followed from a mask towards its origin.
_DEPTH = 32
# Batch, heads, length, size of a head: torch's fast kernels take no other shapes.
_AXES = 4


class Attention(NamedTuple):
    """An attention found in a graph.

    Attributes:
        emit: Returns the source of its result.
        inputs: The values that it reads.
        inner: The nodes that it replaces, besides the last.
    """

    emit: Callable[[Emitter], str]
    inputs: tuple[ir.Value, ...]
    inner: set[ir.Node]


class _Scores(NamedTuple):
    """What stands between the product of queries and keys and the softmax.

    Attributes:
        product: The node that multiplies queries by keys.
        scale: The factor of the product.
        mask: The value that is added, or the condition that selects; None if there is none.
        fill: The number in place of scores that the condition does not select; None for a mask that is added.
        flipped: Whether the condition selects the fill.
    """

    product: ir.Node
    scale: float
    mask: ir.Value | None = None
    fill: float | None = None
    flipped: bool = False


def find_attention(node: ir.Node) -> Attention | None:
    """The attention whose last node is this one; None if there is none that torch's kernel computes alike."""
    if node.op_type != "MatMul" or node.domain != "" or node.outputs[0].dtype not in _TYPES:
        return None
    inner: set[ir.Node] = set()
    softmax = only_for(node.inputs[0], ("Softmax",), inner)
    if (
        softmax is None
        or len(extents(node.outputs[0])) != _AXES
        or attribute(softmax, "axis", -1) not in (-1, _AXES - 1)
    ):
        return None
    scores = _scores(softmax.inputs[0], inner)
    if scores is None:
        return None
    q, first = _unscaled(scores.product.inputs[0], inner)
    k, second = _unscaled(scores.product.inputs[1], inner)
    v, scale = node.inputs[1], scores.scale * first * second
    # torch takes the root of the factor.
    if q is None or k is None or v is None or not _are_batched(q, k, v) or not 0 < scale < np.inf:
        return None
    mask = _NONE if scores.mask is None else _mask(scores, extents(softmax.inputs[0]))
    if mask is None:
        return None
    return Attention(partial(_emit, q, k, v, scale, mask), (q, k, v, *mask.reads), inner)


def _are_batched(*values: ir.Value) -> bool:
    """Whether queries, keys and values have equal, known sizes before the last two."""
    batches = {tuple(extents(value)[:-2]) for value in values}
    return len(batches) == 1 and len(first := batches.pop()) == _AXES - 2 and None not in first


def _unscaled(value: ir.Value | None, inner: set[ir.Node]) -> tuple[ir.Value | None, float]:
    """A value before its multiplication by a number, and that number; it must have no other reader."""
    found: set[ir.Node] = set()
    node = only_for(value, ("Mul", "Div"), found)
    factored = None if node is None else _factored(node)
    if factored is None or extents(factored[0]) != extents(value):
        return value, 1.0
    inner |= found
    return factored


def _factored(node: ir.Node) -> tuple[ir.Value | None, float] | None:
    """The other input of a multiplication by a number or a division by one, and the factor."""
    position = 1 if node.op_type == "Div" or _number(node.inputs[1]) is not None else 0
    factor = _number(node.inputs[position])
    if factor is None or factor == 0 or not np.isfinite(factor):
        return None
    return node.inputs[1 - position], 1 / factor if node.op_type == "Div" else factor


def _scores(value: ir.Value | None, inner: set[ir.Node]) -> _Scores | None:
    scale, mask, fill, flipped = 1.0, None, None, False
    while (node := only_for(value, ("MatMul", "Mul", "Div", "Add", "Where"), inner)) is not None:
        if node.op_type == "MatMul":
            return _Scores(node, scale, mask, fill, flipped)
        if node.op_type in ("Mul", "Div"):
            factored = _factored(node)
            if factored is None:
                return None
            value, scale = factored[0], scale * factored[1]
            continue
        if mask is not None or scale != 1.0:  # a factor of the masked scores
            return None
        if node.op_type == "Add":
            position = 0 if _leads_to_product(node.inputs[0]) else 1
            value, mask = node.inputs[position], node.inputs[1 - position]
        else:
            flipped = _number(node.inputs[2]) is None
            mask, value, other = (node.inputs[at] for at in ((0, 2, 1) if flipped else (0, 1, 2)))
            fill = _number(other)
            if fill is None or not np.isfinite(fill) or fill > _FILL:
                return None
    return None


def _leads_to_product(value: ir.Value | None) -> bool:
    """Whether a value is a product, perhaps scaled."""
    for _ in range(_DEPTH):
        node = None if value is None else value.producer()
        if node is None or node.op_type not in ("MatMul", "Mul", "Div", "Identity"):
            return False
        if node.op_type == "MatMul":
            return True
        value = node.inputs[1] if node.op_type == "Mul" and _number(node.inputs[0]) is not None else node.inputs[0]
    return False


def _number(value: ir.Value | None) -> float | None:
    """A constant of one element that is not trained."""
    known = constant_value(value)
    return float(known.reshape(())) if known is not None and known.size == 1 else None


class _Mask(NamedTuple):
    """The mask of an attention.

    Attributes:
        reads: The value that is read, if any.
        known: A condition known before the run.
        causal: Whether each query sees the keys up to its own position.
        flipped: Whether the condition is true where a key is not seen.
        run: The function that takes the value that is read; None: torch's kernel.
    """

    reads: tuple[ir.Value, ...] = ()
    known: np.ndarray | None = None
    causal: bool = False
    flipped: bool = False
    run: Callable[..., Any] | None = None


_NONE = _Mask()


def _mask(scores: _Scores, shape: list[int | str | None]) -> _Mask | None:
    """The mask as torch's kernel takes it; None if the kernel would compute another function."""
    mask = scores.mask
    if mask is None or not _fits(extents(mask), shape):
        return None
    known = constant_value(mask)
    if known is None:
        if scores.fill is not None:
            return _Mask((mask,), flipped=scores.flipped, run=_to_seen)
        return _Mask((mask,), run=_with_added) if _is_fed(mask, _DEPTH) else None
    seen = _seen_keys(scores, known)
    if seen is None:
        return _Mask((mask,)) if np.all((known.max(-1) >= _SEEN) & (known.max(-1) < np.inf)) else None
    if seen.ndim < 2 or not seen.any(-1).all():
        return None
    queries, keys = shape[-2:]
    if seen.size == seen.shape[-1] ** 2 and seen.shape[-2:] == (queries, keys) and queries == keys:
        table = seen.reshape(seen.shape[-2:])
        if np.array_equal(table, np.tril(np.ones_like(table))):
            return _Mask(causal=True)
    return _Mask(known=seen[(None,) * (_AXES - seen.ndim)])


def _seen_keys(scores: _Scores, known: np.ndarray) -> np.ndarray | None:
    """Which keys a known mask lets queries see; None if it adds other numbers than 0 and -inf."""
    if scores.fill is not None:
        return ~known if scores.flipped else known
    low = np.isneginf(known)
    return ~low if not known[~low].any() else None


def _fits(mask: list[int | str | None], scores: list[int | str | None]) -> bool:
    """Whether a mask broadcasts to the scores without changing their shape."""
    if not mask or len(mask) > len(scores) or None in scores:
        return False
    return all(own in (1, size) for own, size in zip(mask, scores[len(scores) - len(mask) :], strict=True))


def _is_fed(value: ir.Value | None, depth: int) -> bool:
    """Whether a mask is computed from constants and inputs only, so that it has no gradient in training."""
    if value is None or constant_value(value) is not None or value.is_graph_input():
        return True
    node = value.producer()
    return node is not None and depth > 0 and all(_is_fed(each, depth - 1) for each in node.inputs)


def _emit(q: ir.Value, k: ir.Value, v: ir.Value, scale: float, mask: _Mask, emitter: Emitter) -> str:
    names = f"{emitter.name(q)}, {emitter.name(k)}.transpose(2, 3), {emitter.name(v)}"
    factor = number(scale)
    if mask.run is not None:
        return f"{emitter.function(mask.run)}({names}, {emitter.name(mask.reads[0])}, {mask.flipped}, {factor})"
    text = ""
    if mask.known is not None:
        text = f"{emitter.constant(mask.known)}, "
    elif mask.reads:
        text = f"{emitter.function(_widened)}({emitter.name(mask.reads[0])}), "
    causal = "is_causal=True, " if mask.causal else ""
    return f"{emitter.function(F.scaled_dot_product_attention)}({names}, {text}{causal}scale={factor})"


def _widened(mask: Any) -> Any:
    """A mask with as many axes as the scores."""
    return mask[(None,) * (_AXES - mask.ndim)]


def _to_seen(q: Any, k: Any, v: Any, condition: Any, flipped: bool, scale: float) -> Any:
    """Attention to the keys that a condition selects; a query without keys gets the mean of all values.

    Scores that all equal the fill have equal weights.
    """
    seen = _widened(~condition if flipped else condition)
    some = seen.any(-1, keepdim=True)
    y = F.scaled_dot_product_attention(q, k, v, seen | ~some, scale=scale)
    return torch.where(some, y, v.mean(-2, keepdim=True))


def _with_added(q: Any, k: Any, v: Any, mask: Any, flipped: bool, scale: float) -> Any:
    """Attention with a mask that is added; by nodes if a query sees no key, or reading the mask takes a wait."""
    mask = _widened(mask)
    if not torch.compiler.is_compiling() and mask.device.type == "cpu" and not mask.requires_grad:
        best = mask.amax(-1)
        if bool(((best >= _SEEN) & (best < math.inf)).all()):
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    return torch.softmax(torch.matmul(q, k.transpose(2, 3)) * scale + mask, -1).matmul(v)
