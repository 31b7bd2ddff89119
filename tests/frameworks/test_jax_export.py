"""The export of JAX functions to ONNX: outputs and gradients are JAX's, and the operators are those that ONNX has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import deep5 as d5
from deep5.core.errors import Unsupported
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.networks.transforms.precision import with_precision

INPUTS = {"input": TensorSpec(shape=("N", 4)), "label": TensorSpec(shape=("N",), dtype="int64")}


def init(key: Any, x: Any) -> dict[str, Any]:
    first, second = jax.random.split(key)
    return {"a": jax.random.normal(first, (4, 24)), "layers": [jax.random.normal(second, (24, 3)), jnp.ones(3)]}


def between(function: Callable[[Any], Any]) -> Any:
    """A network with a function of 24 hidden values, which returns as many."""

    def apply(parameters: Any, x: Any) -> Any:
        last, bias = parameters["layers"]
        return function(x @ parameters["a"]).reshape(x.shape[0], -1) @ last + bias

    return init, apply


def own_model(model: Any, loss: str = "cross_entropy") -> Any:
    return d5.framework("jax").own_model(model, loss, INPUTS, device="cpu", seed=3)


def export(own: Any) -> Any:
    found = own.exported()
    network = d5.Network.from_onnx(found.proto, parameters=list(found.trained))
    return network.add_loss("logits", "cross_entropy", label_spec=INPUTS["label"])


def images(x: Any) -> Any:
    return x.reshape(-1, 4, 3, 2)


def channels_first(x: Any) -> Any:
    x = jax.lax.reduce_window(x.reshape(-1, 2, 4, 3), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "SAME")
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "SAME") / 4


def attention(x: Any) -> Any:
    x = x.reshape(-1, 6, 4)
    return jax.nn.softmax(jnp.einsum("nij,nkj->nik", x, x), axis=-1) @ x


def scanned(x: Any) -> Any:
    def step(state: Any, value: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state + value)
        return state, state

    x = jnp.swapaxes(x.reshape(-1, 6, 4), 0, 1)
    return jnp.swapaxes(jax.lax.scan(step, jnp.zeros_like(x[0]), x)[1], 0, 1)


CASES: dict[str, tuple[Callable[[Any], Any], set[str], set[str]]] = {
    "rectifiers": (lambda x: jax.nn.relu(x) + jax.nn.relu6(-x), {"Relu", "Min"}, {"Max"}),
    "smooth": (
        lambda x: jax.nn.gelu(jax.nn.silu(x), approximate=False) + jax.nn.softplus(x),
        {"Sigmoid", "Erf"},
        set(),
    ),
    "softmax": (jax.nn.softmax, {"Softmax"}, {"Exp", "ReduceMax"}),
    "log_softmax": (jax.nn.log_softmax, {"Log", "Exp"}, set()),
    "attention": (attention, {"Softmax", "MatMul"}, {"Exp"}),
    "means": (jax.nn.standardize, {"ReduceSum"}, {"Expand", "Shape"}),
    "spread": (lambda x: x * jnp.arange(24.0) - jnp.ones((1, 24)), {"Mul"}, {"Expand", "Shape"}),
    "both spread": (lambda x: (x[:, :1] * jnp.ones((1, 24))) + x, {"Add"}, set()),
    "max pool with a default stride of 1": (
        lambda x: jnp.pad(linen.max_pool(images(x), (2, 2)), ((0, 0), (0, 1), (1, 0), (0, 0))),
        {"MaxPool", "Pad"},
        {"Unsqueeze"},
    ),
    "max pool of padding": (lambda x: linen.max_pool(images(x), (3, 2), padding="SAME"), {"MaxPool"}, set()),
    "mean pool": (lambda x: linen.avg_pool(images(x), (3, 3), padding="SAME"), {"AveragePool"}, {"Div"}),
    "mean pool without padding": (
        lambda x: linen.avg_pool(images(x), (3, 3), padding="SAME", count_include_pad=False),
        {"AveragePool", "Div"},
        set(),
    ),
    "channels first": (channels_first, {"MaxPool", "AveragePool"}, {"Div", "Unsqueeze"}),
    "lookup": (lambda x: x[:, jnp.array([3, -1, 5])].repeat(8, axis=1), {"Gather"}, set()),
    "scan": (scanned, {"Loop"}, set()),
    "sums and order": (lambda x: jnp.cumsum(jnp.sort(x, axis=1), axis=1), {"CumSum", "TopK"}, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_an_export_computes_what_jax_computes(case: str) -> None:
    function, present, absent = CASES[case]
    own = own_model(between(function))
    network = export(own)
    kinds = {node.op_type for node in network.nodes}
    assert present <= kinds, kinds
    assert not absent & kinds, kinds
    rng = np.random.default_rng(0)
    given = {"input": rng.standard_normal((5, 4)).astype(np.float32), "label": np.array([0, 2, 1, 1, 0])}
    results = []
    for executor in (own.executor(0), d5.framework("reference").executor(network)):
        outputs = executor.inference_and_backprop(given)
        results.append({name: to_numpy(value) for name, value in {**outputs, **executor.gradients()}.items()})
    assert results[0].keys() == results[1].keys() == {"logits", "loss", "a", "layers/0", "layers/1"}
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_jax_and_flax_are_as_before_an_export() -> None:
    functions = [(module, name) for module in (jnp, jax.nn, jax.lax, linen, nnx) for name in vars(module)]
    before = [getattr(module, name, None) for module, name in functions]
    export(own_model(between(lambda x: jnp.cumsum(jax.nn.relu(x), 1))))
    changed = [
        name for (module, name), old in zip(functions, before, strict=True) if getattr(module, name, None) is not old
    ]
    assert not changed


def test_a_model_that_shortens_its_parameters_is_not_compared_in_float64() -> None:
    own = own_model(between(lambda x: x.astype(jnp.float32)))
    double = with_precision(export(own), "float64")
    with pytest.raises(Unsupported, match=r"computes in float32 at .*test_jax_export\.py:\d+, whatever the type"):
        own.executor_of(double, 0)
    own = own_model(between(jnp.tanh))
    executor = own.executor_of(with_precision(export(own), "float64"), 0)
    found = executor.inference({"input": np.ones((2, 4)), "label": np.array([0, 1])})
    assert to_numpy(found["logits"]).dtype == np.float64


def test_random_numbers_and_untranslated_operations_are_named() -> None:
    def noisy(x: Any) -> Any:
        return x * jax.random.normal(jax.random.key(0), (24,))

    with pytest.raises(Unsupported, match=r"draws random numbers at .*test_jax_export\.py:\d+, and"):
        own_model(between(noisy)).exported()
    with pytest.raises(Unsupported, match=r"jax2onnx does not convert between\.<locals>\.apply.*: .*; remedy: run it"):
        own_model(
            between(lambda x: jax.lax.rng_uniform(0.0, 1.0, (24,)) + jax.lax.linalg.schur(x[:, :1, None])[0][:, 0])
        ).exported()
