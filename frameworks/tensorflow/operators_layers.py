"""Operators with weights, windows and statistics; all of them compute with channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.order import channels_last, kernel_order
from deep5.frameworks.tensorflow.probe import runs
from deep5.frameworks.tensorflow.table import attribute, axis, extents, number, operator, rank, spare
from deep5.networks.gradients.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emit import Emitter

__all__: list[str] = []

Pads = Sequence[tuple[int, int]]


def _window(node: ir.Node) -> tuple[Window, tuple[int, ...]]:
    """The window, and the extents of its kernel; of a convolution, those of its weight."""
    window = Window.of(node, rank(node) - 2)
    kernel = window.kernel or tuple(int(extent or 0) for extent in extents(node.inputs[1])[2:])
    return window, kernel


def _check_window(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    if axes not in (1, 2, 3):
        return f"{axes} spatial axes; 1 to 3 are supported"
    window = Window.of(node, axes)
    known = all(isinstance(extent, int) for extent in extents(node.inputs[0])[2:])
    if not known and (window.auto_pad.startswith("SAME") or window.ceil):
        return "auto_pad or ceil_mode where an extent is not known"
    if not window.kernel and not all(isinstance(extent, int) for extent in extents(node.inputs[1])[2:]):
        return "a window whose extent is not known"
    return "negative padding" if min(window.begins + window.ends, default=0) < 0 else None


def _padding(node: ir.Node) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What padding the node asks for on each axis, and what more its last windows reach over (`ceil_mode`)."""
    window, kernel = _window(node)
    space = extents(node.inputs[0])[2:]
    if not all(isinstance(extent, int) for extent in space):
        none = (0,) * len(kernel)
        begins, ends = (none, none) if window.auto_pad == "VALID" else (window.begins, window.ends)
        return list(zip(begins, ends, strict=True)), [(0, 0)] * len(kernel)
    sizes = tuple(int(extent or 0) for extent in space)
    outputs, begins, ends = window.fit(sizes, kernel)
    asked, beyond = list(zip(begins, ends, strict=True)), []
    for index, span in enumerate(window.spans(kernel)):
        reach = (outputs[index] - 1) * window.strides[index] + span - sizes[index] - begins[index]
        beyond.append((0, max(reach - ends[index], 0)))
    return asked, beyond


