"""`DeviceStep`: the training step for parameters outside host memory, with the rule in torch's functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from typing_extensions import override

from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.core.tensors import Array, Arrays, TensorSpec, array_namespace, to_numpy
from deep5.frameworks.pytorch.placing import placed
from deep5.frameworks.pytorch.short import tensor
from deep5.training.functional import FunctionalRule
from deep5.training.groups import partition, require_trained
from deep5.training.loss_scale import LossScale
from deep5.training.pipeline import GradientPipeline, modified
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import Modifier, RuleStep, by_updates, check_gradient, refuse_inside
from deep5.training.trace import trace_rule

__all__ = ["DeviceStep", "LeafExecutor"]

# Python's operators accept a number on either side, torch's functions of these names only a tensor first.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "pow": operator.pow,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


class LeafExecutor(GraphExecutor, Protocol):
    """An executor whose parameters are leaves of torch's graphs."""

    def leaves(self) -> dict[str, Any]:
        """The trained parameters by name: leaves with `.grad`."""
        ...

    def spend(self) -> None:
        """Mark the gradients as consumed by a whole training step: they stay readable, but nothing is added to them."""
        ...


class _Functions:
    """torch's functions for `FunctionalRule`; see `ArrayFunctions`."""

    def __init__(self, place: torch.device) -> None:
        self._place = place

    def function(self, name: str) -> Callable[..., Array]:
        if name in _OPERATORS:
            return _OPERATORS[name]
        function: Callable[..., Array] = getattr(torch, name)
        return _of_tensors(function) if name in ("maximum", "minimum", "where") else function

    def cast(self, value: Array, dtype: str) -> Array:
        return torch.as_tensor(value, dtype=getattr(torch, dtype), device=self._place)

    def sum(self, value: Array) -> Array:
        return torch.sum(value)

    def square_sum(self, values: Sequence[Array]) -> Array:
        norms = [torch.linalg.vector_norm(value, dtype=torch.float64) for value in values]
        return torch.sum(torch.stack(norms) ** 2)

    def all_finite(self, values: Sequence[Array]) -> Array:
        return torch.stack([torch.isfinite(value).all() for value in values]).all()

    def broadcast(self, value: Array, like: Array) -> Array:
        return value.expand(like.shape)

    @property
    def namespace(self) -> Any:
        return array_namespace(torch.empty(0))

    def eye(self, rows: int, columns: int, k: int, dtype: str) -> Array:
        return self.namespace.eye(rows, columns, k=k, dtype=getattr(torch, dtype), device=self._place)

    def same_bits(self, first: Array, second: Array) -> Array:
        return first.view(torch.int16) == second.view(torch.int16)


