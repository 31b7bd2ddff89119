"""Every elementwise, reducing and moving operator with a gradient rule, in the API of PyTorch, JAX and TensorFlow.

Each row computes one function four times: as an ONNX node, and natively in each framework, whose own gradients then
check deep5's rule. A framework is None in a row where its subgradient at a kink or a tie differs from deep5's; the row
states which, and the other rows of the operator avoid that point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks import NetworkBuilder

__all__ = ["ELEMENTS", "Function", "Row", "drawn", "ints", "number"]

END = np.iinfo(np.int64).max
Function = Callable[..., Any]


class Row(NamedTuple):
    """One function and where it is differentiated.

    Attributes:
        given: The values to differentiate by: arrays, or shapes of arrays to draw from a normal distribution.
        onnx: Takes the builder and the values.
        pytorch: Takes `torch` and the values.
        jax: Takes `jax` and the values.
        tensorflow: Takes `tensorflow` and the values.
    """

    given: tuple[tuple[int, ...] | np.ndarray, ...]
    onnx: Function
    pytorch: Function | None
    jax: Function | None
    tensorflow: Function | None


def ints(build: NetworkBuilder, *values: int) -> ir.Value:
    """A vector of integers, such as axes."""
    return build.op("Constant", value=ir.tensor(np.array(values, np.int64)))


def number(build: NetworkBuilder, value: Any) -> ir.Value:
    """A constant with the array's type; a Python float becomes a float64 scalar."""
    return build.op("Constant", value=ir.tensor(np.asarray(value)))


def drawn(seed: int, *shape: int, low: float = 0.5, high: float = 2.0) -> np.ndarray:
    """Values between two bounds, for functions that are not defined, or not smooth, everywhere."""
    return np.random.default_rng(seed).uniform(low, high, shape)


def unary(
    op: str, pytorch: Function, jax: Function, tensorflow: Function, *points: Any, shapes: Any = None, **attributes: Any
) -> list[Row]:
    """Rows of a function of one value: two shapes and a scalar, and special points."""

    def onnx(build: Any, x: Any) -> Any:
        return build.op(op, x, **attributes)

    given = [*(shapes or [(3, 4), (2, 1, 5), ()]), *map(np.array, points)]
    return [Row((x,), onnx, pytorch, jax, tensorflow) for x in given]


# (3, 4) with itself, with shapes that broadcast against it on either side, and a scalar
PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (2, 1, 4)),
    ((), (2, 3)),
]


def binary(
    op: str, pytorch: Function, jax: Function, tensorflow: Function, *, ties: list[Row] | None = None
) -> list[Row]:
    """Rows of a function of two values under broadcasting, away from zero."""

    def onnx(build: Any, a: Any, c: Any) -> Any:
        return build.op(op, a, c)

    rows = [Row((drawn(1, *a), drawn(2, *c)), onnx, pytorch, jax, tensorflow) for a, c in PAIRS]
    return rows + (ties or [])


def tensorflow_gelu(tf: Any, x: Any, tanh: bool) -> Any:
    """`tf.nn.gelu` rounds its constants to float32 before it computes in float64; these are rounded to float64."""
    if tanh:
        return 0.5 * x * (1.0 + tf.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + tf.math.erf(np.sqrt(0.5) * x))


# Zero, both signs of it, and the saturated ends.
ZEROS, WIDE = [-1.0, 0.0, 1.0, -0.0], np.linspace(-9.0, 9.0, 36).reshape(3, 12)
POSITIVE = [drawn(3, 3, 4), drawn(4, 2, 1, 5), drawn(5)]
SAME = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])

