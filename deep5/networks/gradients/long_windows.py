"""All windows along one axis, for kernels so long that one slice per position would be hundreds of nodes.

Engines take time for each node when they load a graph, some of them time that grows with the square of the number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward
from deep5.networks.window import Window

__all__ = ["long_axis", "windows_along"]

# Longer kernels are built by doubling; up to here, a slice per position copies less.
_MOST_SLICES = 64


def long_axis(window: Window, kernel: Sequence[int]) -> int | None:
    """The last axis with more than one position in the kernel, if it is long and not dilated; else None."""
    axis = max((axis for axis, size in enumerate(kernel) if size > 1), default=None)
    return axis if axis is not None and kernel[axis] > _MOST_SLICES and window.dilations[axis] == 1 else None


def windows_along(
    b: Backward, source: ir.Value, shape: Sequence[int], axis: int, *, stride: int, size: int, count: int
) -> ir.Value:
    """The elements of all windows along an axis.

    An axis of rows of `stride` elements holds the window o in its rows from o on. So the windows of 2n rows are those
    of n rows, joined with the same ones moved by n rows: as many slices as the logarithm of the kernel's size.

    Args:
        b: The backward pass.
        source: The input, (channels, *space, batch), with its padding.
        shape: Its dimensions without the batch, all known.
        axis: Which of the spatial axes, from 0.
        stride: Distance of two windows.
        size: Elements of a window.
        count: The number of windows.

    Returns:
        (channels, size, *space, batch), where `count` replaces the size of the axis.
    """
    place, rank, rows = axis + 1, len(shape), math.ceil(size / stride)
    length = count + rows - 1
    if missing := length * stride - shape[place]:
        ends = [0] * (rank + 1)
        ends[place] = missing  # a negative one cuts off what no window reaches
        source = b.op("Pad", source, b.ints(*[0] * (rank + 1), *ends))
    # (channels, *space, batch) -> (channels, *space before, rows, stride, *space after, batch), and stride comes second
    split = b.op("Reshape", source, b.ints(*shape[:place], length, stride, *shape[place + 1 :], -1))
    others = [other for other in range(1, rank + 2) if other != place + 1]
    joined, axis = b.op("Transpose", split, perm=[0, place + 1, *others]), place + 1
    held = 1
    while held < rows:
        more = min(held, rows - held)
        end = length - held - more + 1
        first = b.op("Slice", joined, b.ints(0), b.ints(end), b.ints(axis))
        starts, ends = [(held - more) * stride, more], [held * stride, more + end]
        moved = b.op("Slice", joined, b.ints(*starts), b.ints(*ends), b.ints(1, axis))
        joined, held = b.op("Concat", first, moved, axis=1), held + more
    return b.op("Slice", joined, b.ints(0), b.ints(size), b.ints(1)) if rows * stride > size else joined
