"""Operators that search for elements: the largest, the unique, the nonzero, and boxes that do not overlap."""

from __future__ import annotations

from typing import Any

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS", "too_close"]


def _range(xp: Any, count: Any) -> Any:
    return xp.arange(0, count, dtype=xp.int64)


def _top_k(
    xp: Primitives,
    x: Array,
    count: Any,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002 - ONNX's name
    outputs: int,
) -> tuple[Array, ...]:
    return xp.top_k(x, count[0], axis % x.ndim, bool(largest))[:outputs]


def _non_zero(xp: Primitives, x: Array) -> Array:
    return xp.permute_dims(xp.found(x), (1, 0))


def _compress(xp: Primitives, x: Array, condition: Array, *, axis: int | None = None) -> Array:
    x, axis = (xp.reshape(x, (-1,)), 0) if axis is None else (x, axis % x.ndim)
    return xp.take(x, xp.found(condition)[:, 0], axis=axis)


def _unique(
    xp: Primitives,
    x: Array,
    *,
    axis: int | None = None,
    sorted: int = 1,  # noqa: A002 - ONNX's name
    outputs: int,
) -> tuple[Array, ...]:
    """The unique slices, the index of each one's first occurrence, the number of each slice, and the counts."""
    x, axis = (xp.reshape(x, (-1,)), 0) if axis is None else (x, axis % x.ndim)
    first, numbers, counts = xp.classes(xp.held(x), axis)
    if not sorted:
        order = xp.argsort(first)
        first, counts = xp.take(first, order, axis=0), xp.take(counts, order, axis=0)
        numbers = xp.take(xp.argsort(order), numbers, axis=0)
    return (xp.take(x, first, axis=axis), first, numbers, counts)[:outputs]


def too_close(xp: Primitives, boxes: Array, overlap: Any, center_point_box: int) -> Array:
    """Whether two boxes of an image overlap too much or are the same one; shape (batch, boxes, boxes)."""
    first, second = xp.held(boxes)[..., :2], xp.held(boxes)[..., 2:]
    low, high = (
        (first - second / 2, first + second / 2)
        if center_point_box
        else (xp.minimum(first, second), xp.maximum(first, second))
    )
    area = xp.prod(high - low, axis=(-1,), keepdims=False, dtype=low.dtype)
    reach = xp.minimum(high[:, :, None], high[:, None]) - xp.maximum(low[:, :, None], low[:, None])
    shared = xp.clamp(reach[..., 0], 0.0) * xp.clamp(reach[..., 1], 0.0)
    close = shared > (0.0 if overlap is None else overlap[0]) * (area[:, :, None] + area[:, None] - shared)
    places = xp.table(_range, boxes.shape[1], like=boxes)
    return xp.logical_or(close, places[:, None] == places)


def _non_max_suppression(
    xp: Primitives,
    boxes: Array,
    scores: Array,
    most: Any = None,
    overlap: Any = None,
    least: Any = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Boxes in descending order of score, without those that overlap an earlier box too much.

    Args:
        xp: The primitives.
        boxes: Shape (batch, boxes, 4).
        scores: Shape (batch, classes, boxes).
        most: Maximum number of boxes per class.
        overlap: The maximum intersection over union.
        least: Scores must be larger than this; None: no limit.
        center_point_box: 0: two corners (y1, x1, y2, x2); 1: center and size (x, y, width, height).

    Returns:
        Shape (selected, 3): batch, class, box.
    """
    batch, _, extent = scores.shape
    close = xp.reshape(too_close(xp, boxes, overlap, center_point_box), (batch * extent, extent))
    images = xp.reshape(xp.table(_range, batch, like=scores), (-1, 1)) * extent
    gone = xp.full_like(scores, xp.limits(scores.dtype)[0])
    left = xp.held(scores)
    left = left if least is None else xp.where(left > least[0], left, gone)
    count = xp.lesser(0 if most is None else most[0], extent)
    steps = xp.table(_range, count, like=scores)

    lowest = gone[..., :1]

    def best_above(left: Array) -> Array:
        return xp.max(left, axis=-1, keepdims=True) > lowest

    def some_left(step: Array, some: Array, left: Array, chosen: Array) -> Array:
        return xp.logical_and(step < count, xp.any(some))

    def choose(step: Array, some: Array, left: Array, chosen: Array) -> tuple[Array, ...]:
        best = xp.argmax(left, axis=-1, keepdims=True)
        chosen = xp.where(xp.logical_and(steps == step, some), best, chosen)
        near = xp.take(close, xp.reshape(best[..., 0] + images, (-1,)), axis=0)
        left = xp.where(xp.reshape(near, scores.shape), gone, left)
        return step + 1, best_above(left), left, chosen

    step = xp.reshape(xp.table(_range, 1, like=scores), ())
    none = xp.zeros_like(xp.argmax(left, axis=-1, keepdims=True)) - 1 - xp.zeros_like(steps)
    *_, chosen = xp.loop(some_left, choose, (step, best_above(left), left, none))
    rows = xp.found(chosen >= 0)
    return xp.concat([rows[:, :2], xp.picked(chosen, (rows[:, 0], rows[:, 1], rows[:, 2]))[:, None]], axis=1)


OPERATORS = {
    "Compress": Composite(function=_compress, reads=lambda node: (1,)),
    "NonMaxSuppression": Composite(
        function=_non_max_suppression, settings=(2, 3, 4), traced=(2, 3, 4), reads=lambda node: (0, 1)
    ),
    "NonZero": Composite(function=_non_zero, reads=lambda node: (0,)),
    "TopK": Composite(function=_top_k, settings=(1,), traced=(1,)),
    "Unique": Composite(function=_unique, reads=lambda node: (0,)),
}