FUNCTIONS: dict[str, list[Row]] = {
    "Abs": [
        *unary("Abs", lambda m, x: m.abs(x), lambda m, x: m.numpy.abs(x), lambda m, x: m.abs(x), WIDE),
        # at 0 deep5, PyTorch and TensorFlow take the slope 0, JAX the one on the right
        Row((np.array(ZEROS),), lambda b, x: b.op("Abs", x), lambda m, x: m.abs(x), None, lambda m, x: m.abs(x)),
    ],
    "Cos": unary("Cos", lambda m, x: m.cos(x), lambda m, x: m.numpy.cos(x), lambda m, x: m.cos(x), ZEROS, WIDE),
    "Elu": [
        *unary("Elu", lambda m, x: m.nn.functional.elu(x), lambda m, x: m.nn.elu(x), lambda m, x: m.nn.elu(x), ZEROS),
        *unary(
            "Elu",
            lambda m, x: m.nn.functional.elu(x, 1.5),
            lambda m, x: m.nn.elu(x, 1.5),
            lambda m, x: m.where(x > 0.0, x, 1.5 * m.math.expm1(x)),
            WIDE,
            alpha=1.5,
        ),
    ],
    "Erf": unary("Erf", lambda m, x: m.erf(x), lambda m, x: m.lax.erf(x), lambda m, x: m.math.erf(x), ZEROS, WIDE),
    "Exp": unary("Exp", lambda m, x: m.exp(x), lambda m, x: m.numpy.exp(x), lambda m, x: m.exp(x), ZEROS),
    "Gelu": [
        row
        for tanh in (False, True)
        for row in unary(
            "Gelu",
            lambda m, x, how="tanh" if tanh else "none": m.nn.functional.gelu(x, approximate=how),
            lambda m, x, tanh=tanh: m.nn.gelu(x, approximate=tanh),
            lambda m, x, tanh=tanh: tensorflow_gelu(m, x, tanh),
            ZEROS,
            WIDE,
            approximate="tanh" if tanh else "none",
        )
    ],
    "HardSigmoid": unary(
        "HardSigmoid",
        lambda m, x: m.clamp(0.25 * x + 0.375, 0.0, 1.0),
        lambda m, x: m.numpy.clip(0.25 * x + 0.375, 0.0, 1.0),
        lambda m, x: m.clip_by_value(0.25 * x + 0.375, 0.0, 1.0),
        WIDE,
        alpha=0.25,
        beta=0.375,
    ),
    "HardSwish": unary(
        "HardSwish",
        lambda m, x: m.nn.functional.hardswish(x),
        lambda m, x: m.nn.hard_swish(x),
        lambda m, x: x * m.nn.relu6(x + 3.0) / 6.0,
        [-3.0, 3.0, *ZEROS],
        WIDE,
    ),
    "Identity": unary("Identity", lambda m, x: x * 1.0, lambda m, x: m.numpy.array(x), lambda m, x: m.identity(x)),
    "LeakyRelu": [
        *unary(
            "LeakyRelu",
            lambda m, x: m.nn.functional.leaky_relu(x, 0.25),
            lambda m, x: m.nn.leaky_relu(x, 0.25),
            lambda m, x: m.nn.leaky_relu(x, 0.25),
            WIDE,
            alpha=0.25,
        ),
        Row(  # at 0 deep5, PyTorch and TensorFlow take the slope on the left, JAX the one on the right
            (np.array(ZEROS),),
            lambda b, x: b.op("LeakyRelu", x, alpha=0.125),
            lambda m, x: m.nn.functional.leaky_relu(x, 0.125),
            None,
            lambda m, x: m.nn.leaky_relu(x, 0.125),
        ),
    ],
    "Log": unary(
        "Log", lambda m, x: m.log(x), lambda m, x: m.numpy.log(x), lambda m, x: m.math.log(x), shapes=POSITIVE
    ),
    "LogSoftmax": [
        row
        for axis in (-1, 0)
        for row in unary(
            "LogSoftmax",
            lambda m, x, axis=axis: m.log_softmax(x, axis),
            lambda m, x, axis=axis: m.nn.log_softmax(x, axis),
            lambda m, x, axis=axis: m.nn.log_softmax(x, axis),
            SAME,
            shapes=[(3, 4), (2, 3, 5)],
            axis=axis,
        )
    ],
    "Neg": unary("Neg", lambda m, x: m.neg(x), lambda m, x: m.numpy.negative(x), lambda m, x: m.negative(x)),
    "Reciprocal": unary(
        "Reciprocal",
        lambda m, x: m.reciprocal(x),
        lambda m, x: m.numpy.reciprocal(x),
        lambda m, x: m.math.reciprocal(x),
        [-1.0, -0.25, 4.0],
        shapes=POSITIVE,
    ),
    "Relu": unary("Relu", lambda m, x: m.relu(x), lambda m, x: m.nn.relu(x), lambda m, x: m.nn.relu(x), ZEROS),
    "Sigmoid": unary(
        "Sigmoid", lambda m, x: m.sigmoid(x), lambda m, x: m.nn.sigmoid(x), lambda m, x: m.sigmoid(x), ZEROS, WIDE
    ),
    "Sin": unary("Sin", lambda m, x: m.sin(x), lambda m, x: m.numpy.sin(x), lambda m, x: m.sin(x), ZEROS, WIDE),
    "Softmax": [
        row
        for axis in (-1, 1)
        for row in unary(
            "Softmax",
            lambda m, x, axis=axis: m.softmax(x, axis),
            lambda m, x, axis=axis: m.nn.softmax(x, axis),
            lambda m, x, axis=axis: m.nn.softmax(x, axis),
            SAME,
            shapes=[(3, 4), (2, 3, 5)],
            axis=axis,
        )
    ],
    "Softplus": unary(
        "Softplus",
        lambda m, x: m.nn.functional.softplus(x, threshold=1e9),
        lambda m, x: m.nn.softplus(x),
        lambda m, x: m.nn.softplus(x),
        ZEROS,
        WIDE,
    ),
    "Sqrt": unary(
        "Sqrt", lambda m, x: m.sqrt(x), lambda m, x: m.numpy.sqrt(x), lambda m, x: m.sqrt(x), shapes=POSITIVE
    ),
    "Tanh": unary("Tanh", lambda m, x: m.tanh(x), lambda m, x: m.numpy.tanh(x), lambda m, x: m.tanh(x), ZEROS, WIDE),
}


