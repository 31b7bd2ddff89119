"""`KerasOptimizer`: a Keras optimizer that runs the whole step; Keras is imported on binding."""

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
    """A Keras optimizer that runs the whole step, one traced function.

    Keras stores its learning rate as a float32 variable, and compiles all other hyperparameters as constants.
    """

    framework, library = "tensorflow", "keras"
    made: ClassVar[str]

    @abstractmethod
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """Keras arguments for deep5's hyperparameters, without the learning rate."""

    def native(self, optimizers: Any) -> Any:
        """The Keras optimizer from `keras.optimizers`."""
        return getattr(optimizers, self.made)(learning_rate=self.hyper["lr"], **self.arguments(self.hyper))

    def bind(self, executor: GraphExecutor) -> None:
        """Create the Keras optimizer over the executor's variables.

        Raises:
            UsageError: The executor belongs to another framework, Keras runs on another framework, or Keras rejects a
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
        # Keras names a state variable after the parameter's variable, "…_momentum", and keeps those of one kind in the
        # order of the parameters, whose names need not be unique.
        waiting: dict[str, Iterator[str]] = collections.defaultdict(lambda: iter(names))
        self._slots: dict[str, tuple[Any, str]] = {}
        for variable in optimizer.variables:
            if variable.name == "iteration":
                self._slots["iteration"] = (variable, "")
            elif variable is getattr(optimizer, "_u_product", None):
                self._slots["product"] = (variable, "")  # Nadam's, shared by all parameters; it has no name
            elif variable.name != "learning_rate":  # a hyperparameter, not state
                kind = variable.name.rpartition("_")[2]
                owner = next(waiting[kind])
                self._slots[f"{kind}/{owner}"] = (variable, owner)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and Keras's `apply_gradients` in one function."""
        outputs: Arrays = self._executor.run_step(self._step, inputs, info, self._nothing)
        return outputs

    def _apply(self, gradients: Arrays) -> None:
        self._other_half(*(gradients[name] for name in self._executor.network.trained_specs))

    @property
    def changeable(self) -> tuple[str, ...]:
        """The learning rate only."""
        return ("lr",)

    def _change(self, hyper: Mapping[str, Any]) -> None:
        self._optimizer.learning_rate.assign(hyper["lr"])

    def _state(self) -> dict[str, Any]:
        """The Keras state as NumPy arrays in ONNX's axis order, `"<state>/<parameter>"`, and its step counter."""
        return {
            key: self._executor.live[owner].numpy(variable.value) if owner else variable.value.numpy()
            for key, (variable, owner) in self._bound_slots().items()
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state` bit-identically.

        Raises:
            ShapeError: An entry is missing, unknown, or has another shape or dtype.
        """
        slots = self._bound_slots()
        arrays = checked_state(state, {key: (value.shape, str(value.dtype)) for key, value in self._state().items()})
        for key, (variable, owner) in slots.items():
            variable.assign(self._executor.live[owner].packed(arrays[key]) if owner else arrays[key])

    def _bound_slots(self) -> dict[str, tuple[Any, str]]:
        _ = self._optimizer.variables  # raises if there are none yet
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
