"""`from_keras`: a built Keras model and a loss function as an executor, without a graph of ONNX operators."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from deep5.core.errors import UsageError
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Device, TensorSpec
from deep5.frameworks.tensorflow.base import TracedExecutor
from deep5.frameworks.tensorflow.emit import Program
from deep5.frameworks.tensorflow.keras_layers import given_masks
from deep5.frameworks.tensorflow.order import onnx_order
from deep5.frameworks.tensorflow.traced import Traced
from deep5.frameworks.tensorflow.variables import Live
from deep5.networks.module_state import attributes_of
from deep5.networks.network import Network
from deep5.networks.probing import (
    UNFIT,
    checked_inputs,
    checked_outputs,
    checked_seed,
    misfit,
    one_tensor,
    probed_network,
    said_of,
    tried,
)
from deep5.networks.run_modes import Mask, TrainingForm, training_form

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

    Parameters are the model's trainable variables, buffers the others, shared and not copied; a name is the position in
    `model.variables` and Keras's name, such as `0.kernel`. They and the inputs have Keras's axis order. Forward,
    backward and update are one `tf.function`. Layers that draw random numbers store their generator's state in a
    buffer, so that a restored run resumes identically; Keras sets the initial state (`keras.utils.set_random_seed`).
    There is no graph to `export`.

    Training minimizes the loss only: penalties that layers add (`add_loss`, regularizers) are ignored.

    Without a `Trainer`, a native optimizer, `deep5.framework("tensorflow").optimizer("adam")(lr=0.01)`, is bound with
    `bind(executor)` and runs a whole step with `step(inputs, info)`.

    Args:
        model: A built `keras.Model`.
        loss: Called as `loss(label, output)`, the label first, the convention of Keras losses, such as
            `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`; returns a scalar.
        inputs: A `TensorSpec` for each input that a caller feeds: all but the last go to the model, by position and not
            by name; the last is the label.
        outputs: Names of the model's output and of the loss.
        seed: The seed of noise for calls without a `StepInfo`.

    Raises:
        UsageError: `model` is not a built Keras model on TensorFlow, another argument has the wrong type, the model or
            the loss does not run on such inputs, the model does not return one tensor, or the loss no scalar.
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
    specs = checked_inputs(inputs)
    names = checked_outputs(specs, outputs, "model")
    return KerasExecutor(model, loss, specs, names, checked_seed(seed))


class KerasExecutor(TracedExecutor):
    """A Keras model on TensorFlow; created by `from_keras`. Implements `GraphExecutor`.

    Args:
        model: As for `from_keras`.
        loss: As for `from_keras`.
        inputs: As for `from_keras`.
        outputs: As for `from_keras`.
        seed: As for `from_keras`.
        graph: The model's export, for which it stands: the executor has the parameters and buffers of this network, in
            new variables.

    Attributes:
        model: The model with the trained variables.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        inputs: dict[str, TensorSpec],
        outputs: tuple[str, str],
        seed: int,
        graph: Network | None = None,
    ) -> None:
        self.model, self._loss = model, loss
        self._said = f"the model {model.name!r}", f"the loss {said_of(loss)}"
        self._fed, self._made = tuple(inputs), outputs[0]
        # Keras renumbers paths from model to model; a position in the model is the same in every run.
        own = {f"{index}.{variable.name}": variable for index, variable in enumerate(model.variables)}
        trainable = {id(variable) for variable in model.trainable_variables}
        parameters = [name for name, variable in own.items() if id(variable) in trainable]
        buffers = [name for name in own if name not in set(parameters)]
        self._programs = {
            training: Program(self._stateless(training, own, parameters, buffers), (*parameters, *buffers), "")
            for training in (False, True)
        }
        self._given: tuple[Mask, ...] = ()
        self._by_masks = False
        self._buffers = tuple(buffers)
        self._drops = graph is not None and any(node.op_type == "Dropout" for node in graph.nodes)
        specs = {name: _spec(own[name]) for name in (*parameters, *buffers)}
        network = probed_network(
            model.name,
            self._said,
            inputs,
            outputs,
            self._tried,
            parameters={name: specs[name] for name in parameters},
            buffers={name: specs[name] for name in buffers},
            structure=_structure(model, loss),
            value=lambda name: np.asarray(own[name].value.numpy()),
        )
        live = {name: _shared(own[name].value if graph is None else _copied(own[name], name, graph)) for name in specs}
        super().__init__(network if graph is None else graph, live, device=Device(), seed=seed)

    @property
    def _evaluation(self) -> Program:
        return self._programs[False]

    @property
    def _training(self) -> Program:
        return self._programs[True]

    @cached_property
    def _form(self) -> TrainingForm:
        # A graph for which the model stands lacks some of its buffers, such as the states of generators.
        new = {name: f"new:{name}" for name in self._buffers}
        return TrainingForm(self.network, self._given, new)  # type: ignore[arg-type]

    def draw_as_graph(self) -> None:
        """Drop by the masks of the graph from now on, instead of random numbers of Keras.

        Raises:
            Unsupported: The masks of the graph are unknown before it runs.
        """
        assert isinstance(self.network, Network)  # noqa: S101 - only stand-ins for a graph
        self._given = training_form(self.network).masks
        self._by_masks = True
        self.__dict__.pop("_form", None)
        self._functions.clear()

    @override
    def traced_gradients(self, *arguments: Any, **further: Any) -> Any:
        def make() -> Traced:
            return super(KerasExecutor, self).traced_gradients(*arguments, **further)

        return _Retraced(self, make) if self._drops else make()

    @override
    def traced_step(self, *arguments: Any, **further: Any) -> Any:
        def make() -> Traced:
            return super(KerasExecutor, self).traced_step(*arguments, **further)

        return _Retraced(self, make) if self._drops else make()

    @property
    def by_masks(self) -> bool:
        """Whether the model drops by the masks of the graph, and not by random numbers of Keras."""
        return self._by_masks

    def _stateless(
        self, training: bool, own: Mapping[str, Any], parameters: Sequence[str], buffers: Sequence[str]
    ) -> Callable[..., tuple[Any, ...]]:
        """The model as a pure function of inputs, label, parameters and buffers."""
        import keras

        variables = [own[name] for name in (*parameters, *buffers)]
        changed = [own[name] for name in buffers] if training else []

        def call(*tensors: Any) -> tuple[Any, ...]:
            *given, label = tensors[: len(self._fed)]
            held = len(tensors) - len(variables)
            mapping = list(zip(variables, tensors[held:], strict=True))
            masks = list(zip(self._given if training else (), tensors[len(self._fed) : held], strict=True))
            try:
                # Calls the model as Keras does: `stateless_call` passes `training` to models that do not accept it.
                with self._dropping(training, masks), keras.StatelessScope(state_mapping=mapping) as scope:
                    output = self.model(*given, training=training)
            except UNFIT as error:
                raise misfit(self._said[0], dict(zip(self._fed, given, strict=False)), error) from error
            try:
                loss = self._loss(label, output)
            except UNFIT as error:
                raise misfit(self._said[1], {self._fed[-1]: label, self._made: output}, error) from error
            return (output, loss, *(scope.get_current_value(variable) for variable in changed))

        return call

    def _dropping(self, training: bool, masks: Sequence[tuple[Mask, Any]]) -> AbstractContextManager[None]:
        drawn = training and self._by_masks
        return given_masks(self.model.name, masks) if drawn else contextlib.nullcontext()

    def _tried(self, feed: list[np.ndarray]) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and dtypes of the outputs in evaluation mode."""
        *given, label = (tf.constant(array) for array in feed)
        with tried(self._said[0], dict(zip(self._fed, given, strict=False))):
            output = one_tensor(self._said[0], self.model(*given, training=False), tf.Tensor)
        with tried(self._said[1], {self._fed[-1]: label, self._made: output}):
            loss = one_tensor(self._said[1], self._loss(label, output), tf.Tensor)
        return [(tuple(result.shape), result.dtype.name) for result in (output, loss)]


class _Retraced:
    """A function of an executor that is traced again once the executor drops by masks: it has other arguments then.

    Args:
        executor: The executor.
        make: Creates the function for what the executor does now.
    """

    def __init__(self, executor: KerasExecutor, make: Callable[[], Traced]) -> None:
        self._executor, self._make = executor, make
        self._by_masks, self._function = executor.by_masks, make()

    def __call__(self, *tensors: Any) -> Any:
        return self._now()(*tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def _now(self) -> Traced:
        if self._by_masks is not self._executor.by_masks:
            self._by_masks, self._function = self._executor.by_masks, self._make()
        return self._function


def _shared(variable: Any) -> Live:
    """A live value that shares a Keras variable."""
    live = Live(tf.zeros(()), onnx_order(0), trainable=False, name="shared")
    live.order, live.variable = onnx_order(len(variable.shape)), variable
    return live


def _copied(variable: Any, name: str, graph: Network) -> Any:
    """A new variable, with the graph's initial value if it has one."""
    known = name in graph.parameter_specs or name in graph.buffer_specs
    value = graph.initial(name) if known else variable.value
    return tf.Variable(value, trainable=variable.trainable, name=variable.name, dtype=variable.dtype)


def _spec(variable: Any) -> TensorSpec:
    return TensorSpec(shape=tuple(variable.shape), dtype=tf.as_dtype(variable.dtype).name)


def _structure(model: Any, loss: Loss) -> str:
    """The model's layers as Keras serializes them, or its source if Keras cannot serialize it; and attributes."""
    parts = [str(getattr(loss, "name", None) or getattr(loss, "__qualname__", type(loss).__name__))]
    try:
        parts.append(json.dumps(_unnumbered(json.loads(model.to_json()), {}), sort_keys=True))
    except (NotImplementedError, TypeError, ValueError):
        parts += [type(layer).__qualname__ for layer in model.layers]
        with contextlib.suppress(OSError, TypeError):
            parts.append(inspect.getsource(type(model)))
    parts += [f"{name} {text}" for name, text in sorted(attributes_of(model).items())]
    return "\n".join(parts)


def _unnumbered(value: Any, names: dict[str, str]) -> Any:
    """A serialized Keras value with each name replaced by its order: Keras renumbers names from model to model."""
    if isinstance(value, dict):
        if isinstance(value.get("name"), str):
            names.setdefault(value["name"], f"name {len(names)}")
        return {key: _unnumbered(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_unnumbered(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