def clip_row(x: Any, low: float | None, high: float | None, *, tie: bool = False) -> Row:
    """At a bound itself deep5, PyTorch and TensorFlow let the gradient through; JAX lets half of it."""

    def tensorflow(m: Any, x: Any) -> Any:
        return m.clip_by_value(x, -np.inf if low is None else low, np.inf if high is None else high)

    return Row(
        (x,),
        lambda b, x: b.op("Clip", x, *(None if bound is None else number(b, bound) for bound in (low, high))),
        lambda m, x: m.clamp(x, low, high),
        None if tie else lambda m, x: m.numpy.clip(x, low, high),
        tensorflow,
    )


def tie_row(op: str, pytorch: Function, jax: Function) -> Row:
    """Where both are equal deep5, PyTorch and JAX give each one half; TensorFlow gives all to the first."""
    values = np.array([1.0, 2.0, 0.0]), np.array([1.0, 0.0, 0.0])
    return Row(values, lambda b, a, c: b.op(op, a, c), pytorch, jax, None)


def extreme_rows(op: str, name: str) -> list[Row]:
    def pytorch(m: Any, a: Any, c: Any) -> Any:
        return getattr(m, name)(a, c)

    def jax(m: Any, a: Any, c: Any) -> Any:
        return getattr(m.numpy, name)(a, c)

    def three(fold: Function) -> Function:
        return lambda m, a, c, e: fold(m, fold(m, a, c), e)

    many = Row(
        ((3, 1), (4,), (2, 1, 1)),
        lambda b, a, c, e: b.op(op, a, c, e),
        three(pytorch),
        three(jax),
        three(pytorch),
    )
    return [*binary(op, pytorch, jax, pytorch, ties=[tie_row(op, pytorch, jax)]), many]


def power_row(x: Any, exponent: float) -> Row:
    return Row(
        (x,),
        lambda b, x: b.op("Pow", x, number(b, exponent)),
        lambda m, x: m.pow(x, exponent),
        lambda m, x: m.numpy.power(x, exponent),
        lambda m, x: m.pow(x, exponent),
    )


def where_row(condition: np.ndarray, a: tuple[int, ...], c: tuple[int, ...]) -> Row:
    return Row(
        (a, c),
        lambda b, a, c: b.op("Where", number(b, condition), a, c),
        lambda m, a, c: m.where(m.tensor(condition), a, c),
        lambda m, a, c: m.numpy.where(condition, a, c),
        lambda m, a, c: m.where(condition, a, c),
    )


