"""Interpolated values of an image, in operators that have gradient rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward

__all__ = ["Kernel", "extent", "images", "sampled"]

_CUBIC = -0.75
"""Keys's parameter of cubic convolution, as in ONNX's GridSample."""


class Kernel(NamedTuple):
    """How to interpolate between elements.

    Attributes:
        mode: `"nearest"`, `"linear"` or `"cubic"`.
        padding: Values of elements outside: `"zeros"`, `"border"`, or `"reflection"` of the inside.
        corners: Whether reflection is at the centers of the outermost elements, not at their outer edges.
    """

    mode: str
    padding: str
    corners: bool = False


def extent(b: Backward, value: ir.Value, axis: int, like: ir.Value | None = None) -> ir.Value:
    """The size of an axis, a scalar: int64, or of the element type of `like`."""
    found = b.op("Squeeze", b.op("Shape", value, start=axis, end=axis + 1))
    return found if like is None else b.op("Cast", found, to=like.dtype)


def images(b: Backward, x: ir.Value) -> ir.Value:
    """The indices of the images, (N, 1)."""
    return b.op("Unsqueeze", b.op("Range", b.integer(0), extent(b, x, 0), b.integer(1)), b.ints(1))


def sampled(
    b: Backward, x: ir.Value, batch: ir.Value, coordinates: Sequence[ir.Value], kernel: Kernel, like: ir.Value
) -> ir.Value:
    """The values of images interpolated at points.

    Args:
        b: Receives the nodes.
        x: (N, C, *space).
        batch: Index of the image, int64, (R, 1).
        coordinates: One per spatial axis, (R, Q), in elements from the center of the first.
        kernel: How to interpolate.
        like: A value of the element type.

    Returns:
        (C, R, Q).

    References:
        Keys, Cubic convolution interpolation for digital image processing, IEEE TASSP 29(6), 1981.
    """
    axes = len(coordinates)
    channels = b.op("Shape", x, start=1, end=2)
    rows = b.op("Transpose", x, perm=[1, 0, *range(2, axes + 2)])
    rows = b.op("Reshape", rows, b.op("Concat", channels, b.ints(-1), axis=0))
    taps = [_taps(b, at, kernel.mode, like) for at in coordinates]
    placed = [
        [(*_place(b, at, extent(b, x, axis + 2, like), kernel, like), weight) for at, weight in own]
        for axis, own in enumerate(taps)
    ]
    total = None
    for chosen in itertools.product(*placed):
        index, inside, weight = batch, None, None
        for axis, (place, within, own) in enumerate(chosen):
            index = b.op("Add", b.op("Mul", index, extent(b, x, axis + 2)), place)
            inside = within if inside is None or within is None else b.op("And", inside, within)
            weight = own if weight is None or own is None else b.op("Mul", weight, own)
        value = b.op("Gather", rows, index, axis=1)
        value = value if inside is None else b.op("Where", inside, value, b.like(0.0, like))
        value = value if weight is None else b.op("Mul", value, weight)
        total = value if total is None else b.op("Add", total, value)
    assert total is not None  # noqa: S101 - a product of taps is never empty
    return total


def _taps(b: Backward, at: ir.Value, mode: str, like: ir.Value) -> list[tuple[ir.Value, ir.Value | None]]:
    """The elements along one axis that contribute, and their weights."""
    if mode == "nearest":
        return [(b.op("Round", at), None)]
    one = b.like(1.0, like)
    first = b.op("Floor", at)
    t = b.op("Sub", at, first)
    if mode == "linear":
        return [(first, b.op("Sub", one, t)), (b.op("Add", first, one), t)]
    distances = [b.op("Add", t, one), t, b.op("Sub", one, t), b.op("Sub", b.like(2.0, like), t)]
    near, far = (_CUBIC + 2.0, -(_CUBIC + 3.0), 0.0, 1.0), (_CUBIC, -5.0 * _CUBIC, 8.0 * _CUBIC, -4.0 * _CUBIC)
    found: list[tuple[ir.Value, ir.Value | None]] = []
    for shift, (distance, factors) in enumerate(zip(distances, (far, near, near, far), strict=True), start=-1):
        weight: ir.Value = b.like(factors[0], like)
        for factor in factors[1:]:
            weight = b.op("Add", b.op("Mul", weight, distance), b.like(factor, like))
        found.append((b.op("Add", first, b.like(float(shift), like)), weight))
    return found


def _place(
    b: Backward, at: ir.Value, size: ir.Value, kernel: Kernel, like: ir.Value
) -> tuple[ir.Value, ir.Value | None]:
    """An index along one axis, int64 and within the axis, and whether the element exists; None if all do."""
    zero, last = b.like(0.0, like), b.op("Sub", size, b.like(1.0, like))
    inside = None
    if kernel.padding == "zeros":
        inside = b.op("And", b.op("GreaterOrEqual", at, zero), b.op("LessOrEqual", at, last))
    elif kernel.padding == "reflection":
        # Between the outer edges, or the centers of the outermost elements; with a single element, from it to itself.
        low = b.like(0.0 if kernel.corners else -0.5, like)
        width = b.op("Max", last, b.like(0.5, like)) if kernel.corners else size
        away = b.op("Mod", b.op("Abs", b.op("Sub", at, low)), b.op("Add", width, width), fmod=1)
        at = b.op("Add", b.op("Sub", width, b.op("Abs", b.op("Sub", away, width))), low)
    within = b.op("Min", b.op("Max", at, zero), last)
    return b.op("Cast", within, to=ir.DataType.INT64), inside
