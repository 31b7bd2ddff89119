"""Gradients of Fourier transforms, and of Col2Im."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.recomputed import recomputed
from deep5.networks.gradients.sampling import extent
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]

# The first opset in which DFT takes its axis as an input.
_AXIS_IS_INPUT = 20


def _transformed(b: Backward, value: ir.Value | None, axis: int, **attributes: int) -> ir.Value:
    """The transform along an axis, counted from the front."""
    if b.graph.opset_imports.get("", 0) >= _AXIS_IS_INPUT:
        return b.op("DFT", value, None, b.integer(axis), **attributes)
    return b.op("DFT", value, axis=axis, **attributes)


def _axis(b: Backward, node: ir.Node, rank: int) -> int:
    if b.graph.opset_imports.get("", 0) < _AXIS_IS_INPUT:
        return int(attribute(node, "axis", 1)) % rank
    given = node.inputs[2] if len(node.inputs) > 2 else None
    axis = constant_value(given)
    if given is not None and axis is None:
        raise refuse(node, f"its axis {given.name!r} is computed; allowed: a constant")
    return (-2 if axis is None else int(axis)) % rank


def _dft(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = F x, or (1 / N) F^H x for the inverse: dx = F^H dy, or (1 / N) F dy; the real part for a real x.

    For a one-sided y the other frequencies count as 0. A real y of a one-sided x contains each frequency twice, except
    those that are their own conjugates.

    References:
        ONNX, DFT-20. Oppenheim and Schafer, Discrete-Time Signal Processing, 2009, section 8.6: F^H / N is the inverse.
    """
    (x,), y, dy = operands(node, 1), node.outputs[0], grads[0]
    rank = len(extents(x))
    axis, length = _axis(b, node, rank), node.inputs[1] if len(node.inputs) > 1 else None
    inverse, onesided = attribute(node, "inverse", 0), attribute(node, "onesided", 0)
    bins = b.op("Shape", y, start=axis, end=axis + 1)
    count = bins
    if onesided and not inverse:
        count = b.op("Shape", x, start=axis, end=axis + 1) if length is None else b.op("Reshape", length, b.ints(-1))
        count = count if length is None or length.dtype == ir.DataType.INT64 else b.op("Cast", count, to=7)
        dy = _resized(b, dy, bins, count, axis)
    number = b.op("Squeeze", b.op("Cast", count, to=x.dtype))
    if onesided and inverse:
        dx = _transformed(b, dy, axis, onesided=1)
        half = b.op("Range", b.integer(0), extent(b, dx, axis), b.integer(1))
        own = b.op("Equal", b.op("Mod", b.op("Mul", half, b.integer(2)), count), b.integer(0))
        twice = b.op("Where", own, b.like(1.0, x), b.like(2.0, x))
        dx = b.op("Mul", dx, b.op("Reshape", b.op("Div", twice, number), b.ints(-1, *[1] * (rank - axis - 1))))
    else:
        dx = _transformed(b, dy, axis, inverse=1 - inverse)
        dx = b.op("Div" if inverse else "Mul", dx, number)
    got = b.op("Shape", dx, start=axis, end=axis + 1)
    dx = _resized(b, dx, got, b.op("Shape", x, start=axis, end=axis + 1), axis)
    if extents(x)[-1] != 2:  # x is real, or only a run shows whether it is
        dx = b.op("Slice", dx, b.ints(0), b.op("Shape", x, start=rank - 1), b.ints(rank - 1))
    return [dx, *[None] * (len(node.inputs) - 1)]


def _resized(b: Backward, value: ir.Value | None, got: ir.Value, wanted: ir.Value, axis: int) -> ir.Value:
    """The value zero-padded at the end of an axis, or cropped there."""
    return b.op("Pad", value, b.op("Concat", b.ints(0), b.op("Sub", wanted, got), axis=0), None, b.ints(axis))


def _framed(b: Backward, node: ir.Node, values: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    signal, step, window, size = (*values, None, None)[:4]
    assert signal is not None  # noqa: S101 - checked by ONNX's checker
    length = extent(b, signal, 1)
    if size is not None:
        size = b.op("Cast", b.op("Squeeze", size), to=ir.DataType.INT64)
    else:
        size = length if window is None else extent(b, window, 0)
    step = b.op("Cast", b.op("Squeeze", step), to=ir.DataType.INT64)
    count = b.op("Add", b.op("Div", b.op("Sub", length, size), step), b.integer(1))
    starts = b.op("Mul", b.op("Range", b.integer(0), count, b.integer(1)), step)
    places = b.op("Add", b.op("Unsqueeze", starts, b.ints(1)), b.op("Range", b.integer(0), size, b.integer(1)))
    frames = b.op("Gather", signal, places, axis=1)
    if len(extents(signal)) == 2:
        frames = b.op("Unsqueeze", frames, b.ints(3))
    if window is not None:
        frames = b.op("Mul", frames, b.op("Unsqueeze", window, b.ints(1)))
    return [_transformed(b, frames, 2, onesided=attribute(node, "onesided", 1))]


def _stft(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = transforms of frames of a signal times a window: the gradients of those steps.

    References:
        ONNX, STFT-17.
    """
    return recomputed(b, node, grads, _framed)


def _col2im(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y adds the elements of columns to their positions in images: dx takes each from dy, 0 from the padding.

    References:
        ONNX, Col2Im-18.
    """
    (x, image, block), dy = operands(node, 3), grads[0]
    space, kernel = constant_value(image), constant_value(block)
    if space is None or kernel is None:
        raise refuse(node, "its image_shape or block_shape is computed; allowed: constants")
    rank = len(space)
    strides, dilations = (attribute(node, name, (1,) * rank) for name in ("strides", "dilations"))
    pads = attribute(node, "pads", (0,) * 2 * rank)
    at, within = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for axis in range(rank):
        size, extended = int(space[axis]), int(space[axis]) + pads[axis] + pads[rank + axis]
        windows = (extended - dilations[axis] * (int(kernel[axis]) - 1) - 1) // strides[axis] + 1
        place = np.arange(kernel[axis])[:, None] * dilations[axis] + np.arange(windows) * strides[axis] - pads[axis]
        good = (place >= 0) & (place < size)
        pair = (at.shape[0] * place.shape[0], at.shape[1] * place.shape[1])
        at = (at[:, None, :, None] * size + place.clip(0, size - 1)[None, :, None, :]).reshape(pair)
        within = (within[:, None, :, None] & good[None, :, None, :]).reshape(pair)
    flat = b.op("Reshape", dy, b.op("Concat", b.op("Shape", dy, end=2), b.ints(-1), axis=0))
    taken = b.op("Gather", flat, b.op("Constant", value=ir.tensor(at)), axis=2)
    if not within.all():
        taken = b.op("Where", b.op("Constant", value=ir.tensor(within)), taken, b.like(0.0, x))
    return [b.op("Reshape", taken, b.shape(x)), None, None]


RULES: dict[str, Rule] = {"Col2Im": _col2im, "DFT": _dft, "STFT": _stft}
