"""Derived shapes: broadcast, sliced, and named by the expressions that operators computed them with."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from deep5.core.errors import ShapeError
from deep5.core.python_source import parse
from deep5.networks.tracing.extents import Assignment, Shape, TracedExtent, evaluated, leaf, same

__all__ = ["broadcast_shapes", "named", "sliced"]

_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def named(text: str) -> tuple[TracedExtent, set[str]]:
    """A dimension of an input, and the names that determine its value: several if an operator computed it."""
    text = str(text)  # plain: a dimension object cannot be sorted, since its order is unknown
    try:
        tree = parse(text, "eval").body
        names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
        if text not in names and _follows(tree, dict.fromkeys(names, 1)) is not None:
            return leaf(text, lambda at: _known(text, _follows(tree, at))), names
    except (SyntaxError, ZeroDivisionError):
        pass  # a name that deep5 did not write
    return leaf(text), {text}


def _follows(tree: ast.expr, at: Assignment) -> int | None:
    """The value of an expression of +, -, *, // and %; None if it contains anything else."""
    if isinstance(tree, ast.Name):
        return at.get(tree.id)
    if isinstance(tree, ast.Constant):
        return tree.value if isinstance(tree.value, int) else None
    if not isinstance(tree, ast.BinOp):
        return None
    sign = _SIGNS.get(type(tree.op))
    left, right = _follows(tree.left, at), _follows(tree.right, at)
    return None if sign is None or left is None or right is None else sign(left, right)


def _known(text: str, number: int | None) -> int:
    if number is None:
        raise ShapeError(f"the dimension {text} is not known")
    return number


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that arrays of these shapes are broadcast to, by the rules of the standard.

    Raises:
        ShapeError: They do not fit.
    """
    rank, result = max(map(len, shapes), default=0), list[int | TracedExtent]()
    for axis in range(-rank, 0):
        extent: int | TracedExtent = 1
        for shape in shapes:
            if len(shape) >= -axis:
                extent = _stretched(extent, shape[axis], shapes)
        result.append(extent)
    return tuple(result)


def _stretched(left: int | TracedExtent, right: int | TracedExtent, shapes: Sequence[Shape]) -> int | TracedExtent:
    if (isinstance(left, int) and left == 1) or same(left, right):
        return right
    if isinstance(right, int) and right == 1:
        return left
    if isinstance(left, int) and isinstance(right, int):
        raise ShapeError(f"the shapes {', '.join(str(list(shape)) for shape in shapes)} do not fit together")
    if isinstance(left, int):
        return left
    if isinstance(right, int):
        return right

    def calculate(at: Assignment) -> int:
        a, b = evaluated(left, at), evaluated(right, at)
        if 1 not in (a, b) and a != b:
            raise ShapeError(f"the dimensions {a} and {b} do not fit together")
        return b if a == 1 else a

    return leaf(f"broadcast({left}, {right})", calculate)


def sliced(extent: int | TracedExtent, start: Any, stop: Any, step: int) -> int | TracedExtent:
    """The number of elements that a slice selects along an axis; its bounds are integers, dimensions or None."""
    bounds = (start, stop)
    if isinstance(extent, int) and not any(isinstance(bound, TracedExtent) for bound in bounds):
        return len(range(*slice(start, stop, step).indices(extent)))

    def calculate(at: Assignment) -> int:
        first, last = (bound if bound is None else evaluated(bound, at) for bound in bounds)
        return len(range(*slice(first, last, step).indices(evaluated(extent, at))))

    low, high = 0 if start is None else start, stop
    if not any(isinstance(bound, TracedExtent) for bound in bounds):
        if abs(step) == 1 and start is None and stop is None:
            return extent
        if step == 1 and low >= 0 and (high is None or high < 0):
            return leaf(f"max({extent}-{low - (high or 0)}, 0)", calculate)
        if step == 1 and (low, high) == (0, stop) and high >= 0:
            return leaf(f"min({extent}, {high})", calculate)
    return leaf(f"{extent}[{start}:{stop}:{step}]", calculate)
