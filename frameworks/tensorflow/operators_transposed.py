"""The transposed convolution: the gradient of a convolution with respect to its image, cropped by the padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.operators_windows import spread
from deep5.frameworks.tensorflow.order import channels_last
from deep5.frameworks.tensorflow.short import with_bias
from deep5.frameworks.tensorflow.table import attribute, extents, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


class _Form(NamedTuple):
    """ONNX's attributes; `pads` None: computed from `auto_pad` or `output_shape`."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] | None
    more: tuple[int, ...]
    auto_pad: str
    shape: tuple[int, ...]
    group: int

    def edges(self, axis: int, extent: Any, span: int) -> tuple[Any, Any]:
        """How many elements of the full result are cropped at the start, and how many remain."""
        stride, more = self.strides[axis], self.more[axis]
        whole = (extent - 1) * stride + span
        if self.pads is not None:
            begin, end = self.pads[axis], self.pads[axis + len(self.strides)]
            return begin, whole + more - begin - end
        goal = self.shape[axis] if self.shape else extent * stride
        total = whole + more - goal
        # A result that is too small is padded with zeros at the end.
        half = total // 2 if self.auto_pad == "SAME_UPPER" else total - total // 2
        return (max(half, 0) if isinstance(half, int) else tf.maximum(half, 0)), goal


def _whole_result(x: Any, weight: Any, strides: Sequence[int]) -> Any:
    """The uncropped result for an image (N, *space, C) and a weight (*kernel, M, C)."""
    axes = len(strides)
    if axes == 1:
        return tf.squeeze(_whole_result(tf.expand_dims(x, 1), tf.expand_dims(weight, 0), (1, *strides)), 1)
    sizes = tf.shape(x)
    space = [
        (sizes[at + 1] - 1) * strides[at] + weight.shape[at]
        if x.shape[at + 1] is None
        else (x.shape[at + 1] - 1) * strides[at] + weight.shape[at]
        for at in range(axes)
    ]
    shape = tf.stack([sizes[0], *space, weight.shape[-2]])
    function = tf.nn.conv2d_transpose if axes == 2 else tf.nn.conv3d_transpose
    return function(x, weight, shape, strides, "VALID")


def _transposed(x: Any, weight: Any, bias: Any, form: _Form) -> Any:
    """ONNX's ConvTranspose: x (N, *space, C), weight (C, M / group, *kernel), bias (M,) or None; channels last."""
    axes = len(form.strides)
    weight = tf.transpose(weight, [*range(2, axes + 2), 1, 0])
    weight = spread(weight, form.dilations)
    if form.group == 1:
        y = _whole_result(x, weight, form.strides)
    else:
        parts = zip(tf.split(x, form.group, -1), tf.split(weight, form.group, -1), strict=True)
        y = tf.concat([_whole_result(part, own, form.strides) for part, own in parts], -1)
    sizes, before, behind, cut = tf.shape(x), [], [], []
    for axis in range(axes):
        extent = x.shape[axis + 1] if x.shape[axis + 1] is not None else sizes[axis + 1]
        begin, length = form.edges(axis, extent, weight.shape[axis])
        whole = (extent - 1) * form.strides[axis] + weight.shape[axis]
        before.append(tf.maximum(-begin, 0))
        behind.append(tf.maximum(begin + length - whole, 0))
        first = tf.maximum(begin, 0)
        cut.append(slice(first, first + length))
    y = tf.pad(y, [(0, 0), *zip(before, behind, strict=True), (0, 0)])
    y = y[(slice(None), *cut, slice(None))]
    return y if bias is None else with_bias(y, bias)


def _check_transposed(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    if axes not in (1, 2, 3):
        return f"{axes} spatial axes; 1 to 3 are supported"
    known = all(isinstance(extent, int) for extent in extents(node.inputs[1]))
    return None if known else "a weight of unknown shape"


@operator("ConvTranspose", _check_transposed)
def _conv_transpose(emitter: Emitter, node: ir.Node) -> None:
    axes = rank(node) - 2
    auto, shape = attribute(node, "auto_pad", "NOTSET"), tuple(attribute(node, "output_shape", ()))
    pads = tuple(attribute(node, "pads", (0,) * (2 * axes)))
    form = _Form(
        strides=tuple(attribute(node, "strides", (1,) * axes)),
        dilations=tuple(attribute(node, "dilations", (1,) * axes)),
        pads=None if shape or auto.startswith("SAME") else (0,) * (2 * axes) if auto == "VALID" else pads,
        more=tuple(attribute(node, "output_padding", (0,) * axes)),
        auto_pad=auto,
        shape=shape,
        group=attribute(node, "group", 1),
    )
    x = emitter.ordered(node.inputs[0], channels_last(axes + 2))
    weight, bias = (emitter.name(value) for value in (*node.inputs[1:], None)[:2])
    text = f"{emitter.product(node, _transposed)}({x}, {weight}, {bias}, {emitter.bind(form)})"
    emitter.assign(node, text, channels_last(axes + 2))
