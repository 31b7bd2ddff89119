"""Dimensions while an operator is traced: integers, or names that support arithmetic but not control flow."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from deep5.core.errors import ShapeError, Unsupported
from deep5.networks.custom import Extent

__all__ = [
    "Assignment",
    "Shape",
    "TracedExtent",
    "evaluated",
    "leaf",
    "product",
    "quotient",
    "same",
    "static",
]

Assignment = Mapping[str, int]
"""Values of symbolic dimensions by name."""

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


class TracedExtent(Extent):
    """A symbolic dimension and the expression that computes it.

    Two with the same expression are equal. Whether others are equal is unknown until the network runs: comparing them
    is an error, because a branch taken now would be wrong for some batch sizes.

    Attributes:
        tree: `(sign, left, right)` for a computed dimension; `("", calculate)` for a dimension of some value's shape,
            where `calculate` computes it from the dimensions of the inputs and is None for those themselves.
    """

    tree: tuple[Any, ...]

    def __new__(cls, text: str, tree: tuple[Any, ...] = ("", None)) -> TracedExtent:
        """A dimension with this name."""
        made = super().__new__(cls, text)
        made.tree = tree
        return made

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int) or (isinstance(other, TracedExtent) and str.__ne__(self, other)):
            raise self._decision(other)
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def _decision(self, *others: object) -> Unsupported:
        also = "".join(f" and {other}" for other in others)
        return Unsupported(
            f"it decides by the symbolic dimension {self}{also}; allowed: decisions by fixed dimensions; remedy: "
            "fix the dimension in the network's inputs, or write the operator in C++"
        )

    def __lt__(self, other: object) -> bool:
        raise self._decision(other)

    __le__ = __gt__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        raise self._decision()

    def __float__(self) -> float:
        raise self._decision()

    def __int__(self) -> int:
        raise self._decision()

    __index__ = __int__

    def __truediv__(self, other: object) -> NoReturn:
        raise Unsupported(
            f"it divides the symbolic dimension {self} as a number; allowed: //, and an array times or by a dimension; "
            "remedy: x / n instead of x * (1 / n)"
        )

    __rtruediv__ = __pow__ = __rpow__ = __truediv__

    def __add__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._made("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._made("+", other, self)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, TracedExtent) and same(self, other):
            return 0
        return self if _is(other, 0) else self._made("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._made("-", other, self)

    def __neg__(self) -> Any:
        return self._made("-", 0, self)

    def __mul__(self, other: Any) -> Any:
        return product((self, other)) if _whole(other) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return quotient((self,), (other,)) if _whole(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return quotient((other,), (self,)) if _whole(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self._made("%", self, other)

    def _made(self, sign: str, left: Any, right: Any) -> Any:
        return _computed(sign, left, right) if _whole(left) and _whole(right) else NotImplemented


Shape = tuple[int | TracedExtent, ...]


def leaf(text: str, calculate: Callable[[Assignment], int] | None = None) -> TracedExtent:
    """A dimension of some value's shape."""
    return TracedExtent(text, ("", calculate))


def same(left: int | str, right: int | str) -> bool:
    """Whether two dimensions are known to be equal."""
    return str(left) == str(right)


def static(shape: Sequence[int | TracedExtent]) -> bool:
    """Whether all dimensions are integers."""
    return all(isinstance(extent, int) for extent in shape)


def evaluated(extent: int | TracedExtent, at: Assignment) -> int:
    """The value of a dimension for given dimensions of the inputs.

    Raises:
        ShapeError: The shapes do not fit together for these values.
    """
    if isinstance(extent, int):
        return extent
    sign, *parts = extent.tree
    if not sign:
        return at[str(extent)] if parts[0] is None else int(parts[0](at))
    left, right = (evaluated(part, at) for part in parts)
    if sign in ("//", "%") and right == 0:
        raise ShapeError(f"the dimension {extent} divides by zero")
    return _OPERATIONS[sign](left, right)


def product(extents: Sequence[int | TracedExtent]) -> int | TracedExtent:
    """The product of dimensions, in canonical order."""
    number, names = _factors(extents)
    if number == 0 or not names:
        return number
    result: Any = names[0] if number == 1 else _computed("*", number, names[0])
    for name in names[1:]:
        result = _computed("*", result, name)
    return result  # type: ignore[no-any-return]


def quotient(above: Sequence[int | TracedExtent], below: Sequence[int | TracedExtent]) -> int | TracedExtent:
    """The product of dimensions divided by that of others, rounded down; common factors cancel."""
    number, names = _factors(above)
    other, others = _factors(below)
    for name in list(others):
        if any(same(name, own) for own in names):
            names.remove(name)
            others.remove(name)
    if other and (divisor := math.gcd(number, other)):
        number, other = number // divisor, other // divisor
    left, right = product((number, *names)), product((other, *others))
    if isinstance(right, int) and right == 1:
        return left
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise ShapeError(f"{left} // 0 is not a dimension")
        return left // right
    return _computed("//", left, right)


def _is(other: object, number: int) -> bool:
    return isinstance(other, int) and other == number


def _whole(value: object) -> bool:
    return isinstance(value, (int, TracedExtent)) and not isinstance(value, bool)


def _computed(sign: str, left: int | TracedExtent, right: int | TracedExtent) -> TracedExtent:
    loose = sign not in "+-" or (sign == "-" and isinstance(right, TracedExtent))
    texts = [f"({side})" if loose and any(c in str(side) for c in "+-/%") else str(side) for side in (left, right)]
    return TracedExtent(sign.join(texts), (sign, left, right))


def _factors(extents: Sequence[int | TracedExtent]) -> tuple[int, list[TracedExtent]]:
    number, names = 1, list[TracedExtent]()
    for extent in extents:
        if isinstance(extent, int):
            number *= extent
        elif extent.tree[0] == "*":
            more, inner = _factors(extent.tree[1:])
            number, names = number * more, names + inner
        else:
            names.append(extent)
    return number, sorted(names, key=str)
