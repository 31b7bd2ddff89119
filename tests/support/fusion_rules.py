"""Patterns of ONNX Runtime's rewrite rules, and of what shares, folds and removes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from fusion_sketch import Sketch

__all__ = ["RULES"]

RULES: dict[str, Callable[[Sketch], onnx.ModelProto]] = {}


def rule(function: Callable[[Sketch], onnx.ModelProto]) -> Callable[[Sketch], onnx.ModelProto]:
    RULES[function.__name__] = function
    return function


FLOATS = ("float32", "float32", "float64", "float16")
ANY = ("float32", "float32", "float64", "float16", "int32", "int64", "uint8", "int8")


def single(s: Sketch, rank: int, value: float, dtype: str) -> str:
    """One number, of rank 0 to one more than another value's."""
    return s.c(np.full([1] * int(s.draw.integers(rank + 2)), value), dtype)


@rule
def identity(s: Sketch) -> onnx.ModelProto:
    x = s.x(s.sizes(2, 0), special=True)
    for _ in range(3):
        x = s.op(s.one("Identity", "Identity", "Relu", "Neg"), x)
    return s.model(x)


@rule
def slices(s: Sketch) -> onnx.ModelProto:
    shape = s.sizes(int(s.draw.integers(1, 4)), 0)
    x = s.op("Abs", s.x(shape))
    axes = list(s.draw.permutation(len(shape)))[: int(s.draw.integers(1, len(shape) + 1))]
    big = s.one(2**63 - 1, 2**31 - 1, 9)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        step = s.one(1, 1, 1, -1, 2)
        steps.append(step)
        starts.append(s.one(0, 0, -size, -9, 1) if step > 0 else s.one(-1, size - 1, big))
        ends.append(s.one(size, big, big, -1, size - 1) if step > 0 else s.one(-(2**31), -size - 1, 0, -(2**63)))
    axes = [int(axis - (len(shape) if s.chance(0.3) else 0)) for axis in axes]
    kind = s.one("int64", "int64", "int32")
    if kind == "int32":
        starts, ends = (np.clip(each, -(2**31), 2**31 - 1) for each in (starts, ends))
    given = [s.c(each, kind, fixed=True) for each in (starts, ends, axes, steps)]
    if len(axes) == len(shape) and axes == sorted(axes) and s.chance(0.5) and min(axes) == 0:
        given[2] = ""
    if all(step == 1 for step in steps) and s.chance(0.5):
        given.pop()
    y = s.op("Slice", x, *given)
    return s.model(s.op("Neg", y))


@rule
def unsqueezed_constant(s: Sketch) -> onnx.ModelProto:
    shape = s.one([], [1], [3], [2, 3])
    c = s.c(s.numbers(shape))
    rank = len(shape) + int(s.draw.integers(1, 3))
    axes = [int(axis) - (rank if s.chance(0.4) else 0) for axis in s.draw.permutation(rank)[: rank - len(shape)]]
    y = s.axes("Unsqueeze", c, axes)
    return s.model(s.op("Add", y, s.x(s.one([3], [1], []), special=True)))


@rule
def dropout(s: Sketch) -> onnx.ModelProto:
    x = s.x(s.sizes(2, 0), special=True)
    if s.opset < 12:
        made = s.ops("Dropout", s.one(1, 2), x, ratio=s.one(0.0, 0.5))
    else:
        ratio = s.one([], [s.c(0.0, "float32")], [s.c(0.5, "float32"), s.c(False)], [s.c(0.0, "float32"), s.c(True)])
        made = s.ops("Dropout", s.one(1, 2), x, *ratio)
    outputs = [s.op("Neg", made[0])]
    if len(made) > 1:
        outputs.append(made[1])
    return s.model(*outputs)


@rule
def expand(s: Sketch) -> onnx.ModelProto:
    shape = s.sizes(int(s.draw.integers(0, 4)), 0)
    x = s.op("Abs", s.x(shape))
    target = [extent if s.chance(0.6) else 1 for extent in shape]
    target = s.one(target, shape, [1, *target], [1] * len(shape), [0, *target], target[1:], [2, *target])
    if s.chance(0.2):
        return s.model(s.op("Neg", s.op("Expand", x, s.op("Shape", x))))
    return s.model(s.op("Neg", s.op("Expand", x, s.c(target, "int64"))))


