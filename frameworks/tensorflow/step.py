"""`TensorFlowStep`: forward, backward and update rule as one traced function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import ParameterGroup
from deep5.core.tensors import Array, Arrays, to_numpy
from deep5.frameworks.tensorflow.functions import TracedNetwork, Values
from deep5.frameworks.tensorflow.memory import HostVector
from deep5.frameworks.tensorflow.namespace import NAMESPACE
from deep5.frameworks.tensorflow.order import onnx_order
from deep5.frameworks.tensorflow.variables import Live
from deep5.training.functional_step import FunctionalStep
from deep5.training.loss_scale import fitting, next_scaling
from deep5.training.pipeline import GradientPipeline, modified
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import Modifier, refuse_inside

__all__ = ["TensorFlowStep"]

# Size in bytes of a parameter from which the intermediate results of its update matter.
_LARGE = 1 << 20


class _Functions:
    """The functions with which a `FunctionalRule` is evaluated; see `ArrayFunctions`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Clear the values rounded by an earlier trace."""
        self._rounded: dict[tuple[int, str], tuple[Array, Array]] = {}

    def function(self, name: str) -> Callable[..., Array]:
        function: Callable[..., Array] = getattr(NAMESPACE, name)
        return function

    def cast(self, value: Array, dtype: str) -> Array:
        # All parameters share the rule's scalars: round once, not once per parameter.
        key = id(value), dtype
        if key not in self._rounded:
            # Keeps a reference to the value, so that its id is not reused.
            self._rounded[key] = value, NAMESPACE.asarray(value, dtype=tf.as_dtype(dtype))
        return self._rounded[key][1]

    def sum(self, value: Array) -> Array:
        return tf.reduce_sum(value)

    def square_sum(self, values: Sequence[Array]) -> Array:
        return tf.add_n([tf.reduce_sum(tf.square(tf.cast(value, tf.float64))) for value in values])

    def all_finite(self, values: Sequence[Array]) -> Array:
        return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values]))

    def broadcast(self, value: Array, like: Array) -> Array:
        return tf.broadcast_to(value, like.shape)

    namespace = NAMESPACE

    def eye(self, rows: int, columns: int, k: int, dtype: str) -> Array:
        return NAMESPACE.eye(rows, columns, k=k, dtype=tf.as_dtype(dtype))

    def same_bits(self, first: Array, second: Array) -> Array:
        # Not as numbers: XLA may compare those before they are rounded.
        return tf.equal(tf.bitcast(first, tf.uint16), tf.bitcast(second, tf.uint16))


class TensorFlowStep(FunctionalStep):
    """The whole training step of a `TracedNetwork`; implements `TrainStep`.

    Hyperparameters and other host values of the rule enter as one vector, so that changing them does not retrace. The
    rule works on values in their memory order: element-wise operations and sums over a parameter do not depend on the
    order of the elements.

    Arguments and errors are `RuleStep`'s; the modifier is traced into the step, and works in ONNX's axis order.
    """

    def __init__(
        self,
        executor: TracedNetwork,
        rule: UpdateRule,
        *,
        loss: str,
        groups: Sequence[ParameterGroup],
        modifier: Modifier | None,
        pipeline: GradientPipeline | None = None,
    ) -> None:
        super().__init__(executor, rule, loss, modifier)
        self._executor, self._functions, self._traced_before = executor, _Functions(), 0
        self._build(groups, pipeline or GradientPipeline())

    def _build(self, groups: Sequence[ParameterGroup], pipeline: GradientPipeline) -> None:
        executor = self._executor
        live = executor.live
        self._build_rule(
            self._functions,
            groups,
            pipeline,
            present=lambda name, value: live[name].to_onnx(value),
            store=lambda name, value: live[name].to_variable(value),
        )
        self._scaling: Any = None
        if self._dynamic is not None:
            with tf.device(executor.place):
                self._scaling = tf.Variable(self._dynamic.values(), trainable=False, name="loss_scale")
        names = self._rule.names
        width = len(self._given(StepInfo(batch_size=1)))
        self._tensor: Callable[[np.ndarray], Any] = HostVector(width) if executor.waits and width else executor.tensor
        self._states = self._initial()
        points = self._points if self._rule.prepares else None
        scale = self._scale_of if self._scales else None
        self._whole = executor.traced_step(self._loss, names, self._update, points, width=width, scale=scale)
        self._half = executor.traced_gradients(self._loss, names, points, width)
        self._other_half = executor.traced(self._apply, self._signature(width))

    @property
    def traces(self) -> int:
        """Number of traces of the step, including the rule."""
        return self._traced_before + max(self._rule.traces, self._whole.traces, self._other_half.traces)

    @property
    def compilations(self) -> int:
        """Number of XLA compilations of the whole step: one per batch size; 0 without XLA."""
        return self._whole.compilations

    @property
    def graph(self) -> Any:
        """The traced `tf.Graph` of the whole step."""
        return self._whole.graph

    @override
    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        if self._inside:
            refuse_inside()
        outputs = self._executor.run_step(self._whole, inputs, info, self._vector(info))
        if self._dynamic is not None:
            self._dynamic.done(self._scaling.value())
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
        check_info(info)
        scale = self._executor.scale(self._loss, self._scaled(loss_scale))
        added = self._rule.names if accumulate else None
        further = (scale, self._vector(info)) if self._rule.prepares else (scale,)
        return self._executor.run_backprop(self._half, inputs, info, *further, added=added, on_gradient=on_gradient)

    @override
    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        self._other_half(*self._checked(gradients, self._native), self._vector(info))
        if self._dynamic is not None:
            self._dynamic.done(self._scaling.value())

    @contextmanager
    def _evaluation_point(self) -> Iterator[None]:
        variables = {name: self._executor.live[name].variable for name in self._rule.names}
        # No copy: an assignment replaces a variable's tensor, and leaves the previous tensor unchanged.
        before = {name: variable.value() for name, variable in variables.items()}
        given = tf.unstack(tf.constant(self._rule.given(StepInfo(batch_size=1))))
        values = self._rule.evaluate(before, self._state_values(), given)
        self._functions.begin()
        try:
            for name, value in values.items():
                variables[name].assign(value, read_value=False)
            yield
        finally:
            for name, value in before.items():
                variables[name].assign(value, read_value=False)

    def _rule_state(self) -> dict[str, Any]:
        return {key: state.numpy() for key, state in self._states.items()}

    def _load_rule_state(self, state: Mapping[str, Any]) -> None:
        for key, value in self._rule.check_state(state).items():
            self._states[key].assign(value)

    def _load_scaling(self, scaling: np.ndarray) -> None:
        super()._load_scaling(scaling)
        self._scaling.assign(scaling)

    def _before_regrouping(self) -> None:
        self._traced_before = self.traces

    def _native(self, value: Any) -> Any:
        return value if isinstance(value, tf.Tensor) else self._executor.tensor(np.asarray(to_numpy(value)))

    def _vector(self, info: StepInfo) -> Any:
        return self._tensor(self._given(info))

    def _initial(self) -> dict[str, Live]:
        executor = self._executor
        with tf.device(executor.place):
            given = tf.unstack(tf.constant(self._rule.given(StepInfo(batch_size=1))))
            found = self._rule.initial(executor.values(), given)
            self._functions.begin()
            states = {}
            for index, (key, value) in enumerate(found.items()):
                name = key.partition("/")[2]
                rank = value.shape.rank
                order = executor.live[name].order if rank and not self._rule.shaped else onnx_order(rank)
                states[key] = Live(value, order, trainable=False, name=f"s{index}")
        return states

    def _state_values(self) -> dict[str, Any]:
        return {key: state.variable.value() for key, state in self._states.items()}

    # Traced:

    def _numbers(self, vector: Any) -> Any:
        """The rule's numbers, from the step's vector."""
        if self._scaling is None:
            return tf.unstack(vector)
        scaling = self._scaling.value()
        return self._rule.with_scale(tf.unstack(fitting(vector, scaling, self._rule.width, tf.where)), scaling[0])

    def _scale_of(self, vector: Any) -> Any:
        """The factor of the loss."""
        return tf.cast(self._rule.scale(self._numbers(vector)), tf.as_dtype(self._loss_dtype))

    def _points(self, values: Values, vector: Any) -> Values:
        self._functions.begin()
        return self._rule.prepare(values, self._state_values(), self._numbers(vector))

    def _update(self, gradients: Values, values: Values, vector: Any) -> None:
        if self._scaling is None:
            self._assign_updated(gradients, values, vector)
            return
        scaling = self._scaling.value()
        # Checks the gradient itself, not values computed from it.
        finite = self._functions.all_finite([gradients[name] for name in self._rule.names])

        def update() -> Any:
            self._assign_updated(gradients, values, vector)
            return tf.constant(True)

        tf.cond(finite, update, lambda: tf.constant(False))
        self._functions.begin()
        following = next_scaling(tf.unstack(scaling), finite, self._loss_dtype, tf.where)
        self._scaling.assign(tf.stack(following), read_value=False)

    def _assign_updated(self, gradients: Values, values: Values, vector: Any) -> None:
        given, states = self._numbers(vector), self._state_values()
        self._functions.begin()
        if self._modifier is not None:
            at = self._rule.prepare(values, states, given) if self._rule.prepares else values
            if self._scales:
                factor = 1.0 / self._rule.scale(given)
                gradients = {
                    name: value * self._functions.cast(factor, value.dtype) for name, value in gradients.items()
                }
            gradients = {
                name: self._modified(self._modifier, name, at[name], gradients[name]) for name in self._rule.names
            }
        done: list[Any] = []
        for name, evaluate in self._rule.updates(gradients, values, states, given):
            live = self._executor.live[name]
            # One large parameter at a time: otherwise TensorFlow would run the first operation of every update, then
            # the second, and hold the intermediate results of all of them at once. Serializing small ones would only
            # add waiting.
            large = live.variable.shape.num_elements() * live.variable.dtype.size >= _LARGE
            with tf.control_dependencies(done if large else []):
                value, own = evaluate()
                assigned = [live.variable.assign(value, read_value=False)]
                assigned += [self._states[key].variable.assign(new, read_value=False) for key, new in own.items()]
            done = assigned if large else done
        self._functions.begin()

    def _apply(self, *tensors: Any) -> None:
        *gradients, vector = tensors
        lying = {
            name: self._executor.live[name].to_variable(gradient)
            for name, gradient in zip(self._rule.names, gradients, strict=True)
        }
        self._update(lying, self._executor.values(), vector)

    def _modified(self, modifier: Modifier, name: str, param: Any, gradient: Any) -> Any:
        live = self._executor.live[name]
        made = tf.convert_to_tensor(modified(modifier, name, live.to_onnx(param), live.to_onnx(gradient)))
        spec = self._executor.network.parameter_specs[name]
        if reason := spec.mismatch(tuple(made.shape), made.dtype.name):
            raise ShapeError(f"the modified gradient of {name!r}: {reason}")
        return live.to_variable(made)

    def _signature(self, width: int) -> list[Any]:
        specs = self._executor.network.parameter_specs
        shapes = [tf.TensorSpec(specs[name].shape, tf.as_dtype(specs[name].dtype)) for name in self._rule.names]
        return [*shapes, tf.TensorSpec([width], tf.float64)]
