"""`KerasModel`: a user's Keras model with a loss, trained as it is or as the export of tf2onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.core.executors import GraphExecutor
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_model import Exported, OwnModel
from deep5.core.tensors import TensorSpec
from deep5.frameworks.tensorflow.native import KerasExecutor, from_keras
from deep5.frameworks.tensorflow.own_export import exported
from deep5.networks.arguments import as_network
from deep5.networks.probing import tried

__all__ = ["KerasModel"]

_SAMPLES = 2


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
        self.class_axis = -1 if loss == "cross_entropy" else None
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
                than its inference, beyond batch normalization and dropout.
        """
        if not self._named:
            raise Unsupported(
                "a function as the loss of a Keras model is not exported; remedy: 'cross_entropy', 'mse' or "
                "'binary_cross_entropy'"
            )
        return exported(self._model, self.name, dict(list(self._inputs.items())[:-1]))

    def executor_of(self, network: NetworkSpec, seed: int) -> GraphExecutor:
        """The model on variables with the export's weights; see `OwnModel.executor_of`."""
        graph = as_network(network)
        dtypes = {spec.dtype for spec in graph.parameter_specs.values()}
        own = {tf.as_dtype(variable.dtype).name for variable in self._model.trainable_variables}
        if dtypes != own:
            raise Unsupported(f"a Keras model computes in the type that it was built with, {', '.join(sorted(own))}")
        return KerasExecutor(self._model, self._loss, self._inputs, ("logits", "loss"), seed, graph)

    def draw_as_export(self, executor: GraphExecutor) -> None:
        """See `OwnModel.draw_as_export`; each call of Keras's dropout has a mask."""
        assert isinstance(executor, KerasExecutor)  # noqa: S101 - made by executor_of
        executor.draw_as_graph()