@rule
def casts(s: Sketch) -> onnx.ModelProto:
    start = s.one("float32", "int32", "int64", "float64", "float16", "uint8", "int8", "bool", "uint16")
    x = s.x(s.sizes(2), start) if start == "bool" else s.x(s.sizes(2), start, special=False)
    if start == "bool":
        s.feeds[x] = s.draw.random(s.feeds[x].shape) > 0.5
    elif s.chance(0.5) and s.feeds[x].size:
        big = {"f": 70000.3, "i": 2**7 - 1, "u": 255}[np.dtype(start).kind]
        if start in ("int32", "int64"):
            big = 2**31 - 1 if start == "int32" else 2**53 + 1
        with np.errstate(over="ignore"):
            s.feeds[x] = np.array(np.full_like(s.feeds[x], big))
    for _ in range(int(s.draw.integers(1, 4))):
        to = s.one(
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.FLOAT16,
            onnx.TensorProto.INT32,
            onnx.TensorProto.INT64,
            onnx.TensorProto.DOUBLE,
            onnx.TensorProto.BOOL,
            onnx.TensorProto.UINT8,
            onnx.TensorProto.INT8,
            onnx.TensorProto.BFLOAT16,
        )
        x = s.op("Cast", x, to=to)
        if s.chance(0.2):
            x = s.op(s.one("Identity", "Transpose"), x)
    return s.model(s.op("Cast", x, to=onnx.TensorProto.DOUBLE))


@rule
def cast_before_shape(s: Sketch) -> onnx.ModelProto:
    x = s.op("Cast", s.x(s.sizes(3, 0), s.one("int64", "float32")), to=s.one(1, 6, 7, 10))
    more = {} if s.opset < 15 else s.one({}, {"start": 1}, {"start": -2, "end": -1}, {"end": -1})
    return s.model(s.op("Shape", x, **more), *([s.op("Neg", x)] if s.chance(0.3) else []))


@rule
def neutral(s: Sketch) -> onnx.ModelProto:
    """Adding 0, multiplying by 1."""
    kind = s.one(*ANY)
    shape = s.sizes(int(s.draw.integers(0, 3)), 0)
    x = s.op("Abs" if s.chance(0.5) else "Identity", s.x(shape, kind, special=True))
    op = s.one("Add", "Sub", "Mul", "Div")
    value = 0.0 if op in ("Add", "Sub") else 1.0
    if s.chance(0.1):
        value = s.one(-0.0, 0.0, 1.0, 2.0, -1.0)
        if kind[0] in "ui" and (op == "Div" or value < 0):
            value = 1.0
    c = single(s, len(shape), value, kind)
    if s.chance(0.15):
        c = s.c(np.zeros(s.one((0,), (0, 1), (1, 0))), kind)
    first = s.chance(0.3)
    y = s.op(op, *((c, x) if first and not (op == "Div" and kind[0] in "iu") else (x, c)))
    return s.model(s.op("Identity", s.op("Add", y, y)))


@rule
def reciprocal_product(s: Sketch) -> onnx.ModelProto:
    kind = s.one("float32", "float32", "float64", "float16", "int32", "int64")
    shape = s.sizes(int(s.draw.integers(0, 3)))
    x = s.x(shape, kind)
    if kind[0] == "i":
        s.feeds[x] = np.array(np.where(s.feeds[x] == 0, 3, s.feeds[x]))
    one = single(s, len(shape), s.one(1.0, 1.0, 1.0, 2.0), kind)
    y = s.op("Div", one, x)
    other = s.x(s.one(shape, [*shape[:-1], 1] if shape else [], [], [2, *shape]), kind, special=True)
    return s.model(s.op("Neg", s.either("Mul", y, s.one(other, other, other, y))))


@rule
def relu_clip(s: Sketch) -> onnx.ModelProto:
    kind = "float32" if s.opset < 12 or s.chance(0.5) else s.one("float64", "float16", "float32")
    x = s.op("Relu", s.op("Neg", s.x(s.sizes(2, 0), kind, special=True)))
    low, high = s.one(-1.0, 0.0, 0.5, -np.inf, None), s.one(-0.5, 0.25, 6.0, np.inf, None)
    inputs = ["" if value is None else s.c(value, kind) for value in (low, high)]
    while inputs and not inputs[-1]:
        inputs.pop()
    return s.model(s.op("Clip", x, *inputs))


