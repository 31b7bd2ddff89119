"""Tracing: an update rule runs once on symbols, and what it did with them is an expression graph.

The graph has two kinds of nodes. A *scalar* one is the same for all elements of a parameter (hyperparameters, the
host's extra inputs, sums, what is computed from these); it is evaluated once a parameter in float64. An *element*
one differs from element to element and is evaluated in the parameter's dtype.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deep5.errors import RuleError
from deep5.events import StepInfo
from deep5.training.rule import UpdateRule

__all__ = ["OPERATIONS", "Expr", "TracedRule", "topological", "trace_rule"]

# name: (number of arguments, result is a truth value, C expression, NumPy function). {S} is the suffix of the
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
    "sign": (1, False, "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}", np.sign),
    # As the array API has it: a NaN on either side comes out.
    "maximum": (2, False, "({0} > {1} || {0} != {0}) ? {0} : {1}", np.maximum),
    "minimum": (2, False, "({0} < {1} || {0} != {0}) ? {0} : {1}", np.minimum),
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

_serial = itertools.count()


class Expr:
    """A node of the graph. Behaves like an array of the standard as far as an update rule may use one.

    Attributes:
        op: A key of `OPERATIONS`, or `"const"`, `"input"` (a scalar by name), `"load"` (an array by name),
            `"broadcast"` (a scalar made an array), `"sum"`.
        args: Operands; for the leaves a number or a name.
        element: Whether it differs from element to element.
        boolean: Whether it is a truth value.
    """

    __slots__ = ("args", "boolean", "element", "op", "serial")
    __array_ufunc__ = None  # NumPy must not take the operators over

    def __init__(self, op: str, args: tuple[Any, ...], element: bool, boolean: bool = False) -> None:
        self.op, self.args, self.element, self.boolean = op, args, element, boolean
        self.serial = next(_serial)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _NAMESPACE

    @property
    def dtype(self) -> str:
        return "the parameter's dtype"

    def __getattr__(self, name: str) -> Any:
        raise RuleError(
            f"an update rule used '.{name}' of an array; allowed: operators and the functions of "
            "xp = d5.array_namespace(param), which do not depend on the parameter's shape"
        )

    def _refuse(self, what: str) -> Any:
        raise RuleError(
            f"an update rule {what}, which cannot be traced; remedy: xp.where(condition, a, b) and the functions of "
            "xp = d5.array_namespace(param)"
        )

    def __bool__(self) -> bool:
        return bool(self._refuse("decided by the value of an array"))

    def __float__(self) -> float:
        return float(self._refuse("made a Python number of an array or hyperparameter"))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("called a function of NumPy")

    def __len__(self) -> int:
        return int(self._refuse("asked for the length of an array"))

    def __iter__(self) -> Any:
        self._refuse("iterated over an array")

    def __getitem__(self, key: Any) -> Any:
        self._refuse("indexed an array")

    def __setitem__(self, key: Any, value: Any) -> None:
        self._refuse("assigned into an array (rules are pure)")

    def __add__(self, other: Any) -> Any:
        return _apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _apply("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return _power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return _power(other, self)

    def __neg__(self) -> Any:
        return _apply("negative", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _apply("abs", self)

    def __lt__(self, other: Any) -> Any:
        return _apply("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _apply("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _apply("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _apply("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return _apply("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _apply("not_equal", self, other)

    def __and__(self, other: Any) -> Any:
        return _apply("logical_and", self, other)

    def __or__(self, other: Any) -> Any:
        return _apply("logical_or", self, other)

    def __invert__(self) -> Any:
        return _apply("logical_not", self)

    __hash__ = object.__hash__


def _lift(value: Any) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, float, np.floating, np.integer)):
        return Expr("const", (float(value),), element=False)
    raise RuleError(
        f"an update rule combined an array with a {type(value).__name__}; allowed: arrays it was given and Python numbers"
    )


def _apply(op: str, *operands: Any) -> Expr:
    args = tuple(_lift(operand) for operand in operands)
    if op == "where" and not (args[0].boolean or args[0].op == "const"):
        raise RuleError("xp.where in an update rule needs a condition as its first argument, such as grad > 0")
    return Expr(op, args, any(arg.element for arg in args), OPERATIONS[op][1])


def _power(base: Any, exponent: Any) -> Expr:
    """Small whole powers and the root become multiplications and sqrt: exact, and a loop over them vectorises."""
    base, exponent = _lift(base), _lift(exponent)
    if exponent.op == "const":
        value = exponent.args[0]
        if value == 0.5:
            return _apply("sqrt", base)
        if value == int(value) and 1 <= value <= 8:
            product = base
            for _ in range(int(value) - 1):
                product = _apply("multiply", product, base)
            return product
    return _apply("pow", base, exponent)


class _Namespace:
    """The functions of the array API that an update rule may use while it is traced."""

    def __getattr__(self, name: str) -> Any:
        if name in OPERATIONS:
            return lambda *operands: _apply(name, *operands)
        raise RuleError(
            f"an update rule used xp.{name}; allowed: {', '.join(sorted([*OPERATIONS, *_EXTRA]))}"
        )

    def pow(self, base: Any, exponent: Any) -> Expr:
        return _power(base, exponent)

    def square(self, x: Any) -> Expr:
        return _apply("multiply", x, x)

    def positive(self, x: Any) -> Expr:
        return _lift(x)

    def clip(self, x: Any, min: Any = None, max: Any = None) -> Expr:  # noqa: A002 - the standard's names
        x = x if min is None else _apply("maximum", x, min)
        return _lift(x) if max is None else _apply("minimum", x, max)

    def sum(self, x: Any) -> Expr:
        x = _lift(x)
        if not x.element:
            raise RuleError("an update rule summed a scalar; allowed: xp.sum of an array of the parameter's shape")
        return Expr("sum", (x,), element=False)

    def full_like(self, x: Any, fill_value: Any) -> Expr:
        return Expr("broadcast", (_lift(fill_value),), element=True)

    def zeros_like(self, x: Any) -> Expr:
        return self.full_like(x, 0.0)

    def ones_like(self, x: Any) -> Expr:
        return self.full_like(x, 1.0)

    def full(self, shape: Any, fill_value: Any, *, dtype: Any = None) -> Expr:
        if tuple(shape) != ():
            raise RuleError(f"an update rule made an array of shape {shape}; allowed: (), or xp.full_like(param, value)")
        return _lift(fill_value)

    def zeros(self, shape: Any, *, dtype: Any = None) -> Expr:
        return self.full(shape, 0.0)

    def ones(self, shape: Any, *, dtype: Any = None) -> Expr:
        return self.full(shape, 1.0)

    def asarray(self, x: Any, *, dtype: Any = None, copy: bool | None = None) -> Expr:
        return _lift(x)


_EXTRA = tuple(name for name in vars(_Namespace) if not name.startswith("_"))
_NAMESPACE = _Namespace()


@dataclass(frozen=True, kw_only=True)
class TracedRule:
    """What one trace of a rule gave.

    Attributes:
        hyper: Hyperparameters, in the order in which a kernel takes them.
        inputs: Names that `new_input` returns, likewise.
        states: Initial value of every state by name; an element expression, or a scalar one for a state of shape ().
        sums: The expression under each sum.
        prepare: The point of the gradient, or None where it is the parameter itself.
        param: The new parameter.
        new_states: The new states.
        evaluate: The value for evaluation, or None where it is the parameter itself.
    """

    hyper: tuple[str, ...]
    inputs: tuple[str, ...]
    states: dict[str, Expr]
    sums: dict[str, Expr]
    prepare: Expr | None
    param: Expr
    new_states: dict[str, Expr]
    evaluate: Expr | None

    def scalar_state(self, name: str) -> bool:
        """Whether a state has shape ()."""
        return not self.states[name].element


def trace_rule(rule: UpdateRule) -> TracedRule:
    """Run a rule once on symbols.

    Raises:
        RuleError: The rule breaks the contract of `UpdateRule`; the message says how.
    """
    name = type(rule).__name__
    if not isinstance(rule, UpdateRule):
        raise RuleError(f"got {rule!r} as an update rule; allowed: an instance of a subclass of d5.UpdateRule")
    if rule.scope not in ("element", "tensor", "model"):
        raise RuleError(f"{name}.scope is {rule.scope!r}; allowed: 'element', 'tensor', 'model'")
    _check_attributes(rule, name)
    inputs = _host_inputs(rule, name)

    bound = copy.copy(rule)
    for attribute in (*rule.hyper, *inputs):
        object.__setattr__(bound, attribute, Expr("input", (attribute,), element=False))
    grad, param = Expr("load", ("grad",), element=True), Expr("load", ("param",), element=True)

    initial = {key: _lift(value) for key, value in _mapping(bound.init_state(param), name, "init_state").items()}
    state = {
        key: Expr("load", (f"state:{key}",), element=True)
        if value.element
        else Expr("input", (f"state:{key}",), element=False)
        for key, value in initial.items()
    }
    # A rule that writes into the state it was given would be right here and wrong on arrays: give it copies.
    prepared = bound.prepare_param(param, dict(state))
    sums = _sums(_mapping(bound.sums(grad, param, dict(state)), name, "sums"), rule, name)
    for attribute in sums:
        object.__setattr__(bound, attribute, Expr("input", (f"sum:{attribute}",), element=False))
    result = bound.update_rule(grad, param, dict(state))
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuleError(f"{name}.update_rule returned {type(result).__name__}; allowed: the pair (param, state)")
    new_state = _mapping(result[1], name, "update_rule")
    if new_state.keys() != initial.keys():
        raise RuleError(
            f"{name}.update_rule returned the states {sorted(new_state)}; allowed: those of init_state, {sorted(initial)}"
        )
    new_states = {key: _lift(value) for key, value in new_state.items()}
    for key, value in new_states.items():
        if value.element and not initial[key].element:
            raise RuleError(f"{name}.update_rule made the state {key!r} an array; init_state gave it the shape ()")
    evaluated = bound.eval_param(param, dict(state))
    return TracedRule(
        hyper=tuple(rule.hyper),
        inputs=inputs,
        states=initial,
        sums=sums,
        prepare=None if prepared is param else _element(prepared, name, "prepare_param"),
        param=_element(result[0], name, "update_rule"),
        new_states=new_states,
        evaluate=None if evaluated is param else _element(evaluated, name, "eval_param"),
    )


def topological(roots: Iterable[Expr]) -> list[Expr]:
    """Every node under the roots, operands before users; equal nodes are merged by the caller."""
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


def _check_attributes(rule: UpdateRule, name: str) -> None:
    for attribute in rule.hyper:
        value = getattr(rule, attribute, None)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise RuleError(f"the hyperparameter {name}.{attribute} is {value!r}; allowed: a number")
    for attribute, value in vars(rule).items():
        if isinstance(value, (float, np.floating)) and attribute not in rule.hyper:
            raise RuleError(
                f"the attribute {name}.{attribute} is a float that 'hyper' does not name, so it would be baked into "
                f"the compiled step; remedy: hyper = {(*rule.hyper, attribute)!r}"
            )


def _host_inputs(rule: UpdateRule, name: str) -> tuple[str, ...]:
    given = _mapping(rule.new_input(StepInfo(batch_size=1)), name, "new_input")
    for key, value in given.items():
        if key in rule.hyper:
            raise RuleError(f"{name}.new_input returned {key!r}, which is a hyperparameter; remedy: another name")
        try:
            float(value)
        except (TypeError, ValueError):
            raise RuleError(f"{name}.new_input returned {value!r} as {key!r}; allowed: a number") from None
    return tuple(given)


def _sums(given: Mapping[str, Any], rule: UpdateRule, name: str) -> dict[str, Expr]:
    if given and rule.scope == "element":
        raise RuleError(f"{name}.sums returned {sorted(given)} but its scope is 'element'; allowed: 'tensor' or 'model'")
    for key, value in given.items():
        if not (isinstance(value, Expr) and value.op == "sum"):
            raise RuleError(f"{name}.sums returned {key!r} that is no sum; allowed: xp.sum(expression), nothing around it")
    return {key: value.args[0] for key, value in given.items()}


def _mapping(value: Any, name: str, method: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key.isidentifier() for key in value):
        raise RuleError(f"{name}.{method} returned {value!r}; allowed: a dict whose keys are identifiers")
    return value


def _element(value: Any, name: str, method: str) -> Expr:
    expression = _lift(value)
    if expression.boolean:
        raise RuleError(f"{name}.{method} returned a truth value as parameter; allowed: an array of the parameter's shape")
    return expression if expression.element else Expr("broadcast", (expression,), element=True)
