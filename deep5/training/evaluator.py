"""`Evaluator`: values of a rule's expressions, in the functions of a back-end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from deep5.core.tensors import Array
from deep5.training.expression import OPERATIONS, Expr, topological
from deep5.training.shaped import SHAPED

__all__ = ["ArrayFunctions", "Evaluator"]


class ArrayFunctions(Protocol):
    """A back-end's functions, by the names of the array API."""

    def function(self, name: str) -> Callable[..., Array]:
        """The function for a key of `OPERATIONS`; takes arrays of one dtype, and Python numbers."""
        ...

    def cast(self, value: Array, dtype: str) -> Array:
        """Convert an array or a Python number to an array of this element type."""
        ...

    def sum(self, value: Array) -> Array:
        """The sum of all elements, shape ()."""
        ...

    def square_sum(self, values: Sequence[Array]) -> Array:
        """The sum of the squares of all elements of all arrays, squared and added in float64, shape ()."""
        ...

    def all_finite(self, values: Sequence[Array]) -> Array:
        """Whether every element of every array is finite, a boolean of shape ()."""
        ...

    def broadcast(self, value: Array, like: Array) -> Array:
        """A scalar of the array's dtype, broadcast to its shape."""
        ...

    @property
    def namespace(self) -> Any:
        """The array namespace of the values, for a rule that depends on shapes."""
        ...

    def eye(self, rows: int, columns: int, k: int, dtype: str) -> Array:
        """A matrix with ones on its k-th diagonal, zeros elsewhere."""
        ...

    def same_bits(self, first: Array, second: Array) -> Array:
        """Where two arrays of one 16-bit floating-point type are equal bit for bit, as booleans.

        No compiler may omit the rounding to this type.
        """
        ...


class Evaluator:
    """Values of expressions for one parameter.

    Args:
        functions: The back-end's.
        dtype: The parameter's.
        shared: Known values, by serial number.
        arrays: Values of the leaves by name.
        orders: The order of evaluation by an expression's serial number; kept from step to step by the caller.
    """

    def __init__(
        self,
        functions: ArrayFunctions,
        dtype: str,
        shared: Mapping[int, Array],
        arrays: Mapping[str, Array],
        orders: dict[int, list[Expr]],
    ) -> None:
        self._functions, self._dtype = functions, dtype
        self.known, self.arrays, self._orders = dict(shared), dict(arrays), orders
        self._rounded: dict[int, Array] = {}

    def element(self, expression: Expr) -> Array:
        """The value as an array of the parameter's shape and dtype."""
        value = self(expression)
        if expression.element:
            return value
        return self._functions.broadcast(self._functions.cast(value, self._dtype), self._like())

    def __call__(self, expression: Expr) -> Array:
        """The value as it is: an array, a scalar in float64, or a Python number."""
        order = self._orders.get(expression.serial)
        if order is None:
            order = self._orders[expression.serial] = topological([expression])
        for node in order:
            if node.serial not in self.known:
                self.known[node.serial] = self._value(node)
        return self.known[expression.serial]

    def _value(self, node: Expr) -> Array:
        if node.op == "const":
            return node.args[0]
        if node.op in ("input", "load"):
            return self.arrays[node.args[0]]
        if node.op == "broadcast":
            scalar = self._functions.cast(self._operand(node.args[0], element=True), self._dtype)
            if node.dimensions is None:
                return self._functions.broadcast(scalar, self._like())
            return self._functions.namespace.broadcast_to(scalar, node.dimensions)
        if node.op == "eye":
            rows, columns, k = node.args
            return self._functions.eye(rows, columns, k, self._dtype)
        if node.op == "item":
            return self._functions.cast(self._operand(node.args[0], element=True), "float64")
        if node.op in SHAPED:
            operands = [self._operand(arg, element=True) if isinstance(arg, Expr) else arg for arg in node.args]
            return SHAPED[node.op](self._functions.namespace, *operands)
        if all(arg.op == "const" for arg in node.args):
            return float(OPERATIONS[node.op][3](*(arg.args[0] for arg in node.args)))
        return self._functions.function(node.op)(*(self._operand(arg, node.element) for arg in node.args))

    def _operand(self, node: Expr, element: bool) -> Array:
        """A scalar is rounded when combined with an array; a Python number rounds automatically."""
        value = self.known[node.serial]
        if node.element or not element or node.boolean or type(value) is float:
            return value
        if node.serial not in self._rounded:
            self._rounded[node.serial] = self._functions.cast(value, self._dtype)
        return self._rounded[node.serial]

    def _like(self) -> Array:
        return self.arrays["param"]
