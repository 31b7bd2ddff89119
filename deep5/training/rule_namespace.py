"""`NAMESPACE`: the functions of the array standard that an update rule may use while it is traced."""

from __future__ import annotations

from typing import Any

from deep5.training.expression import OPERATIONS, Expr, combined, lift, power, provide
from deep5.training.refusals import TraceError
from deep5.training.shaped import ShapedFunctions, fixed, indexed

__all__ = ["NAMESPACE"]


class RuleNamespace(ShapedFunctions):
    """The functions of the array API that an update rule may use during tracing."""

    def __getattr__(self, name: str) -> Any:
        if name in OPERATIONS:
            return lambda *operands: combined(name, *operands)
        if name.startswith("__"):  # libraries query protocols this way
            raise AttributeError(name)
        raise TraceError(f"an update rule used xp.{name}; allowed: {', '.join(sorted([*OPERATIONS, *_EXTRA]))}")

    def pow(self, base: Any, exponent: Any) -> Expr:
        return power(base, exponent)

    def square(self, x: Any) -> Expr:
        return combined("multiply", x, x)

    def positive(self, x: Any) -> Expr:
        return lift(x)

    def clip(self, x: Any, min: Any = None, max: Any = None) -> Expr:  # noqa: A002 - the standard's names
        x = x if min is None else combined("maximum", x, min)
        return lift(x) if max is None else combined("minimum", x, max)

    def full_like(self, x: Any, fill_value: Any, *, dtype: Any = None) -> Expr:
        value, like = lift(fill_value), lift(x)
        return Expr("broadcast", (value,), element=True, shape=like.dimensions) if like.element else value

    def zeros_like(self, x: Any, *, dtype: Any = None) -> Expr:
        return self.full_like(x, 0.0)

    def ones_like(self, x: Any, *, dtype: Any = None) -> Expr:
        return self.full_like(x, 1.0)

    def full(self, shape: Any, fill_value: Any, *, dtype: Any = None) -> Expr:
        found = fixed(shape)
        return Expr("broadcast", (lift(fill_value),), element=True, shape=found) if found else lift(fill_value)

    def zeros(self, shape: Any, *, dtype: Any = None) -> Expr:
        return self.full(shape, 0.0)

    def ones(self, shape: Any, *, dtype: Any = None) -> Expr:
        return self.full(shape, 1.0)

    def index(self, x: Expr, key: Any) -> Expr:
        return indexed(x, key)

    def astype(self, x: Any, dtype: Any, /, *, copy: bool = True) -> Expr:
        return lift(x)

    def asarray(self, x: Any, *, dtype: Any = None, copy: bool | None = None) -> Expr:
        return lift(x)


_EXTRA = tuple(name for kind in (RuleNamespace, ShapedFunctions) for name in vars(kind) if not name.startswith("_"))
NAMESPACE = RuleNamespace()
"""The namespace of the symbols of `deep5.training.expression`."""

provide(NAMESPACE)
