"""Regions of interest: pooling of image boxes into a grid of bins, and selection of boxes."""

from __future__ import annotations

import math

import numpy as np

from deep5.core.errors import NetworkError
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.sampling import border, interpolated, pixels

__all__ = ["max_roi_pool", "non_max_suppression", "roi_align"]


def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    mode: str,
    output: tuple[int, int],
    sampling_ratio: int,
    spatial_scale: float,
    shifted: bool,
) -> Array:
    """ONNX RoiAlign (opset 16): the mean or maximum of bilinear samples in every bin.

    As in ONNX's test vectors and in ONNX Runtime, the maximum is over the weighted terms of the samples, not over their
    sums. Without `sampling_ratio`, a region whose size is not positive has no samples: its values are 0.

    Args:
        x: (N, C, H, W).
        rois: (R, 4): x1, y1, x2, y2.
        batch_indices: (R,): the image index of each.
        mode: `"avg"` or `"max"`.
        output: Rows and columns of bins.
        sampling_ratio: Samples along each side of a bin; 0: its size in pixels, rounded up.
        spatial_scale: Scale from the coordinates of rois to pixels of x.
        shifted: Whether the center of the first pixel is at 0.5.

    Returns:
        (R, C, *output), the dtype of x.

    Raises:
        NetworkError: An image index is out of range.

    References:
        He, Gkioxari, Dollár and Girshick, Mask R-CNN, ICCV 2017, section 3.
    """
    _check_images("RoiAlign", batch_indices, len(x))
    space, rows = (x.shape[2], x.shape[3]), pixels(x)
    boxes = rois.astype(np.result_type(rois.dtype, np.float32)) * spatial_scale - (0.5 if shifted else 0.0)
    starts, extents = boxes[:, 1::-1], boxes[:, :1:-1] - boxes[:, 1::-1]  # rows first
    if not shifted:
        extents = np.maximum(extents, 1.0)
    bins = extents / np.array(output)
    counts = np.full(bins.shape, sampling_ratio) if sampling_ratio > 0 else np.ceil(bins).astype(np.int64).clip(0)
    result: Array = np.zeros((len(rois), x.shape[1], *output), x.dtype)
    for count in np.unique(counts, axis=0):
        if not count.all():
            continue
        chosen = np.flatnonzero((counts == count).all(axis=1))
        places, missing = [], []
        for axis, (bins_of_axis, samples) in enumerate(zip(output, count.tolist(), strict=True)):
            parts = (np.arange(bins_of_axis * samples) + 0.5) / samples
            place = starts[chosen, axis, None] + bins[chosen, axis, None] * parts
            missing.append((place < -1) | (place > space[axis]))
            places.append(place.clip(0, space[axis] - 1))
        wide = (len(chosen), places[0].shape[1], places[1].shape[1])
        at = [
            np.broadcast_to(places[0][:, :, None], wide).reshape(-1),
            np.broadcast_to(places[1][:, None], wide).reshape(-1),
        ]
        images = np.broadcast_to(batch_indices[chosen].astype(np.int64)[:, None, None], wide).reshape(-1)
        found = interpolated(rows, images, at, space, border, sums=np.maximum if mode == "max" else np.add)
        found[(missing[0][:, :, None] | missing[1][:, None]).reshape(-1)] = 0
        found = found.reshape(len(chosen), output[0], count[0], output[1], count[1], -1)
        pooled = found.max(axis=(2, 4)) if mode == "max" else found.mean(axis=(2, 4))
        result[chosen] = np.moveaxis(pooled, -1, 1)
    return result


