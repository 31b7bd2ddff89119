"""Operations of update rules that depend on a parameter's shape: products of matrices, axes, reductions, slices.

A rule that uses them is traced once per shape; its arrays then have shapes, which need not be the parameter's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.training.expression import Expr, combined, lift
from deep5.training.refusals import TraceError

__all__ = ["SHAPED", "ShapedFunctions"]

# The function of an array namespace for each operation: operands first, then what is fixed at the trace.
SHAPED: dict[str, Callable[..., Any]] = {
    "matmul": lambda xp, a, b: xp.matmul(a, b),
    "permute_dims": lambda xp, x, axes: xp.permute_dims(x, axes),
    "reshape": lambda xp, x, shape: xp.reshape(x, shape),
    "broadcast_to": lambda xp, x, shape: xp.broadcast_to(x, shape),
    "index": lambda xp, x, key: x[key],
    "concat": lambda xp, *given: xp.concat(list(given[:-1]), axis=given[-1]),
    "tril": lambda xp, x, k: xp.tril(x, k=k),
    "triu": lambda xp, x, k: xp.triu(x, k=k),
    **{
        f"reduce_{name}": lambda xp, x, axis, keepdims, name=name: getattr(xp, name)(x, axis=axis, keepdims=keepdims)
        for name in ("sum", "mean", "max", "min", "prod")
    },
}
"""Operations beside `OPERATIONS`. `eye` and `item`, which have no function of this form, are `Expr.op` only."""


def refused(what: str) -> TraceError:
    """The error of a rule that calls a function in a way that is outside the array standard."""
    return TraceError(f"an update rule {what}; allowed: as in the array standard (https://data-apis.org/array-api)")


def shape_of(x: Expr) -> tuple[int, ...]:
    """The shape of an array or scalar of a rule; see `ShapeNeeded`."""
    return x.shape


def made(op: str, args: tuple[Any, ...], shape: tuple[int, ...], boolean: bool = False) -> Expr:
    """A node of this shape; one of shape () is a scalar, as sums are."""
    node = Expr(op, args, element=True, boolean=boolean, shape=shape)
    return node if shape or boolean else Expr("item", (node,), element=False)


def array(x: Any) -> Expr:
    """An operand with a shape; a scalar becomes an array of shape ()."""
    x = lift(x)
    if x.boolean:
        raise refused("gave a truth value to a function of arrays of numbers")
    return x if x.element else Expr("broadcast", (x,), element=True, shape=())


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """The axes that an argument `axis` names, each in [0, rank); None: all.

    Raises:
        RuleError: It names no axes of an array of this rank, or one twice.
    """
    given = range(rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    try:
        found = tuple(operator.index(one) for one in given)
    except TypeError:
        raise refused(f"gave the axis {axis!r}") from None
    if any(not -rank <= one < rank for one in found) or len({one % rank for one in found}) != len(found):
        raise refused(f"gave the axis {axis!r} of an array of {rank} dimensions")
    return tuple(one % rank for one in found)


def fixed(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of integers."""
    try:
        return tuple(operator.index(size) for size in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        raise refused(f"gave the shape {shape!r}") from None


def indexed(x: Expr, key: Any) -> Expr:
    """`x[key]` with integers, slices, None and `...`."""
    shape = shape_of(x)
    if not x.element:
        raise refused("indexed a scalar")
    keys = key if isinstance(key, tuple) else (key,)
    plain = all(part is None or part is ... or isinstance(part, (int, np.integer, slice)) for part in keys)
    # Not every framework has slices that go backwards.
    if not plain or any(isinstance(part, slice) and (part.step or 1) < 0 for part in keys):
        raise refused(f"indexed an array by {key!r:.60}")
    try:
        found = np.broadcast_to(np.int8(0), shape)[key].shape
    except (IndexError, TypeError, ValueError) as error:
        raise refused(f"indexed an array of shape {shape} by {key!r:.60} ({error})") from None
    return made("index", (x, key), found, x.boolean)


class Linalg:
    """The functions of the standard's extension `linalg` that rules may use."""

    def __init__(self, functions: ShapedFunctions) -> None:
        self._xp = functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        allowed = sorted(key for key in vars(Linalg) if not key.startswith("_"))
        raise TraceError(f"an update rule used xp.linalg.{name}; allowed: {', '.join(allowed)}")

    def matmul(self, a: Any, b: Any) -> Expr:
        """The standard's `matmul`."""
        return self._xp.matmul(a, b)

    def matrix_transpose(self, x: Any) -> Expr:
        """The standard's `matrix_transpose`."""
        return self._xp.matrix_transpose(x)

    def outer(self, a: Any, b: Any) -> Expr:
        """The standard's `outer`."""
        return self._xp.reshape(a, (-1, 1)) * self._xp.reshape(b, (1, -1))

    def vecdot(self, a: Any, b: Any, *, axis: int = -1) -> Expr:
        """The standard's `vecdot`."""
        return self._xp.vecdot(a, b, axis=axis)

    def tensordot(self, a: Any, b: Any, *, axes: Any = 2) -> Expr:
        """The standard's `tensordot`."""
        return self._xp.tensordot(a, b, axes=axes)

    def diagonal(self, x: Any, *, offset: int = 0) -> Expr:
        """The standard's `diagonal`."""
        rows, columns = shape_of(lift(x))[-2:]
        on = self._xp.eye(rows, columns, k=offset)
        length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
        first = max(-offset, 0)
        return indexed(self._xp.sum(lift(x) * on, axis=-1), (..., slice(first, first + length)))

    def trace(self, x: Any, *, offset: int = 0) -> Expr:
        """The standard's `trace`."""
        rows, columns = shape_of(lift(x))[-2:]
        return self._xp.sum(lift(x) * self._xp.eye(rows, columns, k=offset), axis=(-2, -1))

    def matrix_norm(self, x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Expr:  # noqa: A002
        """The standard's `matrix_norm`."""
        if ord == "fro":
            return combined("sqrt", self._xp.sum(lift(x) * x, axis=(-2, -1), keepdims=keepdims))
        if ord in (1, math.inf):
            first, second = (-2, -1) if ord == 1 else (-1, -2)
            sums = self._xp.sum(abs(lift(x)), axis=first, keepdims=True)
            found = self._xp.max(sums, axis=second, keepdims=True)
            return found if keepdims else self._xp.squeeze(found, axis=(-2, -1))
        raise refused(f"computed xp.linalg.matrix_norm with ord={ord!r} (here: 'fro', 1 or infinity)")

    def vector_norm(self, x: Any, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Expr:  # noqa: A002
        """The standard's `vector_norm`."""
        if ord == 2:
            return combined("sqrt", self._xp.sum(lift(x) * x, axis=axis, keepdims=keepdims))
        if ord == 1:
            return self._xp.sum(abs(lift(x)), axis=axis, keepdims=keepdims)
        if ord == math.inf:
            return self._xp.max(abs(lift(x)), axis=axis, keepdims=keepdims)
        raise refused(f"computed xp.linalg.vector_norm with ord={ord!r} (here: 2, 1 or infinity)")


class ShapedFunctions:
    """The functions of a rule's namespace that depend on shapes."""

    @property
    def linalg(self) -> Linalg:
        """The standard's `linalg`."""
        return Linalg(self)

    def matmul(self, a: Any, b: Any) -> Expr:
        """The standard's `matmul`."""
        a, b = array(a), array(b)
        left, right = shape_of(a), shape_of(b)
        if not left or not right or left[-1] != right[-2 if len(right) > 1 else 0]:
            raise refused(f"multiplied matrices of shapes {left} and {right}")
        try:
            batch = np.broadcast_shapes(left[:-2], right[:-2])
        except ValueError:
            raise refused(f"multiplied matrices of shapes {left} and {right}") from None
        found = (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
        return made("matmul", (a, b), found)

    def permute_dims(self, x: Any, /, axes: Any) -> Expr:
        """The standard's `permute_dims`."""
        x = array(x)
        shape = shape_of(x)
        order = axes_of(axes, len(shape))
        if len(order) != len(shape):
            raise refused(f"permuted the axes of an array of shape {shape} to {axes!r}")
        return made("permute_dims", (x, order), tuple(shape[axis] for axis in order))

    def matrix_transpose(self, x: Any) -> Expr:
        """The standard's `matrix_transpose`."""
        rank = len(shape_of(array(x)))
        if rank < 2:
            raise refused(f"transposed an array of {rank} dimensions")
        return self.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))

    def moveaxis(self, x: Any, source: int, destination: int, /) -> Expr:
        """The standard's `moveaxis`, of one axis."""
        rank = len(shape_of(array(x)))
        (before,), (after,) = axes_of(source, rank), axes_of(destination, rank)
        order = [axis for axis in range(rank) if axis != before]
        order.insert(after, before)
        return self.permute_dims(x, tuple(order))

    def vecdot(self, a: Any, b: Any, *, axis: int = -1) -> Expr:
        """The standard's `vecdot`."""
        return self.sum(lift(a) * b, axis=axis)

    def tensordot(self, a: Any, b: Any, *, axes: Any = 2) -> Expr:
        """The standard's `tensordot`."""
        a, b = array(a), array(b)
        left, right = len(shape_of(a)), len(shape_of(b))
        first, second = (range(left - axes, left), range(axes)) if isinstance(axes, int) else axes
        first, second = axes_of(tuple(first), left), axes_of(tuple(second), right)
        kept = [axis for axis in range(left) if axis not in first]
        rest = [axis for axis in range(right) if axis not in second]
        inner = math.prod(a.shape[axis] for axis in first)
        rows = self.reshape(self.permute_dims(a, (*kept, *first)), (-1, inner))
        columns = self.reshape(self.permute_dims(b, (*second, *rest)), (inner, -1))
        shape = (*(a.shape[axis] for axis in kept), *(b.shape[axis] for axis in rest))
        return self.reshape(self.matmul(rows, columns), shape)

    def reshape(self, x: Any, /, shape: Any, *, copy: bool | None = None) -> Expr:
        """The standard's `reshape`."""
        x = array(x)
        before, wanted = shape_of(x), fixed(shape)
        known = math.prod(size for size in wanted if size != -1)
        if wanted.count(-1) == 1 and known and math.prod(before) % known == 0:
            wanted = tuple(math.prod(before) // known if size == -1 else size for size in wanted)
        if math.prod(wanted) != math.prod(before) or min(wanted, default=0) < 0:
            raise refused(f"reshaped an array of shape {before} to {shape!r}")
        return made("reshape", (x, wanted), wanted)

    def expand_dims(self, x: Any, /, *, axis: Any = 0) -> Expr:
        """The standard's `expand_dims`."""
        before = shape_of(array(x))
        axes = axes_of(axis, len(before) + (len(axis) if isinstance(axis, (tuple, list)) else 1))
        sizes = iter(before)
        return self.reshape(x, tuple(1 if k in axes else next(sizes) for k in range(len(before) + len(axes))))

    def squeeze(self, x: Any, /, axis: Any) -> Expr:
        """The standard's `squeeze`."""
        before = shape_of(array(x))
        axes = axes_of(axis, len(before))
        if any(before[k] != 1 for k in axes):
            raise refused(f"squeezed the axis {axis!r} of an array of shape {before}")
        return self.reshape(x, tuple(size for k, size in enumerate(before) if k not in axes))

    def broadcast_to(self, x: Any, /, shape: Any) -> Expr:
        """The standard's `broadcast_to`."""
        x, wanted = array(x), fixed(shape)
        before = shape_of(x)
        try:
            np.broadcast_to(np.int8(0), before)
            if np.broadcast_shapes(before, wanted) != wanted:
                raise ValueError
        except ValueError:
            raise refused(f"broadcast an array of shape {before} to {shape!r}") from None
        return made("broadcast_to", (x, wanted), wanted)

    def concat(self, arrays: Sequence[Any], /, *, axis: int | None = 0) -> Expr:
        """The standard's `concat`."""
        given = [array(x) for x in arrays]
        if axis is None:
            given, axis = [self.reshape(x, (-1,)) for x in given], 0
        shapes = [shape_of(x) for x in given]
        if not given or any(len(shape) != len(shapes[0]) or not shape for shape in shapes):
            raise refused(f"concatenated arrays of shapes {shapes}")
        (at,) = axes_of(axis, len(shapes[0]))
        if len({(*shape[:at], *shape[at + 1 :]) for shape in shapes}) != 1:
            raise refused(f"concatenated arrays of shapes {shapes} along the axis {axis}")
        found = (*shapes[0][:at], sum(shape[at] for shape in shapes), *shapes[0][at + 1 :])
        return made("concat", (*given, at), found)

    def stack(self, arrays: Sequence[Any], /, *, axis: int = 0) -> Expr:
        """The standard's `stack`."""
        return self.concat([self.expand_dims(x, axis=axis) for x in arrays], axis=axis)

    def tril(self, x: Any, /, *, k: int = 0) -> Expr:
        """The standard's `tril`."""
        return self._band("tril", array(x), k)

    def triu(self, x: Any, /, *, k: int = 0) -> Expr:
        """The standard's `triu`."""
        return self._band("triu", array(x), k)

    def _band(self, op: str, x: Expr, k: int) -> Expr:
        if len(shape_of(x)) < 2:
            raise refused(f"computed xp.{op} of an array of shape {x.shape}")
        return made(op, (x, k), shape_of(x))

    def eye(
        self, n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
    ) -> Expr:
        """The standard's `eye`."""
        rows, columns = fixed((n_rows, n_rows if n_cols is None else n_cols))
        return made("eye", (rows, columns, operator.index(k)), (rows, columns))

    def sum(self, x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Expr:
        """The standard's `sum`."""
        x = lift(x)
        if not x.element:
            raise TraceError("an update rule summed a scalar; allowed: xp.sum of an array of the parameter's shape")
        if x.dimensions is None and axis is None and not keepdims:
            return Expr("sum", (x,), element=False)
        return self._reduced("sum", x, axis, keepdims)

    def mean(self, x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Expr:
        """The standard's `mean`."""
        return self._reduced("mean", x, axis, keepdims)

    def max(self, x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Expr:
        """The standard's `max`."""
        return self._reduced("max", x, axis, keepdims)

    def min(self, x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Expr:
        """The standard's `min`."""
        return self._reduced("min", x, axis, keepdims)

    def prod(self, x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Expr:
        """The standard's `prod`."""
        return self._reduced("prod", x, axis, keepdims)

    def var(self, x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Expr:
        """The standard's `var`."""
        x = array(x)
        away = x - self._reduced("mean", x, axis, True)
        count = math.prod(shape_of(x)[one] for one in axes_of(axis, len(shape_of(x))))
        return self._reduced("sum", away * away, axis, keepdims) / (count - correction)

    def std(self, x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Expr:
        """The standard's `std`."""
        return combined("sqrt", self.var(x, axis=axis, correction=correction, keepdims=keepdims))

    def _reduced(self, name: str, x: Any, axis: Any, keepdims: bool) -> Expr:
        x = array(x)
        shape = shape_of(x)
        axes = axes_of(axis, len(shape))
        if name in ("max", "min", "mean") and 0 in [shape[one] for one in axes]:
            raise refused(f"computed xp.{name} of nothing: an array of shape {shape} over {axis!r}")
        sizes = [(1 if one in axes else size) for one, size in enumerate(shape) if keepdims or one not in axes]
        return made(f"reduce_{name}", (x, axes, bool(keepdims)), tuple(sizes))
