"""`from_keras`: a built Keras model and a loss function as an executor, without a graph of ONNX's operators."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.backend import GraphExecutor
from deep5.errors import UsageError
from deep5.frameworks.tensorflow.emit import Program
from deep5.frameworks.tensorflow.executor import TensorFlowExecutor
from deep5.frameworks.tensorflow.framework import TensorFlow
from deep5.frameworks.tensorflow.order import onnx_order
from deep5.frameworks.tensorflow.variables import Live
from deep5.networks.builder import NetworkBuilder
from deep5.networks.executor import NetworkExecutor
from deep5.networks.forms import TrainingForm
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.networks.probing import output_specs
from deep5.tensors import Device, TensorSpec

__all__ = ["KerasExecutor", "from_keras"]

Loss = Callable[[Any, Any], Any]


def from_keras(
    model: Any,
    loss: Loss,
    *,
    inputs: Mapping[str, TensorSpec],
    outputs: Sequence[str] = ("logits", "loss"),
    seed: int = 0,
) -> GraphExecutor:
    """An executor of a Keras model on TensorFlow, for `Trainer`, update rules and native optimizers.

    Parameters are the model's trainable variables, buffers the others, shared and not copied; a name is the position
    in `model.variables` and Keras's name, such as `0.kernel`. They and the inputs lie as Keras has them. Forward,
    backward and update are one `tf.function`. Layers that draw random numbers keep their place in the stream in a
    buffer, so that a restored run goes on as the first one did; where it starts is Keras's
    (`keras.utils.set_random_seed`). There is no graph to `export`.

    Args:
        model: A built `keras.Model`.
        loss: From the label and the model's output, in this order, to a scalar: Keras's own losses are such functions.
        inputs: What a caller feeds: all but the last go to the model, in this order, the last is the label.
        outputs: Names of the model's output and of the loss.
        seed: Of noise, where a call is given no `StepInfo`.

    Raises:
        UsageError: No built model of Keras on TensorFlow, or the model or the loss does not run on such inputs, or
            gives something else than one tensor.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"keras runs on {keras.backend.backend()!r}; allowed: 'tensorflow'; remedy: set KERAS_BACKEND=tensorflow "
            "before anything imports keras"
        )
    if not isinstance(model, keras.Model) or not callable(loss):
        raise UsageError(f"got {type(model).__name__}, {loss!r}; allowed: a keras.Model and a function")
    if not model.built:
        raise UsageError(f"the model {model.name!r} is not built; remedy: call model.build, or the model once")
    if len(inputs) < 2 or len(outputs) != 2:
        raise UsageError(
            f"got the inputs {list(inputs)} and the outputs {list(outputs)}; allowed: inputs of the model, then the "
            "label; two outputs, the model's and the loss"
        )
    return KerasExecutor(model, loss, inputs, tuple(outputs), seed)


class KerasExecutor(TensorFlowExecutor):
    """A Keras model on TensorFlow; made by `from_keras`. Implements `GraphExecutor`.

    Attributes:
        model: The model, whose variables are trained.
    """

    def __init__(
        self, model: Any, loss: Loss, inputs: Mapping[str, TensorSpec], outputs: tuple[str, ...], seed: int
    ) -> None:
        self.model, self._loss = model, loss
        # Keras numbers paths anew from model to model; a position in the model is the same in every run.
        own = {f"{index}.{variable.name}": variable for index, variable in enumerate(model.variables)}
        trainable = {id(variable) for variable in model.trainable_variables}
        parameters = [name for name, variable in own.items() if id(variable) in trainable]
        buffers = [name for name in own if name not in set(parameters)]
        self._programs = {
            training: Program(self._stateless(training, len(parameters)), (*parameters, *buffers), "")
            for training in (False, True)
        }
        network = NativeNetwork(
            name=model.name,
            inputs=dict(inputs),
            outputs=dict(zip(outputs, output_specs(f"the model {model.name!r}", inputs, self._tried), strict=True)),
            parameters={name: _spec(own[name]) for name in parameters},
            buffers={name: _spec(own[name]) for name in buffers},
            values={name: variable.value.numpy() for name, variable in own.items()},
            structure=_structure(model, loss),
        )
        # The executor of an empty network, given the model's variables and functions: how it runs them is the same.
        super().__init__(_empty(), TensorFlow(), device=Device(), seed=seed)
        NetworkExecutor.__init__(self, network, device=Device(), seed=seed)  # type: ignore[arg-type]
        form = TrainingForm(network, (), {name: f"new:{name}" for name in buffers})  # type: ignore[arg-type]
        self._forms: Any = SimpleNamespace(training=form)
        self._outputs = outputs
        self.live = {name: _shared(own[name].value) for name in (*parameters, *buffers)}

    @property
    def _evaluation(self) -> Program:
        return self._programs[False]

    @property
    def _training(self) -> Program:
        return self._programs[True]

    def _stateless(self, training: bool, parameters: int) -> Callable[..., tuple[Any, ...]]:
        """The model as a pure function of inputs, label, trainable and other variables."""
        variables = len(self.model.variables)

        def call(*tensors: Any) -> tuple[Any, ...]:
            *given, label = tensors[:-variables] if variables else tensors
            values = list(tensors[len(given) + 1 :])
            output, state = self.model.stateless_call(
                values[:parameters], values[parameters:], *given, training=training
            )
            return (output, self._loss(label, output), *(state if training else ()))

        return call

    def _tried(self, feed: list[np.ndarray]) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and element types of the outputs in evaluation mode."""
        *given, label = (tf.constant(array) for array in feed)
        output = self.model(*given, training=False)
        results = (output, self._loss(label, output))
        for result in results:
            if not isinstance(result, tf.Tensor):
                raise UsageError(
                    f"the model {self.model.name!r} or its loss gives a {type(result).__name__}; allowed: one tensor; "
                    "remedy: a model around it that gives one"
                )
        return [(tuple(result.shape), result.dtype.name) for result in results]


def _empty() -> Network:
    build = NetworkBuilder("empty")
    return build.network({"y": build.op("Identity", build.input("x", ("N",)))})


def _shared(variable: Any) -> Live:
    """A live value that is Keras's own variable."""
    live = Live(tf.zeros(()), onnx_order(0), trainable=False, name="shared")
    live.order, live.variable = onnx_order(len(variable.shape)), variable
    return live


def _spec(variable: Any) -> TensorSpec:
    return TensorSpec(shape=tuple(variable.shape), dtype=tf.as_dtype(variable.dtype).name)


def _structure(model: Any, loss: Loss) -> str:
    """The model's layers as Keras writes them, or its source where Keras cannot."""
    parts = [str(getattr(loss, "name", None) or getattr(loss, "__qualname__", type(loss).__name__))]
    try:
        parts.append(json.dumps(_unnumbered(json.loads(model.to_json()), {}), sort_keys=True))
    except (NotImplementedError, TypeError, ValueError):
        parts += [type(layer).__qualname__ for layer in model.layers]
        with contextlib.suppress(OSError, TypeError):
            parts.append(inspect.getsource(type(model)))
    return "\n".join(parts)


def _unnumbered(value: Any, names: dict[str, str]) -> Any:
    """What Keras writes, each name in it by its order: Keras numbers names from model to model."""
    if isinstance(value, dict):
        if isinstance(value.get("name"), str):
            names.setdefault(value["name"], f"name {len(names)}")
        return {key: _unnumbered(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_unnumbered(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