def max_roi_pool(x: Array, rois: Array, *, pooled_shape: tuple[int, int], spatial_scale: float) -> Array:
    """ONNX MaxRoiPool: the maximum of all pixels that a bin touches, 0 for an empty bin.

    Args:
        x: (N, C, H, W).
        rois: (R, 5): the image, then x1, y1, x2, y2; both corners are inside the box.
        pooled_shape: Rows and columns of bins.
        spatial_scale: Scale from the coordinates of rois to pixels of x, which are rounded to integers.

    Returns:
        (R, C, *pooled_shape), the dtype of x.

    Raises:
        NetworkError: An image index is out of range.

    References:
        Girshick, Fast R-CNN, ICCV 2015, section 2.1.
    """
    _check_images("MaxRoiPool", rois[:, 0], len(x))
    corners = np.floor(rois[:, 1:].astype(np.float64) * spatial_scale + 0.5)
    result: Array = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
    for number, (image, (left, top, right, bottom)) in enumerate(zip(rois[:, 0].astype(int), corners, strict=True)):
        rows = _bins(top, bottom, pooled_shape[0], x.shape[2])
        columns = _bins(left, right, pooled_shape[1], x.shape[3])
        for i, (first, last) in enumerate(rows):
            if first >= last:
                continue
            band = x[image, :, first:last].max(axis=1)
            for j, (begin, end) in enumerate(columns):
                if begin < end:
                    band[:, begin:end].max(axis=1, out=result[number, :, i, j])
    return result


def _bins(low: float, high: float, count: int, extent: int) -> list[tuple[int, int]]:
    """Start and end of each bin, clipped to the image."""
    size = max(high - low + 1, 1) / count
    bounds = [(low + math.floor(i * size), low + math.ceil((i + 1) * size)) for i in range(count)]
    return [(int(min(max(a, 0), extent)), int(min(max(b, 0), extent))) for a, b in bounds]


def _check_images(operator: str, images: Array, count: int) -> None:
    if images.size and not ((images >= 0) & (images < count)).all():
        raise NetworkError(f"{operator}: got a region of the image {images.max():g}; allowed: 0 to {count - 1}")


def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: bool,
) -> Array:
    """ONNX NonMaxSuppression: of boxes that overlap too much, keep the one with the highest score.

    Args:
        boxes: (N, B, 4): two corners, or the center and both sizes if `center_point_box`.
        scores: (N, classes, B); of ties, the first box comes first.
        max_output_boxes_per_class: The maximum number of boxes per image and class; None: none.
        iou_threshold: The maximum intersection over union of two boxes.
        score_threshold: Only boxes with a higher score are kept.
        center_point_box: The format of boxes.

    Returns:
        (kept, 3), int64: image, class and box, by decreasing score within a class.
    """
    most = 0 if max_output_boxes_per_class is None else int(np.reshape(max_output_boxes_per_class, -1)[0])
    limit = np.float32(0) if iou_threshold is None else np.reshape(iou_threshold, -1)[0]
    least = None if score_threshold is None else np.reshape(score_threshold, -1)[0]
    first, second = np.moveaxis(boxes[..., :2], -1, 1), np.moveaxis(boxes[..., 2:], -1, 1)
    if center_point_box:
        first, second = first - second / 2, first + second / 2
    corners = np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)
    kept: list[tuple[int, int, int]] = []
    for image, label in np.ndindex(*scores.shape[:2]):
        found = scores[image, label]
        left = np.argsort(-found, kind="stable")
        if least is not None:
            left = left[found[left] > least]
        rest = corners[image][:, left]
        for _ in range(most):
            if not left.size:
                break
            kept.append((image, label, int(left[0])))
            apart = np.flatnonzero(_overlap(rest) <= limit)
            left, rest = left[1:][apart], rest[:, 1:][:, apart]
    return np.array(kept, np.int64).reshape(-1, 3)


def _overlap(corners: Array) -> Array:
    """The intersection over union of the first box with each other one; 0 without area.

    Args:
        corners: (4, boxes): the lower bounds along both axes, then the upper ones.
    """
    top, left, bottom, right = corners
    high = np.minimum(bottom[0], bottom[1:]) - np.maximum(top[0], top[1:])
    wide = np.minimum(right[0], right[1:]) - np.maximum(left[0], left[1:])
    common = np.maximum(high, 0) * np.maximum(wide, 0)
    areas = (bottom - top) * (right - left)
    union = areas[0] + areas[1:] - common
    share: Array = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return share
