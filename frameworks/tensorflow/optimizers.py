"""Keras's own optimizers under deep5's names; they load when one is bound, so that a recipe may name them."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.errors import ShapeError, UsageError
from deep5.events import StepInfo
from deep5.executors import GraphExecutor, StepOptimizer
from deep5.tensors import Arrays
from deep5.training.native_optimizer import (
    AdamSignature,
    GradientDescentSignature,
    MomentumSignature,
    NativeOptimizer,
)

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.functions import Values

__all__ = ["NATIVE", "AdamOptimizer", "GradientDescentOptimizer", "KerasOptimizer", "MomentumOptimizer"]


class KerasOptimizer(NativeOptimizer):
    """An optimizer of Keras that owns its step, one traced function; `native` makes it from `keras.optimizers`."""

    framework = "tensorflow"

    def bind(self, executor: GraphExecutor) -> None:
        """Make Keras's optimizer over the executor's variables.

        Raises:
            UsageError: The executor is another framework's, Keras runs on another framework, or Keras refuses a
                hyperparameter.
        """
        live = getattr(executor, "live", None)
        if live is None or not hasattr(executor, "traced_step"):
            raise UsageError(
                f"a native optimizer of tensorflow cannot drive a {type(executor).__name__}; allowed: an executor of "
                "tensorflow"
            )
        names = list(executor.network.parameters)
        variables = [live[name].variable for name in names]
        try:
            optimizer = self.native(_keras_optimizers())
        except (TypeError, ValueError) as error:
            raise UsageError(f"keras refuses the optimizer {self.describe()}: {error}") from error
        optimizer.build(variables)

        def update(gradients: Values, values: Values, vector: Any) -> None:
            optimizer.apply_gradients([(gradients[name], live[name].variable) for name in names])

        self._executor, self._optimizer = executor, optimizer
        self._step = executor.traced_step(self.loss, names, update, width=0)
        self._nothing = self._executor.tensor(np.empty(0))
        # Keras names a variable of its own after the parameter's, "…_momentum", and has those of one kind in the order
        # of the parameters, whose names need not differ.
        waiting: dict[str, Iterator[str]] = collections.defaultdict(lambda: iter(names))
        self._slots: dict[str, tuple[Any, str]] = {}
        for variable in optimizer.variables:
            if variable.name == "iteration":
                self._slots["iteration"] = (variable, "")
            elif variable.name != "learning_rate":  # a hyperparameter, not a state
                kind = variable.name.rpartition("_")[2]
                owner = next(waiting[kind])
                self._slots[f"{kind}/{owner}"] = (variable, owner)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and Keras's `apply_gradients`, one function."""
        outputs: Arrays = self._executor.run_step(self._step, inputs, info, self._nothing)
        return outputs

    def set_hyper(self, name: str, value: float) -> None:
        """Change the learning rate, `lr`; Keras makes constants of the others.

        Raises:
            UsageError: Another hyperparameter.
        """
        optimizer = self._optimizer
        if name != "lr":
            raise UsageError(f"no hyperparameter {name!r} that may change; allowed: lr")
        optimizer.learning_rate.assign(value)

    def state_dict(self) -> dict[str, Any]:
        """Keras's state as NumPy arrays in ONNX's order, `"<state>/<parameter>"`, and the number of its step."""
        return {
            key: self._executor.live[owner].numpy(variable.value) if owner else variable.value.numpy()
            for key, (variable, owner) in self._bound_slots().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        slots = self._bound_slots()
        if state.keys() != slots.keys():
            odd = sorted(state.keys() ^ slots.keys())
            raise ShapeError(f"the optimizer's state has missing or unknown entries: {odd}; allowed: {sorted(slots)}")
        expected = self.state_dict()
        arrays = {key: np.asarray(value) for key, value in state.items()}
        for key, array in arrays.items():
            if (array.shape, array.dtype) != (expected[key].shape, expected[key].dtype):
                raise ShapeError(
                    f"the optimizer's state {key!r}: got {array.dtype}{array.shape}, expected "
                    f"{expected[key].dtype}{expected[key].shape}"
                )
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


class GradientDescentOptimizer(GradientDescentSignature, KerasOptimizer):
    """`keras.optimizers.SGD`."""

    def native(self, given: Any) -> Any:
        """Out of this module."""
        return given.SGD(learning_rate=self.hyper["lr"])


class MomentumOptimizer(MomentumSignature, KerasOptimizer):
    """`keras.optimizers.SGD` with momentum."""

    def native(self, given: Any) -> Any:
        """Out of this module."""
        lr, momentum, nesterov = (self.hyper[name] for name in ("lr", "momentum", "nesterov"))
        return given.SGD(learning_rate=lr, momentum=momentum, nesterov=nesterov)


class AdamOptimizer(AdamSignature, KerasOptimizer):
    """`keras.optimizers.Adam`; its epsilon stands beside a root that is not corrected for bias."""

    def native(self, given: Any) -> Any:
        """Out of this module."""
        lr, beta1, beta2, epsilon = (self.hyper[name] for name in ("lr", "beta1", "beta2", "epsilon"))
        return given.Adam(learning_rate=lr, beta_1=beta1, beta_2=beta2, epsilon=epsilon)


NATIVE: Mapping[str, Callable[..., StepOptimizer]] = {
    "adam": AdamOptimizer,
    "momentum": MomentumOptimizer,
    "sgd": GradientDescentOptimizer,
}
