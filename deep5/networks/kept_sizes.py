"""Resizes that keep a size though a scale moves the coordinates: engines copy such an image, or such an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute

__all__ = ["copied_axis", "copied_image"]


def copied_image(node: ir.Node) -> bool | None:
    """Whether a resize keeps every size, and moves the coordinates of some axis; None if that is not known."""
    axes = _axes(node)
    if axes is None or not any(moves for _, moves in axes):
        return None if axes is None else False
    stays = [stays for stays, _ in axes]
    return False if False in stays else None if None in stays else True


def copied_axis(node: ir.Node) -> bool | None:
    """Whether a resize keeps the size of an axis, and moves its coordinates; None if that is not known."""
    axes = _axes(node)
    if axes is None:
        return None
    stays = [stays for stays, moves in axes if moves]
    return True if True in stays else None if None in stays else False


def _axes(node: ir.Node) -> Sequence[tuple[bool | None, bool]] | None:
    """Of each axis, whether it keeps its size (None: not known), and whether its coordinates move."""
    x, y, given = node.inputs[0], node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    crops = attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if given is None and not crops:  # the scale follows from the sizes
        return []
    if x is None or x.shape is None:
        return None
    sizes = list(x.shape)
    axes = [axis % len(sizes) for axis in attribute(node, "axes", range(len(sizes)))]
    roi = constant_value(node.inputs[1]) if crops and len(node.inputs) > 1 else None
    count = len(axes)
    # The only element of an axis of size 1 is everywhere.
    several = [sizes[axis] != 1 for axis in axes]
    parts = [crops and (roi is None or bool(roi[at] != 0 or roi[at + count] != 1)) for at in range(count)]
    if given is None:
        goals = [None] * len(sizes) if y.shape is None else list(y.shape)
        known = [isinstance(sizes[axis], int) and isinstance(goals[axis], int) for axis in axes]
        return [
            (sizes[axis] == goals[axis] if sure else None, part and more)
            for axis, sure, part, more in zip(axes, known, parts, several, strict=True)
        ]
    scales = constant_value(given)
    if scales is None:
        return None
    return [
        (_stays(sizes[axis], float(scale)), (bool(scale != 1) or part) and more)
        for axis, scale, part, more in zip(axes, scales, parts, several, strict=False)
    ]


def _stays(size: object, scale: float) -> bool | None:
    if scale == 1:
        return True
    if isinstance(size, int):
        return math.floor(np.float32(size) * np.float32(scale)) == size
    return None if 1 < scale < 2 else False
