"""Symbols: placeholders for arrays while an update rule is traced, and their operations.

The graph has two kinds of nodes. A *scalar* node is the same for all elements of a parameter (hyperparameters, the
host's extra inputs, sums, and functions of these); it is evaluated once per parameter in float64. An *element* node
differs between elements and is evaluated in the parameter's dtype. In a rule that is traced per shape, an element node
is an array of any shape; see `deep5.training.shaped`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from deep5.training.refusals import ParameterDtype, TraceError, asked_by_rule, refuse_conversion

__all__ = ["OPERATIONS", "Expr", "ShapeNeeded", "combined", "lift", "power", "provide", "topological"]


_NEEDED = "an update rule used the shape of an array"


class ShapeNeeded(TraceError):
    """Raised while a rule is traced for all shapes at once: it depends on the parameter's shape."""


# name: (number of arguments, whether the result is boolean, C expression, NumPy function). {S} is the suffix of the
# C library's function for the element type: "f" for float, nothing for double.
OPERATIONS: dict[str, tuple[int, bool, str, Callable[..., Any]]] = {
    "add": (2, False, "{0} + {1}", np.add),
    "subtract": (2, False, "{0} - {1}", np.subtract),
    "multiply": (2, False, "{0} * {1}", np.multiply),
    "divide": (2, False, "{0} / {1}", np.divide),
    "negative": (1, False, "-{0}", np.negative),
    "pow": (2, False, "pow{S}({0}, {1})", np.power),
    "sqrt": (1, False, "sqrt{S}({0})", np.sqrt),
    "abs": (1, False, "fabs{S}({0})", np.abs),
    "exp": (1, False, "exp{S}({0})", np.exp),
    "expm1": (1, False, "expm1{S}({0})", np.expm1),
    "log": (1, False, "log{S}({0})", np.log),
    "log1p": (1, False, "log1p{S}({0})", np.log1p),
    "tanh": (1, False, "tanh{S}({0})", np.tanh),
    "sin": (1, False, "sin{S}({0})", np.sin),
    "cos": (1, False, "cos{S}({0})", np.cos),
    "floor": (1, False, "floor{S}({0})", np.floor),
    "ceil": (1, False, "ceil{S}({0})", np.ceil),
    "sign": (1, False, "{0} > 0 ? 1 : {0} < 0 ? -1 : {0} == 0 ? 0 : {0}", np.sign),
    # As in the array API: NaN propagates from both sides. This form lets a loop with nested minimum and maximum
    # (clipping) vectorize; with "||" it took a hundred times as long.
    "maximum": (2, False, "{1} != {1} ? {1} : {0} < {1} ? {1} : {0}", np.maximum),
    "minimum": (2, False, "{1} != {1} ? {1} : {0} > {1} ? {1} : {0}", np.minimum),
    "where": (3, False, "{0} ? {1} : {2}", np.where),
    "less": (2, True, "{0} < {1}", np.less),
    "less_equal": (2, True, "{0} <= {1}", np.less_equal),
    "greater": (2, True, "{0} > {1}", np.greater),
    "greater_equal": (2, True, "{0} >= {1}", np.greater_equal),
    "equal": (2, True, "{0} == {1}", np.equal),
    "not_equal": (2, True, "{0} != {1}", np.not_equal),
    "isnan": (1, True, "{0} != {0}", np.isnan),
    "isfinite": (1, True, "{0} - {0} == 0", np.isfinite),
    "logical_and": (2, True, "{0} && {1}", np.logical_and),
    "logical_or": (2, True, "{0} || {1}", np.logical_or),
    "logical_not": (1, True, "!{0}", np.logical_not),
}

# Operations on booleans; equality and `where` take both kinds, all others only numbers.
_LOGICAL = ("logical_and", "logical_or", "logical_not")
_serial = itertools.count()
_DTYPE = ParameterDtype()