def gemm_shapes(s: Sketch) -> tuple[int, int, int]:
    return s.size(4), s.size(4), s.size(4)


@rule
def gemm_sum(s: Sketch) -> onnx.ModelProto:
    m, k, n = gemm_shapes(s)
    if s.chance(0.1):
        k = 0
    kind = s.one("float32", "float32", "float64")
    inputs = [s.x((m, k), kind), s.c(s.numbers((k, n)), kind)]
    if s.chance(0.2):
        inputs.append(s.c(s.numbers((n,)), kind))
    y = s.op("Gemm", *inputs, alpha=s.one(1.0, 0.5), beta=s.one(1.0, 0.5))
    c = s.c(s.numbers(s.one((m, n), (n,), (1, n), (m, 1), (1,), (), (1, 1), (1, m, n), (2, m, n))), kind)
    terms = s.one((y, c), (c, y), (y, y), (y, c, c), (y,))
    return s.model(s.op("Neg", s.op("Sum", *terms)))


@rule
def gemm_transposes(s: Sketch) -> onnx.ModelProto:
    m, k, n = gemm_shapes(s)
    kind = s.one("float32", "float32", "float64")
    ta, tb = s.chance(0.4), s.chance(0.4)
    a, b = s.x((k, m) if ta else (m, k), kind), s.x((n, k) if tb else (k, n), kind)
    if s.chance(0.5):
        a = s.op("Transpose", s.x((m, k) if ta else (k, m), kind), **s.one({}, {"perm": [1, 0]}))
    if s.chance(0.5):
        b = s.op("Transpose", s.x((k, n) if tb else (n, k), kind), **s.one({}, {"perm": [1, 0]}))
    inputs = [a, b]
    if s.chance(0.5):
        inputs.append(s.c(s.numbers(s.one((m, n), (n,), (1, n), (m, 1), (1,), (), (1, 1))), kind))
    y = s.op("Gemm", *inputs, transA=int(ta), transB=int(tb), alpha=s.one(1.0, 0.5), beta=s.one(1.0, 2.0))
    if s.chance(0.5):
        y = s.op("Transpose", y, **s.one({}, {"perm": [1, 0]}, {"perm": [0, 1]}))
    return s.model(s.op("Neg", y))


@rule
def not_where(s: Sketch) -> onnx.ModelProto:
    shape = s.sizes(2)
    mask = s.op("Not", s.op("Greater", s.x(shape), s.c(0.0, "float32")))
    a, b = s.x(s.one(shape, [1, 1], [])), s.c(s.numbers(s.one((), (1,), shape, (2, 1, 1))))
    y = s.op("Where", mask, a, b)
    outputs = [y]
    if s.chance(0.4):
        outputs.append(s.op("Where", s.one(mask, s.op("Not", mask)), b, a))
    return s.model(*outputs)


@rule
def matmul_batch_norm(s: Sketch) -> onnx.ModelProto:
    m, k, n = gemm_shapes(s)
    y = s.op("MatMul", s.x(s.one((m, k), (2, m, k))), s.c(s.numbers((k, n))))
    rank = len(s.feeds["x1"].shape)
    between = s.one("", "Reshape", "Transpose")
    features = n if rank == 2 else m
    if between == "Transpose":
        perm = list(s.draw.permutation(rank))
        y = s.op("Transpose", y, perm=[int(axis) for axis in perm])
        features = [2, m, n][-rank:][perm[1]]
    elif between == "Reshape":
        target, features = s.one(
            ([-1, n], n), ([m * (rank - 1), n, 1, 1], n), ([-1, 1], 1), ([1, -1], m * n * (rank - 1))
        )
        y = s.op("Reshape", y, s.c(target, "int64", fixed=True))
    values = [s.c(s.numbers((features,))) for _ in range(3)]
    spread = s.c(np.abs(s.numbers((features,))) + 0.1)
    return s.model(s.op("Neg", s.op("BatchNormalization", y, *values, spread, epsilon=s.one(1e-5, 0.1))))


