"""Other window operators: columns back to an image, and deformable convolution."""

from __future__ import annotations

import math

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.convolution import column_to_image
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.sampling import interpolated, pixels, zeros
from deep5.frameworks.reference.window import Window

__all__ = ["col2im", "deformable_convolution"]


def col2im(x: Array, image_shape: Array, block_shape: Array, *, window: Window) -> Array:
    """ONNX Col2Im: add each block at its position in the image.

    Args:
        x: (N, C * block, blocks).
        image_shape: Spatial sizes of the image.
        block_shape: Sizes of a block before dilation.
        window: Strides, dilations and padding of the blocks.

    Returns:
        (N, C, *image_shape), the dtype of x.

    Raises:
        ShapeError: The number of blocks does not fit the image.
    """
    image, block = tuple(int(extent) for extent in image_shape), tuple(int(extent) for extent in block_shape)
    padded = zip(image, window.begins, window.ends, window.spans(block), window.strides, strict=True)
    counts = [(extent + begin + end - span) // stride + 1 for extent, begin, end, span, stride in padded]
    if math.prod(counts) != x.shape[2] or x.shape[1] % math.prod(block):
        raise ShapeError(
            f"Col2Im: got columns of shape {x.shape}; expected {math.prod(counts)} blocks of {math.prod(block)} "
            "elements a channel"
        )
    cols = x.transpose(1, 2, 0).reshape(x.shape[1] // math.prod(block), *block, *counts, len(x))
    y = column_to_image(cols, window, window.begins, image)
    return y.transpose(y.ndim - 1, *range(y.ndim - 1))


def deformable_convolution(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    window: Window,
    group: int,
    offset_group: int,
) -> Array:
    """ONNX DeformConv (opset 19): a convolution with an offset for each sampled element.

    Args:
        x: (N, C, *space).
        w: (M, C / group, *kernel), the dtype of x.
        offset: (N, offset_group * kernel * axes, *output), in pixels, with the spatial axis innermost.
        bias: (M,), or None.
        mask: (N, offset_group * kernel, *output): the factor of each element; None: 1.
        window: Strides, dilations and padding.
        group: Number of channel groups.
        offset_group: Number of channel groups that share offsets.

    Returns:
        (N, M, *output), the dtype of x.

    References:
        Dai et al., Deformable convolutional networks, ICCV 2017. Zhu, Hu, Lin and Dai, Deformable ConvNets v2, CVPR
        2019: the mask.
    """
    n, channels, *space = x.shape
    kernel, rank = w.shape[2:], len(space)
    output, begins, _ = window.fit(tuple(space), kernel)
    count, elements = math.prod(kernel), math.prod(output)
    expected = (n, offset_group * count * rank, *output)
    if offset.shape != expected:
        raise ShapeError(f"DeformConv: got offsets of shape {offset.shape}; expected {expected}")
    offset = offset.reshape(n, offset_group, count, rank, *output)
    # From here on, offset groups are separate images, (N * offset_group, …).
    images = np.arange(n * offset_group).repeat(count * elements)
    rows = pixels(x.reshape(n * offset_group, channels // offset_group, *space))
    places = []
    for axis in range(rank):
        wide = [1] * (2 * rank)
        wide[axis] = kernel[axis]
        at = (np.arange(kernel[axis]) * window.dilations[axis] - begins[axis]).reshape(wide)
        wide = [1] * (2 * rank)
        wide[rank + axis] = output[axis]
        at = at + (np.arange(output[axis]) * window.strides[axis]).reshape(wide)
        still = np.broadcast_to(at, (*kernel, *output)).reshape(count, *output)
        moved = offset[:, :, :, axis] + still.astype(offset.dtype)
        places.append(moved.reshape(-1).clip(-2, space[axis] + 1))
    found = interpolated(rows, images, places, tuple(space), zeros).reshape(n, offset_group, count, elements, -1)
    if mask is not None:
        found *= mask.reshape(n, offset_group, count, elements, 1)
    # (N, groups, C / group * kernel, output)
    cols = found.transpose(0, 1, 4, 2, 3).reshape(n, group, channels // group * count, elements)
    y: Array = np.matmul(w.reshape(group, w.shape[0] // group, -1), cols)
    y = y.reshape(n, w.shape[0], *output)
    if bias is not None:
        y += bias.reshape(-1, *[1] * rank)
    return y
