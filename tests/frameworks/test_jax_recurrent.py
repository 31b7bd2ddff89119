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
    made = network(op_type, 16, direction)
    feed, found = {"x": np.random.default_rng(0).standard_normal((16, 2, 3))}, {}
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
    executor: Any = d5.framework("jax").executor(network(op_type, 15, "forward"))
    assert f"f_{op_type.lower()}(" not in executor.source
    assert executor.source.count("gemm(") >= 14
