"""Test cases for deep5's array namespace for ONNX: functions of the standard as users call them, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CASES", "FLOATS", "INTEGERS", "Case", "arrays"]

FLOATS, INTEGERS = ("float32", "float64"), ("int32", "int64")
INF, NAN = np.inf, np.nan


class Case(NamedTuple):
    """A function of a namespace and of arrays.

    Attributes:
        call: The call.
        inputs: The arrays, converted to each of `dtypes`; Booleans are not converted.
        dtypes: Element types in which it runs.
        ulps: Allowed difference from NumPy's result, in units in the last place.
    """

    call: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    dtypes: tuple[str, ...] = FLOATS
    ulps: float = 4.0  # an elementary function of another library, accurate to some units


def array(*values: Any) -> np.ndarray:
    return np.array(values)


def arrays(case: Case, dtype: str) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [x if x.dtype == bool else x.astype(dtype) for x in case.inputs]


RNG = np.random.default_rng(7)
EDGE = array(0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 1e-20, -1e-20, 7.75, INF, -INF, NAN)
FIRST, SECOND = (part.ravel() for part in np.meshgrid(EDGE, EDGE))
SMALL = array(0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1e-9, 2.0, INF, -INF, NAN)
TINY = np.concatenate([SMALL, 10.0 ** -np.arange(1.0, 30.0), -(10.0 ** -np.arange(1.0, 30.0)), RNG.uniform(-1, 3, 40)])
HALVES = np.concatenate([EDGE, array(0.5, 1.5, 2.5, -0.5, -1.5, 3.49999, -3.5, 1e9)])
WHOLE = array(0, 1, -1, 2, -7, 7, 100, -100, 3, 12)
WHOLE_1, WHOLE_2 = (part.ravel() for part in np.meshgrid(WHOLE, WHOLE))
TRUTH = array(True, False, True, True)
BLOCK = RNG.standard_normal((2, 3, 4))
BROKEN = BLOCK.copy()
BROKEN[0, 1, 2], BROKEN[1, 0, 0], BROKEN[1, 2, 3] = NAN, INF, -INF
COUNTS = RNG.integers(-5, 6, (2, 3, 4))
NOTHING = np.zeros((2, 0, 3))
MANY, EVERY = (*FLOATS, *INTEGERS), (*FLOATS, *INTEGERS, "bool")


def elementwise() -> Iterator[tuple[str, Case]]:
    for name in ("abs", "negative", "positive", "square"):
        yield name, Case(lambda xp, x, n=name: getattr(xp, n)(x), (EDGE,), ulps=0)
        yield f"{name} of whole numbers", Case(lambda xp, x, n=name: getattr(xp, n)(x), (WHOLE,), INTEGERS)
    for name in ("ceil", "floor", "round", "trunc"):
        yield name, Case(lambda xp, x, n=name: getattr(xp, n)(x), (HALVES,), ulps=0)
        yield f"{name} of whole numbers", Case(lambda xp, x, n=name: getattr(xp, n)(x), (WHOLE,), INTEGERS)
    for name in ("sign", "isnan", "isinf", "isfinite"):
        yield name, Case(lambda xp, x, n=name: getattr(xp, n)(x), (EDGE,), ulps=0)
    yield "sign of whole numbers", Case(lambda xp, x: xp.sign(x), (WHOLE,), INTEGERS)
    yield "isfinite of whole numbers", Case(lambda xp, x: xp.isfinite(x) & ~xp.isnan(x), (WHOLE,), INTEGERS)
    yield "signbit", Case(lambda xp, x: xp.signbit(x), (EDGE[:-1],), ulps=0)
    yield "reciprocal", Case(lambda xp, x: xp.reciprocal(x), (EDGE,), ulps=0)
    for name in ("exp", "sqrt", "tanh", "log"):
        yield name, Case(lambda xp, x, n=name: getattr(xp, n)(x), (np.concatenate([EDGE, TINY]),))
    yield "sin", Case(lambda xp, x: xp.sin(x), (TINY[11:],))
    yield "cos", Case(lambda xp, x: xp.cos(x), (TINY[11:],), ulps=8)
    for name in ("acos", "asin", "atan", "tan", "sinh", "cosh", "asinh", "acosh", "atanh"):
        # ONNX Runtime has these only in float32.
        yield name, Case(lambda xp, x, n=name: getattr(xp, n)(x), (TINY,), ("float32",), ulps=8)
    # Two products of functions that are accurate to some units each.
    yield "expm1", Case(lambda xp, x: xp.expm1(x), (np.concatenate([TINY, array(20, -20, 80, -80)]),), ulps=16)
    yield "log1p", Case(lambda xp, x: xp.log1p(x), (TINY,), ulps=16)
    for name in ("log2", "log10"):
        yield name, Case(lambda xp, x, n=name: getattr(xp, n)(x), (TINY,), ulps=8)
    for name in ("logaddexp", "hypot"):
        yield name, Case(lambda xp, x, y, n=name: getattr(xp, n)(x, y), (FIRST, SECOND), ulps=16)
    yield "hypot of large numbers", Case(lambda xp, x: xp.hypot(x * 1e38, x * 1e-38), (array(1, 2, 0),), ulps=8)
    yield "atan2", Case(lambda xp, x, y: xp.atan2(x, y), (FIRST, SECOND), ("float32",), ulps=8)
    for name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "remainder",
        "floor_divide",
        "copysign",
    ):
        first, second = (FIRST, SECOND) if name != "copysign" else (FIRST[:-12], SECOND[:-12])
        keep = ~np.isnan(second) if name == "copysign" else slice(None)
        pair = (first[keep], second[keep])
        yield name, Case(lambda xp, x, y, n=name: getattr(xp, n)(x, y), pair, ulps=0)
    for name in ("add", "subtract", "multiply", "maximum", "minimum", "remainder", "floor_divide"):
        call = lambda xp, x, y, n=name: getattr(xp, n)(x, y)  # noqa: E731
        yield f"{name} of whole numbers", Case(call, (WHOLE_1, WHOLE_2), INTEGERS)
    for number in (3, -3, 1, -1, 0):
        call = lambda xp, x, n=number: xp.stack([x // n, x % n])  # noqa: E731
        yield f"// and % {number}", Case(call, (WHOLE,), INTEGERS)
    for number in (0.0, -1.5, 2.0):
        call = lambda xp, x, n=number: xp.stack([x // n, x % n, xp.maximum(x, n), xp.minimum(n, x)])  # noqa: E731
        yield f"// and % {number}", Case(call, (EDGE,), ulps=0)
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        call = lambda xp, x, y, n=name: getattr(xp, n)(x, y)  # noqa: E731
        yield name, Case(call, (FIRST, SECOND))
        yield f"{name} of whole numbers", Case(call, (WHOLE_1, WHOLE_2), INTEGERS)
    yield "equal truth values", Case(lambda xp, x, y: (x == y) | (x != y[::-1]), (TRUTH, TRUTH[::-1]), ("bool",))
    for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"):
        call = lambda xp, x, y, n=name: getattr(xp, n)(x, y)  # noqa: E731
        yield name, Case(call, (TRUTH, TRUTH[::-1]), ("bool",))
        if name.startswith("bitwise"):
            yield f"{name} of whole numbers", Case(call, (WHOLE_1, WHOLE_2), INTEGERS)
    yield "not", Case(lambda xp, x: ~x ^ xp.logical_not(x), (TRUTH,), ("bool",))
    yield "bitwise_invert of whole numbers", Case(lambda xp, x: ~x, (WHOLE,), INTEGERS)
    yield "pow", Case(lambda xp, x, y: xp.abs(x) ** y, (RNG.uniform(0.1, 3, 40), RNG.uniform(-3, 3, 40)))
    yield "pow by a number", Case(lambda xp, x: 2.0**x + x**0.5 + x**-1, (RNG.uniform(0.1, 3, 40),), ulps=8)
    for power in (0, 1, 2, 3, 5, 10):
        call = lambda xp, x, p=power: x**p  # noqa: E731
        yield f"power {power}", Case(call, (EDGE[:9],), ulps=power)
        yield f"power {power} of whole numbers", Case(call, (WHOLE[:-1] % 9,), INTEGERS)
    yield "clip", Case(lambda xp, x: xp.stack([xp.clip(x, -1, 1), xp.clip(x, max=0), xp.clip(x, min=2)]), (EDGE,))
    yield "clip between arrays", Case(lambda xp, x, y: xp.clip(x, -xp.abs(y), xp.abs(y)), (FIRST, SECOND))
    selected = lambda xp, x, y: xp.where(x > y, x, y) + xp.where(x < y, 1, y)  # noqa: E731
    yield "where", Case(selected, (FIRST, SECOND))
    yield "where of whole numbers", Case(selected, (WHOLE_1, WHOLE_2), INTEGERS)
    yield "where of truth values", Case(lambda xp, x, y: xp.where(x, y, ~y), (TRUTH, TRUTH[::-1]), ("bool",))
    yield "numbers", Case(lambda xp, x: 1 + 2 * x - 3 + (4 - x) * 5, (WHOLE,), MANY)
    yield "stretching", Case(lambda xp, x: x[:, :1] * x[0] + x[..., None, :, 0:1], (BLOCK,), MANY)
    yield "astype", Case(lambda xp, x: xp.astype(xp.astype(x, xp.bool), xp.int32), (EDGE,), ulps=0)
    yield "astype of numbers", Case(lambda xp, x: xp.astype(xp.astype(x, xp.int64), xp.float32), (WHOLE,), EVERY)
    yield "promotion", Case(lambda xp, x: x + xp.astype(x, xp.float64) + xp.asarray(2, dtype=xp.float32), (BLOCK,))
    yield "promotion of whole numbers", Case(lambda xp, x: xp.astype(x, xp.int64) * x, (WHOLE,), INTEGERS)


def over_axes() -> Iterator[tuple[str, Case]]:
    def over(name: str, **settings: Any) -> Callable[..., Any]:
        return lambda xp, x: getattr(xp, name)(x, **settings)

    several: tuple[dict[str, Any], ...] = ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True}, {"axis": ()})
    for name in ("sum", "mean", "max", "min"):
        for settings in several:
            yield f"{name} {settings}", Case(over(name, **settings), (BLOCK,))
            yield f"{name} {settings} of NaN and infinity", Case(over(name, **settings), (BROKEN,))
    for settings in several:
        yield f"prod {settings}", Case(over("prod", **settings), (BLOCK,), ("float32",), ulps=24)
        for name in ("std", "var"):
            if settings != {"axis": ()}:
                yield f"{name} {settings}", Case(over(name, correction=1, **settings), (BLOCK,), ulps=16)
        for name in ("sum", "max", "min"):
            yield f"{name} {settings} of whole numbers", Case(over(name, **settings), (COUNTS,), INTEGERS)
        for name in ("any", "all", "count_nonzero"):
            if name != "count_nonzero" or settings != {"axis": ()}:
                yield f"{name} {settings}", Case(over(name, **settings), (np.array(BLOCK > -1),), ("bool",))
                yield f"{name} {settings} of numbers", Case(over(name, **settings), (COUNTS,), MANY)
    yield "prod of whole numbers", Case(over("prod", axis=1), (COUNTS,), INTEGERS)
    yield "std without correction", Case(lambda xp, x: xp.std(x, axis=-1) + xp.var(x, axis=0)[0, 0], (BLOCK,), ulps=16)
    yield "var of one", Case(lambda xp, x: xp.var(x[:, :1], axis=1, correction=0), (BLOCK,))
    for name in ("argmax", "argmin"):
        for place in ({}, {"axis": 1}, {"axis": -1, "keepdims": True}):
            yield f"{name} {place}", Case(over(name, **place), (BLOCK,))
            yield f"{name} {place} of NaN", Case(over(name, **place), (BROKEN,))
            yield f"{name} {place} of whole numbers", Case(over(name, **place), (COUNTS,), INTEGERS)
    yield "cumulative_sum", Case(over("cumulative_sum", axis=1), (COUNTS,), MANY)
    yield "cumulative_sum from 0", Case(over("cumulative_sum", axis=-1, include_initial=True), (COUNTS,), MANY)
    yield (
        "sums of nothing",
        Case(lambda xp, x: xp.sum(x, axis=1) + xp.sum(x) + xp.prod(x, axis=1), (NOTHING,), ("float32",)),
    )
    yield "truths of nothing", Case(lambda xp, x: xp.any(x, axis=1) | ~xp.all(x), (NOTHING,), MANY)
    yield "mean of nothing", Case(lambda xp, x: xp.mean(x, axis=1), (NOTHING,))
    yield "elements of nothing", Case(lambda xp, x: xp.exp(x) * 2 + xp.reshape(x[:, :, 0], (0, 1)), (NOTHING,))


def moving() -> Iterator[tuple[str, Case]]:
    calls: dict[str, Callable[..., Any]] = {
        "x[1]": lambda xp, x: x[1],
        "x[-1, ..., 0]": lambda xp, x: x[-1, ..., 0],
        "x[:, None, 1:]": lambda xp, x: x[:, None, 1:],
        "x[..., ::-1]": lambda xp, x: x[..., ::-1],
        "x[:, ::2, 3:0:-2]": lambda xp, x: x[:, ::2, 3:0:-2],
        "x[0, None, -2:, None]": lambda xp, x: x[0, None, -2:, None],
        "x[5:]": lambda xp, x: x[5:],
        "x[...]": lambda xp, x: x[...],
        "iteration": lambda xp, x: sum(xp.sum(row) for row in x),
        "reshape": lambda xp, x: xp.reshape(x, (4, 6)),
        "reshape to -1": lambda xp, x: xp.reshape(x, (3, -1)),
        "reshape to a vector": lambda xp, x: xp.reshape(x, (x.size,)),
        "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
        "moveaxis": lambda xp, x: xp.moveaxis(x, (0, 2), (-1, 0)),
        "mT and T": lambda xp, x: x.mT[0] + x[0].T,
        "concat": lambda xp, x: xp.concat([x, x[:, :1], x], axis=1),
        "concat of all": lambda xp, x: xp.concat([x, x[0]], axis=None),
        "stack": lambda xp, x: xp.stack([x, -x, x], axis=-2),
        "unstack": lambda xp, x: xp.concat(xp.unstack(x, axis=1), axis=-1),
        "squeeze": lambda xp, x: xp.squeeze(xp.expand_dims(x[:1], axis=-1), axis=(0, 3)),
        "broadcast_to": lambda xp, x: xp.broadcast_to(x[0, :, :1], (5, 3, 2)),
        "broadcast_arrays": lambda xp, x: xp.broadcast_arrays(x[0], x[:, :1])[1],
        "flip": lambda xp, x: xp.flip(x),
        "flip of an axis": lambda xp, x: xp.flip(x, axis=-1),
        "roll": lambda xp, x: xp.roll(x, 5),
        "roll of axes": lambda xp, x: xp.roll(x, (1, -2), axis=(0, 2)),
        "repeat": lambda xp, x: xp.repeat(x, 3, axis=1),
        "repeat all": lambda xp, x: xp.repeat(x, 2),
        "tile": lambda xp, x: xp.tile(x, (2, 1, 3, 1)),
        "take": lambda xp, x: xp.take(x, xp.asarray([2, 0, 0]), axis=1),
        "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.asarray([[[3, 0]]]), axis=-1),
        "diff": lambda xp, x: xp.diff(x, axis=1, n=2),
        "tril": lambda xp, x: xp.tril(x, k=1),
        "triu": lambda xp, x: xp.triu(x, k=-1),
        "meshgrid": lambda xp, x: xp.stack(xp.meshgrid(x[0, :, 0], x[0, 0])),
        "matmul": lambda xp, x: x @ x.mT,
        "matmul of vectors": lambda xp, x: (x @ x[0, 0]) @ x[0, :, 0] + (x[0, :, 0] @ x)[0, 0] + x[0, 0] @ x[1, 1],
        "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((2, 0), (2, 0))),
        "tensordot of none": lambda xp, x: xp.tensordot(x[0], x[1, 0], axes=0),
        "tensordot of one": lambda xp, x: xp.tensordot(x, x[0].T, axes=1),
        "vecdot": lambda xp, x: xp.vecdot(x, x[0]),
        "zeros": lambda xp, x: x + xp.zeros((3, 1), dtype=x.dtype) + xp.ones(4, dtype=x.dtype),
        "full": lambda xp, x: x + xp.full((3, 4), 3, dtype=x.dtype) + xp.full_like(x, 2) + xp.ones_like(x),
        "zeros_like": lambda xp, x: x * xp.zeros_like(x) + xp.eye(3, 4, k=1, dtype=x.dtype),
        "arange": lambda xp, x: x * xp.arange(4, dtype=x.dtype) + xp.arange(1, 7, 2, dtype=x.dtype)[:, None],
        "linspace": lambda xp, x: xp.astype(xp.linspace(0, 4, 5), x.dtype) + x[0, 0, 0],
        "constants": lambda xp, x: x * xp.asarray(np.array([1, 2, 3, 4]), dtype=x.dtype) + xp.asarray(2, dtype=x.dtype),
    }
    for name, call in calls.items():
        yield name, Case(call, (np.rint(BLOCK * 4),), MANY)
    yield "moving truth values", Case(lambda xp, x: xp.concat([x[::-1], xp.reshape(x, (4,))]), (TRUTH,), ("bool",))


CASES: dict[str, Case] = {name: case for group in (elementwise, over_axes, moving) for name, case in group()}