class Expr:
    """A node of the graph. Behaves like an array of the standard within the limits of update rules.

    Attributes:
        op: A key of `OPERATIONS` or `SHAPED`, or `"const"`, `"input"` (a scalar by name), `"load"` (an array by name),
            `"broadcast"` (a scalar expanded to an array), `"sum"`, `"eye"`, `"item"` (an array's only element).
        args: Operands; for leaves a number or a name, and after the operands what is fixed.
        element: Whether it differs between elements.
        boolean: Whether it is boolean.
        dimensions: Its shape, () for a scalar; None if the rule is traced for all shapes at once.
    """

    __slots__ = ("args", "boolean", "dimensions", "element", "op", "serial")
    __array_ufunc__ = None  # NumPy must not take over the operators

    def __init__(
        self,
        op: str,
        args: tuple[Any, ...],
        element: bool,
        boolean: bool = False,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.op, self.args, self.element, self.boolean = op, args, element, boolean
        self.dimensions = shape if element else ()
        self.serial = next(_serial)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return namespace()

    @property
    def dtype(self) -> ParameterDtype:
        """The `dtype` argument for array creation functions."""
        return _DTYPE

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self._known_shape()

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._known_shape())

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._known_shape())

    @property
    def T(self) -> Expr:  # noqa: N802 - the standard's name
        """A matrix, transposed."""
        if self.ndim != 2:
            raise TraceError(f"an update rule used '.T' of an array of shape {self.shape}; allowed: a matrix")
        found: Expr = namespace().matrix_transpose(self)
        return found

    @property
    def mT(self) -> Expr:  # noqa: N802 - the standard's name
        """Matrices, transposed."""
        found: Expr = namespace().matrix_transpose(self)
        return found

    def _known_shape(self) -> tuple[int, ...]:
        if self.dimensions is None:
            raise ShapeNeeded(_NEEDED)
        return self.dimensions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # libraries query protocols this way
            raise AttributeError(name)
        raise TraceError(
            f"an update rule used '.{name}' of an array; allowed: operators and the functions of "
            "xp = d5.array_namespace(param), and .shape, .ndim, .size, .T and .mT"
        )

    def _refuse(self, what: str) -> Any:
        raise TraceError(
            f"an update rule {what}, which cannot be traced; remedy: xp.where(condition, a, b) and the functions of "
            "xp = d5.array_namespace(param)"
        )

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class, which `isinstance` reads: its answer would be for the symbol, not for the rule's arrays."""
        if asked_by_rule():
            refuse_conversion("decided by the type of an array or hyperparameter")
        return Expr

    def __bool__(self) -> bool:
        return bool(self._refuse("decided by the value of an array"))

    def __float__(self) -> float:
        return float(self._refuse("converted an array or hyperparameter to a Python number"))

    def __int__(self) -> int:
        return int(self._refuse("converted an array or hyperparameter to a Python number"))

    def __round__(self, digits: int | None = None) -> Any:
        self._refuse("rounded an array or hyperparameter by Python's function")

    def __hash__(self) -> int:
        return int(self._refuse("looked up an array or hyperparameter in a dictionary or set"))

    def __repr__(self) -> str:
        if asked_by_rule():
            refuse_conversion("converted an array or hyperparameter to a string")
        return f"<symbol {self.op}>"

    def __format__(self, specification: str) -> str:
        if asked_by_rule():
            refuse_conversion("converted an array or hyperparameter to a string")
        return repr(self)

    __str__ = __repr__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("called a function of NumPy")

    def __len__(self) -> int:
        if not self._known_shape():
            self._refuse("used the length of a scalar")
        return self.shape[0]

    def __iter__(self) -> Any:
        self._refuse("iterated over an array")

    def __getitem__(self, key: Any) -> Any:
        return namespace().index(self, key)

    def __matmul__(self, other: Any) -> Any:
        return namespace().matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return namespace().matmul(other, self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._refuse("assigned into an array (rules are pure)")

    def __add__(self, other: Any) -> Expr:
        return combined("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return combined("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return combined("subtract", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return combined("subtract", other, self)

    def __mul__(self, other: Any) -> Expr:
        return combined("multiply", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return combined("multiply", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return combined("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return combined("divide", other, self)

    def __pow__(self, other: Any) -> Expr:
        return power(self, other)

    def __rpow__(self, other: Any) -> Expr:
        return power(other, self)

    def __neg__(self) -> Any:
        return combined("negative", self)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return combined("abs", self)

    def __lt__(self, other: Any) -> Expr:
        return combined("less", self, other)

    def __le__(self, other: Any) -> Expr:
        return combined("less_equal", self, other)

    def __gt__(self, other: Any) -> Expr:
        return combined("greater", self, other)

    def __ge__(self, other: Any) -> Expr:
        return combined("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return combined("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return combined("not_equal", self, other)

    def __and__(self, other: Any) -> Expr:
        return combined("logical_and", self, other)

    def __or__(self, other: Any) -> Expr:
        return combined("logical_or", self, other)

    def __invert__(self) -> Expr:
        return combined("logical_not", self)


def lift(value: Any) -> Expr:
    """The symbol itself, or a number as a constant symbol; other types cannot be traced."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, float, np.floating, np.integer)):
        return Expr("const", (float(value),), element=False)
    raise TraceError(
        f"an update rule combined an array with a {type(value).__name__}; allowed: arrays that it was given and Python "
        "numbers"
    )


def combined(op: str, *operands: Any) -> Expr:
    """The node of an operation on elements.

    Args:
        op: A key of `OPERATIONS`.
        operands: Symbols and Python numbers.

    Raises:
        RuleError: Their number, kinds or shapes do not fit the operation.
    """
    args = tuple(lift(operand) for operand in operands)
    if len(args) != OPERATIONS[op][0]:
        raise TraceError(f"xp.{op} in an update rule got {len(args)} arguments; allowed: {OPERATIONS[op][0]}")
    conditions = args[:1] if op == "where" else args if op in _LOGICAL else ()
    for arg in args:
        if arg.boolean != any(arg is condition for condition in conditions):
            wanted = "numbers where it got a condition" if arg.boolean else "a condition, such as grad > 0"
            raise TraceError(
                f"an update rule computed xp.{op} of the wrong kind of value; allowed: {wanted}; remedy: "
                "xp.where(condition, a, b)"
            )
    shape = _broadcast(op, [arg.dimensions for arg in args if arg.element])
    return Expr(op, args, any(arg.element for arg in args), OPERATIONS[op][1], shape)


def _broadcast(op: str, shapes: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        if known:
            raise ShapeNeeded(_NEEDED)
        return None
    try:
        return np.broadcast_shapes(*known)
    except ValueError:
        raise TraceError(
            f"an update rule computed xp.{op} of arrays of shapes {' and '.join(map(str, known))}; allowed: shapes "
            "that broadcast, as in the array standard"
        ) from None


# Set by the module of the functions, which are functions of symbols: it imports this one.
_NAMESPACE: list[Any] = []


def provide(functions: Any) -> None:
    """Set the functions of the array API that a rule may use."""
    _NAMESPACE[:] = [functions]


def namespace() -> Any:
    """The functions of the array API that a rule may use."""
    return _NAMESPACE[0]


def power(base: Any, exponent: Any) -> Expr:
    """Small integer powers and the root become multiplications and sqrt: exact and vectorizable."""
    base, exponent = lift(base), lift(exponent)
    if exponent.op == "const":
        value = exponent.args[0]
        if value == 0.5:
            return combined("sqrt", base)
        if value.is_integer() and 1 <= value <= 8:
            product: Expr = base
            for _ in range(int(value) - 1):
                product = combined("multiply", product, base)
            return product
    return combined("pow", base, exponent)


def topological(roots: Iterable[Expr]) -> list[Expr]:
    """Every node of the expressions, operands before users."""
    seen: set[int] = set()
    order: list[Expr] = []
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node.serial not in seen:
            seen.add(node.serial)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args) if isinstance(arg, Expr))
    return order