def _of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with Python numbers converted to tensors of the element type of the other arguments."""

    def call(*args: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        # Exclude a condition's element type; if only numbers can be selected, use the widest type to lose no digits.
        dtype = next((tensor.dtype for tensor in tensors if tensor.dtype != torch.bool), torch.float64)
        place = tensors[0].device
        return function(*(torch.as_tensor(a, dtype=dtype, device=place) if isinstance(a, float) else a for a in args))

    return call


class _Unit(NamedTuple):
    """Parameters that the rule processes as one array: those of a group and element type, or a single one."""

    name: str
    members: tuple[str, ...]
    hyper: dict[str, float]


class DeviceStep(RuleStep):
    """Forward and backward pass by the executor, update by torch's functions on the parameters' device.

    An elementwise rule processes all parameters of a group, concatenated to one vector: the number of kernel launches
    of an update does not depend on the number of layers. Implements `TrainStep`.

    A dynamic loss scale waits for the device once per step, like torch's own `GradScaler`. See `RuleStep` for arguments
    and errors.

    Attributes:
        how: How the rule runs.
        averages: Whether evaluation uses other values than the parameters.
    """

    how = "torch"

    def __init__(
        self,
        executor: LeafExecutor,
        rule: UpdateRule,
        *,
        loss: str = "loss",
        groups: Sequence[ParameterGroup] = (),
        modifier: Modifier | None = None,
        pipeline: GradientPipeline | None = None,
    ) -> None:
        super().__init__(rule, loss, modifier)
        self._executor, self._traced = executor, 0
        self._leaves, self._place = executor.leaves(), torch.device(str(executor.device))
        self._dynamic: LossScale | None = None
        self._build(groups, pipeline or GradientPipeline())

    def _build(self, groups: Sequence[ParameterGroup], pipeline: GradientPipeline) -> None:
        rule, specs, functions = self.rule, self._executor.network.trained_specs, _Functions(self._place)
        options: dict[str, Any] = {"pipeline": pipeline, "modified": self._modifier is not None}
        require_trained(rule, self._executor.network.parameter_specs, specs)
        # By the parameters' own names, for requests and for the state.
        self._named = FunctionalRule(rule, specs, functions, groups=groups, **options)
        self._names = self._named.names
        # A state of shape () belongs to one parameter, and so does a matrix.
        whole = rule.scope == "element" and not self._named.shaped
        whole = whole and all(state.element for state in trace_rule(rule).states.values())
        self._units = _units(partition(specs, groups), whole)
        self._rule = FunctionalRule(
            rule,
            {unit.name: _spec(unit, specs) for unit in self._units},
            functions,
            groups=[_group(unit) for unit in self._units if unit.hyper],
            **options,
        )
        # A unit with one member is live memory, which the update and the next gradient overwrite.
        self._remembered = [
            f"{key}/{unit.name}" for key in self._rule.remembers for unit in self._units if len(unit.members) == 1
        ]
        self._traced += self._rule.traces
        self.pipeline, self._scales = pipeline, pipeline.loss_scale is not None
        if pipeline.dynamic and self._dynamic is None:
            self._dynamic = LossScale(self._executor.network.outputs[self._loss].dtype)
        self.averages = self._rule.averages
        self._wrt: dict[str, Any] = {} if len(self._names) == len(self._leaves) else {"wrt": self._names}
        with torch.no_grad():
            # Cloned: an initial state may be the parameter itself.
            found = self._rule.initial(self._packed(self._leaves), self._given(StepInfo(batch_size=1)))
            self._states = {key: value.clone() for key, value in found.items()}

    @property
    def traces(self) -> int:
        """How often the rule was traced."""
        return self._traced

    @override
    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        outputs = self.backprop(inputs, info)
        gradients = self._executor.gradients()
        self._update({name: gradients[name] for name in self._names}, info)
        self._executor.spend()
        return outputs

    @override
    def backprop(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        if self._inside:
            refuse_inside()
        run, options = self._executor.inference_and_backprop, {**self._wrt, "on_gradient": on_gradient}
        options |= {"accumulate": accumulate, "loss_scale": self._scaled(loss_scale)}
        if not self._rule.prepares:
            return run(inputs, self._loss, info=info, **options)
        with self._holding(self._points(info)):
            return run(inputs, self._loss, info=info, **options)

    @override
    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        if self._inside:
            refuse_inside()
        self._update({name: self._checked(name, gradients) for name in self._names}, info)

    @contextmanager
    def _evaluation_point(self) -> Iterator[None]:
        with torch.no_grad():
            values = self._rule.evaluate(self._packed(self._leaves), self._states, self._given(StepInfo(batch_size=1)))
        with self._holding(self._unpacked(values)):
            yield

    def _rule_state(self) -> dict[str, Any]:
        found = {}
        for key, value in self._states.items():
            state, _, unit = key.partition("/")
            for name, part in self._unpacked({unit: value}).items():
                found[f"{state}/{name}"] = np.array(to_numpy(part), order="C")
        return found

    def _load_rule_state(self, state: Mapping[str, Any]) -> None:
        # Copied: torch does not accept read-only memory, and shares the memory that it accepts.
        found = {key: tensor(value) for key, value in self._named.check_state(state).items()}
        for key in self._states:
            name, _, unit = key.partition("/")
            members = next(own.members for own in self._units if own.name == unit)
            self._states[key] = _joined([found[f"{name}/{member}"] for member in members]).to(self._place)

    def _update(self, gradients: Mapping[str, Any], info: StepInfo) -> None:
        if self._dynamic is not None:
            finite = bool(_Functions(self._place).all_finite(list(gradients.values())))
            if finite:
                self._update_finite(gradients, info)
            self._dynamic.update(finite=finite)
        else:
            self._update_finite(gradients, info)

    def _update_finite(self, gradients: Mapping[str, Any], info: StepInfo) -> None:
        if self._modifier is not None and self._scales:
            factor = 1.0 / self.loss_scale
            gradients = {name: gradient * factor for name, gradient in gradients.items()}
        if self._modifier is not None:
            points = self._points(info) if self._rule.prepares else self._executor.parameters()
            gradients = {
                name: self._checked(name, {name: modified(self._modifier, name, points[name], gradient)})
                for name, gradient in gradients.items()
            }
        with torch.no_grad():
            values, states = self._rule.update(
                self._packed(gradients), self._packed(self._leaves), self._states, self._given(info)
            )
            for key in self._remembered:
                states[key] = states[key].clone()
            self._states = states
            self._write(self._unpacked(values))

    def _given(self, info: StepInfo) -> Any:
        info = by_updates(info, self.skipped_steps)
        return placed(torch.from_numpy(self._rule.given(info, self.loss_scale)), self._place)

    def _points(self, info: StepInfo) -> dict[str, Any]:
        """The points for the gradient."""
        with torch.no_grad():
            return self._unpacked(self._rule.prepare(self._packed(self._leaves), self._states, self._given(info)))

    def _packed(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {unit.name: _joined([arrays[name].detach() for name in unit.members]) for unit in self._units}

    def _unpacked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for unit in self._units:
            if unit.name not in values:
                continue
            value, leaves = values[unit.name], [self._leaves[name] for name in unit.members]
            parts = [value] if len(leaves) == 1 else value.split([leaf.numel() for leaf in leaves])
            for name, leaf, part in zip(unit.members, leaves, parts, strict=True):
                found[name] = part if len(leaves) == 1 else part.view(leaf.shape)
        return found

    def _write(self, values: Mapping[str, Any]) -> None:
        torch._foreach_copy_([self._leaves[name] for name in values], list(values.values()))

    @contextmanager
    def _holding(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Inside the context, the parameters have these values; exit restores their own, bit for bit."""
        with torch.no_grad():
            own = {name: self._leaves[name].clone() for name in values}
            self._write(values)
        try:
            yield
        finally:
            with torch.no_grad():
                self._write(own)

    def _checked(self, name: str, gradients: Arrays) -> Any:
        spec = self._executor.network.parameter_specs[name]
        return check_gradient(name, gradients, spec, _tensor).to(self._place)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else tensor(to_numpy(value))


def _units(parts: Sequence[tuple[Mapping[str, TensorSpec], dict[str, float]]], whole: bool) -> list[_Unit]:
    if whole:
        return [_Unit(f"part{index}", tuple(specs), hyper) for index, (specs, hyper) in enumerate(parts)]
    return [_Unit(name, (name,), hyper) for specs, hyper in parts for name in specs]


def _group(unit: _Unit) -> ParameterGroup:
    group = ParameterGroup(lambda name: name == unit.name)
    group.hyper = unit.hyper  # the dict itself, whose values may change between steps
    return group


def _spec(unit: _Unit, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    first = specs[unit.members[0]]
    if len(unit.members) == 1:
        return first
    return TensorSpec(shape=(sum(specs[name].size for name in unit.members),), dtype=first.dtype)


def _joined(tensors: Sequence[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])
