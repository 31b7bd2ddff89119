"""Draws of layers, quantization and losses for opset_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from opset_cases import Draw, Drawn

__all__ = ["LAYERS"]


def window(draw: Draw, spatial: int, *, dilated: bool = True, pool: bool = False) -> tuple[list[int], dict[str, Any]]:
    """A kernel and its strides, dilations and padding, of those that the version has."""
    kernel = [draw.whole(1, 4) for _ in range(spatial)]
    attributes = draw.some(strides=[draw.whole(1, 4) for _ in kernel])
    if dilated:
        attributes |= draw.some(dilations=[draw.whole(1, 3) for _ in kernel])
    form = draw.whole(0, 3)
    if form == 1:
        attributes |= draw.known(pads=[draw.whole(0, size - 1) for _ in range(2) for size in kernel])
    elif form == 2:
        attributes |= draw.known(auto_pad=draw.one_of("SAME_UPPER", "SAME_LOWER", "VALID"))
        if attributes.get("auto_pad", "").startswith("SAME"):
            attributes.pop("dilations", None)
    if pool:
        attributes |= draw.known(kernel_shape=kernel)
        if "auto_pad" not in attributes:
            attributes |= draw.some(ceil_mode=draw.whole(0, 1))
    return kernel, attributes


def image(draw: Draw, channels: int, kind: Any = "float32", spatial: int | None = None, least: int = 5) -> np.ndarray:
    rank = draw.whole(1, 3) if spatial is None else spatial
    return draw.array((batch(draw), channels, *(draw.whole(least, least + 4) for _ in range(rank))), kind)


def batch(draw: Draw) -> int:
    return int(draw.one_of(1, 1, 2, 2, 3, 17 if draw.chance(0.2) else 1))


def windowed(draw: Draw, channels: int, kind: Any, kernel: list[int], attributes: dict[str, Any]) -> np.ndarray:
    """An image on which at least one window lies."""
    dilations = attributes.get("dilations", [1] * len(kernel))
    least = [(size - 1) * each + 1 for size, each in zip(kernel, dilations, strict=True)]
    return draw.array((batch(draw), channels, *(size + draw.whole(0, 7) for size in least)), kind)


def convolution(draw: Draw) -> Drawn:
    group, spatial = draw.whole(1, 3), draw.one_of(1, 2, 2, 3)
    kernel, attributes = window(draw, spatial)
    per, out = draw.whole(1, 3), draw.whole(1, 3)
    kind = draw.kind(common=0.7)
    x = windowed(draw, group * per, kind, kernel, attributes)
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
    spatial = draw.one_of(1, 2, 2, 3)
    kernel, attributes = window(draw, spatial, pool=True)
    attributes |= draw.some(count_include_pad=draw.whole(0, 1), storage_order=draw.whole(0, 1), p=draw.whole(1, 3))
    outputs = draw.whole(1, 2) if draw.operator == "MaxPool" and draw.since >= 8 else 1
    x = windowed(draw, draw.whole(1, 3), draw.kind(common=0.7), kernel, attributes)
    return Drawn(inputs=[x], attributes=attributes, outputs=outputs)


def unpool(draw: Draw) -> Drawn:
    n, c, h, w = draw.whole(1, 2), draw.whole(1, 2), draw.whole(1, 3), draw.whole(1, 3)
    kernel, strides = [draw.whole(1, 3), draw.whole(1, 3)], [draw.whole(1, 3), draw.whole(1, 3)]
    goal = [(size - 1) * step + each for size, step, each in zip((h, w), strides, kernel, strict=True)]
    count = n * c * h * w
    places = draw.rng.permutation(max(n * c * goal[0] * goal[1], count))[:count] % (n * c * goal[0] * goal[1])
    x = draw.array((n, c, h, w), draw.kind(common=0.7))
    return Drawn(inputs=[x, places.reshape(n, c, h, w)], attributes={"kernel_shape": kernel, "strides": strides})


def whole_pool(draw: Draw) -> Drawn:
    x = image(draw, draw.whole(1, 3), draw.kind(common=0.7), least=1)
    return Drawn(inputs=[x], attributes=draw.some(p=draw.whole(1, 3)))


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
    kind = draw.kind(common=0.7)
    inputs = [image(draw, c, kind, least=draw.whole(1, 2)), draw.array((c,), kind), draw.array((c,), kind)]
    return Drawn(inputs=inputs, attributes=draw.some(epsilon=0.01), stored=frozenset({1, 2}))


def group_norm(draw: Draw) -> Drawn:
    groups, per = draw.whole(1, 3), draw.whole(1, 3)
    kind = draw.kind(common=0.7)
    x = image(draw, groups * per, kind, least=draw.whole(1, 2))
    size = groups if draw.since < 21 else groups * per
    return Drawn(
        inputs=[x, draw.array((size,), kind), draw.array((size,), kind)],
        attributes={"num_groups": groups, **draw.some(epsilon=0.01)},
        stored=frozenset({1, 2}),
    )


def layer_norm(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    axis = draw.axis(len(shape))
    rest = shape[axis:] if axis < 0 else shape[axis % len(shape) :]
    small = [tuple(1 if draw.chance(0.1) else size for size in rest)[draw.whole(0, 1) if draw.chance(0.1) else 0 :]]
    kind = draw.kind(common=0.7)
    inputs = [draw.array(shape, kind), draw.array(small[0], kind), draw.array(rest, kind)]
    if draw.operator == "RMSNormalization":
        return Drawn(inputs=inputs[:2], attributes={"axis": axis, **draw.some(epsilon=0.01)})
    return Drawn(
        inputs=inputs[: draw.whole(2, 3)],
        attributes={"axis": axis, **draw.some(epsilon=0.01)},
        outputs=draw.one_of(1, 1, 3) if kind.name != "bfloat16" else 1,  # in which type statistics are is open
    )


def lrn(draw: Draw) -> Drawn:
    x = image(draw, draw.whole(1, 6), draw.kind(common=0.7), spatial=draw.one_of(2, 2, 1, 3), least=1)
    return Drawn(
        inputs=[x], attributes={"size": draw.one_of(1, 2, 3, 4, 5, 7), **draw.some(alpha=0.1, beta=0.5, bias=2.0)}
    )


def lp_norm(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    return Drawn(
        inputs=[draw.array(shape, draw.kind(common=0.7))],
        attributes=draw.some(axis=draw.whole(-len(shape), len(shape) - 1), p=draw.whole(1, 2)),
    )


def mean_variance(draw: Draw) -> Drawn:
    kind = draw.kind(common=0.7)
    if draw.chance(0.4):
        return Drawn(inputs=[image(draw, 2, kind, spatial=2, least=2)])
    shape = tuple(size + 1 for size in draw.shape(2, 4, empty=0))  # of one element ONNX Runtime divides by 0
    return Drawn(
        inputs=[draw.array(shape, kind)],
        attributes={"axes": sorted(each % len(shape) for each in draw.axes(len(shape)))},
    )


def dropout(draw: Draw) -> Drawn:
    x, outputs = draw.array(draw.shape(0, 3), draw.kind(but=("float16",))), draw.one_of(1, 1, 2)
    if draw.since < 12:  # the mask of evaluation is defined since opset 12; before, ONNX Runtime fills it with 0
        return Drawn(inputs=[x], attributes=draw.some(ratio=0.3), outputs=outputs, shown=1)
    inputs = [x, draw.one_of(None, np.array(0.3, np.float32)), draw.one_of(None, np.array(False))]
    return Drawn(inputs=inputs, attributes=draw.some(seed=3), outputs=outputs, stored=frozenset({1, 2}))


_WITH_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
_WITH_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def recurrent(draw: Draw) -> Drawn:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[draw.operator]
    steps, batch, width, hidden = draw.whole(1, 4), draw.whole(1, 3), draw.whole(1, 3), draw.whole(1, 3)
    direction = draw.one_of("forward", "reverse", "bidirectional")
    both = 2 if direction == "bidirectional" else 1
    layout = draw.whole(0, 1) if draw.since >= 14 and draw.chance(0.3) else 0
    attributes = {"hidden_size": hidden, "direction": direction, **({"layout": layout} if layout else {})}
    if draw.chance(0.3):
        attributes["clip"] = draw.one_of(1.0, 0.3)
    if draw.operator == "LSTM":
        attributes |= draw.some(input_forget=draw.one_of(0, 0, 1))
    if draw.chance(0.3):
        per = {"RNN": 1, "GRU": 2, "LSTM": 3}[draw.operator]
        names = ("Tanh", "Sigmoid", "Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid",
                 "Elu", "Softsign", "Softplus")  # fmt: skip
        chosen = [draw.one_of(*names[: draw.one_of(3, 11)]) for _ in range(per * both)]
        attributes["activations"] = chosen
        if draw.chance(0.5):  # of functions that have them: a prefix of the list
            attributes["activation_alpha"] = [0.4] * sum(name in _WITH_ALPHA for name in chosen)
            attributes["activation_beta"] = [0.6] * sum(name in _WITH_BETA for name in chosen)
            for name in ("activation_alpha", "activation_beta"):
                if not attributes[name]:
                    del attributes[name]
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
    sides: tuple[int, ...] = (shape[axis],) if per_axis else ()
    attributes: dict[str, Any] = {"axis": axis} if per_axis else {}
    if draw.since >= 21 and draw.chance(0.25):  # a scale for each block of an axis
        attributes = {"axis": axis, "block_size": draw.whole(1, shape[axis])}
        blocks = -(-shape[axis] // attributes["block_size"])
        sides = tuple(blocks if index == axis % len(shape) else size for index, size in enumerate(shape))
    kinds = ["uint8", "int8", *(["uint16", "int16"] if draw.since >= 21 else [])]
    wide = draw.one_of("float32", "float32", *(["float16"] if draw.since >= 19 else []))
    scale, kind = draw.array(sides, wide, low=0.1, high=1), draw.one_of(*kinds)
    zero = draw.whole_array(sides, 1, 9, kind)
    if draw.operator == "QuantizeLinear":
        x = draw.array(shape, wide, *draw.one_of((-3, 3), (-200, 200)))
    else:
        x = draw.whole_array(shape, -100 if kind.startswith("i") else 0, 100, kind)
    inputs = [x, scale, zero]
    return Drawn(
        inputs=inputs[: 2 if draw.chance(0.25) and kind == "uint8" else 3],
        attributes=attributes,
        stored=frozenset({1, 2}),
    )


def dynamic(draw: Draw) -> Drawn:
    low, high = draw.one_of((-3, 3), (1, 3), (-3, -1), (-200, 5))
    return Drawn(inputs=[draw.array(draw.shape(1, 3, empty=0), low=low, high=high)], outputs=3)


def quantized_product(draw: Draw) -> Drawn:
    m, k, n = draw.whole(1, 5), draw.whole(1, 7), draw.whole(1, 5)
    kind, other = draw.one_of("uint8", "int8"), draw.one_of("uint8", "int8")
    most, others = (np.iinfo(each).max for each in (kind, other))
    batch_sides = draw.one_of((), (), (2,), (2, 1))
    a, b = draw.whole_array((*batch_sides, m, k), 0, most, kind), draw.whole_array((k, n), 0, others, other)
    zeros = [np.array(3, kind), np.array(5, other)]
    if draw.operator == "MatMulInteger":
        return Drawn(inputs=[a, b, *zeros[: draw.whole(0, 2)]])
    scales = [np.array(each, np.float32) for each in (0.02, 0.03, 0.5)]
    return Drawn(
        inputs=[a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], np.array(7, kind)],
        stored=frozenset({3, 4, 5}),
    )


def quantized_convolution(draw: Draw) -> Drawn:
    kernel, attributes = window(draw, 2)
    group, per = draw.one_of(1, 1, 2), draw.whole(1, 2)
    attributes |= {"group": group} if group > 1 else {}
    sides = windowed(draw, group * per, "uint8", kernel, attributes).shape
    x = draw.whole_array(sides, 0, 255, "uint8")
    w = draw.whole_array((group * draw.whole(1, 2), per, *kernel), 0, 255, "uint8")
    zeros = [np.array(each, np.uint8) for each in (3, 5)]
    if draw.operator == "ConvInteger":
        return Drawn(inputs=[x, w, *zeros[: draw.whole(0, 2)]], attributes=attributes)
    scales = [np.array(each, np.float32) for each in (0.02, 0.03, 0.5)]
    inputs = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], np.array(7, np.uint8)]
    return Drawn(inputs=inputs, attributes=attributes, stored=frozenset({3, 4, 5}))


def loss(draw: Draw) -> Drawn:
    n, c = draw.whole(1, 3), draw.whole(2, 4)
    rest = draw.shape(0, 2, empty=0)
    kind = draw.kind(common=0.7)
    x = draw.array((n, c, *rest), kind)
    labels = draw.whole_array((n, *rest), 0, c - 1, draw.one_of("int64", "int64", "int32"))
    ignored = draw.one_of(draw.whole(0, c - 1), -1, -100)
    attributes = draw.some(reduction=draw.one_of("none", "mean", "sum"), ignore_index=ignored)
    if ignored < 0 and "ignore_index" in attributes:
        labels[draw.rng.random(labels.shape) < 0.3] = ignored
    inputs = [x, labels, draw.array((c,), kind, low=0.5)][: draw.whole(2, 3)]
    outputs = draw.whole(1, 2) if draw.operator == "SoftmaxCrossEntropyLoss" else 1
    return Drawn(inputs=inputs, attributes=attributes, outputs=outputs, stored=frozenset({2}))


def suppression(draw: Draw) -> Drawn:
    n, c, count = draw.whole(1, 2), draw.whole(1, 3), draw.one_of(1, 6, 12)
    corners = np.sort(draw.array((n, count, 2, 2), low=0.01, high=5), axis=2).reshape(n, count, 4)
    if draw.chance(0.2):  # either diagonal
        corners = corners[..., [2, 3, 0, 1]]
    inputs = [
        corners,
        draw.array((n, c, count), low=0.01, high=1),
        np.array([draw.whole(0, 5)], np.int64),
        np.array([0.4], np.float32),
        np.array([0.2], np.float32),
    ]
    return Drawn(
        inputs=inputs[: draw.whole(3, 5)],
        attributes=draw.some(center_point_box=draw.whole(0, 1)),
        stored=frozenset({2, 3, 4}),
    )


def attention(draw: Draw) -> Drawn:
    n, kv_heads, per = draw.whole(1, 2), draw.whole(1, 2), draw.one_of(1, 1, 2)
    steps, keys, past = draw.whole(1, 4), draw.whole(1, 5), draw.one_of(0, 0, 0, 1, 2)
    heads, width, value = kv_heads * per, draw.one_of(1, 2, 4, 8), draw.one_of(1, 2, 3, 4)
    kind = draw.kind(common=0.8)
    flat = draw.chance(0.3)

    def sides(count: int, length: int, size: int) -> tuple[int, ...]:
        return (n, length, count * size) if flat else (n, count, length, size)

    inputs: list[Any] = [
        draw.array(sides(heads, steps, width), kind),
        draw.array(sides(kv_heads, keys, width), kind),
        draw.array(sides(kv_heads, keys, value), kind),
    ]
    whole = keys + past
    if draw.chance(0.4):
        shape = draw.one_of((steps, whole), (n, 1, steps, whole), (n, heads, steps, whole), (1, 1, steps, whole))
        mask = draw.array(shape, "bool") if draw.chance() else draw.array(shape, kind)
        if mask.dtype == np.bool_:
            mask[..., 0] = True  # a row without any key is defined by no sentence
        inputs.append(mask)
    if past:
        inputs += [None] * (4 - len(inputs))
        inputs += [draw.array((n, kv_heads, past, width), kind), draw.array((n, kv_heads, past, value), kind)]
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads} if flat else {}
    attributes |= draw.some(is_causal=draw.whole(0, 1), scale=0.4, softcap=draw.one_of(0.0, 2.0))
    outputs = 3 if past else draw.one_of(1, 1, 1, 4)
    if outputs == 4:
        attributes |= draw.some(qk_matmul_output_mode=draw.whole(0, 3))
        inputs += [None] * (4 - len(inputs))
        outputs = 1
    while inputs[-1] is None:
        inputs.pop()
    return Drawn(inputs=inputs, attributes=attributes, outputs=outputs)


def rotary(draw: Draw) -> Drawn:
    n, heads, steps, half = draw.whole(1, 2), draw.whole(1, 3), draw.whole(1, 4), draw.whole(1, 4)
    kind = draw.kind(common=0.8)
    flat, part = draw.chance(0.3), draw.chance(0.3) and half > 1
    rows = half - 1 if part else half
    attributes = draw.some(interleaved=draw.whole(0, 1))
    if part:
        attributes["rotary_embedding_dim"] = 2 * rows
    if flat or part:
        attributes["num_heads"] = heads
    x = draw.array((n, steps, heads * 2 * half) if flat else (n, heads, steps, 2 * half), kind)
    if draw.chance():
        return Drawn(inputs=[x, *(draw.array((n, steps, rows), kind) for _ in range(2))], attributes=attributes)
    tables = [draw.array((6, rows), kind) for _ in range(2)]
    return Drawn(inputs=[x, *tables, draw.whole_array((n, steps), 0, 5)], attributes=attributes)


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
