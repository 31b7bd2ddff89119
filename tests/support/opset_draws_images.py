"""Draws of operators that resample images, for opset_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from opset_cases import Draw, Drawn

__all__ = ["IMAGES"]


def resize(draw: Draw) -> Drawn:
    spatial = draw.whole(1, 2)
    x = draw.array((1, draw.whole(1, 2), *(draw.whole(2, 5) for _ in range(spatial))))
    # Output sizes that are integers: how others are rounded is another question than the version.
    scales = np.array(
        [1, 1, *(draw.one_of(1.0, 2.0, 3.0, *([0.5, 1.5] if size % 2 == 0 else [])) for size in x.shape[2:])],
        np.float32,
    )
    mode = draw.one_of("nearest", "linear")
    if draw.operator == "Upsample":
        scales = np.maximum(scales, 1)
        if draw.since < 9:
            return Drawn(inputs=[x], attributes={"mode": mode, "scales": [float(each) for each in scales]})
        return Drawn(inputs=[x, scales], attributes={"mode": mode}, stored=frozenset({1}))
    if draw.since < 11:
        return Drawn(inputs=[x, scales], attributes={"mode": mode} if draw.chance(0.8) else {}, stored=frozenset({1}))
    if spatial == 2 and draw.chance(0.3):
        mode = "cubic"
    rules = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"]
    if draw.since < 13 and mode == "nearest":
        rules.append("tf_half_pixel_for_nn")
    rule = draw.one_of(*rules)
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": rule}
    if mode == "nearest":
        attributes |= draw.some(nearest_mode=draw.one_of("round_prefer_floor", "floor", "round_prefer_ceil", "ceil"))
        if rule == "tf_half_pixel_for_nn":
            attributes["nearest_mode"] = draw.one_of("round_prefer_floor", "floor")
    if mode == "cubic":
        attributes |= draw.some(cubic_coeff_a=-0.5, exclude_outside=draw.whole(0, 1))
    if draw.chance(0.6):
        empty = None if draw.since >= 13 else np.array([], np.float32)
        return Drawn(inputs=[x, empty, scales], attributes=attributes, stored=frozenset({1, 2}))
    sizes = np.array([*x.shape[:2], *(draw.whole(1, 8) for _ in range(spatial))], np.int64)
    empty = None if draw.since >= 13 else np.array([], np.float32)
    return Drawn(inputs=[x, empty, empty, sizes], attributes=attributes, stored=frozenset({1, 2, 3}))


def grid_sample(draw: Draw) -> Drawn:
    spatial = draw.whole(2, 3) if draw.since >= 20 else 2
    x = draw.array((1, 2, *(draw.whole(3, 5) for _ in range(spatial))))
    grid = draw.array((1, *(draw.whole(1, 4) for _ in range(spatial)), spatial), low=-1.2, high=1.2)
    names = ("linear", "nearest", "cubic") if draw.since >= 20 else ("bilinear", "nearest", "bicubic")
    mode = draw.one_of(*names[: 2 if spatial == 3 else 3])
    attributes = draw.some(
        mode=mode, align_corners=draw.whole(0, 1), padding_mode=draw.one_of("zeros", "border", "reflection")
    )
    return Drawn(inputs=[x, grid], attributes=attributes)


def affine(draw: Draw) -> Drawn:
    size = np.array([2, 1, 3, 4] if draw.chance() else [2, 1, 2, 3, 4], np.int64)
    theta = draw.array((2, len(size) - 2, len(size) - 1))
    return Drawn(inputs=[theta, size], attributes=draw.some(align_corners=draw.whole(0, 1)), stored=frozenset({1}))


def regions(draw: Draw) -> Drawn:
    x = draw.array((2, 2, 6, 7))
    corners = np.sort(draw.array((3, 2, 2), low=0, high=5), axis=1).reshape(3, 4)
    if draw.operator == "MaxRoiPool":
        rois = np.concatenate([draw.whole_array((3, 1), 0, 1, "float32"), corners], 1)
        return Drawn(
            inputs=[x, np.round(rois).astype(np.float32)],
            attributes={"pooled_shape": [2, 2], **draw.some(spatial_scale=0.5)},
        )
    attributes = draw.some(
        output_height=2,
        output_width=3,
        sampling_ratio=2,
        spatial_scale=0.5,
        mode=draw.one_of("avg", "max"),
        coordinate_transformation_mode=draw.one_of("half_pixel", "output_half_pixel"),
    )
    return Drawn(inputs=[x, corners, draw.whole_array((3,), 0, 1)], attributes=attributes)


def deformed(draw: Draw) -> Drawn:
    inputs = [draw.array((1, 2, 4, 4)), draw.array((3, 2, 2, 2)), draw.array((1, 8, 3, 3), low=-1, high=1)]
    return Drawn(inputs=inputs, attributes={"kernel_shape": [2, 2], "pads": [0, 0, 0, 0]})


def col2im(draw: Draw) -> Drawn:
    return Drawn(
        inputs=[draw.array((1, 8, 6)), np.array([3, 4], np.int64), np.array([2, 2], np.int64)], stored=frozenset({1, 2})
    )


IMAGES = {
    "AffineGrid": affine,
    "Col2Im": col2im,
    "DeformConv": deformed,
    "GridSample": grid_sample,
    "MaxRoiPool": regions,
    "Resize": resize,
    "RoiAlign": regions,
    "Upsample": resize,
}
