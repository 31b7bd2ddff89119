"""Patterns of moved data: shapes that are computed, transposes, slices, quantized operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from fusion_sketch import Sketch

__all__ = ["MOVES"]

MOVES: dict[str, Callable[[Sketch], onnx.ModelProto]] = {}


def move(function: Callable[[Sketch], onnx.ModelProto]) -> Callable[[Sketch], onnx.ModelProto]:
    MOVES[function.__name__] = function
    return function


@move
def computed_reshape(s: Sketch) -> onnx.ModelProto:
    """Reshape to sizes that are read from a shape."""
    shape = s.sizes(s.one(2, 3, 4), 0)
    x = s.op("Relu", s.x(shape))
    root = x if not s.rare(0.3) else s.one(s.op("Transpose", x), s.op("Neg", x))
    order = list(range(len(shape)))
    parts = []
    count = s.one(2, 3, len(shape))
    for position in range(min(count, len(shape))):
        axis = position if not s.rare(0.3) else s.one(*order)
        index = axis if s.chance(0.8) else axis - len(shape)
        what = s.draw.integers(6)
        size = s.op("Shape", root) if what or s.opset < 15 else s.op("Shape", root, start=0)
        if what == 1:
            part = s.op("Slice", size, *[s.c([each], "int64") for each in (axis, axis + 1)])
        elif what == 2:
            part = s.op("Gather", size, s.c([index], "int64"))
        else:
            part = s.axes("Unsqueeze", s.op("Gather", size, s.c(index, "int64")), [0])
        parts.append(part)
    tail = s.one([-1], [], [1, -1], [-1, 1], [1], [0], [shape[-1]])
    if tail:
        parts.append(s.c(tail, "int64"))
    if s.rare(0.3):
        parts.insert(0, s.c(s.one([-1], [1], [0]), "int64"))
    if s.rare(0.3):
        s.draw.shuffle(parts)  # type: ignore[arg-type]
    target = s.op("Concat", *parts, axis=s.one(0, 0, -1))
    more = {"allowzero": s.one(0, 1)} if s.opset >= 14 and s.chance(0.3) else {}
    return s.model(s.op("Neg", s.op("Reshape", x, target, **more)))


@move
def transposes(s: Sketch) -> onnx.ModelProto:
    """Operators between transposes, which can be moved through them."""
    s.opset = s.one(20, 20, 21, 23)
    rank = s.one(2, 3, 4, 4)
    shape = s.sizes(rank, 0 if s.chance(0.2) else 4)
    perm = (
        s.one([0, 2, 3, 1], [0, 3, 1, 2]) if rank == 4 and s.chance(0.5) else [int(a) for a in s.draw.permutation(rank)]
    )
    x = s.op("Transpose", s.x(shape), perm=perm)
    here = [shape[axis] for axis in perm]
    for _ in range(s.one(1, 2, 3)):
        x, here = moved(s, x, here)
    rank = len(here)
    if rank:
        back = (
            [perm.index(axis) for axis in range(rank)]
            if rank == len(perm)
            else [int(a) for a in s.draw.permutation(rank)]
        )
        x = s.op("Transpose", x, perm=back)
    if s.chance(0.3):
        x = s.op("Reshape", x, s.c([-1], "int64")) if s.opset > 4 else x
    return s.model(x)


def moved(s: Sketch, x: str, shape: list[int]) -> tuple[str, list[int]]:
    """A node that a transpose can pass, and its shape."""
    rank = len(shape)
    if not rank:
        return s.op("Relu", x), shape
    axis = int(s.draw.integers(-rank, rank)) if s.opset >= 11 else int(s.draw.integers(rank))
    what = s.one(
        "simple",
        "binary",
        "reduce",
        "concat",
        "softmax",
        "arg",
        "squeeze",
        "unsqueeze",
        "pad",
        "slice",
        "split",
        "tile",
        "where",
        "resize",
        "quantize",
        "transpose",
        "norm",
        "expand",
        "cumsum",
        "gather",
        "prelu",
        "clip",
        "shape",
        "sum",
    )
    if what == "binary":
        other = [extent if s.chance(0.5) else 1 for extent in shape][s.one(0, 0, 1, rank) :]
        other = s.one(other, other, [2, *shape], [1, *shape])
        c = s.c(s.numbers(other)) if s.chance(0.7) else s.x(other)
        return s.either(s.one("Add", "Mul", "Sub"), x, c), list(np.broadcast_shapes(shape, tuple(other)))
    if what == "reduce":
        axes = [int(a) for a in s.draw.permutation(rank)[: s.one(1, min(2, rank), rank)]]
        if s.opset >= 11 and s.chance(0.3):
            axes = [a - rank for a in axes]
        keep = s.one(0, 1)
        op = s.one("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceProd")
        if 0 in shape:  # without optimizations, ONNX Runtime may return the empty array itself
            return x, shape
        y = s.axes(op, x, axes, since=13 if op == "ReduceSum" else 18, keepdims=keep)
        gone = {a % rank for a in axes}
        return y, [1 if a in gone else e for a, e in enumerate(shape) if keep or a not in gone]
    if what == "concat":
        made = list(shape)
        made[axis] *= 2
        return s.op("Concat", x, s.one(x, s.op("Relu", x), s.c(s.numbers(shape))), axis=axis), made
    if what == "softmax":
        return s.op(s.one("Softmax", "LogSoftmax", "Hardmax"), x, **s.one({}, {"axis": axis})), shape
    if what == "arg" and shape[axis]:
        keep = s.one(0, 1)
        y = s.op("Cast", s.op(s.one("ArgMax", "ArgMin"), x, axis=axis, keepdims=keep), to=1)
        return y, [1 if a == axis % rank else e for a, e in enumerate(shape) if keep or a != axis % rank]
    if what == "squeeze" and 1 in shape:
        axes = [a for a, e in enumerate(shape) if e == 1][: s.one(1, 2)]
        return s.axes("Squeeze", x, axes), [e for a, e in enumerate(shape) if a not in axes]
    if what == "unsqueeze":
        where = int(s.draw.integers(rank + 1))
        given = where - (rank + 1) if s.opset >= 11 and s.chance(0.3) else where
        return s.axes("Unsqueeze", x, [given]), [*shape[:where], 1, *shape[where:]]
    if what == "pad" and s.opset >= 11:
        pads = [s.one(0, 0, 1) for _ in range(2 * rank)]
        mode = s.one("constant", "constant", "edge") if 0 not in shape else "constant"
        inputs = [s.c(pads, "int64"), *s.one([], [s.c(2.0, "float32")])]
        made = [e + pads[a] + pads[a + rank] for a, e in enumerate(shape)]
        if s.opset >= 18 and s.chance(0.3):
            made = list(shape)
            made[axis] += 1
            return s.op("Pad", x, s.c([0, 1], "int64"), "", s.c([axis], "int64"), mode=mode), made
        return s.op("Pad", x, *inputs, mode=mode), made
    if what == "slice" and s.opset >= 10:
        made, step = list(shape), s.one(1, 2, -1)
        starts, ends = (0, 2**31) if step > 0 else (-1, -(2**31))
        made[axis] = len(range(shape[axis])[::step])
        return s.op("Slice", x, *[s.c([each], "int64") for each in (starts, ends, axis, step)]), made
    if what == "split" and shape[axis] > 1:
        parts = [1, shape[axis] - 1]
        made = list(shape)
        made[axis] = parts[1]
        if s.opset < 13:
            return s.ops("Split", 2, x, axis=axis, split=parts)[1], made
        return s.ops("Split", 2, x, s.c(parts, "int64"), axis=axis)[1], made
    if what == "tile":
        repeats = [s.one(1, 1, 2) for _ in shape]
        return s.op("Tile", x, s.c(repeats, "int64")), [e * r for e, r in zip(shape, repeats, strict=True)]
    if what == "where" and s.opset >= 9:
        other = [extent if s.chance(0.5) else 1 for extent in shape]
        mask = s.c(s.draw.random(other) > 0.5)
        return s.op("Where", mask, x, s.c(s.numbers(s.one(other, [], [1, *shape])))), list(
            np.broadcast_shapes(shape, other)
        ) if s.chance(2) and s._nodes[-1] is None else shape
    if what == "resize" and s.opset >= 11 and 0 not in shape:
        scales = [float(s.one(1, 1, 2)) for _ in shape]
        y = s.op(
            "Resize",
            x,
            "",
            s.c(scales, "float32"),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return y, [int(e * r) for e, r in zip(shape, scales, strict=True)]
    if what == "quantize" and s.opset >= 13 and shape[axis]:
        scale, zero = s.one((0.1, 3), (np.linspace(0.1, 0.4, shape[axis]), np.arange(shape[axis])))
        given = [s.c(scale, "float32"), s.c(zero, "uint8")]
        return s.op("DequantizeLinear", s.op("QuantizeLinear", x, *given, axis=axis), *given, axis=axis), shape
    if what == "transpose":
        perm = [int(a) for a in s.draw.permutation(rank)]
        return s.op("Transpose", x, perm=perm), [shape[a] for a in perm]
    if what == "norm" and s.opset >= 9 and rank >= 3 and s.opset != 14:
        values = [s.c(s.numbers((shape[1],))) for _ in range(3)]
        return s.op("BatchNormalization", x, *values, s.c(np.abs(s.numbers((shape[1],))) + 0.1)), shape
    if what == "expand" and s.opset >= 8:
        return s.op("Expand", x, s.c(shape, "int64")), [2, *shape] if s.chance(-1) else list(shape)
    if what == "cumsum" and s.opset >= 11:
        return s.op("CumSum", x, s.c(axis, "int64")), shape
    if what == "gather" and shape[axis]:
        made = list(shape)
        made[axis] = 2
        return s.op("Gather", x, s.c([0, shape[axis] - 1], "int64"), axis=axis), made
    if what == "prelu":
        other = [extent if s.chance(0.5) else 1 for extent in shape][s.one(0, 1) :]
        return s.op("PRelu", x, s.c(s.numbers(other))), shape
    if what == "clip" and s.opset >= 11:
        return s.op("Clip", x, s.c(-0.5, "float32"), s.c(0.5, "float32")), shape
    if what == "shape":
        return s.either("Mul", x, s.op("Cast", s.op("ReduceProd", s.op("Shape", x), keepdims=0), to=1)), shape
    if what == "sum":
        return s.op(s.one("Sum", "Max", "Mean"), x, s.c(s.numbers(shape)), x), shape
    return s.op(s.one("Relu", "Neg", "Abs", "Sigmoid", "Identity", "Cast"), x) if s.chance(0) else s.op(
        s.one("Relu", "Neg", "Abs", "Sigmoid", "Identity"), x
    ), shape


@move
def transposed_reshape(s: Sketch) -> onnx.ModelProto:
    """Transposes that only move axes of size 1, and Reshape around them."""
    shape = [s.one(1, 1, 3, 0 if s.chance(0.2) else 2) for _ in range(4)]
    x = s.op("Transpose", s.x(shape), perm=[int(a) for a in s.draw.permutation(4)])
    y = s.op("Reshape", x, s.c(s.one([-1], [1, -1], [0, -1], [0, 0, -1], [0, 0, 0, 0]), "int64"))
    if s.chance(0.5):
        y = s.op("Transpose", y)
    return s.model(s.op("Neg", y))


@move
def gathers_and_slices(s: Sketch) -> onnx.ModelProto:
    """Gathers and slices of one value along an axis, which may be a split."""
    rank = s.one(1, 2, 3)
    shape = s.sizes(rank)
    axis = int(s.draw.integers(-rank, rank))
    x = s.op("Relu", s.x(shape))
    size, made = shape[axis], []
    indices = list(range(size))
    if s.chance(0.2):
        s.draw.shuffle(indices)
    for index in indices if s.chance(0.8) else indices[:-1]:
        if s.chance(0.6):
            given = index - size if s.chance(0.2) else index
            made.append(s.op("Gather", x, s.c(given if s.chance(0.8) else [given], "int64"), axis=axis))
        else:
            made.append(s.op("Slice", x, *[s.c([each], "int64") for each in (index, index + 1, axis)]))
    return s.model(*made, *([s.op("Neg", x)] if s.chance(0.2) else []))


@move
def gathered_range(s: Sketch) -> onnx.ModelProto:
    shape = s.sizes(2)
    axis = s.one(0, 1, -1, -2)
    x = s.x(shape)
    step = s.one(1, 1, 2, -1)
    start, limit = (0, shape[axis]) if step > 0 else (shape[axis] - 1, -1)
    if s.chance(0.2):
        start, limit, step = -1, 0, 1
    if s.chance(0.15):
        start, limit = s.one((0, 0), (-shape[axis], 0))
    kind = s.one("int64", "int32")
    end = s.c(limit, kind)
    if s.chance(0.3) and kind == "int64" and limit == shape[axis]:
        end = s.op("Gather", s.op("Shape", x), s.c(axis, "int64"))
    places = s.op("Range", s.c(start, kind), end, s.c(step, kind))
    return s.model(s.op("Neg", s.op("Gather", x, places, axis=axis)))


@move
def space_to_depth(s: Sketch) -> onnx.ModelProto:
    """Strided slices that are concatenated."""
    c, h, w = s.one(1, 2, 3), s.one(2, 4, 6, 5), s.one(2, 4, 6)
    x = s.x((s.one(1, 2), c, h, w))
    parts = [(0, 0), (1, 0), (0, 1), (1, 1)]
    if s.chance(0.5):
        s.draw.shuffle(parts)
    made = []
    for i, j in parts if s.chance(0.9) else [*parts[:3], parts[0]]:
        y = s.op("Slice", x, *[s.c([each], "int64") for each in (i, s.one(2**31 - 1, h), 2, 2)])
        made.append(s.op("Slice", y, *[s.c([each], "int64") for each in (j, s.one(2**31 - 1, w), 3, 2)]))
    y = s.op("Concat", *made, axis=s.one(1, 1, 1, 0))
    if s.chance(0.5):
        y = s.op("Conv", y, s.c(s.numbers((2, 4 * c, 1, 1)), fixed=True))
    return s.model(y)


def quantization(s: Sketch, kind: str, count: int | None = None) -> list[str]:
    """A scale and a zero point, for all or for each of some channels."""
    scale = s.one(0.05, 0.1, 0.5) if count is None else np.linspace(0.02, 0.3, count)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    zero = s.one(0, 3, (low + high + 1) // 2, low) if kind[0] == "u" or s.chance(0.3) else 0
    return [
        s.c(scale, "float32", fixed=s.chance(0.97)),
        s.c(np.full(() if count is None else (count,), zero), kind, fixed=s.chance(0.97)),
    ]


def rounded(s: Sketch, x: str, kind: str, given: list[str] | None = None) -> str:
    """A value after QuantizeLinear and DequantizeLinear."""
    given = given or quantization(s, kind)
    q = s.op("QuantizeLinear", x, *given)
    if s.chance(0.1):
        q = s.op("Identity", q)
    return s.op("DequantizeLinear", q, *given)


@move
def quantized_layers(s: Sketch) -> onnx.ModelProto:
    """Layers with weights between DequantizeLinear and QuantizeLinear."""
    return quantized(s, s.one("Conv", "Conv", "MatMul", "Gemm", "ConvTranspose"))


@move
def quantized_bounds(s: Sketch) -> onnx.ModelProto:
    """Bounds that a QuantizeLinear after them may imply."""
    return quantized(s, s.one("Relu", "Clip"))


_MOVED = ("Transpose", "Reshape", "Slice", "Gather", "Concat", "Split", "Where", "Resize", "Squeeze", "Pad", "Flatten")
_COMPUTED = ("Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "ArgMax", "ReduceMean", "TopK", "InstanceNormalization")


@move
def quantized_operators(s: Sketch) -> onnx.ModelProto:
    """Other operators between DequantizeLinear and QuantizeLinear."""
    return quantized(s, s.one("MaxPool", "AveragePool", "GlobalAveragePool", "Expand", *_MOVED, *_COMPUTED))


def quantized(s: Sketch, what: str) -> onnx.ModelProto:
    kind = s.one("uint8", "uint8", "int8", "uint16", "int16")
    if kind.endswith("16"):
        s.opset = 21
    channels = s.one(1, 2, 3, 4)
    shape = (1, channels, s.one(3, 4, 5), s.one(3, 4))
    source = s.x(shape)
    given = quantization(s, kind)
    x = rounded(s, source, kind, given)
    weight_kind = s.one("int8", "int8", kind)
    if what == "Conv":
        out = s.one(1, 2, 3)
        array = s.numbers((out, channels, s.one(1, 2), 2), weight_kind)
        per = s.one(None, out)
        w = s.op("DequantizeLinear", s.c(array, fixed=True), *quantization(s, weight_kind, per), axis=0)
        inputs = [x, w]
        if s.chance(0.5):
            inputs.append(
                s.one(
                    s.c(s.numbers((out,)), fixed=True),
                    s.op(
                        "DequantizeLinear",
                        s.c(s.numbers((out,), "int32"), fixed=True),
                        s.c(0.01, "float32", fixed=True),
                    ),
                )
            )
        y = s.op("Conv", *inputs)
    elif what in ("MatMul", "Gemm"):
        k, n = 4, s.one(1, 2, 3)
        x = rounded(s, s.x((s.one(1, 3), k)), kind)
        per = s.one(None, n)
        w = s.op(
            "DequantizeLinear",
            s.c(s.numbers((k, n), weight_kind), fixed=True),
            *quantization(s, weight_kind, per),
            axis=1,
        )
        inputs = [x, w]
        if what == "Gemm" and s.chance(0.6):
            inputs.append(
                s.one(
                    s.c(s.numbers((n,)), fixed=True),
                    s.op(
                        "DequantizeLinear", s.c(s.numbers((n,), "int32"), fixed=True), s.c(0.01, "float32", fixed=True)
                    ),
                )
            )
        y = s.op(what, *inputs, **({"alpha": s.one(1.0, 0.5), "beta": s.one(1.0, 2.0)} if what == "Gemm" else {}))
    elif what in ("Add", "Mul"):
        y = s.op(what, x, s.one(x, rounded(s, s.x(s.one(shape, (1,), (channels, 1, 1))), kind)))
    elif what in ("Relu", "Sigmoid", "GlobalAveragePool", "Flatten"):
        y = s.op(what, x)
    elif what == "LeakyRelu":
        y = s.op(what, x, alpha=s.one(0.1, -1.0))
    elif what == "Clip":
        y = s.op(
            what,
            x,
            *s.one(
                (s.c(0.0, "float32"), s.c(6.0, "float32")),
                (s.c(-1.0, "float32"), s.c(0.5, "float32")),
                ("", s.c(0.3, "float32")),
                (s.c(0.0, "float32"),),
            ),
        )
    elif what == "Softmax":
        y = s.op(what, x, axis=s.one(-1, 1, 2))
    elif what in ("MaxPool", "AveragePool"):
        y = s.op(
            what,
            x,
            kernel_shape=[2, 2],
            pads=s.one([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]),
            strides=[1, 2],
            **({"count_include_pad": s.one(0, 1)} if what == "AveragePool" else {}),
            ceil_mode=s.one(0, 1),
        )
    elif what == "Transpose":
        y = s.op(what, x, perm=s.one([0, 2, 3, 1], [3, 2, 1, 0]))
    elif what == "Reshape":
        y = s.op(what, x, s.c(s.one([-1], [0, -1]), "int64"))
    elif what == "Slice":
        y = s.op(what, x, *[s.c([each], "int64") for each in s.one((1, 9, 2, 1), (-1, -9, 3, -1))])
    elif what == "Gather":
        y = s.op(what, x, s.c(s.one(0, [0, -1]), "int64"), axis=s.one(2, -1))
    elif what == "Concat":
        y = s.op(what, x, rounded(s, s.x(shape), kind), axis=1)
    elif what == "Split":
        y = s.ops(what, 2, x, s.c([1, shape[2] - 1], "int64"), axis=2)[1]
    elif what == "Where":
        y = s.op(
            what,
            s.c(s.draw.random(shape[-1]) > 0.5),
            x,
            s.one(rounded(s, s.x(shape), kind), s.op("DequantizeLinear", s.c(3, kind), *given)),
        )
    elif what == "Resize":
        y = s.op(what, x, "", s.c([1.0, 1.0, 2.0, 2.0], "float32"), mode=s.one("nearest", "linear"))
    elif what == "ArgMax":
        return s.model(s.op(what, x, axis=1))
    elif what == "Squeeze":
        y = s.op(what, x, s.c([0], "int64"))
    elif what == "Pad":
        y = s.op(
            what,
            x,
            s.c([0, 0, 1, 0, 0, 0, 0, 2], "int64"),
            *s.one([], [s.c(0.0, "float32")], [s.c(1.0, "float32")]),
            mode=s.one("constant", "constant", "reflect"),
        )
    elif what == "ReduceMean":
        y = s.axes(what, x, [1], since=18)
    elif what == "Expand":
        y = s.op(what, x, s.c([2, 1, 1, 1], "int64"))
    elif what == "TopK":
        y = s.ops(what, 2, x, s.c([2], "int64"))[0]
    elif what == "ConvTranspose":
        w = s.op(
            "DequantizeLinear",
            s.c(s.numbers((channels, 2, 2, 2), weight_kind), fixed=True),
            *quantization(s, weight_kind),
        )
        y = s.op(what, x, w)
    else:
        y = s.op(what, x, s.c(s.numbers((channels,))), s.c(s.numbers((channels,))))
    if s.chance(0.3):
        y = s.op("Relu", y)
    after = s.one(given, given, None, None)
    final = s.op("QuantizeLinear", y, *(after or quantization(s, s.one(kind, kind, "uint8", "int8"))))
    if s.chance(0.4):
        return s.model(final)
    return s.model(s.op("DequantizeLinear", final, *(after or quantization(s, "uint8"))) if after else final)


@move
def quantized_pairs(s: Sketch) -> onnx.ModelProto:
    """Pairs of QuantizeLinear and DequantizeLinear in a row."""
    s.opset = max(s.opset, 13)
    kind = s.one("uint8", "int8", "uint8", "int16" if s.opset >= 21 else "uint8")
    x = s.x(s.sizes(2, 0))
    given = quantization(s, kind)
    for _ in range(s.one(2, 3)):
        x = rounded(s, x, kind, given if s.chance(0.6) else quantization(s, kind))
        if s.chance(0.2):
            x = (
                s.op(s.one("Reshape", "Transpose", "Identity"), x)
                if s.chance(0)
                else s.op(s.one("Transpose", "Identity"), x)
            )
    return s.model(x)


@move
def integer_products(s: Sketch) -> onnx.ModelProto:
    """MatMulInteger with scales, as dynamic quantization writes it."""
    s.opset = max(s.opset, 11)
    m, k, n = s.size(), s.size(), s.size()
    x = s.x(s.one((m, k), (2, m, k)))
    q, scale, zero = s.ops("DynamicQuantizeLinear", 3, x)
    kind = s.one("uint8", "int8")
    w = s.c(s.numbers((k, n), kind), fixed=s.chance(0.9))
    per = s.one((), (), (1,), (n,))
    inputs = [q, w, zero]
    if s.chance(0.8):
        inputs.append(s.c(np.full(per, s.one(0, 2)), kind))
    y = s.op("Cast", s.op("MatMulInteger", *inputs), to=1)
    factor = s.c(np.abs(s.numbers(s.one(per, per, (1, n), (n,)))) + 0.1)
    both = s.either("Mul", scale, factor)
    y = s.either("Mul", y, both)
    if s.chance(0.6):
        y = s.either("Add", y, s.c(s.numbers(s.one((n,), (n,), (1,), (), (1, n), (m, n)))))
    return s.model(y)
