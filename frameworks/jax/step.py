"""`JAXStep`: forward, backward and update rule as one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import ParameterGroup
from deep5.core.tensors import Array, Arrays, to_numpy
from deep5.frameworks.jax.failures import named_failures
from deep5.frameworks.jax.functions import JAXNetwork
from deep5.training.functional_step import FunctionalStep
from deep5.training.loss_scale import fitting, next_scaling
from deep5.training.pipeline import GradientPipeline, modified
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import Modifier, refuse_inside

__all__ = ["JAXStep"]

Tuples = tuple[Any, ...]


class _Functions:
    """JAX functions in the interface of update rules."""

    def function(self, name: str) -> Callable[..., Array]:
        found: Callable[..., Array] = getattr(jnp, name)
        return found

    def cast(self, value: Array, dtype: str) -> Array:
        return jnp.asarray(value, dtype)

    def sum(self, value: Array) -> Array:
        return jnp.sum(value)

    def square_sum(self, values: Sequence[Array]) -> Array:
        return sum((jnp.sum(jnp.square(value.astype("float64"))) for value in values), start=jnp.zeros((), "float64"))

    def all_finite(self, values: Sequence[Array]) -> Array:
        # Zero, or NaN: XLA computes this sum in three fifths of the time of `all` over booleans.
        return jnp.isfinite(sum((jnp.sum(value - value) for value in values), start=jnp.zeros((), "float32")))

    def broadcast(self, value: Array, like: Array) -> Array:
        return jnp.broadcast_to(value, like.shape)

    namespace = jnp

    def eye(self, rows: int, columns: int, k: int, dtype: str) -> Array:
        return jnp.eye(rows, columns, k=k, dtype=dtype)

    def same_bits(self, first: Array, second: Array) -> Array:
        # Not as numbers: XLA may compare those before they are rounded.
        bits = [jax.lax.bitcast_convert_type(value, jnp.uint16) for value in (first, second)]
        return bits[0] == bits[1]


class JAXStep(FunctionalStep):
    """A whole training step; created by `JAXExecutor.train_step`. Implements `TrainStep`.

    Parameters, buffers and the rule's state are donated: the step writes the new ones into the memory of the old. If
    the network contains compiled operators, which may fail, nothing is donated, so that the old ones survive.

    Arguments and errors are `RuleStep`'s; rule and modifier are traced.

    Attributes:
        how: A description of how the rule runs.
    """

    how = "xla"

    def __init__(
        self,
        executor: JAXNetwork,
        rule: UpdateRule,
        *,
        loss: str = "loss",
        groups: Sequence[ParameterGroup] = (),
        modifier: Modifier | None = None,
        pipeline: GradientPipeline | None = None,
    ) -> None:
        super().__init__(executor, rule, loss, modifier)
        self._executor, self._traces = executor, 0
        self._names, self._outputs = tuple(executor.network.parameter_specs), tuple(executor.network.outputs)
        self._build(groups, pipeline or GradientPipeline())

    def _build(self, groups: Sequence[ParameterGroup], pipeline: GradientPipeline) -> None:
        executor = self._executor
        self._build_rule(_Functions(), groups, pipeline, present=executor.present, store=executor.turn)
        self._differentiated = executor.differentiated(self._loss, self._rule.names)
        donated = () if executor.program.fallible else (0, 1, 2)
        self._whole = executor.compiled(self._trace_whole, donate_argnums=donated)
        self._update = jax.jit(self._trace_update, donate_argnums=(0, 1))
        self._prepare = jax.jit(self._trace_prepare)
        self._evaluate = jax.jit(self._trace_evaluate)
        # Small, so not donated: the host may read an earlier one.
        self._scaling: Tuples = ()
        with jax.enable_x64(True):
            given = self._rule.given(StepInfo(batch_size=1))
            states = jax.jit(self._trace_initial)(executor._values, given)
            # Committed to the device like the parameters: otherwise the second step would compile again.
            self._keys, self._states = tuple(states), tuple(jax.device_put(list(states.values()), executor._place))
            if self._dynamic is not None:
                self._scaling = (jax.device_put(self._dynamic.values(), executor._place),)

    @property
    def traces(self) -> int:
        """Number of traces of the step: one for every combination of input shapes."""
        return max(self._traces, self._rule.traces)

    @override
    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        executor = self._executor
        if self._inside:
            refuse_inside()
        feed, extents = executor._feed(inputs)
        given = self._given(info)
        executor._gradients, executor._without = None, "the last training step was compiled as a whole"
        with jax.enable_x64(True), named_failures():
            feed += executor.program.draw(extents, info)
            outputs, executor._values, executor._buffers, self._states, self._scaling = executor.settled(
                self._whole(executor._values, executor._buffers, self._states, feed, given, self._scaling)
            )
        if self._dynamic is not None:
            self._dynamic.done(*self._scaling)
        executor._pending.results = outputs
        return dict(zip(self._outputs, outputs, strict=True))

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
        check_info(info)
        executor = self._executor
        values = executor._values
        if self._rule.prepares:
            with jax.enable_x64(True):
                values = self._prepare(values, self._states, self._scaling, self._given(info))
        options = accumulate, self._scaled(loss_scale)
        return executor.backpropagate(
            inputs, self._loss, self._rule.names, values, info, options, on_gradient=on_gradient
        )

    @override
    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        found, executor, given = tuple(self._checked(gradients, _native)), self._executor, self._given(info)
        with jax.enable_x64(True):
            executor._values, self._states, self._scaling = self._update(
                executor._values, self._states, self._scaling, found, given
            )
        if self._dynamic is not None:
            self._dynamic.done(*self._scaling)

    def arithmetic(self) -> Any:
        """The context for computing with the step's results."""
        return jax.enable_x64(True)

    @contextmanager
    def _evaluation_point(self) -> Iterator[None]:
        executor, own = self._executor, self._executor._values
        with jax.enable_x64(True):
            executor._values = self._evaluate(own, self._states, self._rule.given(StepInfo(batch_size=1)))
        try:
            yield
        finally:
            executor._values = own

    def _rule_state(self) -> dict[str, Any]:
        return {
            key: np.array(self._turned(key, np.asarray(value), back=True), order="C")
            for key, value in zip(self._keys, self._states, strict=True)
        }

    def _load_rule_state(self, state: Mapping[str, Any]) -> None:
        found = self._rule.check_state(state)
        with jax.enable_x64(True):
            self._states = tuple(
                jax.device_put(np.array(self._turned(key, found[key]), order="C"), self._executor._place)
                for key in self._keys
            )

    def _load_scaling(self, scaling: np.ndarray) -> None:
        super()._load_scaling(scaling)
        with jax.enable_x64(True):
            self._scaling = (jax.device_put(scaling, self._executor._place),)

    def _turned(self, key: str, value: Any, *, back: bool = False) -> Any:
        """Converts an element of the state to storage order, or back."""
        name = key.partition("/")[2]
        if not value.ndim or self._rule.shaped:
            return value
        return self._executor.present(name, value) if back else self._executor.turn(name, value)

    def _trace_whole(
        self, values: Tuples, buffers: Tuples, states: Tuples, feed: Any, vector: Any, scaling: Tuples = ()
    ) -> Any:
        self._traces += 1
        given = self._numbers(vector, scaling)
        points = self._points(values, states, given)
        scale = self._rule.scale(given).astype(self._loss_dtype) if self._scales else None
        outputs, new_buffers, gradients = self._differentiated(points, buffers, feed, scale)
        found = dict(zip(self._rule.names, gradients, strict=True))
        new, new_states, scaling = self._updated(values, states, scaling, found, points, given)
        return outputs, new, new_buffers, new_states, scaling

    def _trace_update(self, values: Tuples, states: Tuples, scaling: Tuples, gradients: Tuples, vector: Any) -> Any:
        given = self._numbers(vector, scaling)
        pairs = zip(self._rule.names, gradients, strict=True)
        found = {name: self._executor.turn(name, gradient) for name, gradient in pairs}
        return self._updated(values, states, scaling, found, self._points(values, states, given), given)

    def _trace_prepare(self, values: Tuples, states: Tuples, scaling: Tuples, vector: Any) -> Any:
        return self._points(values, states, self._numbers(vector, scaling))

    def _numbers(self, vector: Any, scaling: Tuples) -> Any:
        """The rule's numbers, from the step's vector."""
        if not scaling:
            return vector
        return self._rule.with_scale(fitting(vector, scaling[0], self._rule.width, jnp.where), scaling[0][0])

    def _trace_evaluate(self, values: Tuples, states: Tuples, given: Any) -> Any:
        own = self._by_name(values)
        found = self._rule.evaluate(own, dict(zip(self._keys, states, strict=True)), given)
        return tuple(found.get(name, own[name]) for name in self._names)

    def _trace_initial(self, values: Tuples, given: Any) -> Any:
        return self._rule.initial(self._by_name(values), given)

    def _by_name(self, values: Tuples) -> dict[str, Any]:
        return dict(zip(self._names, values, strict=True))

    def _points(self, values: Tuples, states: Tuples, given: Any) -> Tuples:
        """The points at which the gradient is evaluated."""
        if not self._rule.prepares:
            return values
        own = self._by_name(values)
        found = self._rule.prepare(own, dict(zip(self._keys, states, strict=True)), given)
        return tuple(found.get(name, own[name]) for name in self._names)

    def _modified(self, gradients: dict[str, Any], points: Tuples) -> dict[str, Any]:
        if self._modifier is None:
            return gradients
        own, executor, found = self._by_name(points), self._executor, {}
        for name, gradient in gradients.items():
            with executor.types():
                param, grad = executor.present(name, own[name]), executor.present(name, gradient)
                value = jnp.asarray(modified(self._modifier, name, param, grad), gradient.dtype)
            if value.shape != param.shape:
                raise ShapeError(f"the modified gradient of {name!r}: got shape {value.shape}, expected {param.shape}")
            found[name] = executor.turn(name, value)
        return found

    def _updated(
        self, values: Tuples, states: Tuples, scaling: Tuples, gradients: dict[str, Any], points: Tuples, given: Any
    ) -> tuple[Tuples, Tuples, Tuples]:
        own, before = self._by_name(values), dict(zip(self._keys, states, strict=True))
        found = gradients
        if self._modifier is not None:
            if self._scales:
                factor = 1.0 / self._rule.scale(given)
                found = {name: value * factor.astype(value.dtype) for name, value in found.items()}
            found = self._modified(found, points)
        new, new_states = self._rule.update(found, own, before, given)
        if scaling:
            # Checks the gradient itself, not values computed from it. Selects element by element, within the same loop.
            finite = _Functions().all_finite(list(gradients.values()))
            new = {name: jnp.where(finite, value, own[name]) for name, value in new.items()}
            new_states = {key: jnp.where(finite, value, before[key]) for key, value in new_states.items()}
            scaling = (jnp.stack(next_scaling(scaling[0], finite, self._loss_dtype, jnp.where)),)
        return (
            tuple(new.get(name, own[name]) for name in self._names),
            tuple(new_states[key] for key in self._keys),
            scaling,
        )


def _native(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else np.array(to_numpy(value))
