"""Convolution channels last. Padding is computed during tracing, from the actual shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from deep5.frameworks.tensorflow.short import with_bias
from deep5.networks.window import Window

__all__ = ["convolution", "in_place", "is_known", "padded", "padding", "transposed_convolution", "unnamed"]

# An integer tensor where only a run knows the size that determines it.
Pads = Sequence[tuple[Any, Any]]


def padding(x: Any, window: Window) -> tuple[Pads, Pads]:
    """The requested padding of each axis, and the extra padding that the last windows reach (`ceil_mode`)."""
    space = x.shape.as_list()[1:-1]
    if None in space and window.auto_pad.startswith("SAME"):
        return _computed(x, window), [(0, 0)] * len(space)
    if None in space:
        none = (0,) * len(space)
        begins, ends = (none, none) if window.auto_pad == "VALID" else (window.begins, window.ends)
        return list(zip(begins, ends, strict=True)), [(0, 0)] * len(space)
    outputs, begins, ends = window.fit(tuple(space), window.kernel)
    beyond = []
    for index, span in enumerate(window.spans(window.kernel)):
        reach = (outputs[index] - 1) * window.strides[index] + span - space[index] - begins[index]
        beyond.append((0, max(reach - ends[index], 0)))
    return list(zip(begins, ends, strict=True)), beyond


def _computed(x: Any, window: Window) -> Pads:
    """The padding of SAME_UPPER or SAME_LOWER for sizes that only a run knows."""
    pads = []
    for index, span in enumerate(window.spans(window.kernel)):
        extent, stride = tf.shape(x)[index + 1], window.strides[index]
        total = tf.maximum(((extent + stride - 1) // stride - 1) * stride + span - extent, 0)
        half = total // 2
        pads.append((half, total - half) if window.auto_pad == "SAME_UPPER" else (total - half, half))
    return pads


def is_known(pads: Pads) -> bool:
    """Whether a run is not needed to know the padding."""
    return all(isinstance(extent, int) for pair in pads for extent in pair)


def _called(x: Any, window: Window, pads: Pads) -> str | None:
    """TensorFlow's name for the padding, `"VALID"` or `"SAME"`; None if it has no name."""
    if not is_known(pads):
        return "SAME" if window.auto_pad == "SAME_UPPER" else None
    if not any(map(any, pads)):
        return "VALID"
    space = x.shape.as_list()[1:-1]
    for index, span in enumerate(window.spans(window.kernel)):
        extent, stride = space[index], window.strides[index]
        if extent is None and stride > 1:
            return None
        # With stride 1 the size does not matter.
        total = span - 1 if extent is None else max((-(-extent // stride) - 1) * stride + span - extent, 0)
        if pads[index] != (total // 2, total - total // 2):
            return None
    return "SAME"


def unnamed(window: Window) -> bool:
    """Whether TensorFlow may have no name for the padding."""
    halves = tuple(((span - 1) // 2, span // 2) for span in window.spans(window.kernel))
    same = window.auto_pad == "NOTSET" and tuple(zip(window.begins, window.ends, strict=True)) == halves
    return window.padded and (max(window.strides) > 1 or not same)


def padded(x: Any, pads: Pads, fill: float) -> Any:
    """An image with padding added."""
    return tf.pad(x, [(0, 0), *pads, (0, 0)], constant_values=tf.constant(fill, x.dtype))


def in_place(x: Any, window: Window, pads: Pads, fill: float) -> tuple[Any, str]:
    """The image, padded if the kernels have no name for the padding, and the name of the remaining padding."""
    name = _called(x, window, pads)
    return (padded(x, pads, fill), "VALID") if name is None else (x, name)


# With several threads, oneDNN's gradient of a strided 1 x 1 convolution writes past the end of its memory if there are
# fewer channels than this (TensorFlow 2.21: 3 to 12 channels crash, 16 do not); so its pixels are sliced first.
_VECTOR = 16


def _spread(weight: Any, dilations: Sequence[int]) -> Any:
    """A weight with zeros between its elements, for kernels without dilation."""
    for index, dilation in enumerate(dilations):
        if dilation > 1:
            shape = weight.shape.as_list()
            weight = tf.expand_dims(weight, index + 1)
            weight = tf.pad(weight, [(0, dilation - 1 if at == index + 1 else 0) for at in range(len(shape) + 1)])
            weight = tf.reshape(weight, [*shape[:index], shape[index] * dilation, *shape[index + 1 :]])
            weight = weight[(slice(None),) * index + (slice(0, (shape[index] - 1) * dilation + 1),)]
    return weight


def convolution(x: Any, weight: Any, bias: Any, window: Window, group: int, direct: bool, explicit: bool) -> Any:
    """A convolution with channels last.

    Args:
        x: (N, *space, C).
        weight: (*kernel, C / group, M).
        bias: (M,) or None.
        window: Strides, dilations and padding.
        group: Number of groups.
        direct: Whether the kernels support groups and dilation, with gradients.
        explicit: Whether to pass explicit padding to the kernel. This avoids a padded copy of the image, but gradients
            take up to four times as long.
    """
    requested = padding(x, window)[0]
    if explicit and is_known(requested) and _called(x, window, requested) is None:
        y = tf.nn.conv2d(x, weight, window.strides, [(0, 0), *requested, (0, 0)])
        return y if bias is None else with_bias(y, bias)
    x, pads = in_place(x, window, requested, 0.0)
    strides, dilations = window.strides, window.dilations
    if not direct:
        weight, dilations = _spread(weight, dilations), (1,) * len(dilations)
    flat = len(strides) == 1
    if flat:  # an image of height 1
        x, weight = tf.expand_dims(x, 1), tf.expand_dims(weight, 0)
        strides, dilations = (1, *strides), (1, *dilations)
    if group > 1 and group == x.shape[-1] and len(strides) == 2 and len(set(strides)) == 1 and max(dilations) == 1:
        shape = weight.shape.as_list()
        weight = tf.reshape(weight, [*shape[:2], group, shape[3] // group])
        y = tf.nn.depthwise_conv2d(x, weight, (1, *strides, 1), pads)
    elif group > 1 and not direct:
        parts = zip(tf.split(x, group, -1), tf.split(weight, group, -1), strict=True)
        y = tf.concat([_kernel(part, own, strides, pads, dilations) for part, own in parts], -1)
    else:
        y = _kernel(x, weight, strides, pads, dilations)
    y = tf.squeeze(y, 1) if flat else y
    return y if bias is None else with_bias(y, bias)


def _kernel(x: Any, weight: Any, strides: Sequence[int], pads: str, dilations: Sequence[int]) -> Any:
    if len(strides) == 2:
        if max(strides) > 1 and weight.shape[:2] == (1, 1) and weight.shape[2] % _VECTOR:
            x, strides = x[:, :: strides[0], :: strides[1]], (1, 1)
        return tf.nn.conv2d(x, weight, strides, pads, dilations=dilations)
    return tf.nn.conv3d(x, weight, (1, *strides, 1), pads, dilations=(1, *dilations, 1))


def _whole_result(x: Any, weight: Any, strides: Sequence[int]) -> Any:
    """A transposed convolution without padding of an image (N, *space, C) by a weight (*kernel, M, C)."""
    axes = len(strides)
    if axes == 1:
        return tf.squeeze(_whole_result(tf.expand_dims(x, 1), tf.expand_dims(weight, 0), (1, *strides)), 1)
    sizes = [tf.shape(x)[at] if extent is None else extent for at, extent in enumerate(x.shape)]
    space = [(sizes[at + 1] - 1) * strides[at] + weight.shape[at] for at in range(axes)]
    function = tf.nn.conv2d_transpose if axes == 2 else tf.nn.conv3d_transpose
    return function(x, weight, tf.stack([sizes[0], *space, weight.shape[-2]]), strides, "VALID")


def transposed_convolution(x: Any, weight: Any, window: Window, group: int) -> Any:
    """The whole result for x (N, *space, C) and a weight (C, M / group, *kernel)."""
    weight = _spread(tf.transpose(weight, [*range(2, weight.shape.rank), 1, 0]), window.dilations)
    if group == 1:
        return _whole_result(x, weight, window.strides)
    parts = zip(tf.split(x, group, -1), tf.split(weight, group, -1), strict=True)
    return tf.concat([_whole_result(part, own, window.strides) for part, own in parts], -1)
