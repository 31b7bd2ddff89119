"""Exports of Keras models with layers that compute another function in training."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.plugins import framework
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.frameworks.tensorflow.keras_layers import given_masks
from deep5.frameworks.tensorflow.own_model import KerasModel
from deep5.networks.network import Network
from deep5.networks.run_modes import training_form


def model(*parts: Any, shape: tuple[int, ...] = (4,)) -> Any:
    return keras.Sequential([keras.Input(shape), *parts, layers.Flatten(), layers.Dense(3)])


def own(made: Any, shape: tuple[int, ...] = (4,)) -> KerasModel:
    label = TensorSpec(shape=("N",), dtype="int64")
    return KerasModel(made, "cross_entropy", {"input": TensorSpec(shape=("N", *shape)), "label": label})


def network(made: Any, shape: tuple[int, ...] = (4,)) -> Network:
    found = own(made, shape).exported()
    assert found.changes == ()
    graph = Network.from_onnx(found.proto, parameters=list(found.trained))
    return graph.add_loss("logits", "cross_entropy", label_spec=TensorSpec(shape=("N",), dtype="int64"))


def operators(graph: Network) -> list[str]:
    return [node.op_type for node in graph.nodes]


class Called(keras.Model):
    """Calls its layers by a function."""

    def __init__(self, call: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self._function, self.parts, self.last = call, list(parts), layers.Dense(3)

    def call(self, x: Any, training: Any = None) -> Any:
        return self.last(self._function(x, training, *self.parts))


@pytest.mark.parametrize(("axis", "order"), [(-1, (0, 3, 1, 2)), (1, (0, 1, 2, 3)), (2, (0, 2, 1, 3))])
def test_the_statistics_of_a_batch_normalization_are_those_of_keras(axis: int, order: tuple[int, ...]) -> None:
    shape = (2, 3, 4)
    norm = layers.BatchNormalization(axis, momentum=0.7, epsilon=1e-2)
    made = model(norm, shape=shape)
    norm.gamma.assign(np.linspace(0.5, 2, norm.gamma.shape[0]))
    norm.moving_mean.assign(np.linspace(-1, 1, norm.gamma.shape[0]))
    graph = network(made, shape)
    (node,) = [node for node in graph.nodes if node.op_type == "BatchNormalization"]
    numbers = {name: value.as_float() for name, value in node.attributes.items()}
    assert numbers == {"epsilon": pytest.approx(1e-2), "momentum": pytest.approx(0.7)}
    assert set(graph.buffer_specs) == {"2.moving_mean", "3.moving_variance"}
    executor = framework("reference").executor(graph)
    x = np.random.default_rng(0).normal(1, 3, (5, *shape)).astype(np.float32)
    feed = {"input": x, "label": np.zeros(5, np.int64)}
    for training in (False, True):
        found = to_numpy(executor.inference(feed, training=training)["logits"])
        np.testing.assert_allclose(found, made(x, training=training), rtol=1e-5, atol=1e-5)
    state = {name: to_numpy(value) for name, value in executor.buffers().items()}
    np.testing.assert_allclose(state["2.moving_mean"], norm.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(state["3.moving_variance"], norm.moving_variance, rtol=1e-5)
    # Keras takes the variance of the batch as a population, as ONNX does.
    population = np.moveaxis(x, order[1], 1).swapaxes(0, 1).reshape(x.shape[order[1]], -1).var(1)
    np.testing.assert_allclose(state["3.moving_variance"], 0.7 + 0.3 * population, rtol=1e-5)


def test_a_batch_normalization_without_a_vector_has_a_constant() -> None:
    parts = layers.BatchNormalization(scale=False), layers.BatchNormalization(center=False)
    graph = network(model(*parts))
    assert operators(graph).count("BatchNormalization") == 2
    assert set(graph.parameter_specs) == {"0.beta", "3.gamma", "6.kernel", "7.bias"}


def test_a_batch_normalization_that_does_not_train_is_no_batch_normalization() -> None:
    frozen = layers.BatchNormalization()
    frozen.trainable = False
    always = Called(lambda x, training, norm: norm(x, training=False), layers.BatchNormalization())
    for made in (model(layers.Dense(5), frozen), always):
        graph = network(made)
        assert "BatchNormalization" not in operators(graph)
        assert not graph.buffer_specs


def test_dropout_keeps_its_order_its_ratio_and_its_shape() -> None:
    def call(x: Any, training: Any, a: Any, b: Any, c: Any) -> Any:
        first, second = a(x, training=training), b(x, training=training)
        return keras.ops.reshape(c(second + first, training=training), (-1, 24))

    parts = layers.SpatialDropout2D(0.3), layers.Dropout(0.2, noise_shape=(None, 2, 1, 4)), layers.Dropout(0.5)
    graph = network(Called(call, *parts), (2, 3, 4))
    found = [(round(mask.ratio, 6), mask.shape) for mask in training_form(graph).masks]
    assert found == [(0.3, ("N", 1, 1, 4)), (0.2, ("N", 2, 1, 4)), (0.5, ("N", 2, 3, 4))]


def test_a_mask_behind_a_reshape_has_the_batch_s_extent() -> None:
    """Keras's `Flatten`, and a `Permute` of one channel, are exported with a computed size, -1."""
    flat = layers.Permute((2, 3, 1)), layers.SpatialDropout2D(0.3), layers.Flatten(), layers.Dropout(0.5)
    graph = network(model(*flat, layers.Reshape((2, 6)), layers.Dropout(0.2), shape=(1, 3, 4)), (1, 3, 4))
    found = [(round(mask.ratio, 6), mask.shape) for mask in training_form(graph).masks]
    assert found == [(0.3, ("N", 1, 1, 1)), (0.5, ("N", 12)), (0.2, ("N", 2, 6))]


