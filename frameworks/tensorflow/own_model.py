"""`KerasModel`: a user's Keras model with a loss, trained as it is or as the export of tf2onnx."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.core.errors import MissingDependency, Unsupported, described
from deep5.core.executors import GraphExecutor
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_model import Exported, OwnModel
from deep5.core.tensors import TensorSpec
from deep5.frameworks.tensorflow.native import KerasExecutor, from_keras
from deep5.networks.arguments import as_network
from deep5.networks.onnx.converted import with_initial_values
from deep5.networks.probing import tried

__all__ = ["KerasModel"]

_SAMPLES = 2
# The newest that tf2onnx writes; deep5 converts it.
_OPSET = 18


def cross_entropy(label: Any, output: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`; the classes are on the last axis."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output))


def mse(label: Any, output: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return tf.reduce_mean(tf.square(output - _like(label, output)))


def binary_cross_entropy(label: Any, output: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=_like(label, output), logits=output))


_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "binary_cross_entropy": binary_cross_entropy,
}


def _like(label: Any, output: Any) -> Any:
    """The label as numbers of the output's type and shape, which must be the same except for a last dimension of 1."""
    if len(label.shape) != len(output.shape) and output.shape[-1] != 1:
        raise ValueError(f"an output of shape {output.shape} for labels of shape {label.shape}")
    return tf.reshape(tf.cast(label, output.dtype), tf.shape(output))


class KerasModel(OwnModel):
    """A Keras model; made by `Framework.own_model`.

    Args:
        model: The model; it is built with the inputs' shapes if it is not.
        loss: A key of `LOSSES`, or a function `loss(label, output)`, the convention of Keras.
        inputs: Specifications of the inputs, the label last.
    """

    kind = "keras.Model"

    def __init__(self, model: Any, loss: str | Callable[..., Any], inputs: Mapping[str, TensorSpec]) -> None:
        self.name, self._model, self._inputs = type(model).__name__, model, dict(inputs)
        self._named = isinstance(loss, str)
        self._loss = _LOSSES[loss] if isinstance(loss, str) else loss
        if not model.built:
            *given, _ = inputs.items()
            shapes = [[_SAMPLES if isinstance(extent, str) else extent for extent in spec.shape] for _, spec in given]
            arrays = [np.zeros(shape, spec.dtype) for shape, (_, spec) in zip(shapes, given, strict=True)]
            with tried(f"the model {model.name!r}", dict(zip((name for name, _ in given), arrays, strict=True))):
                model(*map(tf.constant, arrays))

    def executor(self, seed: int) -> GraphExecutor:
        """The model as it is; see `OwnModel.executor`."""
        return from_keras(self._model, self._loss, inputs=self._inputs, seed=seed)

    def exported(self) -> Exported:
        """Export by tf2onnx as a function of the weights, so that none is folded into another value.

        Raises:
            MissingDependency: tf2onnx is not installed.
            Unsupported: The loss is a function, tf2onnx does not convert the model, or its training is another function
                than its inference: tf2onnx exports inference.
        """
        if not self._named:
            raise Unsupported(
                "a function as the loss of a Keras model is not exported; remedy: 'cross_entropy', 'mse' or "
                "'binary_cross_entropy'"
            )
        try:
            version = metadata.version("tf2onnx")
        except metadata.PackageNotFoundError as error:
            raise MissingDependency(
                "exporting a Keras model needs the package 'tf2onnx', which is not installed; remedy: pip install "
                "tf2onnx, or run the model as it is on tensorflow"
            ) from error
        names = [f"{index}.{variable.name}" for index, variable in enumerate(self._model.variables)]
        protos = {training: self._converted(names, training) for training in (False, True)}
        if _nodes(protos[False]) != _nodes(protos[True]):
            raise Unsupported(
                f"{self.name} computes another function in training than in evaluation (dropout, batch normalization), "
                "and tf2onnx exports only the latter; remedy: run it as it is on tensorflow, or leave these layers out"
            )
        trainable = {id(variable) for variable in self._model.trainable_variables}
        pairs = zip(names, self._model.variables, strict=True)
        return Exported(
            proto=protos[False],
            trained=tuple(name for name, variable in pairs if id(variable) in trainable),
            frozen=(),
            changes=(),
            exporter=f"tf2onnx {version}",
        )

    def executor_of(self, network: NetworkSpec, seed: int) -> GraphExecutor:
        """A copy of the model, with the export's weights; see `OwnModel.executor_of`."""
        graph = as_network(network)
        dtypes = {spec.dtype for spec in graph.parameter_specs.values()}
        own = {tf.as_dtype(variable.dtype).name for variable in self._model.trainable_variables}
        if dtypes != own:
            raise Unsupported(f"a Keras model computes in the type that it was built with, {', '.join(sorted(own))}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what Keras uses of NumPy
            model = copy.deepcopy(self._model)
        named = {f"{index}.{variable.name}": variable for index, variable in enumerate(model.variables)}
        for name in graph.parameter_specs:
            named[name].assign(graph.initial(name))
        return KerasExecutor(model, self._loss, self._inputs, ("logits", "loss"), seed, graph)

    def _converted(self, names: Sequence[str], training: bool) -> Any:
        """The model in a mode as an `onnx.ModelProto` whose initial values are the variables."""
        variables = self._model.variables
        given = list(self._inputs)[:-1]
        specs = [
            tf.TensorSpec([None if isinstance(extent, str) else extent for extent in spec.shape], spec.dtype)
            for spec in (self._inputs[name] for name in given)
        ]
        specs += [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]

        def call(*tensors: Any) -> Any:
            import keras

            values = list(zip(variables, tensors[len(given) :], strict=True))
            with keras.StatelessScope(state_mapping=values):
                return self._model(*tensors[: len(given)], training=training)

        proto = _to_onnx(self.name, call, specs)
        values = {name: variable.value.numpy() for name, variable in zip(names, variables, strict=True)}
        return with_initial_values(proto, self.name, given, values, ["logits"])


def _to_onnx(name: str, call: Callable[..., Any], specs: Sequence[Any]) -> Any:
    import tf2onnx

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = tf.function(call, input_signature=specs, autograph=False)
            return tf2onnx.convert.from_function(function, input_signature=specs, opset=_OPSET)[0]
    except Exception as error:
        raise Unsupported(
            f"tf2onnx does not convert {name}: {described(error)[:200]}; remedy: run it as it is on tensorflow"
        ) from error
    finally:
        logging.disable(level)


def _nodes(proto: Any) -> list[tuple[Any, ...]]:
    """The computation of a model, without the names of its values."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    return [
        (
            node.op_type,
            *(attribute.SerializeToString(deterministic=True) for attribute in node.attribute),
            *map(number, (*node.input, "|", *node.output)),
        )
        for node in proto.graph.node
    ]
