"""Pooling, transposed convolution, and columns folded into images; `Window` computes the geometry on the host."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.nodes import rank, ranked
from deep5.networks.window import Window

__all__ = ["OPERATORS", "check_window"]


def _space(x: Array, channels: int) -> tuple[Any, ...]:
    """The sizes of an image's spatial axes."""
    return tuple(x.shape[2:] if channels == 1 else x.shape[1:-1])


def _combined(
    xp: Primitives, parts: Sequence[Array], fills: Sequence[Any], window: Window, channels: int, how: Callable[..., Any]
) -> list[Array]:
    """Elements of windows combined, one axis after another, rows last; padding has the values `fills`.

    Args:
        xp: The primitives.
        parts: Images of equal shape, whose elements are combined together.
        fills: The padding of each.
        window: The window.
        channels: The axis of channels.
        how: Takes two lists of arrays, of the earlier and the later elements; returns one.
    """
    first, space = 2 if channels == 1 else 1, _space(parts[0], channels)
    counts, begins, _ = window.fit(space, window.kernel)
    pads = [(0, 0)] * parts[0].ndim
    for at, span in enumerate(window.spans(window.kernel)):
        end = (counts[at] - 1) * window.strides[at] + span - space[at] - begins[at]
        pads[first + at] = (begins[at], end)  # removes what no window reaches
    around = any(map(any, pads))
    found = [xp.pad(part, pads, fill) if around else part for part, fill in zip(parts, fills, strict=True)]
    for at in reversed(range(len(space))):
        elements = (_elements(xp, part, window, at, first + at, counts[at]) for part in found)
        found = functools.reduce(how, map(list, zip(*elements, strict=True)))
    return found


def _elements(xp: Primitives, x: Array, window: Window, at: int, axis: int, count: int) -> list[Array]:
    """The elements at each position within the window, along one axis."""
    kernel, stride, step = window.kernel[at], window.strides[at], window.dilations[at]
    before: tuple[Any, ...] = (slice(None),) * axis
    if kernel == stride and step == 1:  # windows that do not overlap are rows of a matrix
        x = xp.reshape(x, (*x.shape[:axis], count, kernel, *x.shape[axis + 1 :]))
        return list(xp.unstack(x, axis=axis + 1))
    last = (count - 1) * stride + 1
    return [x[(*before, slice(place * step, place * step + last, stride))] for place in range(kernel)]


def _add(earlier: list[Array], later: list[Array]) -> list[Array]:
    return list(map(operator.add, earlier, later))


def _lowest(xp: Primitives, dtype: Any) -> Any:
    return -math.inf if xp.is_floating(dtype) else xp.limits(dtype)[0]


def _max_pool(
    xp: Primitives, x: Array, *, storage_order: int = 0, window: Window, channels: int, outputs: int
) -> tuple[Array, ...]:
    """The maxima; of equal elements the first, which also gets the gradient; and their places in the whole array."""

    def larger(earlier: list[Array], later: list[Array]) -> list[Array]:
        x, y = earlier[0], later[0]
        first = (x >= y) | xp.isnan(x)
        if outputs > 1:
            # Padding has no place: an element wins even if it is equally small.
            first = (first & (earlier[1] >= 0)) | (later[1] < 0)
        return [xp.where(first, a, b) for a, b in zip(earlier, later, strict=True)]

    low = _lowest(xp, x.dtype)
    if outputs == 1:
        return tuple(_combined(xp, [x], [low], window, channels, larger))
    places = xp.table(_flat_places, *x.shape, bool(storage_order), channels, like=x)
    return tuple(_combined(xp, [x, places], [low, -1], window, channels, larger))


def _flat_places(xp: Any, *numbers: Any) -> Any:
    """The places of all elements of an image in ONNX's order, or with the first spatial axis fastest."""
    *shape, by_columns, channels = numbers
    axes = len(shape)
    onnx = [0, 1, *range(2, axes)] if channels == 1 else [0, axes - 1, *range(1, axes - 1)]
    slowest = [*onnx[:2], *(onnx[:1:-1] if by_columns else onnx[2:])]
    found, step = xp.zeros(tuple(1 for _ in shape), dtype=xp.int64), 1
    for axis in reversed(slowest):
        form = tuple(-1 if at == axis else 1 for at in range(axes))
        along = xp.reshape(xp.arange(0, shape[axis], dtype=xp.int64), form)
        found, step = found + along * step, step * shape[axis]
    return found


def _average_pool(xp: Primitives, x: Array, *, count_include_pad: int = 0, window: Window, channels: int) -> Array:
    """The averages; padding counts if included, what windows reach beyond it never does."""
    (total,) = _combined(xp, [x], [0], window, channels, _add)
    shares = xp.table(_shares, window, _space(x, channels), bool(count_include_pad), like=x)
    shares = xp.reshape(shares, (1, 1, *shares.shape) if channels == 1 else (1, *shares.shape, 1))
    return total * xp.astype(shares, x.dtype)