def _is_same(node: ir.Node, pads: Pads) -> bool:
    """Whether this is the padding that TensorFlow calls SAME."""
    window, kernel = _window(node)
    for index, span in enumerate(window.spans(kernel)):
        extent, stride = extents(node.inputs[0])[2 + index], window.strides[index]
        if not isinstance(extent, int) and stride > 1:
            return False
        # With stride 1 the extent does not matter.
        total = span - 1 if not isinstance(extent, int) else max((-(-extent // stride) - 1) * stride + span - extent, 0)
        if pads[index] != (total // 2, total - total // 2):
            return False
    return True


def _padded(x: Any, pads: Pads, fill: float) -> Any:
    """An image with padding around it.

    Never the kernel's own explicit padding: its gradients take up to four times as long.
    """
    return tf.pad(x, [(0, 0), *pads, (0, 0)], constant_values=tf.constant(fill, x.dtype))


# Convolution


def _spread(weight: Any, dilations: Sequence[int]) -> Any:
    """A weight with zeros between its elements, for where the kernels know no dilation."""
    for index, dilation in enumerate(dilations):
        if dilation > 1:
            shape = weight.shape.as_list()
            weight = tf.expand_dims(weight, index + 1)
            weight = tf.pad(weight, [(0, dilation - 1 if at == index + 1 else 0) for at in range(len(shape) + 1)])
            weight = tf.reshape(weight, [*shape[:index], shape[index] * dilation, *shape[index + 1 :]])
            weight = weight[(slice(None),) * index + (slice(0, (shape[index] - 1) * dilation + 1),)]
    return weight


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    strides: Sequence[int],
    pads: str | Pads,
    dilations: Sequence[int],
    group: int,
    direct: bool,
) -> Any:
    """A convolution with channels last.

    Args:
        x: (N, *space, C).
        weight: (*kernel, C / group, M).
        bias: (M,) or None.
        strides: One a spatial axis.
        pads: `"SAME"`, `"VALID"`, or pairs.
        dilations: One a spatial axis.
        group: How many groups.
        direct: Whether the kernels know groups and dilation, with gradients.
    """
    if not isinstance(pads, str):
        x, pads = _padded(x, pads, 0.0), "VALID"
    if not direct:
        weight, dilations = _spread(weight, dilations), (1,) * len(dilations)
    flat = len(strides) == 1
    if flat:  # an image of height 1
        x, weight = tf.expand_dims(x, 1), tf.expand_dims(weight, 0)
        strides, dilations = (1, *strides), (1, *dilations)
    into = x.shape[-1]
    plain = len(set(strides)) == 1 and set(dilations) == {1}
    if group > 1 and group == into and len(strides) == 2 and plain:
        shape = weight.shape.as_list()
        weight = tf.reshape(weight, [*shape[:2], group, shape[3] // group])
        y = tf.nn.depthwise_conv2d(x, weight, (1, *strides, 1), pads)
    elif group > 1 and not (direct and len(strides) == 2):
        parts = zip(tf.split(x, group, -1), tf.split(weight, group, -1), strict=True)
        y = tf.concat([_kernel(part, w, strides, pads, dilations) for part, w in parts], -1)
    else:
        y = _kernel(x, weight, strides, pads, dilations)
    y = tf.squeeze(y, 1) if flat else y
    return y if bias is None else tf.nn.bias_add(y, bias)


def _kernel(x: Any, weight: Any, strides: Sequence[int], pads: Any, dilations: Sequence[int]) -> Any:
    if len(strides) == 2:
        return tf.nn.conv2d(x, weight, strides, pads, dilations=dilations)
    return tf.nn.conv3d(x, weight, (1, *strides, 1), pads, dilations=(1, *dilations, 1))


@operator("Conv", _check_window)
def _conv(emitter: Emitter, node: ir.Node) -> None:
    window, _ = _window(node)
    pads: str | Pads = _padding(node)[0]
    if not any(map(any, pads)):
        pads = "VALID"
    elif _is_same(node, pads):  # type: ignore[arg-type]  # a list still
        pads = "SAME"
    axes, group, order = rank(node), attribute(node, "group", 1), channels_last(rank(node))
    special = group > 1 or max(window.dilations) > 1
    direct = emitter.xla or not special or runs(str(node.outputs[0].dtype.numpy()), axes - 2, emitter.device)  # type: ignore[union-attr]
    x, weight = emitter.ordered(node.inputs[0], order), emitter.ordered(node.inputs[1], kernel_order(axes))
    bias = emitter.name(node.inputs[2] if len(node.inputs) > 2 else None)
    how = f"{window.strides}, {pads!r}, {window.dilations}, {group}, {direct}"
    emitter.assign(node, f"{emitter.function(_convolution)}({x}, {weight}, {bias}, {how})", order)


# Pooling


def _pooled(
    x: Any, kernel: Sequence[int], strides: Sequence[int], pads: str, dilations: Sequence[int], kind: str
) -> Any:
    """Pooling with channels last over one to three spatial axes, by kernels for two.

    Over three axes it is one pooling over the last two and one over the first: there are no kernels for three in
    float64, and windows are products of intervals.
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
    if max(dilations) > 1:  # with stride 1 alone
        y = tf.nn.pool(x, kernel, kind, padding=pads, dilations=dilations)
        return y[:, :: strides[0], :: strides[1]]
    return (tf.nn.max_pool2d if kind == "MAX" else tf.nn.avg_pool2d)(x, kernel, strides, pads)


def _check_pool(node: ir.Node) -> str | None:
    if reason := _check_window(node):
        return reason
    if rank(node) == 5 and not all(isinstance(extent, int) for extent in extents(node.inputs[0])[1:]):
        return "pooling over three axes where an extent is not known"
    return None


def _check_average(node: ir.Node) -> str | None:
    if max(attribute(node, "dilations", (1,))) > 1:
        return "dilations"
    return _check_pool(node)


def _average(x: Any, kernel: Sequence[int], strides: Sequence[int], asked: Pads, beyond: Pads, include: bool) -> Any:
    """The average over padded windows; what is beyond the padding never counts, padding only where it is included."""
    ones = (1,) * len(kernel)
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(asked, beyond, strict=True)]
    y = _pooled(_padded(x, both, 0.0), kernel, strides, "VALID", ones, "AVG")
    if include and not any(map(any, beyond)):
        return y
    # The share of each window that counts.
    sizes = tf.shape(x) if x.shape.as_list()[1:-1].count(None) else None
    space = [sizes[at] if extent is None else extent for at, extent in enumerate(x.shape.as_list())][1:-1]  # type: ignore[index]
    inside = _padded(tf.ones([1, *space, 1], x.dtype), asked, 1.0 if include else 0.0)
    return y / _pooled(_padded(inside, beyond, 0.0), kernel, strides, "VALID", ones, "AVG")


@operator("AveragePool", _check_average)
def _average_pool(emitter: Emitter, node: ir.Node) -> None:
    window, kernel = _window(node)
    asked, beyond = _padding(node)
    include, order = bool(attribute(node, "count_include_pad", 0)), channels_last(rank(node))
    x, around = emitter.ordered(node.inputs[0], order), f"{kernel}, {window.strides}"
    if not any(map(any, (*asked, *beyond))):
        text = f"{emitter.function(_pooled)}({x}, {around}, 'VALID', {window.dilations}, 'AVG')"
    else:
        text = f"{emitter.function(_average)}({x}, {around}, {asked}, {beyond}, {include})"
    emitter.assign(node, text, order)


def _maximum(x: Any, kernel: Sequence[int], strides: Sequence[int], pads: str | Pads, dilations: Sequence[int]) -> Any:
    if not isinstance(pads, str):
        x, pads = _padded(x, pads, -np.inf), "VALID"
    return _pooled(x, kernel, strides, pads, dilations, "MAX")


@operator("MaxPool", lambda node: spare(node) or _check_pool(node))
def _max_pool(emitter: Emitter, node: ir.Node) -> None:
    window, kernel = _window(node)
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(*_padding(node), strict=True)]
    pads: str | Pads = both
    if not any(map(any, both)):
        pads = "VALID"
    elif _is_same(node, both):
        pads = "SAME"
    order = channels_last(rank(node))
    how = f"{kernel}, {window.strides}, {pads!r}, {window.dilations}"
    emitter.assign(node, f"{emitter.function(_maximum)}({emitter.ordered(node.inputs[0], order)}, {how})", order)


def _check_global(node: ir.Node) -> str | None:
    return None if rank(node) > 2 else "no spatial axes"


@operator("GlobalAveragePool", _check_global)
def _global_average_pool(emitter: Emitter, node: ir.Node) -> None:
    _global(emitter, node, tf.reduce_mean)


@operator("GlobalMaxPool", _check_global)
def _global_max_pool(emitter: Emitter, node: ir.Node) -> None:
    _global(emitter, node, tf.reduce_max)


def _global(emitter: Emitter, node: ir.Node, function: Any) -> None:
    order = channels_last(rank(node))
    x, axes = emitter.ordered(node.inputs[0], order), list(range(1, rank(node) - 1))
    emitter.assign(node, f"{emitter.function(function)}({x}, {axes}, True)", order)


# Normalisation


def _check_batch_norm(node: ir.Node) -> str | None:
    if rank(node) < 2:
        return "no channels"
    return None if attribute(node, "training_mode", 0) else spare(node)


def _fused(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, training: bool) -> Any:
    """The fused kernel, for float32: it takes images, which anything becomes by a change of shape."""
    flat = tf.reshape(x, [-1, 1, 1, x.shape[-1]]) if x.shape.rank != 4 else x
    found = tf.raw_ops.FusedBatchNormV3(
        x=flat, scale=scale, offset=bias, mean=mean, variance=variance, epsilon=epsilon, is_training=training
    )
    return (tf.reshape(found.y, tf.shape(x)) if x.shape.rank != 4 else found.y), found.batch_mean, found.batch_variance


def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    if x.dtype == scale.dtype == mean.dtype == tf.float32:
        return _fused(x, scale, bias, mean, variance, epsilon, training=False)[0]
    factor = scale * tf.math.rsqrt(variance + tf.cast(epsilon, variance.dtype))
    return x * factor + (bias - mean * factor)


def _batch_norm_in_training(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    """Output and new running statistics: the variance is the population's, momentum is the old value's share."""
    if x.dtype == scale.dtype == mean.dtype == tf.float32:
        none = tf.zeros([0], tf.float32)
        y, now, corrected = _fused(x, scale, bias, none, none, epsilon, training=True)
        count = tf.cast(tf.size(x) // x.shape[-1], tf.float32)
        spread = corrected * ((count - 1) / count)  # the kernel gives the sample's variance
    else:
        axes = list(range(x.shape.rank - 1))
        now = tf.reduce_mean(x, axes)
        centred = x - now
        spread = tf.reduce_mean(centred * centred, axes)
        y = centred * (scale * tf.math.rsqrt(spread + tf.cast(epsilon, spread.dtype))) + bias
    keep = tf.constant(momentum, mean.dtype)
    share = tf.constant(1 - momentum, mean.dtype)
    return y, mean * keep + now * share, variance * keep + spread * share


@operator("BatchNormalization", _check_batch_norm)
def _batch_normalization(emitter: Emitter, node: ir.Node) -> None:
    order = channels_last(rank(node))
    inputs = ", ".join([emitter.ordered(node.inputs[0], order), *map(emitter.name, node.inputs[1:])])
    momentum, epsilon = number(attribute(node, "momentum", 0.9)), number(attribute(node, "epsilon", 1e-5))
    if attribute(node, "training_mode", 0):
        text = f"{emitter.function(_batch_norm_in_training)}({inputs}, {momentum}, {epsilon})"
        outputs = [emitter.output(node, 0, order), *(emitter.output(node, at) for at in range(1, len(node.outputs)))]
        emitter.line(f"{', '.join([*outputs, '_', '_'][:3])} = {text}")
    else:
        emitter.assign(node, f"{emitter.function(_batch_norm)}({inputs}, {epsilon})", order)


def _layer_norm(x: Any, scale: Any, bias: Any, first: int, epsilon: float) -> Any:
    axes = list(range(first, x.shape.rank))
    mean = tf.reduce_mean(x, axes, keepdims=True)
    centred = x - mean
    variance = tf.reduce_mean(centred * centred, axes, keepdims=True)
    y = centred * tf.math.rsqrt(variance + tf.cast(epsilon, x.dtype)) * scale
    return y if bias is None else y + bias


@operator("LayerNormalization", spare)
def _layer_normalization(emitter: Emitter, node: ir.Node) -> None:
    x, scale, bias = (emitter.name(value) for value in (*node.inputs, None)[:3])
    epsilon = number(attribute(node, "epsilon", 1e-5))
    emitter.assign(node, f"{emitter.function(_layer_norm)}({x}, {scale}, {bias}, {axis(node, -1)}, {epsilon})")
