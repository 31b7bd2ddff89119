"""Draws of elementwise functions, reductions, products and random numbers for opset_cases.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from opset_cases import Draw, Drawn, floating

__all__ = ["MATH"]

Drawing = Callable[[Draw], Drawn]


def unary(low: float = -3, high: float = 3, **attributes: Any) -> Drawing:
    def drawing(draw: Draw) -> Drawn:
        kind = draw.kind(common=1 if draw.operator == "Shrink" else 0.65)
        x = draw.array(draw.shape(0), kind, low, high)
        if (
            kind.kind == "f"
            and x.size
            and draw.operator in ("IsNaN", "IsInf", "Sign", "Relu", "Abs", "Neg", "Identity")
        ):
            # The sign of NaN is defined by no sentence.
            x.flat[0] = draw.one_of(np.inf, -np.inf, np.inf if draw.operator == "Sign" else np.nan)
        return Drawn(inputs=[x], attributes=draw.some(**attributes))

    return drawing


def broadcast(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that numpy broadcasts to one."""
    whole = list(draw.shape(0))
    sides = []
    for _ in range(2):
        side = [1 if draw.chance(0.25) else size for size in whole]
        sides.append(tuple(side[draw.whole(0, len(side)) if draw.chance(0.4) else 0 :]))
    return sides[0], sides[1]


def pair(low: float = -3, high: float = 3, second: tuple[float, float] | None = None, same: bool = True) -> Drawing:
    def drawing(draw: Draw) -> Drawn:
        left, right = broadcast(draw)
        kind = draw.kind()
        other = kind if same or draw.chance(0.6) else draw.kind(1)
        y = draw.array(right, other, *(second or (low, high)))
        if draw.operator in ("Div", "Mod"):
            y = np.where(y == 0, np.array(1, other), y).astype(other)
        stored = frozenset({1}) if draw.chance(0.3) else frozenset()
        return Drawn(inputs=[draw.array(left, kind, low, high), y], stored=stored)

    return drawing


def modulo(draw: Draw) -> Drawn:
    drawn = pair()(draw)
    fmod = floating(drawn.inputs[0].dtype) or draw.chance(0.3)
    return Drawn(inputs=drawn.inputs, attributes={"fmod": 1} if fmod else {})


def power(draw: Draw) -> Drawn:
    left, right = broadcast(draw)
    x = draw.array(left, draw.kind(), 1, 3)
    y = draw.array(right, x.dtype if draw.since < 12 or draw.chance(0.6) else draw.kind(1), 0, 3)
    return Drawn(inputs=[x, y])


def shift(draw: Draw) -> Drawn:
    left, right = broadcast(draw)
    kind = draw.one_of("uint8", "uint16", "uint32", "uint64")
    direction = draw.one_of("LEFT", "RIGHT")
    return Drawn(
        inputs=[draw.array(left, kind, 0, 100), draw.array(right, kind, 0, 6)], attributes={"direction": direction}
    )


def several(draw: Draw) -> Drawn:
    """Sum, Max, Min, Mean: before opset 8 of equal shapes."""
    kind, first = draw.kind(), broadcast(draw)
    shapes = first if draw.since >= 8 else (first[0],) * draw.whole(1, 3)
    return Drawn(inputs=[draw.array(shape, kind) for shape in shapes[: draw.whole(1, len(shapes))]])


def slope(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4)
    small = tuple(1 if draw.chance(0.3) else size for size in shape)[draw.whole(0, len(shape) - 1) :]
    kind = draw.kind()
    return Drawn(inputs=[draw.array(shape, kind), draw.array(small, kind)], stored=frozenset({1}))


def where(draw: Draw) -> Drawn:
    left, right = broadcast(draw)
    kind = draw.kind(1)
    return Drawn(inputs=[draw.array(left, "bool"), draw.array(right, kind), draw.array(left, kind)])


def reduction(draw: Draw) -> Drawn:
    # Of integers the mean and the functions of floating-point numbers are defined by no sentence of ONNX.
    kind = draw.kind()
    while draw.operator not in _WHOLE_REDUCTIONS and not floating(kind):
        kind = draw.kind()
    shape = draw.shape(1, 4)
    low, high = (0.5, 2) if "Log" in draw.operator or draw.operator == "ReduceProd" else (-3, 3)
    x = draw.array(shape, kind, low, high)
    attributes = draw.some(keepdims=draw.whole(0, 1))
    # ONNX Runtime returns the input's shape where the input is empty.
    exact = x.size == 0
    axes = draw.axes(len(shape)) if draw.chance(0.75) else None
    if "axes" in draw.schema.attributes:
        return Drawn(inputs=[x], attributes={**attributes, **({} if axes is None else {"axes": axes})}, exact=exact)
    attributes |= draw.some(noop_with_empty_axes=draw.whole(0, 1))
    if axes is None:
        form = draw.whole(0, 2)
        given = [[x], [x, np.array([], np.int64)], [x]][form]
        stored = frozenset({1}) if form == 1 else frozenset()
        return Drawn(inputs=given, attributes=attributes, stored=stored, exact=exact)
    return Drawn(inputs=[x, np.array(axes, np.int64)], attributes=attributes, stored=frozenset({1}), exact=exact)