def _shares(xp: Any, window: Window, space: tuple[int, ...], included: bool) -> Any:
    """One divided by the number of elements of each window."""
    shares = xp.ones((), dtype=xp.float64)
    for axis, (count, begin, end) in enumerate(zip(*window.fit(space, window.kernel), strict=True)):
        places = xp.arange(0, count)[:, None] * window.strides[axis] - begin
        places = places + xp.arange(0, window.kernel[axis]) * window.dilations[axis]
        low, high = (-begin, space[axis] + end) if included else (0, space[axis])
        counts = xp.sum(xp.astype((places >= low) & (places < high), xp.float64), axis=1)
        shares = shares[..., None] / counts
    return shares


def _lp_pool(xp: Primitives, x: Array, *, p: int = 2, window: Window, channels: int) -> Array:
    """(sum |x|^p)^(1/p); its gradient is 0 where all elements are 0."""
    (powers,) = _combined(xp, [xp.square(x) if p == 2 else xp.abs(x) ** p], [0], window, channels, _add)
    some = powers > 0
    root = xp.where(some, powers, xp.ones_like(powers))
    return xp.where(some, xp.sqrt(root) if p == 2 else root ** (1 / p), powers)


def _conv_transpose(
    xp: Primitives,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    group: int = 1,
    output_padding: Any = None,
    output_shape: Any = None,
    window: Window,
    channels: int,
) -> Array:
    """The gradient of a convolution with respect to its image, without the padding.

    Args:
        xp: The primitives.
        x: The image.
        weight: Shape (C, M / group, kernel …).
        bias: Shape (M,), or None.
        group: The number of groups of channels.
        output_padding: Elements at the end that the convolution did not reach.
        output_shape: The spatial sizes of the result, perhaps after others.
        window: The window of the convolution.
        channels: The axis of channels.
    """
    kernel, space = weight.shape[2:], _space(x, channels)
    more, removed = output_padding or (0,) * len(kernel), []
    for at, span in enumerate(window.spans(kernel)):
        begin, end = (0, 0) if window.auto_pad == "VALID" else (window.begins[at], window.ends[at])
        total, stride = None, window.strides[at]
        if output_shape:
            total = (space[at] - 1) * stride + span + more[at] - output_shape[at - len(kernel)]
        elif window.auto_pad.startswith("SAME"):  # as many elements as the input's, times the stride
            total = span + more[at] - stride
        if total is not None:
            half = total // 2 if window.auto_pad == "SAME_UPPER" else total - total // 2
            begin = half - xp.lesser(half, 0)  # a result that is too small gets zeros at its end
            end = total - begin
        removed.append((begin, end))
    return xp.transposed_convolution(x, weight, bias, window, group, removed, tuple(more))


def _col2im(
    xp: Primitives, x: Array, image: Any, block: Any, *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> Array:
    """Blocks added at the positions from which a window took them: (N, C block, windows) to (N, C, image …)."""
    axes = len(image)
    pads = tuple(pads or (0,) * (2 * axes))
    sizes = [extent + pads[at] + pads[axes + at] for at, extent in enumerate(image)]
    steps = (tuple(strides or (1,) * axes), tuple(dilations or (1,) * axes))
    places = xp.table(_block_places, tuple(sizes), tuple(block), *steps, like=x)
    rows = xp.permute_dims(xp.reshape(x, (x.shape[0], -1, places.shape[0])), (2, 0, 1))
    y = xp.placed(xp.blank((math.prod(sizes), *rows.shape[1:]), x), (places,), rows, "add")
    y = xp.reshape(xp.permute_dims(y, (1, 2, 0)), (*rows.shape[1:], *sizes))
    return y[(slice(None), slice(None), *(slice(pads[at], pads[at] + extent) for at, extent in enumerate(image)))]


def _block_places(
    xp: Any, sizes: tuple[int, ...], block: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Any:
    """The flat place in an image of each element of a block, of each window; shape (elements windows,)."""
    inside, where = (xp.zeros((), dtype=xp.int64) for _ in range(2))
    for at, extent in enumerate(sizes):
        count = (extent - dilations[at] * (block[at] - 1) - 1) // strides[at] + 1
        inside = inside[..., None] * extent + xp.arange(0, block[at], dtype=xp.int64) * dilations[at]
        where = where[..., None] * extent + xp.arange(0, count, dtype=xp.int64) * strides[at]
    return xp.reshape(xp.reshape(inside, (-1, 1)) + xp.reshape(where, (-1,)), (-1,))


def check_window(node: ir.Node) -> str | None:
    """Why an operator with a window cannot run."""
    axes = rank(node) - 2 if ranked(node) else 1
    return None if axes in (1, 2, 3) else f"{axes} spatial axes; 1 to 3 are supported"


def _windowed(function: Callable[..., Any]) -> Composite:
    return Composite(function=function, check=check_window, layout="image")


OPERATORS = {
    "AveragePool": _windowed(_average_pool),
    "Col2Im": Composite(function=_col2im, settings=(1, 2)),
    "ConvTranspose": Composite(function=_conv_transpose, check=check_window, layout="image", product=True),
    "LpPool": _windowed(_lp_pool),
    "MaxPool": _windowed(_max_pool),
}
