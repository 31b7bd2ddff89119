"""Convolutions, poolings, normalizations, samplings and sequences, drawn as in `gradient_drawn`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

from gradient_drawn import FLAG, LEFT_OUT, Case, Drawn, case, integers, numbers

__all__ = ["windows"]

AUTO_PADS = ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]


def windows(d: Drawn, rank: int, kernel: list[int], **more: Any) -> dict[str, Any]:
    """Attributes of a sliding window that fit each other: `auto_pad` excludes pads, pads are less than the kernel."""
    each = st.lists
    spans = [st.integers(0, size - 1) for size in kernel]
    settings = d.attributes(
        **{
            "auto_pad": AUTO_PADS,
            "dilations": each(st.integers(1, 2), min_size=rank, max_size=rank),
            "kernel_shape": [kernel],
            "pads": st.tuples(*spans, *spans).map(list),
            "strides": each(st.integers(1, 3), min_size=rank, max_size=rank),
            **more,
        }
    )
    if settings.get("auto_pad", "NOTSET") != "NOTSET":
        settings.pop("pads", None)
    return settings


def spatial(d: Drawn, kernel: list[int], settings: dict[str, Any]) -> list[int]:
    gaps = settings.get("dilations", [1] * len(kernel))
    return [g * (k - 1) + 1 + d.whole(0, 3) for k, g in zip(kernel, gaps, strict=True)]


def counted(space: list[int], kernel: list[int], settings: dict[str, Any]) -> list[int]:
    """The number of windows along each axis."""
    rank = len(kernel)
    pads, ones = settings.get("pads", [0] * 2 * rank), [1] * rank
    gaps, steps = settings.get("dilations", ones), settings.get("strides", ones)
    sizes = zip(space, pads[:rank], pads[rank:], gaps, kernel, steps, strict=True)
    return [(e + before + behind - g * (k - 1) - 1) // t + 1 for e, before, behind, g, k, t in sizes]


@case("Conv", "ConvTranspose")
def convolution(d: Drawn) -> Case:
    rank = d.one_of(1, 2, 2, 3)
    kernel = [d.whole(1, 3 if rank < 3 else 2) for _ in range(rank)]
    group = d.one_of(1, 1, 2)
    each = st.lists(st.integers(0, 1), min_size=rank, max_size=rank)
    transposed = d.op == "ConvTranspose"
    more = {"output_padding": each, "output_shape": st.just(LEFT_OUT)} if transposed else {}
    settings = windows(d, rank, kernel, group=[group], **more)
    group = settings.get("group", 1)
    strides, gaps = settings.get("strides", [1] * rank), settings.get("dilations", [1] * rank)
    if "output_padding" in settings:  # less than a stride
        settings["output_padding"] = [min(p, t - 1) for p, t in zip(settings["output_padding"], strides, strict=True)]
        if settings.get("auto_pad", "NOTSET").startswith("SAME"):
            del settings["output_padding"]
    space = spatial(d, kernel, settings) if not transposed else [d.whole(1, 4) for _ in kernel]
    if transposed and settings.get("auto_pad", "NOTSET").startswith("SAME"):
        kernel = [max(k, t) for k, t in zip(kernel, strides, strict=True)]
        settings.pop("kernel_shape", None)
    if transposed and settings.get("auto_pad", "NOTSET") == "NOTSET":
        spans = [g * (k - 1) + 1 for k, g in zip(kernel, gaps, strict=True)]
        pads = settings.get("pads", [0] * 2 * rank)
        whole = [t * (e - 1) + s for t, e, s in zip(strides, space, spans, strict=True)]
        if any(w - a - b < 1 for w, a, b in zip(whole, pads[:rank], pads[rank:], strict=True)):
            settings.pop("pads", None)
        if d.whole(0, 3) == 0:
            settings.pop("pads", None)
            settings.pop("output_padding", None)
            # ONNX infers no shape that is smaller than the input's.
            settings["output_shape"] = [max(e, w - d.whole(0, 2)) for e, w in zip(space, whole, strict=True)]
    n, c, m = d.whole(1, 2), group * d.whole(1, 2), group * d.whole(1, 2)
    w = (c, m // group, *kernel) if transposed else (m, c // group, *kernel)
    inputs = [d.values((n, c, *space)), d.values(w)]
    if d.flag():
        inputs.append(d.values((m,)))
    return d.case(inputs, settings, by=range(len(inputs)))


@case("DeformConv")
def deformed(d: Drawn) -> Case:
    kernel, parts, group = [d.whole(1, 2), d.whole(1, 2)], d.one_of(1, 2), d.one_of(1, 2)
    pair = st.lists(st.integers(1, 2), min_size=2, max_size=2)
    settings = d.attributes(
        dilations=pair,
        strides=pair,
        pads=st.lists(st.integers(0, 1), min_size=4, max_size=4),
        kernel_shape=[kernel],
        group=[group],
        offset_group=[parts],
    )
    group, parts = settings.get("group", 1), settings.get("offset_group", 1)
    space = spatial(d, kernel, settings)
    outputs = counted(space, kernel, settings)
    n, c, m, size = d.whole(1, 2), 2 * d.whole(1, 2), group * d.whole(1, 2), math.prod(kernel)
    inputs = [
        d.values((n, c, *space)),
        d.values((m, c // group, *kernel)),
        d.values((n, parts * size * 2, *outputs), -0.9, 0.9),
    ]
    if d.flag():
        inputs += [d.values((m,)), d.values((n, parts * size, *outputs))]
    return d.case(inputs, settings, by=range(len(inputs)))


@case("AveragePool", "MaxPool", "LpPool")
def pooling(d: Drawn) -> Case:
    rank = d.one_of(1, 2, 2, 3)
    kernel = [d.whole(1, 3 if rank < 3 else 2) for _ in range(rank)]
    more = {
        "AveragePool": {"ceil_mode": FLAG, "count_include_pad": FLAG},
        "LpPool": {"ceil_mode": FLAG, "p": [1, 2, 3]},
        "MaxPool": {"ceil_mode": FLAG, "storage_order": FLAG},
    }[d.op]
    settings = windows(d, rank, kernel, **more)
    if settings.get("auto_pad", "NOTSET") != "NOTSET":
        settings.pop("ceil_mode", None)  # auto_pad sets the size
    space = spatial(d, kernel, settings)
    x = d.values((d.whole(1, 2), d.whole(1, 2), *space))
    return d.case([x], settings, outputs=2 if d.op == "MaxPool" and d.flag() else 1)


@case("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def whole_pooling(d: Drawn) -> Case:
    settings = d.attributes(**({"p": [1, 2, 3]} if d.op == "GlobalLpPool" else {}))
    shape = d.shape(3, 5, largest=3)
    return d.case([d.values(shape)], settings, shape=(*shape[:2], *[1] * (len(shape) - 2)))


@case("MaxUnpool")
def unpooling(d: Drawn) -> Case:
    rank, (n, c) = d.whole(1, 2), d.shape(2, 2, largest=2)
    kernel, space = [d.whole(1, 2) for _ in range(rank)], [d.whole(1, 3) for _ in range(rank)]
    settings = d.attributes(kernel_shape=[kernel], strides=[kernel], pads=[[0] * 2 * rank])
    settings["strides"] = kernel
    places = np.zeros((n, c, *space), np.int64)
    whole = [n, c, *(k * e for k, e in zip(kernel, space, strict=True))]
    for at in np.ndindex(*places.shape):
        inner = [k * i + d.rng.integers(0, k) for k, i in zip(kernel, at[2:], strict=True)]
        places[at] = np.ravel_multi_index((*at[:2], *inner), whole)
    inputs = [d.values((n, c, *space)), places]
    return d.case(inputs + ([integers(*whole)] if d.flag() else []), settings, shape=tuple(whole))


@case("RoiAlign")
def regions(d: Drawn) -> Case:
    n, c, h, w = d.whole(1, 2), d.whole(1, 2), d.whole(3, 5), d.whole(3, 5)
    settings = d.attributes(
        coordinate_transformation_mode=["half_pixel", "output_half_pixel"],
        mode=["avg"],  # a maximum over weighted elements is refused
        output_height=[1, 2],
        output_width=[1, 3],
        sampling_ratio=[0, 1, 2],
        spatial_scale=[1.0, 0.5],
    )
    count = d.whole(1, 3)
    first = d.values((count, 2), 0.1, 1.4)
    rois = np.concatenate([first, first + d.values((count, 2), 1.1, 2.4)], 1)
    return d.case([d.values((n, c, h, w)), rois, d.rng.integers(0, n, count)], settings)


@case("BatchNormalization")
def batch(d: Drawn) -> Case:
    shape = d.shape(2, 4)
    settings = d.attributes(
        epsilon=[2**-10],
        momentum=[0.5],
        training_mode=[0],  # in training the batch's own statistics: tests/support/gradient_layers.py
        spatial=None,
    )
    c = shape[1]
    inputs = [d.values(shape), d.values((c,)), d.values((c,)), d.values((c,)), d.values((c,), 0.5, 2.0)]
    return d.case(inputs, settings, by=(0, 1, 2))


@case("InstanceNormalization", "GroupNormalization")
def instance(d: Drawn) -> Case:
    shape = d.shape(3, 5, largest=3)
    if d.op == "GroupNormalization":
        groups = d.one_of(1, 2)
        shape = (shape[0], 2 * shape[1], *shape[2:])
        settings = d.attributes(epsilon=[2**-10], num_groups=[groups], stash_type=[onnx.TensorProto.DOUBLE])
        size = groups if d.opset < 21 else shape[1]
    else:
        settings, size = d.attributes(epsilon=[2**-10]), shape[1]
    return d.case([d.values(shape), d.values((size,)), d.values((size,))], settings, by=(0, 1, 2), shape=shape)


@case("LayerNormalization", "RMSNormalization")
def layer(d: Drawn) -> Case:
    shape = d.shape(1, 4, largest=3)
    settings = d.attributes(
        axis=st.integers(-len(shape), len(shape) - 1), epsilon=[2**-10], stash_type=[onnx.TensorProto.DOUBLE]
    )
    own = shape[settings.get("axis", -1) % len(shape) :]
    inputs = [d.values(shape), d.values(own)]
    if d.op == "LayerNormalization" and d.flag():
        inputs.append(d.values(own))
    return d.case(inputs, settings, by=range(len(inputs)))


@case("LpNormalization")
def norm(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    return d.case([d.values(shape)], d.attributes(axis=st.integers(-len(shape), len(shape) - 1), p=[1, 2]))


@case("MeanVarianceNormalization")
def mean_variance(d: Drawn) -> Case:
    settings = d.attributes(axes=[[0, 2, 3], [0, 1, 2, 3], [2, 3], [-1]])
    shape = (2, *d.shape(3, 3, largest=3))
    apart = d.rng.permutation(math.prod(shape)).reshape(shape) / 4  # ONNX's body takes E[x]^2 from E[x^2]
    return d.case([d.values(shape, -0.1, 0.1) + apart], settings, shape=shape)


@case("LRN")
def local(d: Drawn) -> Case:
    settings = d.attributes(alpha=numbers(0.25, 1.0), beta=numbers(0.5, 1.0), bias=numbers(1.0, 2.0), size=[1, 2, 3, 5])
    return d.case([d.values(d.shape(3, 4))], settings)


@case("Resize")
def resize(d: Drawn) -> Case:
    rank = d.whole(1, 4)
    moved = d.whole(1, min(rank, 2))
    shape = [d.whole(1, 2) for _ in range(rank - moved)] + [d.whole(2, 5) for _ in range(moved)]
    axes = list(range(rank - moved, rank))
    mode = d.one_of("nearest", "linear", "cubic")
    coordinates = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
    settings = d.attributes(
        antialias=FLAG if mode != "nearest" else [0],
        axes=st.permutations(axes),
        coordinate_transformation_mode=[*coordinates, "tf_crop_and_resize"],
        cubic_coeff_a=numbers(-0.75, -0.5),
        exclude_outside=FLAG if mode == "cubic" else [0],
        extrapolation_value=[0.0, 1.5],
        keep_aspect_ratio_policy=["stretch"],  # the others are refused
        mode=[mode],
        nearest_mode=["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
    )
    axes = settings.get("axes", list(range(rank)))
    goal = {axis: d.whole(1, 7) for axis in range(rank - moved, rank)}
    roi = None
    if settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        settings["antialias"] = 0
        first = d.values((len(axes),), 0.0, 0.4)
        roi = np.concatenate([first, first + d.values((len(axes),), 0.2, 0.7)])
        full = np.array([axis in goal for axis in axes])
        roi = np.where(np.tile(full, 2), roi, np.repeat([0.0, 1.0], len(axes)))
    if roi is not None or d.flag():  # ONNX's inference takes scales without the region
        sizes = integers(*(goal.get(axis, shape[axis]) for axis in axes))
        return d.case([d.values(shape), roi, None, sizes], settings)
    scales = [d.one_of(0.5, 1.0, 2.0, 3.0, 1.6) if axis in goal else 1.0 for axis in axes]
    return d.case([d.values(shape), roi, np.array(scales, np.float32)], settings)


@case("GridSample")
def grid_sample(d: Drawn) -> Case:
    rank = d.one_of(2, 2, 3)
    modes = ["linear", "nearest", "cubic"] if rank == 2 else ["linear", "nearest"]
    settings = d.attributes(align_corners=FLAG, mode=modes, padding_mode=["zeros", "border", "reflection"])
    n, c = d.whole(1, 2), d.whole(1, 2)
    space, outputs = [d.whole(2, 4) for _ in range(rank)], [d.whole(1, 3) for _ in range(rank)]
    return d.case([d.values((n, c, *space)), d.values((n, *outputs, rank), -1.4, 1.4)], settings, by=(0, 1))


@case("Col2Im")
def columns(d: Drawn) -> Case:
    rank = d.one_of(1, 2)
    block = [d.whole(1, 3) for _ in range(rank)]
    settings = windows(d, rank, block)
    space = spatial(d, block, settings)
    count = math.prod(counted(space, block, settings))
    x = d.values((d.whole(1, 2), d.whole(1, 2) * math.prod(block), count))
    return d.case([x, integers(*space), integers(*block)], settings)


@case("DFT")
def fourier(d: Drawn) -> Case:
    rank = d.whole(1, 3)
    shape = [d.whole(2, 5) for _ in range(rank)]
    axis = d.whole(0, rank - 1)
    settings = d.attributes(inverse=FLAG, onesided=FLAG)
    inverse, onesided = settings.get("inverse", 0), settings.get("onesided", 0)
    parts = 2 if inverse else 1 if onesided else d.one_of(1, 2)
    if inverse and onesided:
        settings.pop("onesided")
    length = integers(d.whole(2, 6)).reshape(()) if d.flag() else None
    x = d.values((*shape, parts))
    axis_ = np.array(axis - rank - 1 if d.flag() else axis)
    return d.case([x, length, axis_], settings)


@case("STFT")
def short_time(d: Drawn) -> Case:
    settings = d.attributes(onesided=FLAG)
    onesided = settings.setdefault("onesided", 1)  # left out, ONNX's shape inference takes it for 0
    size, step = d.whole(2, 4), d.whole(1, 3)
    signal = d.values((d.whole(1, 2), size + d.whole(0, 6), 1 if onesided else d.one_of(1, 2)))
    window, by = d.values((size,)) if d.flag() else None, [0]
    if window is not None:
        by.append(2)
    inputs = [signal, np.array(step), window, np.array(size) if window is None or d.flag() else None]
    return d.case(inputs, settings, by=by)


@case("Attention")
def attention(d: Drawn) -> Case:
    heads, shared = d.one_of(1, 2), d.one_of(1, 2)
    settings = d.attributes(
        is_causal=FLAG,
        kv_num_heads=st.just(LEFT_OUT),
        q_num_heads=st.just(LEFT_OUT),
        qk_matmul_output_mode=[0],
        scale=numbers(0.25, 1.0),
        softcap=[0.0, 2.0],
        softmax_precision=[onnx.TensorProto.DOUBLE],
        left_window_size=st.just(LEFT_OUT),
        right_window_size=st.just(LEFT_OUT),
    )
    n, q, k, size, own = d.whole(1, 2), d.whole(1, 3), d.whole(1, 3), d.whole(1, 3), d.whole(1, 3)
    inputs = [d.values((n, heads * shared, q, size)), d.values((n, heads, k, size)), d.values((n, heads, k, own))]
    if d.flag():
        inputs.append(d.values((q, k)))
    return d.case(inputs, settings, by=range(len(inputs)))


@case("RotaryEmbedding")
def rotary(d: Drawn) -> Case:
    settings = d.attributes(interleaved=FLAG, num_heads=st.just(LEFT_OUT), rotary_embedding_dim=[0, 2])
    n, heads, length, size = d.whole(1, 2), d.whole(1, 2), d.whole(1, 3), 2 * d.whole(1, 2)
    half = (settings.get("rotary_embedding_dim") or size) // 2
    x, caches = d.values((n, heads, length, size)), [d.values((n, length, half)) for _ in range(2)]
    return d.case([x, *caches], settings, by=(0, 1, 2))


@case("SwiGLU")
def swiglu(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    a = d.attributes(alpha=numbers(0.5, 2.0))
    return d.case([d.values(shape), d.values(shape)], a, by=(0, 1))


ACTIVATIONS = [
    "Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign", "Tanh",
    "ThresholdedRelu",
]  # fmt: skip


@case("RNN", "GRU", "LSTM")
def recurrent(d: Drawn) -> Case:
    gates, functions = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}[d.op]
    steps, n, features, hidden = d.whole(1, 3), d.whole(1, 2), d.whole(1, 2), d.whole(1, 2)
    direction = d.one_of("forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    names = st.lists(st.sampled_from(ACTIVATIONS), min_size=functions * ways, max_size=functions * ways)
    alphas = st.lists(numbers(0.25, 1.5), min_size=functions * ways, max_size=functions * ways)
    settings = d.attributes(
        activations=names,
        activation_alpha=alphas,  # as many as could be read: the rest is unused
        activation_beta=alphas,
        clip=numbers(0.5, 2.0),
        direction=[direction],
        hidden_size=[hidden],
        input_forget=FLAG,
        layout=FLAG,
        linear_before_reset=FLAG,
    )
    if "direction" not in settings:
        ways = 1
        settings = {name: value for name, value in settings.items() if not name.startswith("activation")}
    first = settings.get("layout", 0)
    state = (n, ways, hidden) if first else (ways, n, hidden)
    inputs: list[np.ndarray | None] = [
        d.values((n, steps, features) if first else (steps, n, features)),
        d.values((ways, gates * hidden, features)),
        d.values((ways, gates * hidden, hidden)),
        d.values((ways, 2 * gates * hidden)) if d.flag() else None,
        np.asarray(d.rng.integers(1, steps + 1, n), np.int32) if d.flag() else None,
        d.values(state) if d.flag() else None,
    ]
    if d.op == "LSTM":
        inputs += [d.values(state) if d.flag() else None, d.values((ways, 3 * hidden)) if d.flag() else None]
    by = [at for at, value in enumerate(inputs) if value is not None and at != 4]
    return d.case(inputs, settings, by=by, outputs=d.whole(1, 3 if d.op == "LSTM" else 2))


@case("CausalConvWithState")
def causal(d: Drawn) -> Case:
    settings = d.attributes(activation=["silu", "swish", "none"])
    n, c, length, size = d.whole(1, 2), d.whole(1, 3), d.whole(1, 4), d.whole(2, 3)
    inputs: list[np.ndarray | None] = [d.values((n, c, length)), d.values((c, 1, size))]
    inputs.append(d.values((c,)) if d.flag() else None)
    inputs.append(d.values((n, c, size - 1)) if d.flag() else None)
    by = [position for position, value in enumerate(inputs) if value is not None]
    return d.case(inputs, settings, by=by, outputs=2)