def sum_row(*shapes: tuple[int, ...]) -> Row:
    def total(m: Any, *values: Any) -> Any:
        result = values[0] * 1.0
        for value in values[1:]:
            result = result + value
        return result

    return Row(shapes, lambda b, *values: b.op("Sum", *values), total, total, total)


ARITHMETIC: dict[str, list[Row]] = {
    "Add": binary("Add", lambda m, a, c: m.add(a, c), lambda m, a, c: m.numpy.add(a, c), lambda m, a, c: m.add(a, c)),
    "Clip": [
        *(clip_row((3, 5), low, high) for low, high in ((-0.5, 0.5), (None, 0.25), (-0.25, None))),
        clip_row(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), -1.0, 1.0, tie=True),
    ],
    "Div": binary(
        "Div", lambda m, a, c: m.div(a, c), lambda m, a, c: m.numpy.divide(a, c), lambda m, a, c: m.divide(a, c)
    ),
    "Max": extreme_rows("Max", "maximum"),
    "Min": extreme_rows("Min", "minimum"),
    "Mul": binary(
        "Mul", lambda m, a, c: m.mul(a, c), lambda m, a, c: m.numpy.multiply(a, c), lambda m, a, c: m.multiply(a, c)
    ),
    "Pow": [
        *binary("Pow", lambda m, a, c: m.pow(a, c), lambda m, a, c: m.numpy.power(a, c), lambda m, a, c: m.pow(a, c)),
        *(power_row((3, 4), exponent) for exponent in (2.0, 3.0, -1.0, 1.0)),
        *(power_row(np.array([0.0, -2.0, 2.0]), exponent) for exponent in (1.0, 2.0, 3.0)),
    ],
    "Sub": binary(
        "Sub", lambda m, a, c: m.sub(a, c), lambda m, a, c: m.numpy.subtract(a, c), lambda m, a, c: m.subtract(a, c)
    ),
    "Sum": [sum_row((2, 3), (3,), (2, 1)), sum_row((2, 3)), sum_row((), (2, 1, 3), (4, 1))],
    "Where": [
        where_row(np.array([True, False, False, True]), (3, 4), (3, 4)),
        where_row(np.array([[True], [False], [True]]), (4,), (3, 1)),
        where_row(np.array([True, False]), (), (2, 3, 2)),
    ],
}


def reduction_rows(op: str, pytorch: Function, jax: Function, tensorflow: Function, *ties: Any) -> list[Row]:
    """Each function takes the module, the value, a tuple of axes and whether to keep them."""
    rows = []
    settings = [((1,), 0), ((0, -1), 1), ((2, -3), 0), (None, 1)]
    cases: list[tuple[Any, Any, int]] = [((2, 3, 4), axes, keep) for axes, keep in settings]
    for x, axes, keep in [*cases, *((tie, (1,), 0) for tie in ties)]:
        of_all = axes or (0, 1, 2)
        rows.append(
            Row(
                (x,),
                lambda b, x, axes=axes, keep=keep: b.op(
                    op, x, *([] if axes is None else [ints(b, *axes)]), keepdims=keep
                ),
                *(
                    lambda m, x, f=function, axes=of_all, keep=keep: f(m, x, axes, bool(keep))
                    for function in (pytorch, jax, tensorflow)
                ),
            )
        )
    return rows


