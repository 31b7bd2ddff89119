"""Exports of Flax modules with layers that compute another function in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.plugins import framework
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.frameworks.jax.flax_layers import given_masks
from deep5.frameworks.jax.own_model import JAXModel
from deep5.networks.network import Network
from deep5.networks.run_modes import training_form

LABEL = TensorSpec(shape=("N",), dtype="int64")


class Linen(linen.Module):
    """Calls a function of the array and of whether it trains, in a compact module."""

    function: Callable[..., Any]

    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return linen.Dense(3)(self.function(x, train))


class Nnx(nnx.Module):
    """Calls a function of the array and of its layers."""

    def __init__(self, width: int, function: Callable[..., Any], *parts: Any) -> None:
        self.function, self.parts, self.last = function, nnx.List(parts), nnx.Linear(width, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.last(self.function(x, *self.parts))


def own(made: Any, shape: tuple[int, ...] = (4,)) -> JAXModel:
    return JAXModel(made, "cross_entropy", {"input": TensorSpec(shape=("N", *shape)), "label": LABEL}, "cpu", 0)


def network(made: Any, shape: tuple[int, ...] = (4,)) -> Network:
    found = own(made, shape).exported()
    assert found.changes == ()
    graph = Network.from_onnx(found.proto, parameters=list(found.trained))
    return graph.add_loss("logits", "cross_entropy", label_spec=LABEL)


def normalized(x: Any, train: bool) -> Any:
    return linen.BatchNorm(not train, momentum=0.7, epsilon=1e-2)(x).mean((1, 2))


def test_the_statistics_of_a_batch_normalization_are_those_of_linen() -> None:
    made = Linen(normalized)
    graph = network(made, (2, 3, 4))
    (node,) = [node for node in graph.nodes if node.op_type == "BatchNormalization"]
    numbers = {name: value.as_float() for name, value in node.attributes.items()}
    assert numbers == {"epsilon": pytest.approx(1e-2), "momentum": pytest.approx(0.7)}
    mean, var = graph.buffer_specs
    x = np.random.default_rng(0).normal(1, 3, (5, 2, 3, 4)).astype(np.float32)
    executor = framework("reference").executor(graph)
    found = executor.inference({"input": x, "label": np.zeros(5, np.int64)}, training=True)
    variables = made.init(jax.random.key(0), x, False)
    output, new = made.apply(variables, x, True, mutable=["batch_stats"])
    np.testing.assert_allclose(to_numpy(found["logits"]), output, rtol=1e-4, atol=1e-5)
    statistics = new["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(to_numpy(executor.buffers()[mean]), statistics["mean"], rtol=1e-5)
    np.testing.assert_allclose(to_numpy(executor.buffers()[var]), statistics["var"], rtol=1e-5)
    # Flax takes the variance of the batch as a population, as ONNX does.
    np.testing.assert_allclose(statistics["var"], 0.7 + 0.3 * x.reshape(-1, 4).var(0), rtol=1e-5)


def dropping(x: Any, train: bool) -> Any:
    first = linen.Dropout(0.3, broadcast_dims=(1,))(x, deterministic=not train)
    second = linen.Dropout(0.2)(x, deterministic=not train)
    return linen.Dropout(0.5)((second + first).mean(1), not train)


def nnx_dropping() -> Nnx:
    rngs = nnx.Rngs(0)
    parts = nnx.Dropout(0.3, broadcast_dims=(1,), rngs=rngs), nnx.Dropout(0.2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
    return Nnx(4, lambda x, a, b, c: c((a(x) + b(x)).mean(1)), *parts)


@pytest.mark.parametrize("make", [lambda: Linen(dropping), nnx_dropping])
def test_a_module_drops_by_the_masks_of_its_export(make: Callable[[], Any]) -> None:
    graph = network(make(), (3, 4))
    found = [(round(mask.ratio, 6), mask.shape) for mask in training_form(graph).masks]
    assert found == [(0.3, ("N", 1, 4)), (0.2, ("N", 3, 4)), (0.5, ("N", 4))]
    model = own(make(), (3, 4))
    executors = [framework("reference").executor(graph), model.executor_of(graph, 0)]
    feed = {"input": np.random.default_rng(0).normal(size=(7, 3, 4)).astype(np.float32), "label": np.arange(7) % 3}

    def losses(step: int) -> list[float]:
        info = StepInfo(step=step, batch_size=7)
        return [float(to_numpy(each.inference_and_backprop(feed, info=info)["loss"])) for each in executors]

    drawn = [losses(step)[1] for step in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    model.draw_as_export(executors[1])
    for step in (0, 1):
        given = losses(step)
        assert given[1] == pytest.approx(given[0], rel=1e-5)
        assert given[1] != pytest.approx(drawn[2 * step], rel=1e-5)
        for name, value in executors[0].gradients().items():
            np.testing.assert_allclose(to_numpy(executors[1].gradients()[name]), value, rtol=1e-4, atol=1e-6)


def test_other_calls_of_dropout_than_the_masks_are_refused() -> None:
    masks = training_form(network(Linen(lambda x, on: linen.Dropout(0.4)(x, not on)))).masks
    x = jnp.ones((2, 4))
    rngs = nnx.Rngs(0)
    for layer, calls, why in (
        (nnx.Dropout(0.3, rngs=rngs), 1, "drops 0.3 of .*, and its export 0.4"),
        (nnx.Dropout(0.4, broadcast_dims=(1,), rngs=rngs), 1, r"drops 0.4 of \(2, 1\)"),
        (nnx.Dropout(0.4, rngs=rngs), 0, "drops elements 0 times, and its export 1 times"),
        (nnx.Dropout(0.4, rngs=rngs), 2, "drops elements 2 times, and its export 1 times"),
    ):
        with pytest.raises(Unsupported, match=f"^Net {why}"), given_masks("Net", [(masks[0], x)]):
            [layer(x) for _ in range(calls)]


def twice(x: Any, train: bool) -> Any:
    norm = linen.BatchNorm(not train)
    return norm(2 * norm(x))


class Noise(linen.Module):
    """Adds noise in training."""

    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return x + jax.random.normal(self.make_rng("dropout"), x.shape) if train else x


def noisy(x: Any, train: bool) -> Any:
    return Noise()(x, train)


class Block(linen.Module):
    """Both layers."""

    train: bool

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dropout(0.1)(linen.BatchNorm(not self.train)(x), deterministic=not self.train)


def attention(x: Any, train: bool) -> Any:
    return linen.MultiHeadDotProductAttention(2, dropout_rate=0.2)(x[:, None], deterministic=not train)[:, 0]


NORM = {"rngs": nnx.Rngs(0)}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Linen(twice), r"calls a batch normalization more than once \(BatchNorm\)"),
        (lambda: Nnx(4, lambda x, norm: norm(norm(x)), nnx.BatchNorm(4, **NORM)), "more than once"),
        (lambda: Linen(lambda x, on: linen.BatchNorm(not on)(x, mask=x > 0)), "another function in training than in"),
        (lambda: Linen(lambda x, on: linen.BatchNorm(not on, dtype=jnp.float16)(x)), "another function in training"),
        (lambda: Linen(lambda x, on: linen.BatchNorm(not on, axis=(-1,))(x)), "another function in training"),
        (lambda: Nnx(4, lambda x, norm: norm(x, False), nnx.BatchNorm(4, **NORM)), "another function in training"),
        (lambda: Linen(noisy), "beyond dropout and batch normalization as ONNX defines them"),
        (lambda: Linen(attention), "beyond dropout and batch normalization"),
        (lambda: Linen(lambda x, on: linen.remat(Block)(on)(x)), "beyond dropout and batch normalization"),
    ],
)
def test_other_layers_that_train_otherwise_are_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        own(make()).exported()


def test_a_batch_normalization_by_moving_statistics_is_no_batch_normalization() -> None:
    for made in (
        Linen(lambda x, _: linen.BatchNorm(True)(x)),
        Nnx(4, lambda x, norm: norm(x, use_running_average=True), nnx.BatchNorm(4, **NORM)),
    ):
        graph = network(made)
        assert all(node.op_type != "BatchNormalization" for node in graph.nodes)
        assert not graph.buffer_specs
