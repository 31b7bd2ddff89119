"""Recurrent layers of sequences with lengths, by PyTorch's packed sequences: against the reference, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.networks import NetworkBuilder
from deep5.networks.network import Network

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, FEATURES, HIDDEN = 6, 5, 3, 4
LENGTHS = {
    "all": [6, 6, 6, 6, 6],
    "mixed": [3, 6, 1, 5, 6],
    "some have none": [0, 6, 2, 0, 4],
    "none": [0, 0, 0, 0, 0],
}


def network(cell: str, direction: str, lengths: list[int], *, initial: bool) -> Network:
    build = NetworkBuilder("layer", dtype="float64", seed=2)
    both, width = 1 + (direction == "bidirectional"), GATES[cell] * HIDDEN
    x = build.input("x", (STEPS, BATCH, FEATURES))
    weights = [
        build.parameter(name, (both, *shape), d5.networks.glorot_uniform)
        for name, shape in (("w", (width, FEATURES)), ("r", (width, HIDDEN)), ("b", (2 * width,)))
    ]
    states: list[Any] = []
    if initial:
        names = ("h", "c")[: 2 if cell == "LSTM" else 1]
        states = [build.parameter(name, (both, BATCH, HIDDEN), d5.networks.glorot_uniform) for name in names]
    steps = build.constant("lengths", np.array(lengths, np.int32))
    more: dict[str, Any] = {"linear_before_reset": 1} if cell == "GRU" else {}
    outputs = 3 if cell == "LSTM" else 2
    made = build.op(
        cell, x, *weights, steps, *states, outputs=outputs, hidden_size=HIDDEN, direction=direction, **more
    )  # fmt: skip
    named = {f"y{number}": value for number, value in enumerate(made)}
    squares = [build.op("ReduceSum", build.op("Mul", value, value), keepdims=0) for value in made]
    total = squares[0]
    for each in squares[1:]:
        total = build.op("Add", total, each)
    return build.network({**named, "loss": total})


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("cell", GATES)
def test_sequences_end_where_the_reference_ends_them(cell: str, direction: str, lengths: str, initial: bool) -> None:
    made = network(cell, direction, LENGTHS[lengths], initial=initial)
    # What follows the end of a sequence is not read.
    x = np.random.default_rng(4).standard_normal((STEPS, BATCH, FEATURES))
    for sample, count in enumerate(LENGTHS[lengths]):
        x[count:, sample] = 1e30
    found: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = {}
    for name in ("pytorch", "reference"):
        executor = d5.framework(name).executor(made)
        outputs = executor.inference_and_backprop({"x": x})
        gradients = {key: np.array(d5.to_numpy(value)) for key, value in executor.gradients().items()}
        found[name] = {key: np.array(d5.to_numpy(value)) for key, value in outputs.items()}, gradients
    for got, want in zip(found["pytorch"], found["reference"], strict=True):
        assert got.keys() == want.keys()
        for key, value in want.items():
            # Sums of at most 7 products of numbers near 1, over 6 steps, in float64.
            np.testing.assert_allclose(got[key], value, rtol=1e-12, atol=1e-13, err_msg=key)


def test_the_layer_is_that_of_pytorch() -> None:
    executor: Any = d5.framework("pytorch").executor(network("GRU", "bidirectional", LENGTHS["mixed"], initial=True))
    assert "_gated(" in executor.source