REDUCTIONS: dict[str, list[Row]] = {
    "ReduceL2": [
        *reduction_rows(
            "ReduceL2",
            lambda m, x, axes, keep: m.linalg.vector_norm(x, dim=axes, keepdim=keep),
            lambda m, x, axes, keep: m.numpy.sqrt(m.numpy.sum(x * x, axes, keepdims=keep)),
            lambda m, x, axes, keep: m.sqrt(m.reduce_sum(m.square(x), axes, keep)),
        ),
        Row(  # for a zero vector deep5 and PyTorch give 0; the roots of JAX and TensorFlow give NaN
            (np.array([[0.0, 0.0], [3.0, 4.0]]),),
            lambda b, x: b.op("ReduceL2", x, ints(b, 1)),
            lambda m, x: m.linalg.vector_norm(x, dim=1, keepdim=True),
            None,
            None,
        ),
    ],
    "ReduceMax": reduction_rows(
        "ReduceMax",
        lambda m, x, axes, keep: m.amax(x, axes, keep),
        lambda m, x, axes, keep: m.numpy.max(x, axes, keepdims=keep),
        lambda m, x, axes, keep: m.reduce_max(x, axes, keep),
        SAME,
    ),
    "ReduceMean": reduction_rows(
        "ReduceMean",
        lambda m, x, axes, keep: m.mean(x, axes, keep),
        lambda m, x, axes, keep: m.numpy.mean(x, axes, keepdims=keep),
        lambda m, x, axes, keep: m.reduce_mean(x, axes, keep),
    ),
    "ReduceMin": reduction_rows(
        "ReduceMin",
        lambda m, x, axes, keep: m.amin(x, axes, keep),
        lambda m, x, axes, keep: m.numpy.min(x, axes, keepdims=keep),
        lambda m, x, axes, keep: m.reduce_min(x, axes, keep),
        SAME,
    ),
    "ReduceSum": reduction_rows(
        "ReduceSum",
        lambda m, x, axes, keep: m.sum(x, axes, keep),
        lambda m, x, axes, keep: m.numpy.sum(x, axes, keepdims=keep),
        lambda m, x, axes, keep: m.reduce_sum(x, axes, keep),
    ),
    "ReduceSumSquare": reduction_rows(
        "ReduceSumSquare",
        lambda m, x, axes, keep: m.sum(m.square(x), axes, keep),
        lambda m, x, axes, keep: m.numpy.sum(m.numpy.square(x), axes, keepdims=keep),
        lambda m, x, axes, keep: m.reduce_sum(m.square(x), axes, keep),
        np.zeros((2, 3)),
    ),
}


def shaped(op: str, x: tuple[int, ...], to: tuple[int, ...], *rest: tuple[int, ...], **attributes: Any) -> Row:
    """A row of an operator that changes the shape of the elements."""
    return Row(
        (x,),
        lambda b, x: b.op(op, x, *(ints(b, *values) for values in rest), **attributes),
        lambda m, x: m.reshape(x, to),
        lambda m, x: m.numpy.reshape(x, to),
        lambda m, x: m.reshape(x, to),
    )


def expand_row(x: tuple[int, ...], to: tuple[int, ...], result: tuple[int, ...]) -> Row:
    return Row(
        (x,),
        lambda b, x: b.op("Expand", x, ints(b, *to)),
        lambda m, x: m.broadcast_to(x, result),
        lambda m, x: m.numpy.broadcast_to(x, result),
        lambda m, x: m.broadcast_to(x, result),
    )


def tile_row(x: tuple[int, ...], repeats: tuple[int, ...]) -> Row:
    return Row(
        (x,),
        lambda b, x: b.op("Tile", x, ints(b, *repeats)),
        lambda m, x: m.tile(x, repeats),
        lambda m, x: m.numpy.tile(x, repeats),
        lambda m, x: m.tile(x, repeats),
    )


def transpose_row(x: tuple[int, ...], perm: list[int] | None) -> Row:
    order = list(range(len(x)))[::-1] if perm is None else perm
    return Row(
        (x,),
        lambda b, x: b.op("Transpose", x, **({} if perm is None else {"perm": perm})),
        lambda m, x: m.permute(x, order),
        lambda m, x: m.numpy.transpose(x, order),
        lambda m, x: m.transpose(x, order),
    )


def cast_row(x: Any) -> Row:
    """To float32 and back, doubled between: every rounding is the same everywhere, and the comparison stays exact."""

    def onnx(b: Any, x: Any) -> Any:
        single = b.op("Cast", x, to=ir.DataType.FLOAT)
        return b.op("Cast", b.op("Add", single, single), to=ir.DataType.DOUBLE)

    return Row(
        (x,),
        onnx,
        lambda m, x: (x.to(m.float32) * 2.0).to(m.float64),
        lambda m, x: m.lax.convert_element_type(m.lax.convert_element_type(x, np.float32) * 2.0, np.float64),
        lambda m, x: m.cast(m.cast(x, m.float32) * 2.0, m.float64),
    )


