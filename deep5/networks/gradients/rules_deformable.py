"""Gradient of the deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, refuse
from deep5.networks.gradients.recomputed import recomputed
from deep5.networks.gradients.sampling import Kernel, extent, images, sampled
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["RULES"]


def _joined(b: Backward, *parts: ir.Value) -> ir.Value:
    return b.op("Concat", *parts, axis=0)


def _deformed(b: Backward, node: ir.Node, values: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, w, offset, bias, mask = (*values, None, None)[:5]
    if x is None or w is None or offset is None:
        raise refuse(node, "got fewer than three inputs; allowed: X, W, offset, and B and mask")
    kernel = [size for size in extents(w)[2:] if isinstance(size, int)]
    axes = len(extents(w)) - 2
    if len(kernel) < axes:
        raise refuse(node, f"the weights' dimensions must be fixed, got {extents(w)}")
    groups, parts, window = attribute(node, "group", 1), attribute(node, "offset_group", 1), Window.of(node, axes)
    count, space = math.prod(kernel), b.op("Shape", offset, start=2)
    windows = b.op("ReduceProd", space, keepdims=1)
    moved = b.op("Reshape", offset, _joined(b, b.ints(-1, count, axes), windows))  # (N parts, kernel, axes, windows)
    coordinates = []
    for axis in range(axes):
        along = b.ints(*(-1 if at == axis else 1 for at in range(axes)))
        at = b.op("Range", b.integer(0), extent(b, offset, axis + 2), b.integer(1))
        at = b.op("Sub", b.op("Mul", at, b.integer(window.strides[axis])), b.integer(window.begins[axis]))
        starts = b.op("Reshape", b.op("Expand", b.op("Reshape", at, along), space), b.ints(1, -1))
        steps = b.op("Reshape", b.ints(*(window.dilations[axis] * k for k in range(kernel[axis]))), along)
        steps = b.op("Reshape", b.op("Expand", steps, b.ints(*kernel)), b.ints(-1, 1))
        regular = b.op("Cast", b.op("Add", starts, steps), to=x.dtype)
        place = b.op("Add", b.op("Gather", moved, b.integer(axis), axis=2), regular)
        coordinates.append(b.op("Reshape", place, _joined(b, b.op("Shape", place, end=1), b.ints(-1))))
    channels = b.op("Div", b.op("Shape", x, start=1, end=2), b.ints(parts))
    split = b.op("Reshape", x, _joined(b, b.ints(-1), channels, b.op("Shape", x, start=2)))
    found = sampled(b, split, images(b, split), coordinates, Kernel("linear", "zeros"), x)
    found = b.op("Transpose", found, perm=[1, 0, 2])  # (N parts, C / parts, kernel windows)
    if mask is not None:
        found = b.op("Mul", found, b.op("Reshape", mask, _joined(b, b.op("Shape", split, end=1), b.ints(1, -1))))
    outputs = b.op("Shape", w, end=1)
    weights = b.op("Reshape", w, _joined(b, b.ints(groups), b.op("Div", outputs, b.ints(groups)), b.ints(-1)))
    rows = b.op("Mul", b.op("Shape", w, start=1, end=2), b.ints(count))
    columns = b.op("Reshape", found, _joined(b, b.op("Shape", x, end=1), b.ints(groups), rows, b.ints(-1)))
    y = b.op("Reshape", b.op("MatMul", weights, columns), _joined(b, b.op("Shape", x, end=1), outputs, space))
    return [y if bias is None else b.op("Add", y, b.op("Reshape", bias, b.ints(-1, *[1] * axes)))]


def _deform_conv(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Y = a convolution of X whose window elements are shifted by offsets: samples of X, then a product.

    References:
        ONNX, DeformConv-19. Dai et al., Deformable convolutional networks, ICCV 2017, equations 2 to 4; Zhu et al.,
        Deformable ConvNets v2, CVPR 2019, equation 1: the mask.
    """
    return recomputed(b, node, grads, _deformed)


RULES: dict[str, Rule] = {"DeformConv": _deform_conv}
