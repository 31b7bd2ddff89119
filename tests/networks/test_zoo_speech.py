"""The speech network: its equations, its loss by PyTorch, padding without effect, and its training everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core.errors import MissingDependency, Unsupported, UsageError
from deep5.networks import Network
from deep5.networks.zoo.speech import deep_speech

SIZES: dict[str, Any] = {"features": 4, "classes": 5, "most": 3, "channels": 6, "kernel": 3, "width": 3, "layers": 2}
DRAWN = np.random.default_rng(0).standard_normal((4, 13, 4))
FRAMES = np.array([13, 9, 6, 1])
COUNTS = np.array([3, 1, 2, 0])
# A 4 where no label counts: what is there is not read.
LABELS = np.array([[1, 2, 2], [3, 4, 4], [4, 1, 4], [4, 4, 4]])


def made(dtype: str = "float64", **options: Any) -> Network:
    return deep_speech(**{**SIZES, "seed": 1, "dtype": dtype, **options})


def batch(dtype: str = "float64") -> dict[str, np.ndarray]:
    there = np.arange(13)[None, :, None] < FRAMES[:, None, None]
    return {
        "input": np.where(there, DRAWN, 0).astype(dtype),
        "labels": LABELS,
        "input_length": FRAMES,
        "label_length": COUNTS,
    }


def gru(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All states of one sequence (steps, width); the reset gate after the product, in ONNX's order z, r, h."""
    n = len(r[0])
    h, states = np.zeros(n), []
    for step in x:
        own, back = w @ step + b[: 3 * n], r @ h + b[3 * n :]
        z, reset = (1 / (1 + np.exp(-(own + back)[at : at + n])) for at in (0, n))
        h = (1 - z) * np.tanh(own[2 * n :] + reset * back[2 * n :]) + z * h
        states.append(h)
    return np.array(states)


def of_one(network: Network, frames: np.ndarray) -> np.ndarray:
    """The log-probabilities of one sequence without padding, (steps, classes)."""
    p = {name: network.initial(name) for name in network.parameter_specs}
    padded = np.pad(frames, ((1, 1), (0, 0)))
    rows = [np.einsum("kf,cfk->c", padded[begin : begin + 3], p["conv.weight"]) for begin in range(0, len(frames), 2)]
    x = np.clip(np.array(rows) + p["conv.bias"], 0, 20)
    for layer in range(2):
        weights = [p[f"gru{layer}.{part}"] for part in ("input_weight", "hidden_weight", "bias")]
        forward, backward = (gru(x[::way], *(part[number] for part in weights)) for number, way in ((0, 1), (1, -1)))
        x = forward + backward[::-1]
    scores = x @ p["fc.weight"] + p["fc.bias"]
    logs: np.ndarray = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    return logs


def test_the_outputs_are_those_of_the_equations_without_padding() -> None:
    network = made()
    found = d5.framework("reference").executor(network).inference(batch())
    steps = [7, 5, 3, 1]
    assert d5.to_numpy(found["output_length"]).tolist() == steps
    logs = d5.to_numpy(found["log_probabilities"])
    assert logs.shape == (4, 7, 5)
    costs = []
    for number, count in enumerate(steps):
        expected = of_one(network, DRAWN[number, : FRAMES[number]])
        # float64, some hundred operations on numbers of size one.
        np.testing.assert_allclose(logs[number, :count], expected, rtol=1e-11)
        labels = torch.tensor(LABELS[number, : COUNTS[number]])
        cost = torch.nn.functional.ctc_loss(
            torch.tensor(expected), labels, torch.tensor(count), torch.tensor(int(COUNTS[number])), reduction="sum"
        )
        costs.append(cost.item())
    np.testing.assert_allclose(d5.to_numpy(found["loss"]), np.mean(costs), rtol=1e-12)


def test_the_length_of_a_batch_and_unused_labels_have_no_effect() -> None:
    executor = d5.framework("pytorch").executor(made())
    given = batch()
    before = {name: d5.to_numpy(array).copy() for name, array in executor.inference(given).items()}
    longer = {**given, "input": np.pad(given["input"], ((0, 0), (0, 6), (0, 0)))}
    longer["labels"] = np.where(np.arange(3) < COUNTS[:, None], LABELS, 0)
    after = {name: d5.to_numpy(array) for name, array in executor.inference(longer).items()}
    assert after["log_probabilities"].shape == (4, 10, 5)
    for number, count in enumerate(before["output_length"]):
        # The same numbers, in products of other shapes.
        np.testing.assert_allclose(
            after["log_probabilities"][number, :count], before["log_probabilities"][number, :count], rtol=1e-12
        )
    np.testing.assert_allclose(after["loss"], before["loss"], rtol=1e-12)


def test_too_few_steps_have_an_infinite_cost() -> None:
    given = batch("float32")
    given["input_length"] = np.array([13, 9, 6, 1])
    given["label_length"] = np.array([3, 1, 2, 2])
    executor = d5.framework("reference").executor(made("float32"))
    assert np.isposinf(d5.to_numpy(executor.inference(given)["loss"]))


def test_parameters() -> None:
    network = deep_speech()
    convolution = 64 * 40 * 11 + 64
    layer = 2 * (3 * 64 * (64 + 64) + 6 * 64)
    assert sum(spec.size for spec in network.parameter_specs.values()) == convolution + 2 * layer + 64 * 11 + 11
    # 28,160 draws within 1 / sqrt(440): the largest is within a thousandth of it but for once in 1e12 seeds.
    assert np.abs(network.initial("conv.weight")).max() == pytest.approx(440**-0.5, rel=1e-3)
    assert deep_speech(seed=0).weights_hash() != deep_speech(seed=1).weights_hash()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: deep_speech(width=0), "got width = 0; allowed: an integer of at least 1"),
        (lambda: deep_speech(stride=1.5), "got stride = 1.5; allowed: an integer"),  # type: ignore[arg-type]
        (lambda: deep_speech(kernel=4), "a kernel of 4 frames; allowed: an odd number"),
        (lambda: deep_speech(classes=1), "deep_speech with 1 classes; allowed: at least 2"),
        (lambda: deep_speech(dtype="int8"), "unknown dtype 'int8' of a network; allowed: float32, float64"),
    ],
)
def test_bad_arguments(make: Callable[[], Network], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def losses(framework: str, dtype: str) -> list[float]:
    """The loss before each of a few steps."""
    executor = d5.framework(framework).executor(made(dtype))
    step = executor.train_step(d5.SGD(0.05))
    return [float(d5.to_numpy(step(batch(dtype), d5.StepInfo(step=at, batch_size=4))["loss"])) for at in range(3)]


@cache
def right() -> list[float]:
    return losses("reference", "float64")


@pytest.mark.parametrize("framework", ["jax", "onnxruntime", "pytorch", "tensorflow"])
def test_trains_with_equal_losses(framework: str) -> None:
    try:
        d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    single = framework == "onnxruntime"
    found = losses(framework, "float32" if single else "float64")
    # Some hundred roundings of 1e-16 or 6e-8, propagated through two updates.
    np.testing.assert_allclose(found, right(), rtol=1e-4 if single else 1e-10)
    assert found[-1] < found[0]


def test_openvino_refuses_the_division_of_lengths() -> None:
    try:
        framework = d5.framework("openvino")
    except MissingDependency as error:
        pytest.skip(str(error))
    with pytest.raises(Unsupported, match=r"Div.*divides in float32"):
        framework.executor(made("float32"))
