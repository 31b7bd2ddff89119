"""Gradients of operators that sample images between their elements."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, refuse
from deep5.networks.gradients.recomputed import recomputed
from deep5.networks.gradients.sampling import Kernel, extent, images, sampled
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _given(values: Sequence[ir.Value | None], count: int) -> list[ir.Value]:
    return [value for value in values[:count] if value is not None]


def _grid_sampled(b: Backward, node: ir.Node, values: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, grid = _given(values, 2)
    axes, corners = len(extents(x)) - 2, bool(attribute(node, "align_corners", 0))
    mode = attribute(node, "mode", "linear")
    kernel = Kernel(_MODES.get(mode, mode), attribute(node, "padding_mode", "zeros"), corners)
    flat = b.op("Reshape", grid, b.op("Concat", b.op("Shape", grid, end=1), b.ints(-1, axes), axis=0))
    one, half, coordinates = b.like(1.0, x), b.like(0.5, x), []
    for axis in range(axes):  # the grid lists the last axis first
        at = b.op("Add", b.op("Gather", flat, b.integer(axes - 1 - axis), axis=2), one)
        size = extent(b, x, axis + 2, x)
        if corners:
            coordinates.append(b.op("Mul", b.op("Mul", at, half), b.op("Sub", size, one)))
        else:
            coordinates.append(b.op("Mul", b.op("Sub", b.op("Mul", at, size), one), half))
    y = b.op("Transpose", sampled(b, x, images(b, x), coordinates, kernel, x), perm=[1, 0, 2])
    shape = b.op("Concat", b.op("Shape", x, end=2), b.op("Shape", grid, start=1, end=-1), axis=0)
    return [b.op("Reshape", y, shape)]


def _grid_sample(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x interpolated at the points of a grid: dx adds each weight times dy to its element; the grid gets a
    gradient, too.

    References:
        ONNX, GridSample-20. Jaderberg et al., Spatial transformer networks, NeurIPS 2015, equations 5 to 7.
    """
    return recomputed(b, node, grads, _grid_sampled)


def _regions(b: Backward, node: ir.Node, values: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """Means over sample points in each bin of each region; by default one point per element that the bin covers."""
    x, rois, image = _given(values, 3)
    outputs = [attribute(node, f"output_{name}", 1) for name in ("height", "width")]
    ratio, scale = attribute(node, "sampling_ratio", 0), attribute(node, "spatial_scale", 1.0)
    half = attribute(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel"
    zero, one, inside, total = b.like(0.0, x), b.like(1.0, x), None, None
    coordinates, counts = [], []
    for axis, bins in enumerate(outputs):  # a region is x1, y1, x2, y2
        first, last = (
            b.op("Reshape", b.op("Gather", rois, b.integer(1 - axis + end), axis=1), b.ints(-1, 1, 1)) for end in (0, 2)
        )
        offset = b.like(0.5 if half else 0.0, x)
        start, stop = (b.op("Sub", b.op("Mul", value, b.like(scale, x)), offset) for value in (first, last))
        span = b.op("Sub", stop, start)
        width = b.op("Div", span if half else b.op("Max", span, one), b.like(float(bins), x))
        count = b.like(float(ratio), x) if ratio > 0 else b.op("Max", b.op("Ceil", width), zero)
        most = b.integer(ratio) if ratio > 0 else b.op("Cast", b.op("ReduceMax", count, keepdims=0), to=7)
        number = b.op("Cast", b.op("Range", b.integer(0), most, b.integer(1)), to=x.dtype)
        steps = b.op("Div", b.op("Add", number, b.like(0.5, x)), b.op("Max", count, one))
        bin_ = b.op("Unsqueeze", b.like([float(i) for i in range(bins)], x), b.ints(1))
        at = b.op("Add", start, b.op("Mul", width, b.op("Add", bin_, steps)))  # (R, bins, samples)
        size = extent(b, x, axis + 2, x)
        near = b.op("And", b.op("GreaterOrEqual", at, b.like(-1.0, x)), b.op("LessOrEqual", at, size))
        counted = b.op("And", near, b.op("Less", number, count)) if ratio <= 0 else near
        at = b.op("Min", b.op("Max", at, zero), b.op("Sub", size, one))
        coordinates.append(at)
        counts.append(count)
        shape = [0, 1, 1, bins, -1] if axis else [0, bins, -1, 1, 1]
        counted = b.op("Reshape", counted, b.ints(*shape))
        inside = counted if inside is None else b.op("And", inside, counted)
    tall, wide = coordinates
    rows = b.op("Reshape", tall, b.ints(0, outputs[0], -1, 1, 1))
    columns = b.op("Reshape", wide, b.ints(0, 1, 1, outputs[1], -1))
    whole = b.op("Shape", inside)
    flat = [b.op("Reshape", b.op("Expand", at, whole), b.ints(0, -1)) for at in (rows, columns)]
    found = sampled(b, x, b.op("Unsqueeze", image, b.ints(1)), flat, Kernel("linear", "border"), x)
    found = b.op("Reshape", found, b.op("Concat", b.op("Shape", x, start=1, end=2), whole, axis=0))
    total = b.op("ReduceSum", b.op("Where", inside, found, zero), b.ints(3, 5), keepdims=0)  # (C, R, rows, columns)
    area = b.op("Max", b.op("Mul", *counts), one)
    mean = b.op("Div", total, area if ratio > 0 else b.op("Reshape", area, b.ints(1, -1, 1, 1)))
    return [b.op("Transpose", mean, perm=[1, 0, 2, 3])]


def _roi_align(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = means of x interpolated at points in the bins of regions: dx adds each weight times dy to its element.

    References:
        ONNX, RoiAlign-16. He et al., Mask R-CNN, ICCV 2017, section 3.
    """
    if attribute(node, "mode", "avg") != "avg":
        raise refuse(node, f"got mode={attribute(node, 'mode')!r}; allowed: 'avg'")
    return recomputed(b, node, grads, _regions)


RULES: dict[str, Rule] = {"GridSample": _grid_sample, "RoiAlign": _roi_align}
