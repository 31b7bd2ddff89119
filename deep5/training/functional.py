"""`FunctionalRule`: an update rule as pure functions of a framework's arrays, for back-ends that compile whole steps.

A framework evaluates the rule's traced expressions with its own functions while it traces its step. Scalar parts are
float64, as in the kernel: `1 - beta2` in float32 would be off by 1.3e-5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import ParameterGroup
from deep5.core.tensors import Array, Arrays, TensorSpec
from deep5.training.evaluator import ArrayFunctions, Evaluator
from deep5.training.expression import Expr, topological
from deep5.training.given import StepNumbers
from deep5.training.groups import partition, require_trained
from deep5.training.master_weights import MASTER, SHORT_FLOATS, widened
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule
from deep5.training.state_check import checked_state
from deep5.training.trace import TracedRule

__all__ = ["FunctionalRule"]


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
        present: Converts a parameter or gradient by name from the order of its axes in memory to its own, for a rule
            that depends on shapes.
        store: The inverse of `present`.

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
        shaped: Whether the rule depends on the parameters' shapes; its states are then in the order of ONNX's axes.
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
        present: Callable[[str, Array], Array] | None = None,
        store: Callable[[str, Array], Array] | None = None,
    ) -> None:
        self.rule, self._functions, self._specs = rule, functions, dict(specs)
        parts = partition(specs, groups)
        shapes = {name: tuple(map(int, spec.shape)) for part, _ in parts for name, spec in part.items()}
        hypers = [hyper for _, hyper in parts]
        self._numbers = StepNumbers(rule, pipeline, hypers, fused=not modified, shapes=shapes.values())
        self._traced: TracedRule = self._numbers.traced
        self._traced_of = {name: self._numbers.traced_of(shape) for name, shape in shapes.items()}
        self.shaped = self._numbers.shaped
        # Found once: a step that is not compiled evaluates the same expressions each time.
        self._orders: dict[int, list[Expr]] = {}
        self._scalars: dict[tuple[int, bool], list[Expr]] = {}
        self._present = present if self.shaped and present is not None else _unchanged
        self._store = store if self.shaped and store is not None else _unchanged
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
                for name in part:
                    widened(part, self._traced_of[name], rule)  # rejects a state of that name
            self._parts.append(_Part(tuple(part), dtype, computes, self._numbers.width * len(self._parts)))
        self.width = self._numbers.width * len(self._parts)
        self.names = tuple(name for part in self._parts for name in part.names)
        require_trained(rule, specs, self.names)
        every = list(self._traced_of.values())
        self.prepares = any(traced.prepare is not None for traced in every)
        self.averages = any(traced.evaluate is not None for traced in every)
        found = [(key, value) for traced in every for key, value in traced.new_states.items()]
        self.remembers = tuple(dict.fromkeys(key for key, value in found if _is_view(value)))

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
                value, traced = self._present(name, parameters[name]), self._traced_of[name]
                if part.has_masters:
                    value = states[f"{MASTER}/{name}"] = self._functions.cast(value, part.dtype)
                evaluate = Evaluator(self._functions, part.dtype, shared(traced), {"param": value}, self._orders)
                for key, expression in traced.states.items():
                    value = evaluate(expression)
                    if expression.element:
                        states[f"{key}/{name}"] = value
                    else:
                        states[f"{key}/{name}"] = self._functions.cast(value, "float64")
        return states

    def prepare(self, parameters: Arrays, states: Arrays, given: Array) -> dict[str, Array]:
        """The points for the gradients."""
        return self._each("prepare", parameters, states, given)

    def evaluate(self, parameters: Arrays, states: Arrays, given: Array) -> dict[str, Array]:
        """The values for evaluation and export."""
        return self._each("evaluate", parameters, states, given)

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
                value = self._param(part, name, parameters, states)
                gradient = self._present(name, gradients[name])
                if part.has_masters:
                    gradient = self._functions.cast(gradient, part.dtype)
                arrays = {"grad": gradient, "param": value, **self._own(states, name)}
                own.append(
                    (name, Evaluator(self._functions, part.dtype, shared(self._traced_of[name]), arrays, self._orders))
                )
            work.append((part, shared, own))
        if self._traced.norm is not None:
            values = [
                evaluate.element(norm)
                for _, _, own in work
                for name, evaluate in own
                if (norm := self._traced_of[name].norm) is not None
            ]
            total = self._functions.square_sum(values)
            for part, shared, own in work:
                # Functions of the norm only are computed once, too.
                more = self._shared(part, given, {"total:norm": total}, shared)
                for name, evaluate in own:
                    evaluate.known.update(more(self._traced_of[name]))
                    evaluate.arrays["total:norm"] = total
        self._add_sums([pair for _, _, own in work for pair in own])
        for part, _, own in reversed(work):
            for name, evaluate in reversed(own):
                yield name, functools.partial(self._updated, part, name, evaluate)

    def _updated(self, part: _Part, name: str, evaluate: Evaluator) -> tuple[Array, dict[str, Array]]:
        traced = self._traced_of[name]
        parameter = evaluate.element(traced.param)
        new: dict[str, Array] = {}
        if part.has_masters:
            new[f"{MASTER}/{name}"] = parameter
            parameter = self._functions.cast(parameter, part.stored)
        parameter = self._store(name, parameter)
        for key, expression in traced.new_states.items():
            whole = traced.states[key].element
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
                for key, expression in self._traced_of[name].states.items():
                    shape = expression.dimensions
                    if shape is None:
                        shape = tuple(map(int, self._specs[name].shape))
                    expected[f"{key}/{name}"] = (shape, part.dtype if expression.element else "float64")
                if part.has_masters:
                    expected[f"{MASTER}/{name}"] = (tuple(map(int, self._specs[name].shape)), part.dtype)
        return checked_state(state, expected)

    def _each(self, phase: str, parameters: Arrays, states: Arrays, given: Array) -> dict[str, Array]:
        found = {}
        for part in self._parts:
            shared = self._shared(part, given)
            for name in part.names:
                traced = self._traced_of[name]
                expression: Expr | None = getattr(traced, phase)
                if expression is None:
                    found[name] = parameters[name]
                    continue
                arrays = {"param": self._param(part, name, parameters, states), **self._own(states, name)}
                value = Evaluator(self._functions, part.dtype, shared(traced), arrays, self._orders).element(expression)
                value = self._functions.cast(value, part.stored) if part.has_masters else value
                found[name] = self._store(name, value)
        return found

    def _param(self, part: _Part, name: str, parameters: Arrays, states: Arrays) -> Array:
        """The parameter in the dtype of the update: its master weight, or what was written into it since."""
        value = self._present(name, parameters[name])
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
        known: Callable[[TracedRule], dict[int, Array]] | None = None,
    ) -> Callable[[TracedRule], dict[int, Array]]:
        """The scalars common to all parameters of a part and a trace, by their serial number; evaluated once."""
        inputs = {name: given[part.offset + index] for index, name in enumerate(self._traced.given)}
        inputs |= totals or {}
        done: dict[int, dict[int, Array]] = {}

        def shared(traced: TracedRule) -> dict[int, Array]:
            if id(traced) in done:
                return done[id(traced)]
            before = {} if known is None else known(traced)
            evaluate = Evaluator(self._functions, part.dtype, before, inputs, self._orders)
            key = id(traced), known is None
            if key not in self._scalars:
                self._scalars[key] = _scalars(traced, inputs)
            for node in self._scalars[key]:
                evaluate(node)
            done[id(traced)] = evaluate.known
            return evaluate.known

        return shared

    def _own(self, states: Arrays, name: str) -> dict[str, Array]:
        return {f"state:{key}": states[f"{key}/{name}"] for key in self._traced_of[name].states}

    def _add_sums(self, work: Sequence[tuple[str, Evaluator]]) -> None:
        """Evaluate the sums, over a parameter or over the model, and store them."""
        for key in self._traced.sums:
            parts = [
                self._functions.cast(self._functions.sum(evaluate.element(self._traced_of[name].sums[key])), "float64")
                for name, evaluate in work
            ]
            if self.rule.scope == "model":
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                parts = [total] * len(parts)
            for (_, evaluate), value in zip(work, parts, strict=True):
                evaluate.arrays[f"sum:{key}"] = value


def _scalars(traced: TracedRule, inputs: Collection[str]) -> list[Expr]:
    """The scalars of a trace that follow from these inputs only."""
    found: list[Expr] = []
    known: set[int] = set()
    for node in topological(traced.roots()):
        operands = [arg for arg in node.args if isinstance(arg, Expr)]
        given = node.op != "input" or node.args[0] in inputs
        if not node.element and given and all(arg.op == "const" or arg.serial in known for arg in operands):
            found.append(node)
            known.add(node.serial)
    return found


def _unchanged(name: str, value: Array) -> Array:
    return value


def _is_view(value: Expr) -> bool:
    """Whether a framework may return the memory of the parameter or of the gradient itself."""
    while value.op in ("reshape", "permute_dims", "index", "broadcast_to"):
        value = value.args[0]
    return value.op == "load" and value.args[0] in ("grad", "param")
