"""Networks written in JAX: `from_jax`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.tensors import TensorSpec
from deep5.networks.native import NativeNetwork
from executor_cases import batch_of

jax = pytest.importorskip("jax")
jnp = jax.numpy


executor_of: Any = d5.framework("jax").executor


SPECS = {"input": TensorSpec(shape=("N", 6)), "label": TensorSpec(shape=("N",), dtype="int64")}


def initial() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "dense": {"kernel": draw.standard_normal((6, 5)).astype(np.float32), "bias": np.zeros(5, np.float32)},
        "head": [draw.standard_normal((5, 3)).astype(np.float32)],
    }


def classify(parameters: Any, inputs: Any) -> dict[str, Any]:
    hidden = jnp.tanh(inputs["input"] @ parameters["dense"]["kernel"] + parameters["dense"]["bias"])
    logits = hidden @ parameters["head"][0]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), inputs["label"][:, None], axis=1)
    return {"logits": logits, "loss": -jnp.mean(chosen)}


def test_native_networks_train_as_by_hand() -> None:
    from deep5.frameworks.jax import from_jax
    from deep5.training.dataset import ArrayDataset

    start = initial()
    executor = from_jax(classify, start, inputs=SPECS)
    draw = np.random.default_rng(1)
    data = {"input": draw.standard_normal((60, 6)).astype(np.float32), "label": draw.integers(0, 3, 60)}
    sampler = d5.OrderedSampler(ArrayDataset(data), 16)  # the last batch is smaller
    trainer = d5.Trainer(executor, d5.SGD(lr=0.3), sampler, d5.OrderedSampler(ArrayDataset(data), 60))
    trainer.train(3)

    @jax.jit
    def step(parameters: Any, batch: Any) -> Any:
        gradients = jax.grad(lambda p: classify(p, batch)["loss"])(parameters)
        return jax.tree.map(lambda p, g: p - 0.3 * g, parameters, gradients)

    parameters = jax.tree.map(jnp.asarray, start)
    for _ in range(3):
        for begin in range(0, 60, 16):
            parameters = step(parameters, {name: value[begin : begin + 16] for name, value in data.items()})
    own = executor.parameters()
    assert list(own) == ["dense/bias", "dense/kernel", "head/0"]
    # The same operations; XLA may fuse them in another order, which costs one rounding per step.
    np.testing.assert_allclose(own["dense/kernel"], parameters["dense"]["kernel"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(own["head/0"], parameters["head"][0], rtol=1e-5, atol=1e-6)
    want = classify(parameters, {name: jnp.asarray(value) for name, value in data.items()})
    assert trainer.scores["loss"] == pytest.approx(float(want["loss"]), rel=1e-5)
    np.testing.assert_array_equal(start["dense"]["kernel"], initial()["dense"]["kernel"])


def test_native_networks_are_described() -> None:
    from deep5.frameworks.jax import from_jax

    executor = from_jax(classify, initial(), inputs=SPECS)
    network: Any = executor.network
    assert isinstance(network, NativeNetwork)
    assert network.outputs == {"logits": TensorSpec(shape=("N", 3)), "loss": TensorSpec(shape=())}
    assert network.parameter_specs["dense/kernel"] == TensorSpec(shape=(6, 5))
    with pytest.raises(Unsupported, match=r"'dense/kernel' .* is not kept: .*remedy: keep executor\.state_dict\(\)"):
        network.initial("dense/kernel")
    again: Any = from_jax(classify, initial(), inputs=SPECS).network
    other: Any = from_jax(lambda p, i: {**classify(p, i), "logits": p["head"][0]}, initial(), inputs=SPECS).network
    assert again.structure_hash() == network.structure_hash() != other.structure_hash()
    executor.train_step(d5.SGD(lr=0.1))(batch_of(network), d5.StepInfo(batch_size=4))
    assert again.weights_hash() == network.weights_hash()
    moved = from_jax(classify, executor.state_dict() and jax.tree.map(lambda x: x + 1, initial()), inputs=SPECS)
    assert moved.network.weights_hash() != network.weights_hash()
    with pytest.raises(NetworkError, match="no initial value 'x'"):
        network.initial("x")
    with pytest.raises(Unsupported, match=r"'classify' is native code, which cannot be exported.*remedy: keep"):
        executor.export()


def noisy(parameters: Any, buffers: Any, inputs: Any, training: bool) -> Any:
    """Dropout whose key is a buffer, and a running mean."""
    key, own = jax.random.split(jax.random.wrap_key_data(buffers["key"]))
    hidden = inputs["input"] @ parameters["w"]
    if not training:
        return {"y": hidden, "loss": jnp.mean(hidden**2)}, buffers
    mean = 0.9 * buffers["mean"] + 0.1 * jnp.mean(hidden, 0)
    hidden = hidden * jax.random.bernoulli(own, 0.5, hidden.shape) * 2
    return {"y": hidden, "loss": jnp.mean(hidden**2)}, {"key": jax.random.key_data(key), "mean": mean}


def test_native_buffers_hold_statistics_and_random_state() -> None:
    from deep5.frameworks.jax import from_jax

    def made() -> Any:
        buffers = {"key": jax.random.key_data(jax.random.key(0)), "mean": jnp.zeros(4)}
        return from_jax(noisy, {"w": jnp.ones((6, 4))}, inputs={"input": SPECS["input"]}, buffers=buffers)

    executor = made()
    feed = {"input": batch_of(executor.network)["input"]}
    before = executor.state_dict()
    executor.inference(feed)
    np.testing.assert_array_equal(executor.state_dict()["key"], before["key"])
    step = executor.train_step(d5.SGD(lr=0.1))
    first = np.asarray(step(feed, d5.StepInfo())["y"])
    np.testing.assert_allclose(executor.buffers()["mean"], 0.1 * (feed["input"] @ np.ones((6, 4))).mean(0), rtol=1e-5)
    assert not np.array_equal(executor.state_dict()["key"], before["key"])
    kept = executor.state_dict()
    second = np.asarray(step(feed, d5.StepInfo(step=1))["y"])
    assert (first == 0).any()
    assert not np.array_equal(first == 0, second == 0)
    resumed = made()
    resumed.load_state_dict(kept)
    np.testing.assert_array_equal(resumed.train_step(d5.SGD(lr=0.1))(feed, d5.StepInfo(step=1))["y"], second)


def test_native_functions_are_traced_under_the_users_own_types() -> None:
    from deep5.frameworks.jax import from_jax

    seen = []

    def apply(parameters: Any, inputs: Any) -> dict[str, Any]:
        seen.append(tuple(str(value.dtype) for value in (inputs["label"], jnp.zeros(2), parameters["w"])))
        return {"loss": jnp.sum(parameters["w"]) * 1.5 + jnp.sum(inputs["label"]) * 0.0}

    specs = {"label": SPECS["label"]}
    executor = from_jax(apply, {"w": np.ones(3)}, inputs=specs)
    executor.train_step(d5.Adam())({"label": np.zeros(4, np.int64)}, d5.StepInfo(batch_size=4))
    assert set(seen) == {("int32", "float32", "float32")}
    seen.clear()
    with jax.enable_x64(True):
        wide = from_jax(apply, {"w": np.ones(3)}, inputs=specs)
    wide.inference({"label": np.zeros(4, np.int64)})
    assert set(seen) == {("int64", "float64", "float64")}
    assert wide.network.outputs["loss"].dtype == "float64"


@pytest.mark.parametrize(
    ("keywords", "error", "match"),
    [
        ({"apply": lambda p, i: p["w"]}, UsageError, "a dict of outputs by name"),
        ({"apply": lambda p, i: {"loss": p["w"]}}, Unsupported, "cannot be differentiated"),
        ({"apply": lambda p, i: {"los": p["w"].sum()}}, UnknownName, "loss"),
        ({"loss": "cost"}, UnknownName, "cost"),
        ({"parameters": {"w": np.arange(3)}}, UsageError, "remedy: hand them over as buffers"),
        ({"parameters": {"w": "text"}}, Unsupported, "allowed: arrays of numbers"),
        ({"parameters": {"a/b": np.ones(1), "a": {"b": np.ones(1)}}}, UsageError, "two leaves have the path"),
        ({"outputs": {"loss": TensorSpec(shape=("N",))}}, ShapeError, r"got loss: float32\[\], declared loss"),
        ({"buffers": {"w": np.ones(1)}}, UsageError, "parameters and of buffers"),
        (
            {"buffers": {"b": np.ones(1)}, "apply": lambda p, b, i, training: {"loss": p["w"].sum()}},
            UsageError,
            "and the new buffers",
        ),
        (
            {"buffers": {"b": np.ones(1)}, "apply": lambda p, b, i, training: ({"loss": p["w"].sum()}, {})},
            UsageError,
            "buffers of the structure",
        ),
        (
            {
                "buffers": {"b": np.ones(1)},
                "apply": lambda p, b, i, training: ({"loss": p["w"].sum()}, {"b": jnp.ones(2)}),
            },
            ShapeError,
            r"new buffer 'b': got float32\[2\], expected float32\[1\]",
        ),
    ],
)
def test_native_networks_that_cannot_be(keywords: dict[str, Any], error: type[Exception], match: str) -> None:
    from deep5.frameworks.jax import from_jax

    arguments: dict[str, Any] = {
        "apply": lambda p, i: {"loss": p["w"].sum()},
        "parameters": {"w": np.ones(3, np.float32)},
        **keywords,
    }
    with pytest.raises(error, match=match):
        from_jax(arguments.pop("apply"), arguments.pop("parameters"), inputs=SPECS, **arguments)
