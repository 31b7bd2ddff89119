"""`NativeStep`: forward, backward and an update written in JAX as one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from deep5.core.events import StepInfo, check_info
from deep5.core.tensors import Arrays
from deep5.frameworks.jax.failures import named_failures
from deep5.frameworks.jax.functions import JAXNetwork
from deep5.training.state_check import checked_state

__all__ = ["NativeStep", "Point"]

Tree = Any
Values = dict[str, Any]


class Point(NamedTuple):
    """The input of an update during tracing: the parameters, and the loss at that point.

    Attributes:
        values: The parameters by name, in storage order.
        gradients: Gradients of the loss, likewise.
        loss: The loss value; None if the gradients are those of an earlier call.
        function: The loss as a function of parameters by name; None likewise.
    """

    values: Values
    gradients: Values
    loss: Any = None
    function: Callable[[Values], Any] | None = None


class NativeStep:
    """A whole training step whose update is a function of JAX arrays.

    Parameters, buffers and the state are donated, as in `JAXStep`. The parameters are in storage order: element-wise
    operations and sums over a parameter do not depend on it.

    Args:
        executor: Holds parameters and buffers.
        loss: Name of the scalar output to differentiate.
        initial: Returns the initial state for the parameters by name; a tree in which arrays of the parameters' shapes
            are in dicts with the parameters' names.
        update: From (point, state, numbers) to the new parameters by name and the new state. The numbers are those of
            `numbers`, traced: they can change from step to step.
        numbers: Hyperparameters by name.

    Attributes:
        numbers: As given; read at every step.
        traces: Number of traces: one of the step for every combination of input shapes, one of the update by itself.
    """

    def __init__(
        self,
        executor: JAXNetwork,
        loss: str,
        initial: Callable[[Values, Mapping[str, Any]], Tree],
        update: Callable[[Point, Tree, Mapping[str, Any]], tuple[Values, Tree]],
        numbers: Mapping[str, float],
    ) -> None:
        self._executor, self._apply, self.numbers = executor, update, dict(numbers)
        self._all, self._outputs = tuple(executor.network.parameter_specs), tuple(executor.network.outputs)
        self._names = tuple(executor.network.trained_specs)
        self._loss = self._outputs.index(loss)
        self._differentiated = executor.differentiated(loss, self._names)
        self.traces = 0
        self._whole = jax.jit(self._trace, donate_argnums=() if executor.program.fallible else (0, 1, 2))
        self._update = jax.jit(self._trace_update, donate_argnums=(0, 1))
        with jax.enable_x64(True):
            states = initial(self._own(executor._values), self.numbers)
            # Copied: a state may be the parameter itself, which is donated with it. Committed to the device like the
            # parameters: otherwise the second step would compile again.
            self._states = jax.tree.map(lambda value: jax.device_put(np.array(value), executor._place), states)
        self._paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(self._states)[0]]

    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Run one whole step."""
        check_info(info)
        executor = self._executor
        feed, extents = executor._feed(inputs)
        executor._gradients, executor._without = None, "the last training step was compiled as a whole"
        with jax.enable_x64(True), named_failures():
            feed += executor.program.draw(extents, info)
            outputs, executor._values, executor._buffers, self._states = executor.settled(
                self._whole(executor._values, executor._buffers, self._states, feed, self.numbers)
            )
        executor._pending.results = outputs
        return dict(zip(self._outputs, outputs, strict=True))

    def apply(self, gradients: Arrays) -> None:
        """Run only the update.

        Args:
            gradients: Gradients of all parameters, in the network's axis order, as the executor returns them.
        """
        executor, found = self._executor, tuple(gradients[name] for name in self._names)
        with jax.enable_x64(True):
            executor._values, self._states = self._update(executor._values, self._states, found, self.numbers)

    def _trace(self, values: Any, buffers: Any, states: Tree, feed: Any, numbers: Mapping[str, Any]) -> Any:
        self.traces += 1
        executor = self._executor
        outputs, new_buffers, gradients = self._differentiated(values, buffers, feed, None)

        def function(own: Values) -> Any:
            # A line search may return 64-bit numbers, which the network does not use.
            pairs = zip(self._all, values, strict=True)
            given = [own[name].astype(value.dtype) if name in own else value for name, value in pairs]
            with executor.types():
                found, _ = executor.program.training.call(given, buffers, list(feed))
            return found[self._loss]

        point = Point(self._own(values), self._named(gradients), outputs[self._loss], function)
        new, new_states = self._apply(point, states, numbers)
        return outputs, self._changed(values, new), new_buffers, new_states

    def _trace_update(self, values: Any, states: Tree, gradients: Any, numbers: Any) -> Any:
        self.traces += 1
        found = {name: self._executor.turn(name, gradient) for name, gradient in self._named(gradients).items()}
        new, new_states = self._apply(Point(self._own(values), found), states, numbers)
        return self._changed(values, new), new_states

    def _named(self, gradients: Any) -> Values:
        return dict(zip(self._names, gradients, strict=True))

    def _own(self, values: Any) -> Values:
        """The values of the trained parameters."""
        return {name: value for name, value in zip(self._all, values, strict=True) if name in self._names}

    def _changed(self, values: Any, new: Values) -> Any:
        """All parameters, with the new values of the trained ones."""
        return tuple(new.get(name, value) for name, value in zip(self._all, values, strict=True))

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state as NumPy arrays, `"<where>/<parameter>"` in the network's axis order, or `"<where>"`."""
        leaves = jax.tree.leaves(self._states)
        found = {}
        for path, leaf in zip(self._paths, leaves, strict=True):
            key, name, value = *self._key(path), np.asarray(leaf)
            found[key] = np.array(
                self._executor.present(name, value) if self._stored(name, value) else value, order="C"
            )
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` bit-identically.

        Raises:
            ShapeError: An entry is missing, unknown, or has another shape or dtype.
        """
        given = checked_state(state, {key: (value.shape, str(value.dtype)) for key, value in self.state_dict().items()})
        leaves = []
        for path, leaf in zip(self._paths, jax.tree.leaves(self._states), strict=True):
            key, name = self._key(path)
            value = self._executor.turn(name, given[key]) if self._stored(name, leaf) else given[key]
            leaves.append(np.array(value, order="C"))
        with jax.enable_x64(True):
            placed = [jax.device_put(value, self._executor._place) for value in leaves]
            self._states = jax.tree.unflatten(jax.tree.structure(self._states), placed)

    def _key(self, path: Any) -> tuple[str, str]:
        """The name of a leaf of the state, and the name of its parameter."""
        words, name = [], ""
        for part in path:
            if isinstance(part, jax.tree_util.DictKey) and part.key in self._executor.network.parameter_specs:
                name = str(part.key)
            else:
                words.append(str(getattr(part, "name", getattr(part, "idx", getattr(part, "key", part)))))
        where = ".".join(words)
        return (f"{where}/{name}" if name else where), name

    def _stored(self, name: str, value: Any) -> bool:
        """Whether a leaf has its parameter's storage order."""
        if not name:
            return False
        return tuple(value.shape) == tuple(self._executor._values[self._all.index(name)].shape)
