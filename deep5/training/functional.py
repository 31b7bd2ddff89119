"""`FunctionalRule`: an update rule as pure functions of a framework's arrays, for back-ends that compile whole steps.

A framework evaluates the rule's traced expressions with its own functions while it traces its step. Scalar parts are
float64, as in the kernel: `1 - beta2` in float32 would be off by 1.3e-5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import ParameterGroup
from deep5.core.tensors import Array, Arrays, TensorSpec
from deep5.training.expression import OPERATIONS, Expr, topological
from deep5.training.given import StepNumbers
from deep5.training.groups import partition, require_trained
from deep5.training.master_weights import MASTER, SHORT_FLOATS, widened
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule
from deep5.training.state_check import checked_state
from deep5.training.trace import TracedRule

__all__ = ["ArrayFunctions", "FunctionalRule"]


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

    def same_bits(self, first: Array, second: Array) -> Array:
        """Where two arrays of one 16-bit floating-point type are equal bit for bit, as booleans.

        No compiler may omit the rounding to this type.
        """
        ...


class _Part(NamedTuple):
    """Parameters of one group and one dtype.

    Attributes:
        names: The parameters.
        stored: Their dtype.
        dtype: The dtype of the update: float32 if they have master weights.
        offset: Position of the group's first number.
    """

    names: tuple[str, ...]
    stored: str
    dtype: str
    offset: int

    @property
    def has_masters(self) -> bool:
        return self.dtype != self.stored


class FunctionalRule:
    """A rule over the parameters of a network; all methods except `given` and `check_state` are traceable.

    Args:
        rule: `given` reads its hyperparameters at every step.
        specs: The parameters by name.
        functions: The back-end's functions.
        groups: Parameter groups; frozen parameters are omitted.
        pipeline: The stages around the rule.
        modified: Whether the gradients are already divided by the loss scale, because a modifier requires it.

    Raises:
        RuleError: The rule breaks its contract, the pipeline does not fit it, all parameters are frozen, or a group
            sets an unknown hyperparameter or matches nothing.
        UsageError: `groups` is not a sequence of groups, or a group's `match` does not return a bool.

    Attributes:
        names: The parameters that the rule updates.
        prepares: Whether the gradient is taken at another point than the parameter.
        averages: Whether evaluation uses another value than the parameter.
        remembers: The states that are equal to the step's parameter or gradient: `update` returns its argument arrays
            for them.
        traces: How often the rule was traced.
    """

    def __init__(
        self,
        rule: UpdateRule,
        specs: Mapping[str, TensorSpec],
        functions: ArrayFunctions,
        *,
        groups: Sequence[ParameterGroup] = (),
        pipeline: GradientPipeline | None = None,
        modified: bool = False,
    ) -> None:
        self.rule, self._functions, self._specs = rule, functions, dict(specs)
        parts = partition(specs, groups)
        self._numbers = StepNumbers(rule, pipeline, [hyper for _, hyper in parts], fused=not modified)
        self._traced: TracedRule = self._numbers.traced
        self.traces = 1
        self._parts: list[_Part] = []
        for part, _ in parts:
            dtype = next(iter(part.values())).dtype
            if dtype not in ("float32", "float64", *SHORT_FLOATS):
                raise ShapeError(
                    f"parameters of dtype {dtype}; allowed: float32, float64, {', '.join(SHORT_FLOATS)}; "
                    "remedy: freeze the others"
                )
            computes = dtype
            if dtype in SHORT_FLOATS and self._numbers.pipeline.master_weights is not False:
                computes = "float32"
                widened(part, self._traced, rule)  # rejects a state of that name
            self._parts.append(_Part(tuple(part), dtype, computes, self._numbers.width * len(self._parts)))
        self.width = self._numbers.width * len(self._parts)
        self.names = tuple(name for part in self._parts for name in part.names)
        require_trained(rule, specs, self.names)
        self.prepares, self.averages = self._traced.prepare is not None, self._traced.evaluate is not None
        self.remembers = tuple(
            key
            for key, value in self._traced.new_states.items()
            if value.op == "load" and value.args[0] in ("grad", "param")
        )

    def given(self, info: StepInfo, scale: float = 1.0) -> np.ndarray:
        """The numbers of a step: float64, shape (`width`,); an argument of the compiled step.

        Args:
            info: The step that begins.
            scale: The loss scale if it is dynamic and known to the host.

        Raises:
            RuleError: The rule returns other names than those traced, or values that are not numbers.
            UsageError: `info` is not a `StepInfo`, or a number of the pipeline is out of range.
        """
        check_info(info)
        return np.array(self._numbers.values(info, scale), np.float64)

    def scale(self, given: Sequence[Array]) -> Array:
        """The loss scale among a step's numbers; present whenever the pipeline scales the loss."""
        return given[self._scale_places()[0]]

    def with_scale(self, given: Sequence[Array], scale: Array) -> list[Array]:
        """A step's numbers with a loss scale that only the compiled step knows."""
        found = [given[index] for index in range(self.width)]
        for place in self._scale_places():
            found[place] = scale
        return found

    def _scale_places(self) -> list[int]:
        place = self._traced.given.index("stage:loss_scale")
        return [part.offset + place for part in self._parts]

    def initial(self, parameters: Arrays, given: Array) -> dict[str, Array]:
        """The states before the first step, `"<state>/<parameter>"`; those of shape () in float64."""
        states = {}
        for part in self._parts:
            shared = self._shared(part, given)
            for name in part.names:
                value = parameters[name]
                if part.has_masters:
                    value = states[f"{MASTER}/{name}"] = self._functions.cast(value, part.dtype)
                evaluate = _Evaluator(self._functions, part.dtype, shared, {"param": value})
                for key, expression in self._traced.states.items():
                    value = evaluate(expression)
                    if expression.element:
                        states[f"{key}/{name}"] = value
                    else:
                        states[f"{key}/{name}"] = self._functions.cast(value, "float64")
        return states

    def prepare(self, parameters: Arrays, states: Arrays, given: Array) -> dict[str, Array]:
        """The points for the gradients."""
        return self._each(self._traced.prepare, parameters, states, given)

    def evaluate(self, parameters: Arrays, states: Arrays, given: Array) -> dict[str, Array]:
        """The values for evaluation and export."""
        return self._each(self._traced.evaluate, parameters, states, given)

    def update(
        self, gradients: Arrays, parameters: Arrays, states: Arrays, given: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The new parameters and states, by name."""
        new_parameters: dict[str, Array] = {}
        new_states: dict[str, Array] = {}
        for name, evaluate in self.updates(gradients, parameters, states, given):
            new_parameters[name], own = evaluate()
            new_states |= own
        return new_parameters, new_states

    def updates(
        self, gradients: Arrays, parameters: Arrays, states: Arrays, given: Array
    ) -> Iterator[tuple[str, Callable[[], tuple[Array, dict[str, Array]]]]]:
        """For each parameter, its name and a function that evaluates its new value and its new states by name.

        The order is reversed, since a backward pass computes the last gradient first. A framework may finish one before
        the next begins.
        """
        work = []
        for part in self._parts:
            shared = self._shared(part, given)
            own = []
            for name in part.names:
                value, gradient = self._param(part, name, parameters, states), gradients[name]
                if part.has_masters:
                    gradient = self._functions.cast(gradient, part.dtype)
                arrays = {"grad": gradient, "param": value, **self._own(states, name)}
                own.append((name, _Evaluator(self._functions, part.dtype, shared, arrays)))
            work.append((part, shared, own))
        if self._traced.norm is not None:
            values = [evaluate.element(self._traced.norm) for _, _, own in work for _, evaluate in own]
            total = self._functions.square_sum(values)
            for part, shared, own in work:
                # Functions of the norm only are computed once, too.
                more = self._shared(part, given, {"total:norm": total}, shared)
                for _, evaluate in own:
                    evaluate.known.update(more)
                    evaluate.arrays["total:norm"] = total
        self._add_sums([pair for _, _, own in work for pair in own])
        for part, _, own in reversed(work):
            for name, evaluate in reversed(own):
                yield name, functools.partial(self._updated, part, name, evaluate)

    def _updated(self, part: _Part, name: str, evaluate: _Evaluator) -> tuple[Array, dict[str, Array]]:
        parameter = evaluate.element(self._traced.param)
        new: dict[str, Array] = {}
        if part.has_masters:
            new[f"{MASTER}/{name}"] = parameter
            parameter = self._functions.cast(parameter, part.stored)
        for key, expression in self._traced.new_states.items():
            whole = self._traced.states[key].element
            value = evaluate.element(expression) if whole else evaluate(expression)
            new[f"{key}/{name}"] = value if whole else self._functions.cast(value, "float64")
        return parameter, new

    def check_state(self, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The entries of a `state_dict`, checked for shape and dtype.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        expected = {}
        for part in self._parts:
            for name in part.names:
                for key, expression in self._traced.states.items():
                    shape = tuple(map(int, self._specs[name].shape)) if expression.element else ()
                    expected[f"{key}/{name}"] = (shape, part.dtype if expression.element else "float64")
                if part.has_masters:
                    expected[f"{MASTER}/{name}"] = (tuple(map(int, self._specs[name].shape)), part.dtype)
        return checked_state(state, expected)

    def _each(self, expression: Expr | None, parameters: Arrays, states: Arrays, given: Array) -> dict[str, Array]:
        if expression is None:
            return {name: parameters[name] for name in self.names}
        found = {}
        for part in self._parts:
            shared = self._shared(part, given)
            for name in part.names:
                arrays = {"param": self._param(part, name, parameters, states), **self._own(states, name)}
                value = _Evaluator(self._functions, part.dtype, shared, arrays).element(expression)
                found[name] = self._functions.cast(value, part.stored) if part.has_masters else value
        return found

    def _param(self, part: _Part, name: str, parameters: Arrays, states: Arrays) -> Array:
        """The parameter in the dtype of the update: its master weight, or what was written into it since."""
        value = parameters[name]
        if not part.has_masters:
            return value
        functions, master = self._functions, states[f"{MASTER}/{name}"]
        kept = functions.same_bits(functions.cast(master, part.stored), value)
        return functions.function("where")(kept, master, functions.cast(value, part.dtype))

    def _shared(
        self,
        part: _Part,
        given: Array,
        totals: Mapping[str, Array] | None = None,
        known: Mapping[int, Array] | None = None,
    ) -> dict[int, Array]:
        """The scalars common to all parameters of a part, by their serial number; evaluated once."""
        inputs = {name: given[part.offset + index] for index, name in enumerate(self._traced.given)}
        inputs |= totals or {}
        evaluate = _Evaluator(self._functions, part.dtype, known or {}, inputs)
        for node in topological(self._traced.roots()):
            leaves = (node.args[0] in inputs,) if node.op == "input" else ()
            if (
                not node.element
                and all(leaves)
                and all(arg.op == "const" or arg.serial in evaluate.known for arg in node.args if isinstance(arg, Expr))
            ):
                evaluate(node)
        return evaluate.known

    def _own(self, states: Arrays, name: str) -> dict[str, Array]:
        return {f"state:{key}": states[f"{key}/{name}"] for key in self._traced.states}

    def _add_sums(self, work: Sequence[tuple[str, _Evaluator]]) -> None:
        """Evaluate the sums, over a parameter or over the model, and store them."""
        for key, expression in self._traced.sums.items():
            parts = [
                self._functions.cast(self._functions.sum(evaluate.element(expression)), "float64")
                for _, evaluate in work
            ]
            if self.rule.scope == "model":
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                parts = [total] * len(parts)
            for (_, evaluate), value in zip(work, parts, strict=True):
                evaluate.arrays[f"sum:{key}"] = value


class _Evaluator:
    """Values of expressions for one parameter.

    Args:
        functions: The back-end's.
        dtype: The parameter's.
        shared: Known values, by serial number.
        arrays: Values of the leaves by name.
    """

    def __init__(
        self, functions: ArrayFunctions, dtype: str, shared: Mapping[int, Array], arrays: Mapping[str, Array]
    ) -> None:
        self._functions, self._dtype = functions, dtype
        self.known, self.arrays = dict(shared), dict(arrays)
        self._rounded: dict[int, Array] = {}

    def element(self, expression: Expr) -> Array:
        """The value as an array of the parameter's shape and dtype."""
        value = self(expression)
        if expression.element:
            return value
        return self._functions.broadcast(self._functions.cast(value, self._dtype), self._like())

    def __call__(self, expression: Expr) -> Array:
        for node in topological([expression]):
            if node.serial not in self.known:
                self.known[node.serial] = self._value(node)
        return self.known[expression.serial]

    def _value(self, node: Expr) -> Array:
        if node.op == "const":
            return node.args[0]
        if node.op in ("input", "load"):
            return self.arrays[node.args[0]]
        if node.op == "broadcast":
            scalar = self._operand(node.args[0], element=True)
            return self._functions.broadcast(self._functions.cast(scalar, self._dtype), self._like())
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
