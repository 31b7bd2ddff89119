"""Patterns around convolutions, matrix products, normalizations and attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from fusion_sketch import Sketch

__all__ = ["LAYERS"]

LAYERS: dict[str, Callable[[Sketch], onnx.ModelProto]] = {}


def layer(function: Callable[[Sketch], onnx.ModelProto]) -> Callable[[Sketch], onnx.ModelProto]:
    LAYERS[function.__name__] = function
    return function


def window(s: Sketch, rank: int, *, pool: bool) -> dict[str, object]:
    kernel = [s.one(1, 2, 3) for _ in range(rank)]
    found: dict[str, object] = {"kernel_shape": kernel, "strides": [s.one(1, 2, 3) for _ in range(rank)]}
    if s.chance(0.3):
        found["dilations"] = [s.one(1, 2) for _ in range(rank)]
    what = s.draw.integers(4)
    if what == 0:
        found["auto_pad"] = s.one("SAME_UPPER", "SAME_LOWER", "VALID")
        found.pop("dilations", None)
    elif what == 1 or (pool and what == 2):
        found["pads"] = [s.one(*range(size)) for size in kernel + kernel]
    elif what == 2:
        found["pads"] = [s.one(0, 1, 2) for size in kernel + kernel]
    return found


def convolved(
    s: Sketch, x: str, channels: int, rank: int, *, out: int | None = None, given: str = ""
) -> tuple[str, int]:
    """A convolution of drawn kernel, and how many channels it makes."""
    group = s.one(1, 1, channels)
    out = out or s.one(1, 2, 3, 8, 16)
    if out % group:
        out = group
    found = window(s, rank, pool=False)
    kernel = found["kernel_shape"]
    weights = s.c(s.numbers((out, channels // group, *kernel)), fixed=s.chance(0.9))  # type: ignore[misc]
    inputs = [x, weights]
    if s.chance(0.5):
        inputs.append(s.c(s.numbers((out,)), fixed=s.chance(0.9)))
    if s.chance(0.5):
        found.pop("kernel_shape")
    return s.op("Conv", *inputs, group=group, **found), out


def image(s: Sketch, channels: int, rank: int, **more: bool) -> str:
    return s.x((s.one(1, 1, 2, 0) if s.chance(0.3) else 1, channels, *[s.one(4, 5, 7, 9) for _ in range(rank)]), **more)


def along(s: Sketch, channels: int, rank: int) -> list[int]:
    """Shapes that broadcast over an image, most of them along its channels."""
    ones = [1] * rank
    return s.one(  # type: ignore[no-any-return]
        [channels, *ones], [1, channels, *ones], [channels, *ones], [1, *ones], [], [1], [1, 1, *ones], [1] * (rank + 3)
    )


@layer
def conv_then_arithmetic(s: Sketch) -> onnx.ModelProto:
    """Conv and what can be folded into its weights."""
    rank, channels = s.one(1, 2, 2, 3), s.one(1, 2, 3)
    y, out = convolved(s, image(s, channels, rank), channels, rank)
    for _ in range(s.one(1, 2)):
        op = s.one("Add", "Mul", "BatchNormalization", "Sub", "Div")
        if op == "BatchNormalization":
            if s.opset == 14:
                s.opset = 13
            values = [s.c(s.numbers((out,)), fixed=s.chance(0.9)) for _ in range(3)]
            y = s.op(op, y, *values, s.c(np.abs(s.numbers((out,))) + 0.1), epsilon=s.one(1e-5, 0.1))
        else:
            shape = along(s, out, rank)
            if s.chance(0.1):
                shape = s.one([out], [2, *[1] * (rank + 1)], [1, out, *[1] * rank])
                if shape == [out]:
                    shape = [1]
            c = s.c(s.numbers(shape, special=s.chance(0.1)))
            y = s.either(op, y, c) if s.chance(0.5) else s.op(op, y, c)
    return s.model(y if s.chance(0.5) else s.op("Relu", y))


def activation(s: Sketch, y: str) -> str:
    op = s.one(
        "Relu",
        "Sigmoid",
        "Tanh",
        "LeakyRelu",
        "HardSigmoid",
        "Clip",
        "Elu",
        "Softplus",
        "ThresholdedRelu",
        "Softsign",
        "HardSwish",
        "Selu",
        "PRelu",
    )
    if op == "HardSwish" and s.opset < 14:
        op = "Relu"
    if op == "LeakyRelu":
        return s.op(op, y, **s.one({}, {"alpha": 0.2}, {"alpha": -1.0}))
    if op == "HardSigmoid":
        return s.op(op, y, **s.one({}, {"alpha": 0.3, "beta": 0.6}, {"beta": 0.1}))
    if op in ("Elu", "ThresholdedRelu", "Selu"):
        return s.op(op, y, **s.one({}, {"alpha": 0.3}))
    if op == "PRelu":
        return s.op(op, y, s.c(s.numbers(s.one((1,), ()))))
    if op == "Clip":
        low = s.one("", s.c(s.one(-0.5, 0.0, -np.inf, np.nan, 2.0), "float32"))
        high = s.one("", s.c(s.one(0.5, 6.0, np.inf, -3.0), "float32"))
        inputs = [low, high]
        while inputs and not inputs[-1]:
            inputs.pop()
        return s.op(op, y, *inputs)
    return s.op(op, y)


@layer
def conv_then_activation(s: Sketch) -> onnx.ModelProto:
    rank, channels = s.one(1, 2, 2, 3), s.one(1, 3, 8, 16)
    y, out = convolved(s, image(s, channels, rank, special=s.chance(0.2)), channels, rank)
    if s.chance(0.4):
        other, _ = convolved(s, y, out, rank, out=out) if s.chance(0.2) else (y, 0)
        y = s.either("Add", y, s.one(other, s.op("Abs", y), s.x(along(s, out, rank))))
    return s.model(activation(s, y))


@layer
def conv_blocks(s: Sketch) -> onnx.ModelProto:
    """Layers that may run with channels in blocks."""
    channels = s.one(1, 3, 4, 8, 16, 24, 17)
    x = image(s, channels, 2)
    y, channels = convolved(s, x, channels, 2, out=s.one(8, 16, 16, 32, 24, 7))
    for _ in range(s.one(1, 2, 3)):
        what = s.draw.integers(10)
        if what == 0:
            y = activation(s, y)
        elif what == 1:
            found = window(s, 2, pool=True)
            op = s.one("MaxPool", "AveragePool")
            if op == "AveragePool":
                if s.opset < 19:
                    found.pop("dilations", None)
                found["count_include_pad"] = s.one(0, 1)
            if "auto_pad" not in found:
                found["ceil_mode"] = s.one(0, 0, 1)
            y = s.op(op, y, **found)
        elif what == 2:
            y = s.op(s.one("GlobalMaxPool", "GlobalAveragePool"), y)
        elif what == 3:
            y = s.op("Concat", y, s.one(y, s.op("Relu", y)), axis=s.one(1, 1, -3, 0, 2))
            channels = 0
        elif what == 4:
            y = s.either(s.one("Add", "Mul", "Sub"), y, s.one(y, s.op("Relu", y), s.op("GlobalAveragePool", y)))
        elif what == 5:
            shape = (channels or 1, 1, 1)
            y = s.either(s.one("Add", "Mul"), y, s.c(s.numbers(s.one(shape, (1, *shape), (1,), ()))))
        elif what == 6 and channels:
            values = [s.c(s.numbers((channels,))) for _ in range(3)]
            if s.opset == 14:
                s.opset = 13
            y = s.op("BatchNormalization", y, *values, s.c(np.abs(s.numbers((channels,))) + 0.1))
        elif what == 7:
            s.opset = max(s.opset, 11)
            scales = s.c([1, 1, s.one(1, 2, 3), s.one(2, 1)], "float32", fixed=True)
            mode = {
                "mode": "nearest",
                "coordinate_transformation_mode": s.one("asymmetric", "half_pixel", "align_corners"),
                "nearest_mode": s.one("floor", "round_prefer_floor", "ceil"),
            }
            if s.chance(0.3):
                mode = {
                    "mode": "linear",
                    "coordinate_transformation_mode": s.one("asymmetric", "half_pixel", "align_corners"),
                }
            y = s.op("Resize", y, "", scales, **mode)
        elif what == 8:
            y = s.op("Sum", y, y, s.op("Relu", y))
        elif channels:
            y, channels = convolved(s, y, channels, 2)
        else:
            y = s.op("Transpose", y, perm=s.one([0, 2, 3, 1], [0, 1, 3, 2], [1, 0, 2, 3]))
            channels = 0
            break
    return s.model(y)


@layer
def pad_then_window(s: Sketch) -> onnx.ModelProto:
    rank, channels = s.one(1, 2, 3), 2
    x = image(s, channels, rank)
    pads = [0, 0, *(s.one(0, 1, 2) for _ in range(rank))] * 2
    if s.chance(0.1):
        pads[s.one(*range(len(pads)))] = s.one(-1, 1)
    value = s.one(None, 0.0, 0.0, -0.0, 1.0)
    mode = s.one("constant", "constant", "constant", "edge")
    if s.opset < 11:
        y = s.op("Pad", x, pads=pads, mode=mode, **({} if value is None else {"value": value}))
    else:
        inputs = [s.c(pads, "int64", fixed=s.chance(0.9))]
        if value is not None:
            inputs.append(s.c(value, "float32"))
        if s.opset >= 18 and s.chance(0.2):
            inputs += [""] * (2 - len(inputs)) + [s.c(list(range(rank + 2)), "int64")]
        y = s.op("Pad", x, *inputs, mode=mode)
    if s.chance(0.15):
        y = s.op("Cast", y, to=s.one(1, 11))
    op = s.one("Conv", "Conv", "MaxPool", "AveragePool")
    if op == "Conv":
        if s.chance(0.3):
            y = s.op("Cast", y, to=1)
        return s.model(convolved(s, y, channels, rank)[0])
    found = window(s, rank, pool=True)
    if op == "AveragePool":
        if s.opset < 19:
            found.pop("dilations", None)
        found["count_include_pad"] = s.one(0, 1)
    if "auto_pad" not in found:
        found["ceil_mode"] = s.one(0, 0, 1)
    return s.model(s.op(op, y, **found))


@layer
def gemm_then_activation(s: Sketch) -> onnx.ModelProto:
    m, k, n = s.size(), s.size(), s.size()
    inputs = [s.x((m, k), special=s.chance(0.2)), s.c(s.numbers((k, n)))]
    if s.chance(0.6):
        inputs.append(s.c(s.numbers(s.one((n,), (1, n), (m, n), (m, 1), ()))))
    return s.model(activation(s, s.op("Gemm", *inputs, alpha=s.one(1.0, 0.5), beta=s.one(1.0, 2.0))))


@layer
def matmul_then_add(s: Sketch) -> onnx.ModelProto:
    m, k, n = s.size(0), s.size(), s.size()
    if s.rare(0.1):
        k = 7  # without terms, ONNX Runtime itself computes nothing: see the test of products without terms
    kind = s.one("float32", "float32", "float32", "float64", "int32")
    a, b = s.one(
        ((m, k), (k, n)),
        ((m, k), (k, n)),
        ((2, m, k), (k, n)),
        ((m, k), (2, k, n)),
        ((k,), (k, n)),
        ((m, k), (k,)),
        ((3, 1, m, k), (k, n)),
    )
    y = s.op("MatMul", s.x(a, kind), s.c(s.numbers(b, kind)))
    bias = s.numbers(
        s.one((n,), (n,), (1, n), (m, n), (m, 1), (1,), (), (1, 1), (1, 1, n), (2, 1, n), (2, m, n), (1, 1, 1)), kind
    )
    y = s.either("Add", y, s.c(bias))
    if s.chance(0.3):
        y = s.either("Add", y, y)
    return s.model(s.op("Neg", y))


@layer
def matmul_and_scale(s: Sketch) -> onnx.ModelProto:
    kind = s.one("float32", "float32", "float64", "float16")
    m, k, n = s.size(0), s.size(), s.size()
    batch = s.one([], [], [2])

    def scaled(value: str, rank: int) -> str:
        if s.chance(0.5):
            return value
        number = (
            s.one(0.5, 3.0, 1e30, 0.0, np.inf, 1e-30, -2.0, 0.1) if kind == "float32" else s.one(0.5, 3.0, -2.0, 0.1)
        )
        c = s.c(np.full([1] * int(s.draw.integers(0, rank + 2)), number), kind)
        op = s.one("Mul", "Div")
        return s.either(op, value, c) if op == "Mul" or s.chance(0.2) else s.op(op, value, c)

    a, b = s.x((*batch, m, k), kind), s.x((*batch, k, n), kind)
    if s.chance(0.1):
        b = s.c(s.numbers((k, n), kind))
    return s.model(scaled(s.op("MatMul", scaled(a, 2), scaled(b, 2)), 2))


@layer
def matmul_and_transposes(s: Sketch) -> onnx.ModelProto:
    kind = s.one("float32", "float32", "float64")
    rank = s.one(2, 3, 4)
    m, k, n = s.size(), s.size(), s.size()
    batch = s.sizes(rank - 2)

    def turned(shape: list[int]) -> str:
        if s.chance(0.3):
            return s.x(shape, kind)
        perm = list(range(rank))
        if s.chance(0.6):
            perm[-2:] = perm[-1], perm[-2]
        else:
            perm = [int(axis) for axis in s.draw.permutation(rank)]
        before = [0] * rank
        for position, axis in enumerate(perm):
            before[axis] = shape[position]
        x = s.x(before, kind)
        if s.chance(0.1):
            x = s.op("Cast", x, to=s.one(11, 1))
        y = s.op("Transpose", x, **({} if perm == list(range(rank))[::-1] and s.chance(0.5) else {"perm": perm}))
        if s.chance(0.1):
            y = s.op("Cast", y, to=1 if kind == "float32" else 11)
        return y

    y = s.op("MatMul", turned([*batch, m, k]), turned([*batch, k, n]))
    if s.chance(0.3):
        y = s.op("Mul", y, s.c(0.5, kind))
    if s.chance(0.2):
        y = s.op("Transpose", y)
    return s.model(y)


@layer
def written_gelu(s: Sketch) -> onnx.ModelProto:
    kind = s.one("float32", "float32", "float32", "float16", "float64")
    shape = s.sizes(int(s.draw.integers(1, 4)), 0)
    x = s.x(shape, kind, special=s.chance(0.3))
    if s.chance(0.5):
        bias = s.one(shape[-1:], shape, [1], [], [2, *shape], [1] * len(shape))
        x = s.either("Add", x, s.c(s.numbers(bias, kind)))

    def number(value: float) -> str:
        return s.c(np.full([1] * (int(s.draw.integers(0, len(shape) + 2)) if s.rare(0.5) else 0), value), kind)

    root = s.op("Div", x, number(2**0.5 if not s.rare(0.2) else 1.4))
    one = s.either("Add", s.op("Erf", root), number(1.0))
    way = s.draw.integers(3)
    if way == 0:
        y = s.either("Mul", s.either("Mul", x, one), number(0.5))
    elif way == 1:
        y = s.either("Mul", x, s.either("Mul", one, number(0.5)))
    else:
        y = s.either("Mul", s.either("Mul", x, number(0.5)), one)
    return s.model(s.op("Neg", y))


@layer
def written_fast_gelu(s: Sketch) -> onnx.ModelProto:
    kind = s.one("float32", "float32", "float16")
    shape = s.sizes(int(s.draw.integers(1, 4)), 0)
    x = s.x(shape, kind, special=s.chance(0.3))
    if s.chance(0.5):
        x = s.either("Add", x, s.c(s.numbers(s.one(shape[-1:], shape, [1], [], [2, *shape]), kind)))

    def number(value: float) -> str:
        return s.c(np.full([1] * (int(s.draw.integers(0, len(shape) + 2)) if s.rare(0.5) else 0), value), kind)

    if s.chance(0.5):
        cube = s.op("Pow", x, s.c(3.0 if not s.rare(0.2) else 2.0, kind))
        inner = s.either("Mul", s.either("Add", x, s.either("Mul", cube, number(0.044715))), number(0.7978845608))
    else:
        inner = s.either(
            "Mul",
            s.either("Mul", x, number(0.7978845608)),
            s.either("Add", s.either("Mul", x, s.either("Mul", x, number(0.044715))), number(1.0)),
        )
    half = s.either("Add", s.op("Tanh", inner), number(1.0))
    y = (
        s.either("Mul", x, s.either("Mul", half, number(0.5)))
        if s.chance(0.5)
        else s.either("Mul", s.either("Mul", x, number(0.5)), half)
    )
    return s.model(s.op("Neg", y))


@layer
def gelu_with_bias(s: Sketch) -> onnx.ModelProto:
    s.opset = 20 if s.chance(0.5) else s.opset
    shape = s.sizes(int(s.draw.integers(1, 4)))
    bias = s.c(s.numbers(s.one(shape[-1:], shape, [1], [], [2, *shape], [1] * (len(shape) + 1))))
    x = s.either("Add", s.x(shape, special=s.chance(0.3)), bias)
    if s.opset >= 20:
        return s.model(s.op("Gelu", x, approximate=s.one("none", "tanh")))
    op = s.one("Gelu", "FastGelu", "QuickGelu")
    return s.model(s.op(op, x, domain="com.microsoft"))


@layer
def written_quick_gelu(s: Sketch) -> onnx.ModelProto:
    kind = s.one("float32", "float32", "float16", "float64")
    shape = s.sizes(int(s.draw.integers(0, 3)), 0)
    x = s.x(shape, kind, special=s.chance(0.3))
    y = x
    if s.chance(0.7):
        c = s.c(np.full([1] * int(s.draw.integers(0, len(shape) + 2)), s.one(1.702, 1.0, -0.5, 0.0)), kind)
        y = s.either("Mul", x, c)
    return s.model(s.op("Identity", s.either("Mul", s.one(x, x, y), s.op("Sigmoid", y))))


@layer
def written_norm(s: Sketch) -> onnx.ModelProto:
    """A layer norm, with and without its mean, as exporters write it, and nearly so."""
    kind = s.one("float32", "float32", "float32", "float64", "float16")
    rank = s.one(1, 2, 3, 4)
    shape = s.sizes(rank, 8)
    axes = s.one(
        [-1],
        [-1],
        [rank - 1],
        [0],
        [-2, -1] if rank > 1 else [-1],
        [-1, -2] if rank > 1 else [0],
        [0, rank - 1] if rank > 2 else [-1],
    )
    x = s.x(shape, kind)
    keep = s.one({}, {}, {}, {"keepdims": 1}, {"keepdims": 0})
    mean_axes = axes if not s.rare(0.2) else [0]

    def mean(value: str, over: list[int]) -> str:
        return s.axes("ReduceMean", value, over, since=18, **keep)

    simple = s.chance(0.4)
    base = x if not s.rare(0.15) else s.op("Cast", x, to=1 if kind != "float64" else 11)
    centered = base if simple else s.op("Sub", base, mean(base, mean_axes))
    twice = s.op("Sub", base, mean(base, mean_axes)) if not simple and s.rare(0.15) else centered
    exponent = s.c(3.0 if s.rare(0.2) else 2.0, s.one(kind, kind, "float32") if s.opset > 11 else kind)
    squared = s.op("Mul", twice, twice) if s.rare(0.3) else s.op("Pow", twice, exponent)
    spread = s.either(
        "Add",
        mean(squared, axes),
        s.c(
            np.full(s.one((), (1,), (1, 1), (1,) * (rank + 1)) if s.rare(0.5) else (), s.one(1e-5, 1e-12, 0.1, 1.0)),
            kind,
        ),
    )
    root = s.op("Sqrt", spread)
    if s.rare(0.2):
        root = s.op("Reciprocal", root)
        y = s.either("Mul", centered, root)
    elif s.rare(0.15):
        y = s.either("Mul", centered, s.op("Div", s.c(1.0, kind), root))
    elif s.rare(0.15):
        y = s.either("Mul", centered, s.op("Pow", spread, s.c(-0.5, kind)))
    else:
        y = s.op("Div", centered, root)
    if s.rare(0.15):
        y = s.op("Cast", y, to=s.one(1, 10))
    last = shape[len(shape) - len(axes) :]
    scales = (
        last
        if s._plain and s.chance(0.6)
        else s.one(
            shape[-1:],
            shape[-1:],
            shape[-1:],
            last,
            [1],
            [],
            [5],
            shape,
            [1] * (rank - 1) + shape[-1:],
            [1, *shape],
            [2, *shape],
            [1] * (rank + 1),
        )
    )
    y = s.either("Mul", y, s.c(s.numbers(scales, kind)))
    if s.chance(0.6):
        y = s.either("Add", y, s.c(s.numbers(s.one(scales, scales, shape[-1:], [1], [], [2, *shape]), kind)))
    return s.model(s.op("Identity", y))


@layer
def skip_norm(s: Sketch) -> onnx.ModelProto:
    """Sums before LayerNormalization."""
    s.opset = s.one(20, 21)
    rank = s.one(2, 3, 3, 3)
    shape = s.sizes(rank, 8)
    kind = s.one("float32", "float32", "float32", "float16", "float64")
    a = s.x(shape, kind)
    b = s.x(s.one(shape, shape, shape, [1, *shape[1:]], shape[1:], shape[-1:]), kind)
    if s.chance(0.4):
        a = s.either("Add", a, s.c(s.numbers(s.one(shape[-1:], shape[-1:], [1]), kind)))
    x = s.either("Add", a, b)
    axis = s.one(-1, -1, rank - 1, 1, -2, 0)
    last = shape[axis:]
    inputs = [s.c(s.numbers(s.one(last, last, last, shape[-1:]), kind))]
    if s.chance(0.6):
        inputs.append(s.c(s.numbers(last, kind)))
    settings = s.one({}, {"epsilon": 0.5}, {"epsilon": 1e-12})
    made = s.ops(
        "LayerNormalization",
        s.one(1, 1, 1, 2, 3),
        x,
        *inputs,
        **({"axis": axis} if axis != -1 or s.chance(0.5) else {}),
        **settings,
    )
    outputs = list(made) if s.chance(0.7) else made[:1]
    if s.chance(0.2):
        outputs.append(s.op("Neg", x))
    return s.model(*outputs)


@layer
def biased_softmax(s: Sketch) -> onnx.ModelProto:
    rank = s.one(2, 3, 4)
    shape = s.sizes(rank)
    bias = [extent if s.chance(0.6) else 1 for extent in shape][s.one(0, 0, 1) :]
    x = s.either("Add", s.x(shape), s.x(bias, special=False))
    y = s.op(s.one("Softmax", "Softmax", "LogSoftmax"), x, **s.one({}, {"axis": -1}, {"axis": 1}, {"axis": 0}))
    if s.chance(0.3):
        y = s.ops("Dropout", 1, y)[0]
    return s.model(y)


@layer
def attention(s: Sketch) -> onnx.ModelProto:
    """Self-attention as BERT's exporters write it, and nearly so."""
    batch, length, heads, width = s.size(), s.size(), s.one(1, 2, 3), s.one(2, 4)
    hidden = heads * width
    sizes = s.one(None, ["b", "l", hidden], ["b", "l", hidden])
    x = s.x((batch, length, hidden), declared=sizes)
    norm_scale, norm_bias = s.c(s.numbers((hidden,)), fixed=True), s.c(s.numbers((hidden,)), fixed=True)
    s.opset = max(17, s.opset)
    if s.chance(0.7):
        x = s.op("Add", x, s.x((batch, length, hidden), declared=sizes))
    root = s.op("LayerNormalization", x, norm_scale, norm_bias, axis=-1)
    parts = []
    for number in range(3):
        y = s.op("MatMul", root, s.c(s.numbers((hidden, hidden)), fixed=s.chance(0.95)))
        y = s.op(
            "Add",
            *(
                (y, s.c(s.numbers((hidden,)), fixed=True))
                if s.chance(0.9)
                else (s.c(s.numbers((hidden,)), fixed=True), y)
            ),
        )
        y = s.op(
            "Reshape", y, s.c([0, 0, heads, width] if s.chance(0.9) else [batch, -1, heads, width], "int64", fixed=True)
        )
        parts.append(s.op("Transpose", y, perm=[0, 2, 3, 1] if number == 1 else [0, 2, 1, 3]))
    q, k, v = parts
    scale = s.one(width**0.5, width**0.5, 1.7, 1.0)
    if s.chance(0.3):
        q = s.op("Div", q, s.c(scale, "float32", fixed=True))
        scores = s.op("MatMul", q, k)
    else:
        scores = s.op("MatMul", q, k)
        scores = (
            s.op("Div", scores, s.c(scale, "float32", fixed=True))
            if s.chance(0.8)
            else s.op("Mul", scores, s.c(1 / scale, "float32", fixed=True))
        )
    if s.chance(0.8):
        mask = s.x((), array=s.draw.integers(0, 2, (batch, length)), declared=sizes and ["b", "l"])
        m = s.axes("Unsqueeze", mask, [1])
        m = s.axes("Unsqueeze", m, [2])
        if s.chance(0.7):
            m = s.op("Cast", m, to=1)
            m = s.op("Sub", s.c(1.0, "float32", fixed=True), m)
            m = s.op("Mul", m, s.c(s.one(-10000.0, -10000.0, -3.0, -np.finfo(np.float32).max), "float32", fixed=True))
        else:
            m = s.op("Cast", m, to=1)
        scores = s.op("Add", *((scores, m) if s.chance(0.9) else (m, scores)))
    weights = s.op("Softmax", scores, axis=s.one(3, -1, -1))
    y = s.op("MatMul", weights, v)
    y = s.op("Transpose", y, perm=[0, 2, 1, 3])
    y = s.op("Reshape", y, s.c([0, 0, hidden], "int64", fixed=True))
    y = s.op("MatMul", y, s.c(s.numbers((hidden, hidden)), fixed=True))
    y = s.op("Add", y, s.c(s.numbers((hidden,)), fixed=True))
    if s.chance(0.7):
        y = s.op("Add", y, root)
        y = s.op("LayerNormalization", y, norm_scale, norm_bias, axis=-1)
    return s.model(y)


