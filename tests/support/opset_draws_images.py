"""Draws of operators that resample images, for opset_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from opset_cases import Draw, Drawn, floating

__all__ = ["IMAGES"]


def resize(draw: Draw) -> Drawn:
    spatial = draw.one_of(1, 2, 2, 3)
    kind = draw.kind(common=0.8, but=("bool", "string"))
    x = draw.array((draw.whole(1, 2), draw.whole(1, 2), *(draw.whole(1, 7) for _ in range(spatial))), kind)
    options = (1.0, 2.0, 3.0, 0.5, 1.5, 0.7, 0.3, 2.6, 1.25) if draw.since >= 10 else (1.0, 2.0, 3.0, 1.5, 2.6)
    scales = np.array([1, 1, *(draw.one_of(*options) for _ in range(spatial))], np.float32)
    # ONNX defines no output without elements.
    scales[2:] = np.where(np.floor(x.shape[2:] * scales[2:]) < 1, 1, scales[2:])
    mode = draw.one_of("nearest", "linear") if spatial < 3 else "nearest"
    if mode != "nearest" and not floating(kind):  # how integers are interpolated is defined by no sentence
        x = x.astype(np.float32)
    if draw.operator == "Upsample":
        if draw.since < 9:
            return Drawn(inputs=[x], attributes={"mode": mode, "scales": [float(each) for each in scales]})
        return Drawn(inputs=[x, scales], attributes={"mode": mode}, stored=frozenset({1}))
    if draw.since < 11:
        return Drawn(inputs=[x, scales], attributes={"mode": mode} if draw.chance(0.8) else {}, stored=frozenset({1}))
    if spatial == 2 and floating(x.dtype) and draw.chance(0.3):
        mode = "cubic"
    attributes: dict[str, Any] = draw.some(mode=mode)
    mode = attributes.get("mode", "nearest")
    rules = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "tf_crop_and_resize"]
    if draw.since < 13 and mode == "nearest":
        rules.append("tf_half_pixel_for_nn")
    if draw.since >= 19:
        rules.append("half_pixel_symmetric")
    attributes |= draw.some(coordinate_transformation_mode=draw.one_of(*rules))
    rule = attributes.get("coordinate_transformation_mode")
    if mode == "nearest":
        attributes |= draw.some(nearest_mode=draw.one_of("round_prefer_floor", "floor", "round_prefer_ceil", "ceil"))
    if mode == "cubic":
        attributes |= draw.some(cubic_coeff_a=draw.one_of(-0.5, -0.75), exclude_outside=draw.whole(0, 1))
    if mode != "nearest" and rule != "tf_crop_and_resize" and draw.chance(0.3):
        attributes |= draw.known(antialias=1)
    axes = list(range(x.ndim))
    if draw.since >= 18 and draw.chance(0.3):
        axes = axes[2:]
        attributes["axes"] = [axis - (x.ndim if draw.since >= 19 and draw.chance(0.3) else 0) for axis in axes]
    roi: Any = None if draw.since >= 13 else np.array([], np.float32)
    if rule == "tf_crop_and_resize":
        starts = [0.0 if axis < 2 else draw.one_of(0.0, 0.1, 0.25, -0.2) for axis in axes]
        ends = [1.0 if axis < 2 else draw.one_of(1.0, 0.8, 0.6, 1.3) for axis in axes]
        roi = np.array(
            [*starts, *ends], draw.one_of("float32", "float32", "float64") if draw.since >= 11 else "float32"
        )
        attributes |= draw.some(extrapolation_value=draw.one_of(0.5, 2.0 if x.dtype.kind == "u" else -2.0))
    if draw.chance(0.6):
        return Drawn(inputs=[x, roi, scales[axes]], attributes=attributes, stored=frozenset({1, 2}))
    sizes = np.array([*x.shape[:2], *(draw.whole(1, 9) for _ in range(spatial))], np.int64)[axes]
    if draw.since >= 18 and draw.chance(0.4) and len(axes) == spatial:
        attributes |= draw.known(keep_aspect_ratio_policy=draw.one_of("stretch", "not_larger", "not_smaller"))
    empty = None if draw.since >= 13 else np.array([], np.float32)
    return Drawn(inputs=[x, roi, empty, sizes], attributes=attributes, stored=frozenset({1, 2, 3}))


def grid_sample(draw: Draw) -> Drawn:
    spatial = draw.one_of(2, 2, 3) if draw.since >= 20 else 2
    kind = draw.kind(common=0.7, but=("bool", "string"))
    if not floating(kind):  # how integers are interpolated is defined by no sentence
        kind = np.dtype("float32")
    n = draw.whole(1, 2)
    x = draw.array((n, draw.whole(1, 3), *(draw.whole(1, 5) for _ in range(spatial))), kind)
    far = draw.one_of(1.2, 1.2, 3.5)
    grid_kind = draw.kind(1, common=0.7)
    grid = draw.array((n, *(draw.whole(1, 4) for _ in range(spatial)), spatial), grid_kind, -far, far)
    names = ("linear", "nearest", "cubic") if draw.since >= 20 else ("bilinear", "nearest", "bicubic")
    mode = draw.one_of(*names[: 2 if spatial == 3 else 3])
    attributes = draw.some(
        mode=mode, align_corners=draw.whole(0, 1), padding_mode=draw.one_of("zeros", "border", "reflection")
    )
    return Drawn(inputs=[x, grid], attributes=attributes)


def affine(draw: Draw) -> Drawn:
    n = draw.whole(1, 3)
    size = np.array([n, draw.whole(1, 3), *(draw.whole(1, 5) for _ in range(draw.whole(2, 3)))], np.int64)
    theta = draw.array((n, len(size) - 2, len(size) - 1), draw.kind(common=0.7))
    return Drawn(inputs=[theta, size], attributes=draw.some(align_corners=draw.whole(0, 1)), stored=frozenset({1}))


def regions(draw: Draw) -> Drawn:
    n, count = draw.whole(1, 2), draw.whole(1, 4)
    kind = draw.kind(common=0.7)
    x = draw.array((n, draw.whole(1, 3), draw.whole(4, 9), draw.whole(4, 9)), kind)
    corners = np.sort(draw.array((count, 2, 2), kind, 0, 9), axis=1).reshape(count, 4)
    scale = draw.some(spatial_scale=draw.one_of(0.5, 0.25, 2.0, 1.0))
    if draw.operator == "MaxRoiPool":
        rois = np.concatenate([draw.whole_array((count, 1), 0, n - 1, kind), corners], 1)
        shape = [draw.whole(1, 3), draw.whole(1, 3)]
        return Drawn(inputs=[x, np.round(rois).astype(kind)], attributes={"pooled_shape": shape, **scale})
    attributes = draw.some(
        output_height=draw.whole(1, 3),
        output_width=draw.whole(1, 3),
        sampling_ratio=draw.whole(0, 3),
        mode=draw.one_of("avg", "max"),
        coordinate_transformation_mode=draw.one_of("half_pixel", "output_half_pixel"),
    )
    return Drawn(inputs=[x, corners, draw.whole_array((count,), 0, n - 1)], attributes={**attributes, **scale})


def deformed(draw: Draw) -> Drawn:
    group, offsets, n = draw.one_of(1, 1, 2), draw.one_of(1, 1, 2), draw.whole(1, 2)
    kernel = [draw.whole(1, 3), draw.whole(1, 3)]
    attributes = draw.some(
        strides=[draw.whole(1, 2), draw.whole(1, 3)],
        dilations=[draw.whole(1, 2), draw.whole(1, 2)],
        pads=[draw.whole(0, 2) for _ in range(4)],
        offset_group=offsets,
        group=group,
        kernel_shape=kernel,
    )
    group, offsets = attributes.get("group", 1), attributes.get("offset_group", 1)
    per, channels, kind = draw.whole(1, 2), 2 * draw.whole(1, 2), draw.kind(common=0.7)
    sides = [draw.whole(5, 7), draw.whole(5, 8)]
    strides, dilations, pads = (
        attributes.get(name, [default] * count)
        for name, default, count in (("strides", 1, 2), ("dilations", 1, 2), ("pads", 0, 4))
    )
    goal = [(sides[i] + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(2)]
    taps = kernel[0] * kernel[1]
    inputs: list[Any] = [
        draw.array((n, channels, *sides), kind),
        draw.array((group * per, channels // group, *kernel), kind),
        draw.array((n, 2 * offsets * taps, *goal), kind, -1.5, 1.5),
        draw.one_of(None, draw.array((group * per,), kind)),
        draw.one_of(None, draw.array((n, offsets * taps, *goal), kind, 0, 1)),
    ]
    while inputs[-1] is None:
        inputs.pop()
    return Drawn(inputs=inputs, attributes=attributes, stored=frozenset({1, 3}))


def col2im(draw: Draw) -> Drawn:
    spatial = draw.one_of(1, 2, 2, 3)
    block = [draw.whole(1, 3) for _ in range(spatial)]
    attributes = draw.some(
        strides=[draw.whole(1, 3) for _ in block],
        dilations=[draw.whole(1, 2) for _ in block],
        pads=[draw.whole(0, 1) for _ in range(2 * spatial)],
    )
    ones = [1] * spatial
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    pads = attributes.get("pads", [0] * 2 * spatial)
    counts, image = [], []
    for i, size in enumerate(block):
        least = max(1, dilations[i] * (size - 1) + 1 - pads[i] - pads[spatial + i])
        image.append(least + draw.whole(0, 4))
        counts.append((image[i] + pads[i] + pads[spatial + i] - dilations[i] * (size - 1) - 1) // strides[i] + 1)
    shape = (draw.whole(1, 2), draw.whole(1, 2) * int(np.prod(block)), int(np.prod(counts)))
    x = draw.array(shape, draw.kind(common=0.7, but=("bool", "string")))
    sides = [np.array(image, np.int64), np.array(block, np.int64)]
    return Drawn(inputs=[x, *sides], attributes=attributes, stored=frozenset({1, 2}))


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
