"""Operators that find, gather and scatter elements."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from deep5.frameworks.pytorch.table import attribute, kernel

__all__: list[str] = []

_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _check_reduction(node: ir.Node) -> str | None:
    kind = attribute(node, "reduction", "none")
    if kind not in ("none", *_REDUCE):
        return f"reduction={kind}"
    boolean = node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.BOOL
    return "a reduction of truth values" if boolean and kind != "none" else None


def _from_first(indices: Any, extent: int) -> Any:
    """Nonnegative indices."""
    indices = indices.long()
    return torch.where(indices < 0, indices + extent, indices)


@kernel("GatherElements")
def _gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    return x.gather(axis, _from_first(indices, x.shape[axis]))


@kernel("GatherND")
def _gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    places = list(indices.long().unbind(-1))
    for along in reversed(range(batch_dims)):
        shape = [-1 if at == along else 1 for at in range(indices.ndim - 1)]
        places.insert(0, torch.arange(x.shape[along], device=x.device).reshape(shape))
    return x[tuple(places)]


def _reduced(x: Any, along: int, indices: Any, updates: Any, reduction: str) -> Any:
    if x.dtype in (torch.float16, torch.bfloat16) and reduction == "mul":
        wide = x.float().scatter_reduce(along, indices, updates.float(), "prod")
        return wide.to(x.dtype)
    return x.scatter_reduce(along, indices, updates, _REDUCE[reduction])


@kernel("ScatterElements", _check_reduction)
def _scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none") -> Any:
    places = _from_first(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return _reduced(x, axis, places, updates, reduction)


@kernel("ScatterND", _check_reduction)
def _scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    places, count = tuple(indices.long().unbind(-1)), indices.shape[-1]
    if reduction in ("none", "add"):
        return x.index_put(places, updates, accumulate=reduction == "add")
    rows = x.reshape(-1, *x.shape[count:])
    numbers = torch.arange(rows.shape[0], device=x.device).reshape(x.shape[:count])[places].reshape(-1)
    given = updates.reshape(-1, *x.shape[count:])
    numbers = numbers.reshape(-1, *[1] * (rows.ndim - 1)).expand(given.shape)
    return _reduced(rows, 0, numbers, given, reduction).reshape(x.shape)


@kernel("TensorScatter")
def _tensor_scatter(past: Any, update: Any, starts: Any = None, *, axis: int = -2, mode: str = "linear") -> Any:
    axis %= past.ndim
    places = torch.arange(update.shape[axis], device=past.device).expand(past.shape[0], -1)
    if starts is not None:
        places = places + starts.long()[:, None]
    if mode == "circular":
        places = places % past.shape[axis]
    batch = torch.arange(past.shape[0], device=past.device)[:, None]
    return past.movedim(axis, 1).index_put((batch, places), update.movedim(axis, 1)).movedim(1, axis)


# torch's top k specifies neither which of several equal elements it selects nor their order; ONNX selects those with
# the lowest indices, like a stable sort. For 64 rows of 1000 numbers, selecting 5 and checking for ties takes 0.15 ms,
# sorting 3 ms or more; for few numbers, or if most are selected, sorting is faster.
_MANY = 4096
_FEW = 4


@kernel("TopK", settings=(1,))
def _top_k(x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1, outputs: int) -> tuple[Any, ...]:  # noqa: A002 - ONNX's name
    count = int(k[0] if isinstance(k, list) else k)
    # Reading values breaks a compiled graph, and makes the host wait for a GPU.
    looking = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if looking and x.numel() >= _MANY and 0 < _FEW * count <= x.shape[axis]:
        places = _selected(x.detach(), count, axis, bool(largest))
        if places is not None:
            return (x.gather(axis, places), places)[:outputs]
    values, indices = x.sort(dim=axis, descending=bool(largest), stable=True)
    return (values.narrow(axis, 0, count), indices.narrow(axis, 0, count))[:outputs]


def _selected(x: Any, count: int, axis: int, largest: bool) -> Any:
    """Indices of the first elements of a sorted axis; None if the last equals an excluded element, or one is NaN."""
    values, places = torch.topk(x, count, axis, largest, False)
    edge = values.amin(axis, True) if largest else values.amax(axis, True)
    reached = x >= edge if largest else x <= edge
    if not bool((reached.sum(axis) == count).all()):
        return None
    places = places.sort(axis).values
    order = x.gather(axis, places).sort(dim=axis, descending=largest, stable=True).indices
    return places.gather(axis, order)


@kernel("Unique", eager=True)
def _unique(x: Any, *, axis: int | None = None, sorted: int = 1, outputs: int) -> tuple[Any, ...]:  # noqa: A002 - ONNX's name
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    _, inverse, counts = torch.unique(x.detach(), return_inverse=True, return_counts=True, dim=along)
    positions = torch.arange(x.shape[along], device=x.device)
    first = torch.full_like(counts, x.shape[along]).scatter_reduce(0, inverse, positions, "amin")
    if not sorted:
        order = first.argsort()
        first, counts, inverse = first[order], counts[order], order.argsort()[inverse]
    return (x.index_select(along, first), first, inverse, counts)[:outputs]


@kernel("Compress", eager=True)
def _compress(x: Any, condition: Any, *, axis: int | None = None) -> Any:
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return x.index_select(along, condition.nonzero().squeeze(1))


@kernel("NonZero", eager=True)
def _non_zero(x: Any) -> Any:
    return x.nonzero().t().contiguous()


@kernel("NonMaxSuppression", settings=(2, 3, 4), eager=True)
def _non_max_suppression(
    boxes: Any, scores: Any, most: Any = 0, overlap: Any = 0.0, least: Any = None, *, center_point_box: int = 0
) -> Any:
    """Boxes in descending order of score, without those that overlap an earlier box too much.

    Args:
        boxes: Shape (batch, boxes, 4).
        scores: Shape (batch, classes, boxes).
        most: Maximum number of boxes per class.
        overlap: The maximum intersection over union.
        least: Scores must be larger than this; None: no limit.
        center_point_box: 0: two corners (y1, x1, y2, x2); 1: center and size (x, y, width, height).

    Returns:
        Shape (selected, 3): batch, class, box.
    """
    most, overlap, least = (
        value[0] if isinstance(value, list) and value else value for value in (most, overlap, least)
    )
    if center_point_box:
        low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    else:
        low, high = torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])
    area = (high - low).prod(-1)
    lows, highs = torch.maximum(low[:, :, None], low[:, None]), torch.minimum(high[:, :, None], high[:, None])
    common = (highs - lows).clamp(min=0).prod(-1)
    union = area[:, :, None] + area[:, None] - common
    close = common > (overlap or 0.0) * union
    order = scores.argsort(dim=-1, descending=True, stable=True)
    alive = torch.ones_like(scores, dtype=torch.bool) if least is None else scores > least
    batch = torch.arange(boxes.shape[0], device=boxes.device)[:, None]
    for place in order.unbind(-1):
        taken = alive.gather(2, place[..., None])
        alive = (alive & ~(close[batch, place] & taken)).scatter(2, place[..., None], taken)
    chosen = alive.gather(2, order)
    chosen = chosen & (chosen.cumsum(-1) <= (most or 0))
    rows = chosen.nonzero()
    return torch.cat((rows[:, :2], order[tuple(rows.unbind(1))][:, None]), 1)