_WHOLE_REDUCTIONS = {f"Reduce{name}" for name in ("L1", "Max", "Min", "Prod", "Sum", "SumSquare")}


def position(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    x = draw.whole_array(shape, -2, 2, draw.kind(but=("bool",))) if draw.chance() else draw.array(shape)
    if x.dtype.kind == "u":
        x = np.abs(x)
    attributes = draw.some(axis=draw.axis(len(shape)), keepdims=draw.whole(0, 1), select_last_index=draw.whole(0, 1))
    return Drawn(inputs=[x], attributes=attributes)


def softmax(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4)
    # Of other types ONNX's reference answers, which has no definition from before opset 13.
    x = draw.array(shape, draw.kind() if draw.since >= 13 else "float32", *draw.one_of((-3, 3), (-60, 60)))
    if draw.operator == "Hardmax" and draw.chance(0.3):
        x = np.round(x)
    default = len(shape) > 1 or draw.since >= 13
    attributes = {} if default and draw.chance(0.25) else {"axis": draw.axis(len(shape))}
    return Drawn(inputs=[x], attributes=attributes)


def product(draw: Draw) -> Drawn:
    m, k, n = draw.size(), draw.size(), draw.size()
    kind = draw.kind()
    batch = draw.shape(0, 2)
    left, right = draw.one_of(
        ((m, k), (k, n)),
        ((*batch, m, k), (*batch, k, n)),
        ((*batch, m, k), (k, n)),
        ((k,), (k, n)),
        ((m, k), (k,)),
        ((k,), (k,)),
    )
    return Drawn(
        inputs=[draw.array(left, kind), draw.array(right, kind)], stored=frozenset({1} if draw.chance() else ())
    )


def gemm(draw: Draw) -> Drawn:
    m, k, n = draw.size(), draw.size(empty=0), draw.size()  # without a product ONNX Runtime ignores beta
    kind = draw.kind()
    attributes = draw.some(
        alpha=0.5 if floating(kind) else 3.0, beta=2.0, transA=draw.whole(0, 1), transB=draw.whole(0, 1)
    )
    a = (k, m) if attributes.get("transA") else (m, k)
    b = (n, k) if attributes.get("transB") else (k, n)
    c = draw.one_of((n,), (m, n), (1, n), (m, 1), (), (1,))
    inputs = [draw.array(a, kind), draw.array(b, kind), draw.array(c, kind)]
    return Drawn(inputs=inputs[: 2 if draw.since >= 11 and draw.chance(0.3) else 3], attributes=attributes)


def einsum(draw: Draw) -> Drawn:
    a, b, c = draw.size(), draw.size(), draw.size()
    equation, shapes = draw.one_of(
        ("ij,jk->ik", ((a, b), (b, c))),
        ("ij->ji", ((a, b),)),
        ("ij->", ((a, b),)),
        ("bij,bjk", ((2, a, b), (2, b, c))),
        ("i,j->ij", ((a,), (b,))),
        ("...ij,...j->...i", ((2, a, b), (2, b))),
        ("ii->i", ((a, a),)),
    )
    return Drawn(
        inputs=[draw.array(shape, draw.one_of("float32", "float64")) for shape in shapes[:1]]
        + [draw.array(shape) for shape in shapes[1:]]
        if len(shapes) == 1
        else [draw.array(shape) for shape in shapes],
        attributes={"equation": equation},
    )


def determinant(draw: Draw) -> Drawn:
    n = draw.whole(1, 4)
    return Drawn(inputs=[draw.array((*draw.shape(0, 2), n, n), draw.kind())])


def cast(draw: Draw) -> Drawn:
    kinds = ["float32", "float64", "float16", "int32", "int64", "uint8", "int8", "bool", "int16", "uint32", "uint16"]
    kinds += ["uint64", *([ml_dtypes.bfloat16] if draw.since >= 13 else [])]
    source, goal = draw.one_of(*kinds), draw.one_of(*kinds)
    x = (
        draw.array(draw.shape(0), source, 0, 100)
        if np.dtype(goal).kind == "u"
        else draw.array(draw.shape(0), source, -100, 100)
    )
    if draw.operator == "CastLike":
        return Drawn(inputs=[x, np.ones(2, goal)])
    import onnx

    return Drawn(inputs=[x], attributes={"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(goal))})


def bitcast(draw: Draw) -> Drawn:
    import onnx

    x = draw.array(draw.shape(0), "float32")
    return Drawn(inputs=[x], attributes={"to": onnx.TensorProto.INT32})


def clip(draw: Draw) -> Drawn:
    kind = draw.kind()
    x = draw.array(draw.shape(0), kind)
    if draw.since < 11:
        return Drawn(inputs=[x], attributes=draw.some(min=draw.one_of(-1.5, 0.1, -3.4028234663852886e38), max=0.7))
    low = draw.one_of(None, np.array(0 if kind.kind == "u" else -1, kind))
    high = draw.one_of(None, np.array(2, kind))
    return Drawn(inputs=[x, low, high], stored=frozenset({1, 2} if draw.chance(0.6) else ()))


def cumulative(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4)
    axis = np.array(draw.whole(-len(shape), len(shape) - 1), draw.one_of("int32", "int64"))
    attributes = draw.some(exclusive=draw.whole(0, 1), reverse=draw.whole(0, 1))
    return Drawn(inputs=[draw.array(shape, draw.kind(), 0.5, 2), axis], attributes=attributes, stored=frozenset({1}))


def like(draw: Draw) -> Drawn:
    return Drawn(inputs=[draw.array(draw.shape(1, 3), "float32", 0, 1)], attributes=draw.some(seed=1.0), random=True)


def random_of_shape(draw: Draw) -> Drawn:
    return Drawn(inputs=[], attributes={"shape": draw.shape(1, 3), **draw.some(seed=1.0)}, random=True)


def multinomial(draw: Draw) -> Drawn:
    x = draw.array((draw.whole(1, 3), draw.whole(1, 5)))
    return Drawn(inputs=[x], attributes=draw.some(sample_size=draw.whole(1, 4), dtype=draw.one_of(6, 7)), random=True)


def span(draw: Draw) -> Drawn:
    kind = draw.one_of("int64", "int32", "float32", "float64")
    start, step = draw.whole(-3, 3), draw.one_of(-2, -1, 1, 2, 3)
    count = draw.whole(0, 5)
    values = [np.array(each, kind) for each in (start, start + step * count, step)]
    return Drawn(inputs=values, stored=frozenset({0, 1, 2} if draw.chance() else ()))


def gated(draw: Draw) -> Drawn:
    shape = draw.shape(2, 3, empty=0)
    shape = (*shape[:-1], 2 * shape[-1])
    return Drawn(inputs=[draw.array(shape)])


_DOMAIN = {
    "Acos": (-1, 1),
    "Acosh": (1, 3),
    "Asin": (-1, 1),
    "Atanh": (-0.9, 0.9),
    "Log": (0.1, 3),
    "Sqrt": (0, 3),
    "Reciprocal": (1, 3),
    "Tan": (-1, 1),
    "Erf": (-2, 2),
}
_UNARY = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitwiseNot",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "HardSwish",
    "Identity",
    "IsNaN",
    "Log",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
)
_PAIRS = (
    "Add",
    "And",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Mul",
    "Or",
    "Sub",
    "Xor",
)
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

MATH: dict[str, Drawing] = {
    **{name: unary(*_DOMAIN.get(name, (-3, 3))) for name in _UNARY},
    **{name: pair() for name in _PAIRS},
    **{f"Reduce{name}": reduction for name in _REDUCTIONS},
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), position),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), several),
    **dict.fromkeys(("CumProd", "CumSum"), cumulative),
    **dict.fromkeys(("Bernoulli", "RandomNormalLike", "RandomUniformLike"), like),
    **dict.fromkeys(("RandomNormal", "RandomUniform"), random_of_shape),
    "BitCast": bitcast,
    "BitShift": shift,
    "Cast": cast,
    "CastLike": cast,
    "Celu": unary(alpha=0.7),
    "Clip": clip,
    "Det": determinant,
    "Einsum": einsum,
    "Elu": unary(alpha=0.5),
    "Gelu": unary(approximate="tanh"),
    "Gemm": gemm,
    "HardSigmoid": unary(alpha=0.3, beta=0.4),
    "IsInf": unary(detect_negative=0, detect_positive=0),
    "LeakyRelu": unary(alpha=0.2),
    "MatMul": product,
    "Mod": modulo,
    "Multinomial": multinomial,
    "PRelu": slope,
    "Pow": power,
    "Range": span,
    "Selu": unary(alpha=1.5, gamma=1.1),
    "Shrink": unary(bias=0.5, lambd=1.0),
    "SwiGLU": gated,
    "Swish": unary(alpha=1.5),
    "ThresholdedRelu": unary(alpha=0.5),
    "Where": where,
}
