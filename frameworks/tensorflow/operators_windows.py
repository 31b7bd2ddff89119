"""Convolution and pooling, channels last. Padding is computed during tracing, from the actual shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.operators_unfold import average_windows, largest_in_windows
from deep5.frameworks.tensorflow.order import channels_last, kernel_order
from deep5.frameworks.tensorflow.probe import runs
from deep5.frameworks.tensorflow.short import with_bias
from deep5.frameworks.tensorflow.table import attribute, extents, operator, rank, spare
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = ["convolution", "convolution_window", "spread"]

# An integer tensor where only a run knows the size that determines it.
Pads = Sequence[tuple[Any, Any]]


def convolution_window(node: ir.Node, weight: int = 1) -> Window:
    """The window, with the kernel's sizes; for a convolution, those of the weight, the input at position `weight`."""
    window = Window.of(node, rank(node) - 2)
    return window if window.kernel else replace(window, kernel=tuple(map(_whole, extents(node.inputs[weight])[2:])))


def _whole(extent: int | str | None) -> int:
    return extent if isinstance(extent, int) else 0  # rejected elsewhere


def _check_window(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    if axes not in (1, 2, 3):
        return f"{axes} spatial axes; 1 to 3 are supported"
    window = Window.of(node, axes)
    known = all(isinstance(extent, int) for extent in extents(node.inputs[0])[2:])
    if not known and window.ceil:
        return (
            "ceil_mode over a dimension of unknown size; allowed: known sizes; remedy: framework 'onnxruntime' or "
            "'reference', or inputs of fixed size"
        )
    if not window.kernel and not all(isinstance(extent, int) for extent in extents(node.inputs[1])[2:]):
        return "a window of unknown size"
    return "negative padding" if min(window.begins + window.ends, default=0) < 0 else None


def _padding(x: Any, window: Window) -> tuple[Pads, Pads]:
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


def _is_known(pads: Pads) -> bool:
    return all(isinstance(extent, int) for pair in pads for extent in pair)


def _called(x: Any, window: Window, pads: Pads) -> str | None:
    """TensorFlow's name for the padding, `"VALID"` or `"SAME"`; None if it has no name."""
    if not _is_known(pads):
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


def _unnamed(window: Window) -> bool:
    """Whether TensorFlow may have no name for the padding."""
    halves = tuple(((span - 1) // 2, span // 2) for span in window.spans(window.kernel))
    same = window.auto_pad == "NOTSET" and tuple(zip(window.begins, window.ends, strict=True)) == halves
    return window.padded and (max(window.strides) > 1 or not same)


def _padded(x: Any, pads: Pads, fill: float) -> Any:
    """An image with padding added."""
    return tf.pad(x, [(0, 0), *pads, (0, 0)], constant_values=tf.constant(fill, x.dtype))


def _in_place(x: Any, window: Window, pads: Pads, fill: float) -> tuple[Any, str]:
    """The image, padded if the kernels have no name for the padding, and the name of the remaining padding."""
    name = _called(x, window, pads)
    return (_padded(x, pads, fill), "VALID") if name is None else (x, name)


# Convolution

# With several threads, oneDNN's gradient of a strided 1 x 1 convolution writes past the end of its memory if there are
# fewer channels than this (TensorFlow 2.21: 3 to 12 channels crash, 16 do not); so its pixels are sliced first.
_VECTOR = 16


def spread(weight: Any, dilations: Sequence[int]) -> Any:
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
    requested = _padding(x, window)[0]
    if explicit and _is_known(requested) and _called(x, window, requested) is None:
        y = tf.nn.conv2d(x, weight, window.strides, [(0, 0), *requested, (0, 0)])
        return y if bias is None else with_bias(y, bias)
    x, pads = _in_place(x, window, requested, 0.0)
    strides, dilations = window.strides, window.dilations
    if not direct:
        weight, dilations = spread(weight, dilations), (1,) * len(dilations)
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


@operator("Conv", _check_window)
def _conv(emitter: Emitter, node: ir.Node) -> None:
    window, axes, group = convolution_window(node), rank(node), attribute(node, "group", 1)
    special = group > 1 or max(window.dilations) > 1
    direct = emitter.xla or not special or runs(str(node.outputs[0].dtype.numpy()), axes - 2, emitter.device)  # type: ignore[union-attr]
    x = emitter.ordered(node.inputs[0], channels_last(axes))
    weight = emitter.ordered(node.inputs[1], kernel_order(axes))
    bias = emitter.name(node.inputs[2] if len(node.inputs) > 2 else None)
    explicit = axes == 4 and _unnamed(window) and not (emitter.gradients or special or emitter.xla)
    emitter.forward_only |= explicit
    how = f"{emitter.bind(window)}, {group}, {direct}, {explicit}"
    emitter.assign(node, f"{emitter.product(node, convolution)}({x}, {weight}, {bias}, {how})", channels_last(axes))


# Pooling


def _pooled(
    x: Any, kernel: Sequence[int], strides: Sequence[int], pads: str, dilations: Sequence[int], kind: str
) -> Any:
    """Pooling with channels last over one to three spatial axes, with kernels for two.

    Three axes take one pooling over the last two and one over the first: there are no float64 kernels for three, and
    windows are products of intervals.
    """
    shape = [-1 if extent is None else extent for extent in x.shape.as_list()]
    if len(kernel) == 1:
        wide = _pooled(tf.expand_dims(x, 1), (1, *kernel), (1, *strides), pads, (1, *dilations), kind)
        return tf.squeeze(wide, 1)
    if len(kernel) == 3:
        slices = _pooled(tf.reshape(x, [-1, *shape[2:]]), kernel[1:], strides[1:], pads, dilations[1:], kind)
        inner = slices.shape.as_list()[1:]
        rows = tf.reshape(slices, [-1, shape[1], inner[0] * inner[1], inner[2]])
        rows = _pooled(rows, (kernel[0], 1), (strides[0], 1), pads, (dilations[0], 1), kind)
        return tf.reshape(rows, [-1, rows.shape[1], *inner])
    if max(dilations) > 1:  # with stride 1 only
        y = tf.nn.pool(x, kernel, kind, padding=pads, dilations=dilations)
        return y[:, :: strides[0], :: strides[1]]
    return (tf.nn.max_pool2d if kind == "MAX" else tf.nn.avg_pool2d)(x, kernel, strides, pads)


def _check_pool(node: ir.Node) -> str | None:
    if reason := _check_window(node):
        return reason
    if rank(node) == 5 and not all(isinstance(extent, int) for extent in extents(node.inputs[0])[1:]):
        return "pooling over three axes with a dimension of unknown size"
    return None


def _check_average(node: ir.Node) -> str | None:
    return _check_pool(node) or (_unknown_space(node) if max(attribute(node, "dilations", (1,))) > 1 else None)


def _unknown_space(node: ir.Node) -> str | None:
    known = all(isinstance(extent, int) for extent in extents(node.inputs[0])[2:])
    return None if known else "dilations or places, with a dimension of unknown size"


def _average(x: Any, window: Window, include: bool) -> Any:
    """The average over padded windows; padding counts if included, elements beyond it never do."""
    requested, beyond = _padding(x, window)
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(requested, beyond, strict=True)]

    def average(image: Any) -> Any:
        return _pooled(image, window.kernel, window.strides, "VALID", window.dilations, "AVG")

    if _is_known(both) and not any(map(any, both)):
        return average(x)
    y = average(_padded(x, both, 0.0))
    if include and not any(map(any, beyond)):
        return y
    # The fraction of each window that counts.
    space = x.shape.as_list()[1:-1]
    if None in space:
        sizes = tf.shape(x)
        space = [sizes[index + 1] if extent is None else extent for index, extent in enumerate(space)]
    inside = _padded(tf.ones([1, *space, 1], x.dtype), requested, 1.0 if include else 0.0)
    return y / average(_padded(inside, beyond, 0.0))


@operator("AveragePool", _check_average)
def _average_pool(emitter: Emitter, node: ir.Node) -> None:
    order, include = channels_last(rank(node)), bool(attribute(node, "count_include_pad", 0))
    if max(attribute(node, "dilations", (1,))) > 1:  # whose kernels have no gradient, or none over three axes
        window = emitter.bind(convolution_window(node))
        x = emitter.name(node.inputs[0])
        emitter.assign(node, f"{emitter.function(average_windows)}({x}, {window}, {include})")
        return
    x = emitter.ordered(node.inputs[0], order)
    emitter.assign(
        node, f"{emitter.function(_average)}({x}, {emitter.bind(convolution_window(node))}, {include})", order
    )


def _maximum(x: Any, window: Window) -> Any:
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(*_padding(x, window), strict=True)]
    x, pads = _in_place(x, window, both, -np.inf if x.dtype.is_floating else x.dtype.min)
    return _pooled(x, window.kernel, window.strides, pads, window.dilations, "MAX")


def _check_max_pool(node: ir.Node) -> str | None:
    return _check_pool(node) or (_unknown_space(node) if spare(node) else None)


@operator("MaxPool", _check_max_pool)
def _max_pool(emitter: Emitter, node: ir.Node) -> None:
    window = emitter.bind(convolution_window(node))
    if spare(node):
        columns = bool(attribute(node, "storage_order", 0))
        text = f"{emitter.function(largest_in_windows)}({emitter.name(node.inputs[0])}, {window}, {columns})"
        emitter.assign_all(node, text)
        return
    order = channels_last(rank(node))
    x = emitter.ordered(node.inputs[0], order)
    emitter.assign(node, f"{emitter.function(_maximum)}({x}, {window})", order)


def _check_global(node: ir.Node) -> str | None:
    return None if rank(node) > 2 else "no spatial axes"


def _global(op_type: str, function: Callable[..., Any]) -> None:
    def emit(emitter: Emitter, node: ir.Node) -> None:
        order = channels_last(rank(node))
        x, axes = emitter.ordered(node.inputs[0], order), list(range(1, rank(node) - 1))
        emitter.assign(node, f"{emitter.function(function)}({x}, {axes}, True)", order)

    operator(op_type, _check_global)(emit)


_global("GlobalAveragePool", tf.reduce_mean)
_global("GlobalMaxPool", tf.reduce_max)
