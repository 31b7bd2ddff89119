"""`KerasOptimizer`: an optimizer of Keras that owns its step; what it needs loads when it is bound."""

from __future__ import annotations

import collections
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Arrays
from deep5.training.native_optimizer import NativeOptimizer
from deep5.training.state_check import checked_state

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.functions import Values

__all__ = ["KerasOptimizer"]


class KerasOptimizer(NativeOptimizer):
    """An optimizer of Keras that owns its step, one traced function.

    Keras has its learning rate as a variable, in float32, and makes constants of all other hyperparameters.
    """

    framework, library = "tensorflow", "keras"
    made: ClassVar[str]

    @abstractmethod
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """Keras's arguments for deep5's hyperparameters, but for the learning rate."""

    def native(self, optimizers: Any) -> Any:
        """Keras's optimizer, out of `keras.optimizers`."""
        return getattr(optimizers, self.made)(learning_rate=self.hyper["lr"], **self.arguments(self.hyper))

    def bind(self, executor: GraphExecutor) -> None:
        """Make Keras's optimizer over the executor's variables.

        Raises:
            UsageError: The executor is another framework's, Keras runs on another framework, or Keras refuses a
                hyperparameter.
        """
        live = getattr(executor, "live", None)
        if live is None or not hasattr(executor, "traced_step"):
            raise self._foreign(executor)
        import tensorflow as tf

        names, specs = list(executor.network.trained_specs), executor.network.trained_specs
        variables = [live[name].variable for name in names]
        with self._making():
            optimizer = self.native(_keras_optimizers())
        optimizer.build(variables)

        def change(gradients: Values) -> None:
            optimizer.apply_gradients([(gradients[name], live[name].variable) for name in names])

        def update(gradients: Values, values: Values, vector: Any) -> None:
            change(gradients)

        def other_half(*gradients: Any) -> None:
            change({name: live[name].to_variable(value) for name, value in zip(names, gradients, strict=True)})

        self._executor, self._optimizer, self._now = executor, optimizer, dict(self.hyper)
        self._step = executor.traced_step(self.loss, names, update, width=0)
        signature = [tf.TensorSpec(specs[name].shape, live[name].variable.dtype) for name in names]
        self._other_half = self._executor.traced(other_half, signature)
        self._nothing = self._executor.tensor(np.empty(0))
        # Keras names a variable of its own after the parameter's, "…_momentum", and has those of one kind in the order
        # of the parameters, whose names need not differ.
        waiting: dict[str, Iterator[str]] = collections.defaultdict(lambda: iter(names))
        self._slots: dict[str, tuple[Any, str]] = {}
        for variable in optimizer.variables:
            if variable.name == "iteration":
                self._slots["iteration"] = (variable, "")
            elif variable is getattr(optimizer, "_u_product", None):
                self._slots["product"] = (variable, "")  # of Nadam, for all parameters; it has no name
            elif variable.name != "learning_rate":  # a hyperparameter, not a state
                kind = variable.name.rpartition("_")[2]
                owner = next(waiting[kind])
                self._slots[f"{kind}/{owner}"] = (variable, owner)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and Keras's `apply_gradients`, one function."""
        outputs: Arrays = self._executor.run_step(self._step, inputs, info, self._nothing)
        return outputs

    def _apply(self, gradients: Arrays) -> None:
        self._other_half(*(gradients[name] for name in self._executor.network.trained_specs))

    @property
    def changeable(self) -> tuple[str, ...]:
        """The learning rate alone."""
        return ("lr",)

    def _change(self, hyper: Mapping[str, Any]) -> None:
        self._optimizer.learning_rate.assign(hyper["lr"])

    def _state(self) -> dict[str, Any]:
        """Keras's state as NumPy arrays in ONNX's order, `"<state>/<parameter>"`, and the number of its step."""
        return {
            key: self._executor.live[owner].numpy(variable.value) if owner else variable.value.numpy()
            for key, (variable, owner) in self._bound_slots().items()
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state`, bit for bit.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        slots = self._bound_slots()
        arrays = checked_state(state, {key: (value.shape, str(value.dtype)) for key, value in self._state().items()})
        for key, (variable, owner) in slots.items():
            variable.assign(self._executor.live[owner].packed(arrays[key]) if owner else arrays[key])

    def _bound_slots(self) -> dict[str, tuple[Any, str]]:
        _ = self._optimizer.variables  # says so where there are none yet
        return self._slots


def _keras_optimizers() -> Any:
    loaded = "keras" in sys.modules
    if not loaded:
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    if keras.backend.backend() != "tensorflow":
        how = "was imported" if loaded else "is set"
        raise UsageError(
            f"keras {how} with the backend {keras.backend.backend()!r}; allowed: 'tensorflow'; remedy: set "
            "KERAS_BACKEND=tensorflow before anything imports keras"
        )
    return keras.optimizers