@layer
def embeddings(s: Sketch) -> onnx.ModelProto:
    """Sums of embeddings before a LayerNormalization."""
    s.opset = max(17, s.opset)
    batch, length, hidden, words = s.size(), s.size(), 4, 6
    kind = s.one("int64", "int32")
    sizes = s.one(None, ["b", "l"])
    ids = s.x((), array=s.draw.integers(0, words, (batch, length)).astype(kind), declared=sizes)
    y = s.op("Gather", s.c(s.numbers((words, hidden)), fixed=True), ids, **s.one({}, {"axis": 0}))
    positions = s.one(
        s.c(np.arange(length)[None], "int64", fixed=True),
        s.c(np.tile(np.arange(length), (batch, 1)), "int64", fixed=True),
        s.c(np.arange(length)[None][:, ::-1], "int64", fixed=True),
    )
    y = s.op("Add", y, s.op("Gather", s.c(s.numbers((9, hidden)), fixed=True), positions))
    if s.chance(0.7):
        segments = s.x((), array=s.draw.integers(0, 2, (batch, length)).astype(kind), declared=sizes)
        y = s.op("Add", y, s.op("Gather", s.c(s.numbers((2, hidden)), fixed=True), segments))
    y = s.op(
        "LayerNormalization",
        y,
        s.c(s.numbers((hidden,)), fixed=True),
        s.c(s.numbers((hidden,)), fixed=True),
        axis=-1,
        **s.one({}, {"epsilon": 0.1}),
    )
    return s.model(y)
