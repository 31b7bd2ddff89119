"""Convolution and pooling by TensorFlow's kernels, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.composites import emit_of
from deep5.frameworks.tensorflow.order import channels_last, kernel_order
from deep5.frameworks.tensorflow.probe import runs
from deep5.frameworks.tensorflow.table import attribute, extents, operator, rank, spare
from deep5.frameworks.tensorflow.windows import convolution, in_place, is_known, padded, padding, unnamed
from deep5.networks.kernels.operators import COMPOSITES
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []

_MAX = "2.5 and 1.7 times at (2, 3, 8, 8), 4.3 and 6.8 at (8, 32, 28, 28)"
_AVERAGE = "1.2 and 0.9 times at (2, 3, 8, 8), 4.9 and 5.6 at (8, 32, 28, 28)"
_WRITE_AVERAGE, _WRITE_MAX = (emit_of(COMPOSITES[name]) for name in ("AveragePool", "MaxPool"))


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


@operator("Conv", _check_window)
def _conv(emitter: Emitter, node: ir.Node) -> None:
    window, axes, group = Window.at(node), rank(node), attribute(node, "group", 1)
    special = group > 1 or max(window.dilations) > 1
    direct = emitter.xla or not special or runs(str(node.outputs[0].dtype.numpy()), axes - 2, emitter.device)  # type: ignore[union-attr]
    x = emitter.ordered(node.inputs[0], channels_last(axes))
    weight = emitter.ordered(node.inputs[1], kernel_order(axes))
    bias = emitter.name(node.inputs[2] if len(node.inputs) > 2 else None)
    explicit = axes == 4 and unnamed(window) and not (emitter.gradients or special or emitter.xla)
    emitter.forward_only |= explicit
    how = f"{emitter.bind(window)}, {group}, {direct}, {explicit}"
    emitter.assign(node, f"{emitter.product(node, convolution)}({x}, {weight}, {bias}, {how})", channels_last(axes))


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
    requested, beyond = padding(x, window)
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(requested, beyond, strict=True)]

    def average(image: Any) -> Any:
        return _pooled(image, window.kernel, window.strides, "VALID", window.dilations, "AVG")

    if is_known(both) and not any(map(any, both)):
        return average(x)
    y = average(padded(x, both, 0.0))
    if include and not any(map(any, beyond)):
        return y
    # The fraction of each window that counts.
    space = x.shape.as_list()[1:-1]
    if None in space:
        sizes = tf.shape(x)
        space = [sizes[index + 1] if extent is None else extent for index, extent in enumerate(space)]
    inside = padded(tf.ones([1, *space, 1], x.dtype), requested, 1.0 if include else 0.0)
    return y / average(padded(inside, beyond, 0.0))


@operator("AveragePool", _check_average, override=_AVERAGE)
def _average_pool(emitter: Emitter, node: ir.Node) -> None:
    if max(attribute(node, "dilations", (1,))) > 1:  # whose kernels have no gradient, or none over three axes
        _WRITE_AVERAGE(emitter, node)
        return
    order, include = channels_last(rank(node)), bool(attribute(node, "count_include_pad", 0))
    how = f"{emitter.ordered(node.inputs[0], order)}, {emitter.bind(Window.at(node))}, {include}"
    emitter.assign(node, f"{emitter.function(_average)}({how})", order)


def _maximum(x: Any, window: Window) -> Any:
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(*padding(x, window), strict=True)]
    lowest = -np.inf if x.dtype.is_floating else x.dtype.min
    if max(window.dilations) > 1:  # which TensorFlow runs without padding only
        return _pooled(padded(x, both, lowest), window.kernel, window.strides, "VALID", window.dilations, "MAX")
    x, pads = in_place(x, window, both, lowest)
    return _pooled(x, window.kernel, window.strides, pads, window.dilations, "MAX")


def _check_max_pool(node: ir.Node) -> str | None:
    return _check_pool(node) or (_unknown_space(node) if spare(node) else None)


@operator("MaxPool", _check_max_pool, override=_MAX)
def _max_pool(emitter: Emitter, node: ir.Node) -> None:
    if spare(node):
        _WRITE_MAX(emitter, node)
        return
    order = channels_last(rank(node))
    how = f"{emitter.ordered(node.inputs[0], order)}, {emitter.bind(Window.at(node))}"
    emitter.assign(node, f"{emitter.function(_maximum)}({how})", order)
