"""Draws of layers, quantization and losses for opset_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from opset_cases import Draw, Drawn

__all__ = ["LAYERS"]


def window(draw: Draw, spatial: int, *, dilated: bool = True, pool: bool = False) -> tuple[list[int], dict[str, Any]]:
    """A kernel and its strides, dilations and padding, of those that the version has."""
    kernel = [draw.whole(1, 3) for _ in range(spatial)]
    attributes = draw.some(strides=[draw.whole(1, 3) for _ in kernel])
    if dilated:
        attributes |= draw.some(dilations=[draw.whole(1, 2) for _ in kernel])
    form = draw.whole(0, 3)
    if form == 1:
        attributes |= draw.known(pads=[draw.whole(0, size - 1) for _ in range(2) for size in kernel])
    elif form == 2:
        attributes |= draw.known(auto_pad=draw.one_of("SAME_UPPER", "SAME_LOWER", "VALID"))
        if attributes.get("auto_pad", "").startswith("SAME"):
            attributes.pop("dilations", None)
            # ONNX Runtime pads below 0 where a kernel is smaller than its stride.
            kernel = [max(size, each) for size, each in zip(kernel, attributes.get("strides", kernel), strict=True)]
    if pool:
        attributes |= draw.known(kernel_shape=kernel)
        if "auto_pad" not in attributes:
            attributes |= draw.some(ceil_mode=draw.whole(0, 1))
    return kernel, attributes


def image(draw: Draw, channels: int, kind: Any = "float32", spatial: int | None = None, least: int = 5) -> np.ndarray:
    rank = draw.whole(1, 3) if spatial is None else spatial
    return draw.array((draw.whole(1, 2), channels, *(draw.whole(least, least + 3) for _ in range(rank))), kind)


def convolution(draw: Draw) -> Drawn:
    group, spatial = draw.whole(1, 2), draw.whole(1, 3)
    kernel, attributes = window(draw, spatial)
    per, out = draw.whole(1, 2), draw.whole(1, 2)
    kind = np.dtype("float32")
    x = image(draw, group * per, kind, spatial)
    transposed = draw.operator == "ConvTranspose"
    weight = (group * per, out, *kernel) if transposed else (group * out, per, *kernel)
    if transposed and "pads" in attributes:
        strides = attributes.get("strides", [1] * spatial)
        attributes |= draw.some(output_padding=[draw.whole(0, each - 1) for each in strides])
    inputs = [x, draw.array(weight, kind), draw.array((group * out,), kind)][: draw.whole(2, 3)]
    return Drawn(
        inputs=inputs,
        attributes={**attributes, **draw.some(kernel_shape=kernel), "group": group},
        stored=frozenset({1, 2}),
    )


def pool(draw: Draw) -> Drawn:
    spatial = draw.whole(1, 3)
    _, attributes = window(draw, spatial, pool=True)
    attributes |= draw.some(count_include_pad=draw.whole(0, 1), storage_order=draw.whole(0, 1), p=draw.whole(1, 3))
    outputs = draw.whole(1, 2) if draw.operator == "MaxPool" and draw.since >= 8 else 1
    return Drawn(inputs=[image(draw, draw.whole(1, 3), "float32", spatial)], attributes=attributes, outputs=outputs)


def unpool(draw: Draw) -> Drawn:
    x = draw.array((1, 1, 2, 2))
    rows = draw.rng.permutation(4).reshape(1, 1, 2, 2)
    corners = np.array([0, 2, 8, 10], np.int64)[rows]
    return Drawn(inputs=[x, corners], attributes={"kernel_shape": [2, 2], "strides": [2, 2]})


def whole_pool(draw: Draw) -> Drawn:
    return Drawn(inputs=[image(draw, 2, least=1)], attributes=draw.some(p=draw.whole(1, 3)))


def batch_norm(draw: Draw) -> Drawn:
    c = draw.whole(1, 3)
    kind = draw.kind(but=("float16",))
    x = draw.array((draw.whole(1, 3), c, *draw.shape(0, 2)), kind)
    shape: tuple[int, ...] = (c,)
    attributes = draw.some(epsilon=0.01, momentum=0.8)
    if "spatial" in draw.schema.attributes and draw.chance(0.4):
        attributes["spatial"] = draw.whole(0, 1)
        shape = (c,) if attributes["spatial"] else x.shape[1:]
    outputs = 1
    if draw.since >= 14 and draw.chance(0.3):
        attributes["training_mode"], outputs = 1, 3
    elif draw.since < 14 and shape == (c,) and draw.chance(0.25):
        outputs = 5
    values = [
        draw.array(shape, kind),
        draw.array(shape, kind),
        draw.array(shape, kind),
        draw.array(shape, kind, 0.5, 2),
    ]
    return Drawn(
        inputs=[x, *values],
        attributes=attributes,
        outputs=outputs,
        stored=frozenset({1, 2, 3, 4}),
        shown=1,
        training=outputs > 1,
    )


def instance_norm(draw: Draw) -> Drawn:
    c = draw.whole(1, 3)
    inputs = [image(draw, c, least=2), draw.array((c,)), draw.array((c,))]
    return Drawn(inputs=inputs, attributes=draw.some(epsilon=0.01), stored=frozenset({1, 2}))


def group_norm(draw: Draw) -> Drawn:
    groups, per = draw.whole(1, 3), draw.whole(1, 3)
    x = image(draw, groups * per, least=2)
    size = groups if draw.since < 21 else groups * per
    return Drawn(
        inputs=[x, draw.array((size,)), draw.array((size,))],
        attributes={"num_groups": groups, **draw.some(epsilon=0.01)},
        stored=frozenset({1, 2}),
    )


def layer_norm(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    axis = draw.axis(len(shape))
    rest = shape[axis:] if axis < 0 else shape[axis % len(shape) :]
    inputs = [draw.array(shape), draw.array(rest), draw.array(rest)]
    if draw.operator == "RMSNormalization":
        return Drawn(inputs=inputs[:2], attributes={"axis": axis, **draw.some(epsilon=0.01)})
    return Drawn(
        inputs=inputs[: draw.whole(2, 3)],
        attributes={"axis": axis, **draw.some(epsilon=0.01)},
        outputs=draw.one_of(1, 1, 3),
    )


def lrn(draw: Draw) -> Drawn:
    return Drawn(
        inputs=[image(draw, 5, spatial=2, least=1)],
        attributes={"size": draw.one_of(1, 3, 5), **draw.some(alpha=0.1, beta=0.5, bias=2.0)},
    )


def lp_norm(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    return Drawn(
        inputs=[draw.array(shape, low=0.5)],
        attributes=draw.some(axis=draw.whole(-len(shape), len(shape) - 1), p=draw.whole(1, 2)),
    )


def mean_variance(draw: Draw) -> Drawn:
    if draw.chance(0.4):
        return Drawn(inputs=[image(draw, 2, spatial=2, least=2)])
    shape = tuple(size + 1 for size in draw.shape(2, 4, empty=0))  # of one element ONNX Runtime divides by 0
    return Drawn(
        inputs=[draw.array(shape)], attributes={"axes": sorted(each % len(shape) for each in draw.axes(len(shape)))}
    )


def dropout(draw: Draw) -> Drawn:
    x, outputs = draw.array(draw.shape(0, 3), draw.kind(but=("float16",))), draw.one_of(1, 1, 2)
    if draw.since < 12:  # the mask of evaluation is defined since opset 12; before, ONNX Runtime fills it with 0
        return Drawn(inputs=[x], attributes=draw.some(ratio=0.3), outputs=outputs, shown=1)
    inputs = [x, draw.one_of(None, np.array(0.3, np.float32)), draw.one_of(None, np.array(False))]
    return Drawn(inputs=inputs, attributes=draw.some(seed=3), outputs=outputs, stored=frozenset({1, 2}))


def recurrent(draw: Draw) -> Drawn:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[draw.operator]
    steps, batch, width, hidden = draw.whole(1, 4), draw.whole(1, 3), draw.whole(1, 3), draw.whole(1, 3)
    direction = draw.one_of("forward", "reverse", "bidirectional")
    both = 2 if direction == "bidirectional" else 1
    layout = draw.whole(0, 1) if draw.since >= 14 and draw.chance(0.3) else 0
    attributes = {"hidden_size": hidden, "direction": direction, **({"layout": layout} if layout else {})}
    # ONNX Runtime clips in LSTM at other places than the equations; only ONNX's reference has layout 1, without clip.
    if draw.operator != "LSTM" and not layout and draw.chance(0.3):
        attributes["clip"] = 1.0
    attributes |= draw.some(linear_before_reset=draw.whole(0, 1))
    x = draw.array((batch, steps, width) if layout else (steps, batch, width))
    inputs: list[Any] = [x, draw.array((both, gates * hidden, width)), draw.array((both, gates * hidden, hidden))]
    start = (batch, both, hidden) if layout else (both, batch, hidden)
    inputs.append(draw.array((both, 2 * gates * hidden)) if draw.chance() else None)
    inputs.append(draw.whole_array((batch,), 1, steps, "int32") if draw.chance(0.3) and not layout else None)
    inputs.append(draw.array(start) if draw.chance() else None)
    if draw.operator == "LSTM":
        inputs.append(draw.array(start) if draw.chance() else None)
        inputs.append(draw.array((both, 3 * hidden)) if draw.chance(0.3) else None)
    while inputs[-1] is None:
        inputs.pop()
    return Drawn(
        inputs=inputs,
        attributes=attributes,
        outputs=3 if draw.operator == "LSTM" else 2,
        stored=frozenset({1, 2, 3, 7}),
    )


def quantize(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    per_axis = draw.since >= 13 and draw.chance()
    axis = draw.axis(len(shape), since=13)
    sides = (shape[axis],) if per_axis else ()
    scale, kind = draw.array(sides, low=0.1, high=1), draw.one_of("uint8", "int8")
    zero = draw.whole_array(sides, 1, 9, kind)
    x = draw.array(shape) if draw.operator == "QuantizeLinear" else draw.whole_array(shape, 0, 100, kind)
    inputs = [x, scale, zero]
    attributes = {"axis": axis} if per_axis else {}
    return Drawn(
        inputs=inputs[: 2 if draw.chance(0.25) and kind == "uint8" else 3],
        attributes=attributes,
        stored=frozenset({1, 2}),
    )


def dynamic(draw: Draw) -> Drawn:
    return Drawn(inputs=[draw.array(draw.shape(1, 3, empty=0))], outputs=3)


def quantized_product(draw: Draw) -> Drawn:
    m, k, n = draw.whole(1, 4), draw.whole(1, 4), draw.whole(1, 4)
    kind = draw.one_of("uint8", "int8")
    a, b = draw.whole_array((m, k), 0, 100, kind), draw.whole_array((k, n), 0, 100, kind)
    zeros = [np.array(each, kind) for each in (3, 5)]
    if draw.operator == "MatMulInteger":
        return Drawn(inputs=[a, b, *zeros[: draw.whole(0, 2)]])
    scales = [np.array(each, np.float32) for each in (0.02, 0.03, 0.5)]
    return Drawn(
        inputs=[a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], np.array(7, kind)],
        stored=frozenset({3, 4, 5}),
    )


def quantized_convolution(draw: Draw) -> Drawn:
    kernel, attributes = window(draw, 2)
    x = draw.whole_array((1, 2, 6, 6), 0, 100, "uint8")
    w = draw.whole_array((3, 2, *kernel), 0, 100, "uint8")
    zeros = [np.array(each, np.uint8) for each in (3, 5)]
    if draw.operator == "ConvInteger":
        return Drawn(inputs=[x, w, *zeros[: draw.whole(0, 2)]], attributes=attributes)
    scales = [np.array(each, np.float32) for each in (0.02, 0.03, 0.5)]
    inputs = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], np.array(7, np.uint8)]
    return Drawn(inputs=inputs, attributes=attributes, stored=frozenset({3, 4, 5}))


def loss(draw: Draw) -> Drawn:
    n, c = draw.whole(1, 3), draw.whole(2, 4)
    rest = draw.shape(0, 2, empty=0)
    x = draw.array((n, c, *rest))
    labels = draw.whole_array((n, *rest), 0, c - 1)
    attributes = draw.some(reduction=draw.one_of("none", "mean", "sum"), ignore_index=draw.whole(0, c - 1))
    inputs = [x, labels, draw.array((c,), low=0.5)][: draw.whole(2, 3)]
    outputs = draw.whole(1, 2) if draw.operator == "SoftmaxCrossEntropyLoss" else 1
    return Drawn(inputs=inputs, attributes=attributes, outputs=outputs, stored=frozenset({2}))


def suppression(draw: Draw) -> Drawn:
    corners = np.sort(draw.array((1, 6, 2, 2), low=0, high=5), axis=2).reshape(1, 6, 4)
    inputs = [
        corners,
        draw.array((1, 2, 6), low=0, high=1),
        np.array([3], np.int64),
        np.array([0.4], np.float32),
        np.array([0.2], np.float32),
    ]
    return Drawn(
        inputs=inputs[: draw.whole(3, 5)],
        attributes=draw.some(center_point_box=draw.whole(0, 1)),
        stored=frozenset({2, 3, 4}),
    )


def attention(draw: Draw) -> Drawn:
    shape = (2, 2, draw.whole(1, 4), 4)
    return Drawn(
        inputs=[draw.array(shape) for _ in range(3)], attributes=draw.some(is_causal=draw.whole(0, 1), scale=0.4)
    )


def rotary(draw: Draw) -> Drawn:
    return Drawn(
        inputs=[draw.array((2, 2, 3, 4)), draw.array((5, 2)), draw.array((5, 2)), draw.whole_array((2, 3), 0, 4)],
        attributes=draw.some(interleaved=draw.whole(0, 1)),
    )


def linear_attention(draw: Draw) -> Drawn:
    return Drawn(
        inputs=[draw.array((1, 3, 8)), draw.array((1, 3, 8)), draw.array((1, 3, 8))],
        attributes={"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
        outputs=2,
    )


def causal(draw: Draw) -> Drawn:
    return Drawn(inputs=[draw.array((2, 3, 5)), draw.array((3, 1, 3))], outputs=2, stored=frozenset({1}))


LAYERS = {
    "Attention": attention,
    "AveragePool": pool,
    "BatchNormalization": batch_norm,
    "CausalConvWithState": causal,
    "Conv": convolution,
    "ConvInteger": quantized_convolution,
    "ConvTranspose": convolution,
    "DequantizeLinear": quantize,
    "Dropout": dropout,
    "DynamicQuantizeLinear": dynamic,
    "GRU": recurrent,
    "GlobalAveragePool": whole_pool,
    "GlobalLpPool": whole_pool,
    "GlobalMaxPool": whole_pool,
    "GroupNormalization": group_norm,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LSTM": recurrent,
    "LayerNormalization": layer_norm,
    "LinearAttention": linear_attention,
    "LpNormalization": lp_norm,
    "LpPool": pool,
    "MatMulInteger": quantized_product,
    "MaxPool": pool,
    "MaxUnpool": unpool,
    "MeanVarianceNormalization": mean_variance,
    "NegativeLogLikelihoodLoss": loss,
    "NonMaxSuppression": suppression,
    "QLinearConv": quantized_convolution,
    "QLinearMatMul": quantized_product,
    "QuantizeLinear": quantize,
    "RMSNormalization": layer_norm,
    "RNN": recurrent,
    "RotaryEmbedding": rotary,
    "SoftmaxCrossEntropyLoss": loss,
}