@rule
def label_encoders(s: Sketch) -> onnx.ModelProto:
    s.ml = s.one(2, 4)
    x = s.x((), array=s.draw.integers(0, 5, (4,)))
    first = s.op(
        "LabelEncoder",
        x,
        domain="ai.onnx.ml",
        keys_int64s=[0, 1, 2],
        values_int64s=s.one([5, 6, 7], [5, 5, -1]),
        default_int64=s.one(-1, 5, 3),
    )
    second = s.op(
        "LabelEncoder",
        first,
        domain="ai.onnx.ml",
        keys_int64s=s.one([5, 6, 7], [5, -1, 7], [6, 3, 5]),
        values_int64s=[1, 2, 3],
        default_int64=s.one(-1, 9),
    )
    return s.model(second)


@rule
def shared_constants(s: Sketch) -> onnx.ModelProto:
    """Numbers that are equal, or nearly."""
    kind = s.one("float32", "float32", "float64", "float16", "int64", "int32")
    values = s.one((0.0, -0.0), (-0.0, 0.0), (1.0, 1.0), (np.nan, 1.0), (np.nan, np.nan), (np.inf, -np.inf))
    if kind[0] == "i":
        values = s.one((1, 1), (2**31 - 1, 2**31 - 1), (0, 0))
    x = s.x((2,), kind)
    made = []
    for value in values:
        c = s.c(np.full(s.one((), (1,)), value), kind)
        if kind[0] == "i":
            made.append(s.op("Add", x, c))
        else:
            made.append(s.op("Div", s.op("Abs", x), c))
            made.append(s.op("Max", x, c))
    return s.model(*made)


@rule
def common_parts(s: Sketch) -> onnx.ModelProto:
    """Nodes that are alike, or nearly."""
    x = s.x((3, 4), special=True)
    made = []
    what = s.draw.integers(8)
    s.opset = max(s.opset, 13)
    for turn in range(2):
        if what == 0:
            made.append(s.op("LeakyRelu", x, alpha=s.one(0.1, 0.2)))
        elif what == 1:
            made += s.ops("TopK", 2, x, s.c([2], "int64"), largest=s.one(0, 1), axis=s.one(0, -1, 1))
        elif what == 2:
            made.append(s.op("ReduceSum", x, keepdims=s.one(0, 1)))
        elif what == 3:
            made.append(s.op("Cast", x, to=s.one(1, 11, 10)))
        elif what == 4:
            made += s.ops("Split", 2, x, axis=s.one(0, 1) if s.opset < 13 else 1)
        elif what == 5:
            made.append(s.op("Sub", *s.one((x, s.op("Neg", x)), (s.op("Neg", x), x))))
        elif what == 6:
            made.append(s.op("Clip", x, *s.one(("", s.c(1.0, "float32")), (s.c(1.0, "float32"),))))
        else:
            made.append(s.op("RandomNormalLike", x, **s.one({}, {"seed": 2.0})))
            if turn:
                made = [s.op("Cast", s.op("Equal", *made), to=1)]
    return s.model(*made)