def test_the_masks_of_an_export_are_those_that_the_model_drops_by() -> None:
    made = model(layers.Dropout(0.4), layers.Dense(6), layers.Activation("tanh"), layers.Dropout(0.2))
    graph = network(made)
    executors = [framework("reference").executor(graph), own(made).executor_of(graph, 0)]
    own(made).draw_as_export(executors[1])
    feed = {"input": np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32), "label": np.arange(7) % 3}
    losses = []
    for step in (0, 1):
        info = StepInfo(step=step, batch_size=7)
        found = [to_numpy(each.inference_and_backprop(feed, info=info)["loss"]) for each in executors]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
        losses.append(float(found[0]))
        for name, value in executors[0].gradients().items():
            np.testing.assert_allclose(to_numpy(executors[1].gradients()[name]), value, rtol=1e-4, atol=1e-6)
    assert losses[0] != losses[1]


def test_other_calls_of_dropout_than_the_masks_are_refused() -> None:
    masks = training_form(network(model(layers.Dropout(0.4)))).masks
    x = keras.ops.ones((2, 4))
    given = [(masks[0], keras.ops.ones((2, 4)))]
    for call, why in (
        (lambda: keras.random.dropout(x, 0.3), "drops 0.3 of .*, and its export 0.4"),
        (lambda: keras.random.dropout(x, 0.4, noise_shape=(2, 1)), r"drops 0.4 of \(2, 1\)"),
        (lambda: None, "drops elements 0 times, and its export 1 times"),
        (lambda: [keras.random.dropout(x, 0.4) for _ in range(2)], "drops elements 2 times, and its export 1 times"),
    ):
        with pytest.raises(Unsupported, match=f"^Net {why}"), given_masks("Net", given):
            call()
    with given_masks("Net", given):
        np.testing.assert_array_equal(keras.random.dropout(x, 0.4), x)


class Counts(layers.Layer):
    """Adds the number of calls in training."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.built = True

    def call(self, x: Any, training: Any = None) -> Any:
        result = x + self.calls
        if training:
            self.calls.assign(self.calls + 1.0)
        return result


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: model(layers.GaussianNoise(0.1)), "another function in training than in evaluation, beyond dropout"),
        (lambda: model(layers.BatchNormalization(renorm=True)), "another function in training"),
        (lambda: model(layers.BatchNormalization(dtype="mixed_float16")), "another function in training"),
        (lambda: Called(lambda x, _, norm: norm(x, training=True), layers.BatchNormalization()), "another function in"),
        (lambda: Called(lambda x, _, drop: drop(x, training=True), layers.Dropout(0.5)), "draws random .* in evaluat"),
        (
            lambda: Called(lambda x, on, norm: norm(norm(x, training=on), training=on), layers.BatchNormalization()),
            "more than once",
        ),
        (lambda: model(Counts()), r"reads 0\.calls, which its training changes"),
    ],
)
def test_other_layers_that_train_otherwise_are_refused(
    made: Callable[[], Any], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Unsupported, match=why):
        own(made()).exported()
    assert not re.search("not supported", "".join(capfd.readouterr()))


def test_an_export_is_the_same_in_every_call() -> None:
    made = model(
        layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Conv2D(4, 1), layers.Dropout(0.1), shape=(5, 5, 2)
    )
    graphs = {own(made, (5, 5, 2)).exported().proto.SerializeToString(deterministic=True) for _ in range(4)}
    assert len(graphs) == 1