def trilu_row(x: tuple[int, ...], k: int, upper: int) -> Row:
    def tensorflow(m: Any, x: Any) -> Any:
        if upper:  # x without the part strictly below the k-th diagonal
            return m.linalg.band_part(x, 0, -1) if k == 0 else x - m.linalg.band_part(x, -1, k - 1)
        return m.linalg.band_part(x, -1, 0) if k == 0 else x - m.linalg.band_part(x, -k - 1, -1)

    return Row(
        (x,),
        lambda b, x: b.op("Trilu", x, number(b, np.array(k)), upper=upper),
        lambda m, x: (m.triu if upper else m.tril)(x, k),
        lambda m, x: (m.numpy.triu if upper else m.numpy.tril)(x, k),
        tensorflow,
    )


def concat_row(axis: int, *shapes: tuple[int, ...]) -> Row:
    return Row(
        shapes,
        lambda b, *values: b.op("Concat", *values, axis=axis),
        lambda m, *values: m.cat(values, axis),
        lambda m, *values: m.numpy.concatenate(values, axis),
        lambda m, *values: m.concat(values, axis),
    )


def gather_row(x: tuple[int, ...], axis: int, index: Any) -> Row:
    """Elements that are taken several times; negative indices count from the end, which TensorFlow does not support."""
    chosen = np.array(index)
    at = chosen % x[axis]

    def pytorch(m: Any, x: Any) -> Any:
        place = axis % x.ndim
        flat = m.index_select(x, place, m.tensor(at.reshape(-1)))
        return flat.reshape(*x.shape[:place], *at.shape, *x.shape[place + 1 :])

    return Row(
        (x,),
        lambda b, x: b.op("Gather", x, number(b, chosen), axis=axis),
        pytorch,
        lambda m, x: m.numpy.take(x, at, axis),
        lambda m, x: m.gather(x, at, axis=axis),
    )


def gather_elements_row(x: tuple[int, ...], axis: int, index: Any) -> Row:
    chosen = np.array(index)
    places = list(np.indices(chosen.shape))
    places[axis] = chosen
    return Row(
        (x,),
        lambda b, x: b.op("GatherElements", x, number(b, chosen), axis=axis),
        lambda m, x: m.gather(x, axis, m.tensor(chosen)),
        lambda m, x: m.numpy.take_along_axis(x, chosen, axis),
        lambda m, x: m.gather_nd(x, np.stack(places, -1)),
    )


def pad_row(x: tuple[int, ...], *pads: tuple[int, int], value: float = 0.0) -> Row:
    """Pads are (before, after) by axis."""
    flat = [pad[side] for side in (0, 1) for pad in pads]
    return Row(
        (x,),
        lambda b, x: b.op("Pad", x, ints(b, *flat), number(b, value)),
        lambda m, x: m.nn.functional.pad(x, [width for pad in pads[::-1] for width in pad], value=value),
        lambda m, x: m.lax.pad(x, value, [(*pad, 0) for pad in pads]),
        lambda m, x: m.pad(x[cut(pads)], [[max(width, 0) for width in pad] for pad in pads], constant_values=value),
    )