@rule
def folded(s: Sketch) -> onnx.ModelProto:
    """Operators of constants, which are computed when the session is created."""
    kind = s.one("float32", "float32", "float64", "float16", "int32", "int64")
    shape = s.sizes(2, 0)
    c = s.c(s.numbers(shape, kind, special=True), fixed=s.chance(0.8))
    op = s.one(
        "Neg",
        "Abs",
        "Sign",
        "Sqrt",
        "Exp",
        "Reciprocal",
        "Ceil",
        "Floor",
        "Round",
        "Erf",
        "Cast",
        "Transpose",
        "ReduceMax",
        "ReduceMean",
        "ArgMax",
        "Mod",
        "Pow",
        "Min",
        "Where",
        "Shape",
        "Size",
        "ConstantOfShape",
        "Tile",
        "CumSum",
        "IsNaN",
        "Softmax",
        "QuantizeLinear",
        "Relu",
        "Clip",
        "NonZero",
        "OneHot",
        "Range",
        "BitShift",
        "Log",
        "Atan",
        "TopK",
        "Gather",
        "Concat",
    )
    simple = {
        "Neg",
        "Abs",
        "Sign",
        "Sqrt",
        "Exp",
        "Reciprocal",
        "Ceil",
        "Floor",
        "Round",
        "Erf",
        "IsNaN",
        "Relu",
        "Log",
        "Atan",
        "NonZero",
    }
    if op in simple or op in ("Shape", "Size", "Transpose"):
        y = s.op(op, c)
    elif op == "Cast":
        y = s.op(op, c, to=s.one(1, 6, 7, 9, 10, 11, 2, 3, 16))
        y = s.op(op, y, to=1)
    elif op in ("ReduceMax", "ReduceMean"):
        y = s.axes(op, c, [s.one(0, 1, -1)], since=18, keepdims=s.one(0, 1))
    elif op in ("ArgMax", "Softmax"):
        y = s.op(op, c, axis=s.one(0, 1, -1))
    elif op == "Mod":
        y = s.op(op, c, s.c(np.asarray(3), kind, fixed=True), fmod=int(kind[0] == "f"))
    elif op in ("Pow", "Min"):
        y = s.op(op, c, s.c(s.numbers((1, shape[1]), kind, special=True)))
    elif op == "Where":
        y = s.op(op, s.op("Equal", c, c), c, s.c(np.zeros(()), kind))
    elif op == "ConstantOfShape":
        y = s.op("ConstantOfShape", s.op("Shape", c))
    elif op == "Tile":
        y = s.op(op, c, s.c([2, s.one(0, 1, 2)], "int64"))
    elif op == "CumSum":
        y = s.op(op, c, s.c(s.one(0, 1, -1), "int64"), reverse=s.one(0, 1), exclusive=s.one(0, 1))
    elif op == "QuantizeLinear":
        y = s.op(
            "DequantizeLinear", s.op(op, c, s.c(0.1, "float32"), s.c(3, "uint8")), s.c(0.1, "float32"), s.c(3, "uint8")
        )
    elif op == "Clip":
        y = s.op(op, c, s.c(-1, kind), s.c(1, kind))
    elif op == "OneHot":
        y = s.op(op, s.c([0, 2, -1, 5], "int64"), s.c(3, "int64"), s.c([0.5, 2.0], "float32"))
    elif op == "Range":
        y = s.op(op, s.c(0, "int64"), s.c(s.one(0, 5), "int64"), s.c(2, "int64"))
    elif op == "BitShift":
        y = s.op(op, s.c([1, 2, 255], "uint8"), s.c([1, 7, 3], "uint8"), direction=s.one("LEFT", "RIGHT"))
    elif op == "TopK":
        y = s.ops(op, 2, c, s.c([min(1, shape[1])], "int64"))[0]
    elif op == "Gather":
        y = s.op(op, c, s.c(s.one([-1], [0, 0], -1), "int64"), axis=s.one(0, 1))
    else:
        y = s.op(op, c, c, axis=s.one(0, 1, -1))
    return s.model(s.op("Identity", y), *([s.op("Neg", s.x((2,)))] if s.chance(0.5) else []))


@rule
def folded_shapes(s: Sketch) -> onnx.ModelProto:
    """Sizes that are computed, and partly known."""
    shape = s.sizes(3, 0)
    x = s.x(shape)
    more = {} if s.opset < 15 else s.one({}, {"start": -1}, {"start": 1, "end": 9}, {"start": 2, "end": 1}, {"end": -2})
    size = s.op("Shape", x, **more)
    y = s.op(s.one("ReduceProd", "ReduceSum") if s.opset < 13 else "ReduceProd", size, keepdims=s.one(0, 1))
    z = s.op("Gather", s.op("Shape", x), s.c(s.one(0, [-1], [1, 0], 2), "int64"))
    w = s.op(s.one("Add", "Mul", "Sub"), z, s.c(s.one(1, 0, -2), "int64"))
    return s.model(size, y, w, s.op("Cast", w, to=1))


@rule
def branches(s: Sketch) -> onnx.ModelProto:
    """An If whose condition is a constant, which is replaced by a branch."""
    x = s.x(s.sizes(2), special=True)
    c = s.c(s.numbers((1,)))

    def branch(op: str, read: str) -> onnx.GraphProto:
        nodes = [helper.make_node("Neg", [x], ["inner"]), helper.make_node(op, ["inner", read], ["out"])]
        return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("out", 1, None)])

    flag = s.c(s.one(True, False), fixed=s.chance(0.8))
    if s.chance(0.3):
        flag = s.op("Not", flag)
    y = s.op("If", flag, then_branch=branch("Add", c), else_branch=branch("Mul", c))
    z = s.op("If", s.c(s.one(True, False)), then_branch=branch("Sub", y), else_branch=branch("Add", x))
    return s.model(y, z)
