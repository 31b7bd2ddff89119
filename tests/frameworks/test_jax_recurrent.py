"""Recurrent layers of known length on JAX: cells if they are short, otherwise a loop, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5


def network(op_type: str, length: int, direction: str) -> d5.Network:
    count, gates = (2 if direction == "bidirectional" else 1), {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type]
    build = d5.NetworkBuilder("layer", dtype="float64", seed=0)

    def small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return 0.3 * rng.standard_normal(shape)

    y = build.op(
        op_type,
        build.input("x", (length, "N", 3)),
        build.parameter("w", (count, gates * 4, 3), small),
        build.parameter("r", (count, gates * 4, 4), small),
        build.parameter("b", (count, 2 * gates * 4), small),
        hidden_size=4,
        direction=direction,
    )
    return build.network({"y": y, "loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
def test_a_long_layer_is_a_loop_with_the_same_results(op_type: str, direction: str) -> None:
    made = network(op_type, 10, direction)
    feed, found = {"x": np.random.default_rng(0).standard_normal((10, 2, 3))}, {}
    for name in ("jax", "reference"):
        executor: Any = d5.framework(name).executor(made)
        outputs = executor.inference_and_backprop(feed)
        found[name] = {**outputs, **executor.gradients()}
        if name == "jax":
            assert f"f_{op_type.lower()}(" in executor.source
            assert "gemm" not in executor.source
    for key, value in found["reference"].items():
        # Other orders of float64 sums.
        np.testing.assert_allclose(np.asarray(found["jax"][key]), value, rtol=1e-10, atol=1e-13, err_msg=key)


@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
def test_a_short_layer_is_cells(op_type: str) -> None:
    executor: Any = d5.framework("jax").executor(network(op_type, 9, "forward"))
    assert f"f_{op_type.lower()}(" not in executor.source
    assert executor.source.count("gemm(") >= 8


@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
def test_the_gradient_of_a_loop_can_be_differentiated_again(op_type: str) -> None:
    jax = pytest.importorskip("jax")
    from deep5.frameworks.jax.primitives import PRIMITIVES
    from deep5.networks.kernels.recurrent import OPERATORS

    rng, gates = np.random.default_rng(0), {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type]
    function, shapes = OPERATORS[op_type].function, ((5, 2, 3), (2, 4 * gates, 3), (2, 4 * gates, 4), (2, 8 * gates))
    x, w, r, b = (0.4 * rng.standard_normal(shape) for shape in shapes)
    along, step = rng.standard_normal(r.shape), 1e-5
    how = {"linear_before_reset": 1, "direction": "bidirectional", "outputs": 1}

    def loss(weight: Any) -> Any:
        return (function(PRIMITIVES, x, w, weight, b, np.array([5, 3]), **how)[0] ** 2).sum()

    with jax.enable_x64(True):
        first = jax.grad(loss)
        second = jax.grad(lambda weight: (first(weight) * along).sum())(r)
        expected = (first(r + step * along) - first(r - step * along)) / (2 * step)
    # Central differences: errors of step^2 times third derivatives, and of rounding, 1e-16 / step.
    np.testing.assert_allclose(second, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
def test_training_a_loop_resumes_bit_identically_from_what_is_in_onnx_s_order(op_type: str) -> None:
    made, feed = network(op_type, 10, "bidirectional"), {"x": np.random.default_rng(0).standard_normal((10, 2, 3))}

    def trained(made: d5.Network, state: Any, steps: range) -> tuple[dict[str, np.ndarray], Any]:
        executor: Any = d5.framework("jax").executor(made)
        step = executor.train_step(d5.Adam(lr=0.1))
        if state is not None:
            step.load_state_dict(state)
        for number in steps:
            step(feed, d5.StepInfo(step=number, batch_size=2))
        return {name: np.array(value) for name, value in executor.parameters().items()}, step.state_dict()

    whole, _ = trained(made, None, range(4))
    values, state = trained(made, None, range(2))
    assert values["w"].shape == made.parameter_specs["w"].shape
    resumed, _ = trained(made.with_values(values), state, range(2, 4))
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    assert any((whole[name] != values[name]).any() for name in whole)