def cut(pads: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    """The part that negative pads leave."""
    return tuple(slice(max(-before, 0), -max(-behind, 0) or None) for before, behind in pads)


def slice_row(x: tuple[int, ...], *spans: tuple[int, int, int, int]) -> Row:
    """Spans are (axis, start, end, step)."""
    taken = [slice(None)] * len(x)
    for axis, start, end, step in spans:
        taken[axis] = slice(start, None if abs(end) == END else end, step)
    where, columns = tuple(taken), list(zip(*spans, strict=True))

    def onnx(b: Any, x: Any) -> Any:
        axes, starts, ends, steps = (ints(b, *column) for column in columns)
        return b.op("Slice", x, starts, ends, axes, steps)

    backwards = any(step < 0 for *_, step in spans)
    numbers = np.arange(np.prod(x)).reshape(x)[where]
    return Row(
        (x,),
        onnx,
        # PyTorch's slices have no negative steps
        (lambda m, x: x.reshape(-1)[m.tensor(numbers.copy())]) if backwards else (lambda m, x: x[where]),
        lambda m, x: x[where],
        lambda m, x: x[where],
    )


def split_row(x: tuple[int, ...], axis: int, sizes: list[int], read: slice) -> Row:
    """The parts that are read, squared, one after the other; the others' gradients are zero."""

    def onnx(b: Any, x: Any) -> Any:
        parts = b.op("Split", x, ints(b, *sizes), axis=axis, outputs=len(sizes))[read]
        return b.op("Concat", *(b.op("Reshape", b.op("Mul", part, part), ints(b, -1)) for part in parts), axis=0)

    ends = [int(end) for end in np.cumsum(sizes)]
    return Row(
        (x,),
        onnx,
        lambda m, x: m.cat([m.square(part).reshape(-1) for part in m.split(x, sizes, axis)[read]]),
        lambda m, x: m.numpy.concatenate(
            [m.numpy.square(part).reshape(-1) for part in m.numpy.split(x, ends[:-1], axis)[read]]
        ),
        lambda m, x: m.concat([m.reshape(m.square(part), [-1]) for part in m.split(x, sizes, axis)[read]], 0),
    )


MOVES: dict[str, list[Row]] = {
    "Cast": [cast_row((3, 4)), cast_row((2, 1, 3)), cast_row(np.array(ZEROS))],
    "Concat": [
        concat_row(0, (2, 3), (1, 3), (4, 3)),
        concat_row(-1, (2, 3), (2, 1)),
        concat_row(1, (2, 3, 2), (2, 2, 2)),
    ],
    "Expand": [
        expand_row((3, 1), (2, 3, 4), (2, 3, 4)),
        expand_row((2, 1, 3), (4, 1), (2, 4, 3)),
        expand_row((), (2, 3), (2, 3)),
    ],
    "Flatten": [shaped("Flatten", (2, 3, 4), (2, 12)), shaped("Flatten", (2, 3, 4), (6, 4), axis=-1)],
    "Gather": [
        gather_row((5, 3), 0, [0, 4, 0, -1]),
        gather_row((4, 5, 3), 1, [[0, 1], [1, -2]]),
        gather_row((4, 5, 3), -1, [[2]]),
        gather_row((4, 5), 1, 4),
    ],
    "GatherElements": [
        gather_elements_row((3, 4), 0, [[0, 2, 1, 0], [0, 0, 1, 2]]),
        gather_elements_row((3, 4), 1, [[3, 3], [0, 1], [2, 0]]),
        gather_elements_row((2, 3, 2), -1, [[[0], [1], [1]], [[1], [0], [0]]]),
    ],
    "Pad": [
        pad_row((3, 4), (0, 2), (1, 0)),
        pad_row((3, 4), (-1, 0), (2, -1)),
        pad_row((2, 3, 2), (1, 1), (0, 0), (0, 2), value=2.5),
    ],
    "Reshape": [shaped("Reshape", (2, 3, 4), (4, 6), (4, -1)), shaped("Reshape", (2, 3, 4), (2, 6, 2), (0, -1, 2))],
    "Slice": [
        slice_row((4, 6, 5), (1, 1, END, 2), (2, 1, 5, 3)),
        slice_row((4, 5), (0, 1, 3, 1)),
        slice_row((5, 4), (0, -1, -END, -2), (1, 0, 3, 1)),
    ],
    "Split": [
        split_row((6, 2), 0, [2, 4], slice(None)),
        split_row((2, 6), -1, [1, 2, 3], slice(None)),
        split_row((2, 6), 1, [1, 2, 3], slice(1, 2)),
    ],
    "Squeeze": [shaped("Squeeze", (2, 1, 3, 1), (2, 3, 1), (1,)), shaped("Squeeze", (2, 1, 3, 1), (2, 3))],
    "Tile": [tile_row((3, 4), (2, 3)), tile_row((2, 1, 3), (1, 4, 2)), tile_row((3,), (3,))],
    "Transpose": [transpose_row((2, 3, 4), [1, 2, 0]), transpose_row((2, 3, 4), None), transpose_row((3, 4), [1, 0])],
    "Trilu": [trilu_row((3, 4), 0, 1), trilu_row((2, 4, 3), 1, 1), trilu_row((4, 4), -1, 0), trilu_row((3, 2), 0, 0)],
    "Unsqueeze": [shaped("Unsqueeze", (2, 3), (1, 2, 3, 1), (0, -1)), shaped("Unsqueeze", (2, 3), (2, 1, 3), (1,))],
}

ELEMENTS: dict[str, list[Row]] = {**FUNCTIONS, **ARITHMETIC, **REDUCTIONS, **MOVES}
