"""Diffusion: noise by counters, the forward and the reverse process by the paper's equations, and resumed runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.training.generation.diffusion import remaining_signal
from deep5.training.generation.normal import normal_numbers

DIGITS = d5.datasets.digits(size=8, labels=False)
IDS = np.array([5, 3, 900, 1])
FRAMEWORKS = ("pytorch", "onnxruntime", "tensorflow", "jax")


def batch(ids: np.ndarray = IDS) -> dict[str, np.ndarray]:
    return DIGITS.train.batch(ids)


def test_normal_numbers_are_normal_and_belong_to_the_sample() -> None:
    transform = d5.AddNoise(10, seed=4)
    many = normal_numbers(transform, np.arange(5000), 2, (3, 7))
    assert many.shape == (5000, 3, 7)
    # 105,000 numbers: mean and variance are within four standard errors, and the shares of the tails within 10 %.
    assert abs(many.mean()) < 4 / math.sqrt(105_000)
    assert abs(many.var() - 1) < 4 * math.sqrt(2 / 105_000)
    for bound, share in ((1, 0.3173), (2, 0.0455), (3, 0.0027)):
        assert (np.abs(many) > bound).mean() == pytest.approx(share, rel=0.1 if bound < 3 else 0.3)
    correlations = np.corrcoef(many.reshape(5000, -1), rowvar=False) - np.eye(21)
    assert np.abs(correlations).max() < 5 / math.sqrt(5000)
    np.testing.assert_array_equal(normal_numbers(transform, np.array([77, 4]), 2, (3, 7)), many[[77, 4]])
    assert (normal_numbers(transform, np.arange(3), 3, (3, 7)) != many[:3]).all()
    assert (normal_numbers(d5.AddNoise(10, seed=5), np.arange(3), 2, (3, 7)) != many[:3]).all()


def test_the_forward_process() -> None:
    transform = d5.AddNoise(50, seed=1)
    given = batch()
    found = transform(given, IDS, epoch=3)
    left = remaining_signal(50)[found["time"]].reshape(-1, 1, 1, 1)
    wanted = np.sqrt(left) * (2 * given["input"] - 1) + np.sqrt(1 - left) * found["noise"]
    np.testing.assert_allclose(found["input"], wanted, atol=1e-6)  # float32
    assert {name: part.dtype for name, part in found.items()} == {
        "input": np.float32, "time": np.int64, "noise": np.float32,
    }  # fmt: skip
    for place, sample in enumerate(IDS):
        alone = transform(batch(IDS[place : place + 1]), IDS[place : place + 1], epoch=3)
        for name, part in alone.items():
            np.testing.assert_array_equal(part[0], found[name][place], err_msg=f"{name} of sample {sample}")
    steps = transform({"input": np.zeros((20_000, 1), np.float32)}, np.arange(20_000), 0)["time"]
    counts = np.bincount(steps, minlength=50)
    assert len(counts) == 50
    assert np.abs(counts - 400).max() < 5 * 20  # the standard deviation of a count is 20


@pytest.mark.parametrize("steps", [2, 100, 1000])
def test_the_cosine_schedule(steps: int) -> None:
    """By the paper's equation where no beta is clipped; only the last ones are."""

    def squared(t: float) -> float:
        return math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    wanted = [squared(t) / squared(0) for t in range(1, steps + 1)]
    found = remaining_signal(steps)
    np.testing.assert_allclose(found[:-1], wanted[:-1], rtol=1e-9)
    assert 0 < found[-1] < 1e-3
    assert (np.diff(found) < 0).all()


class Recorded:
    """An executor whose prediction is a stated function, with the feeds that it was given."""

    def __init__(self, network: Any) -> None:
        self.network, self.feeds = network, []

    def inference(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.feeds.append(dict(feed))
        return {"predicted_noise": np.tanh(feed["input"] + 0.01 * feed["time"].reshape(-1, 1, 1, 1))}


def test_the_reverse_process_is_that_of_the_paper() -> None:
    """Equations 7 and 15 of Ho et al., written with alpha and beta, and the network's prediction clipped."""
    steps, count = 12, 3
    network = d5.networks.denoiser(image=8, width=4, layers=1, steps=steps, dtype="float64")
    executor = Recorded(network)
    found = d5.AddNoise(steps).generate(executor, count, seed=8)
    a = remaining_signal(steps)
    x = d5.generator(8, "diffusion", steps).standard_normal((count, 1, 8, 8))
    for t in reversed(range(steps)):
        np.testing.assert_allclose(executor.feeds[steps - 1 - t]["input"], x, rtol=1e-12, atol=1e-12)
        assert executor.feeds[steps - 1 - t]["time"].tolist() == [t] * count
        noise = np.tanh(x + 0.01 * t)
        image = np.clip((x - np.sqrt(1 - a[t]) * noise) / np.sqrt(a[t]), -1, 1)
        before = a[t - 1] if t else 1.0
        alpha, beta = a[t] / before, 1 - a[t] / before
        mean = (np.sqrt(before) * beta * image + np.sqrt(alpha) * (1 - before) * x) / (1 - a[t])
        variance = (1 - before) / (1 - a[t]) * beta
        x = mean + (np.sqrt(variance) * d5.generator(8, "diffusion", t).standard_normal(x.shape) if t else 0)
    np.testing.assert_allclose(found, (x + 1) / 2, rtol=1e-12, atol=1e-12)
    assert found.min() >= 0
    assert found.max() <= 1


def test_frameworks_draw_the_same_images_in_float64() -> None:
    network = d5.networks.denoiser(image=8, width=16, layers=2, steps=20, dtype="float64")
    draw = np.random.default_rng(0)
    network = network.with_values(
        {name: value + 0.1 * draw.standard_normal(value.shape) for name, value in network.parameters().items()}
    )
    wanted = d5.AddNoise(20).generate(d5.framework("reference").executor(network), 5, seed=0)
    assert wanted.std() > 0.1
    for framework in FRAMEWORKS:
        found = d5.AddNoise(20).generate(d5.framework(framework).executor(network), 5, seed=0)
        # Twenty steps enlarge rounding errors of 1e-16, by less than a thousand.
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_the_network_is_that_of_its_docstring() -> None:
    torch = pytest.importorskip("torch")
    network = d5.networks.denoiser(image=4, channels=2, width=6, layers=2, steps=9, dtype="float64")
    draw = np.random.default_rng(0)
    values = {name: draw.standard_normal(spec.shape) for name, spec in network.parameter_specs.items()}
    feed = {
        "input": draw.standard_normal((3, 2, 4, 4)),
        "time": np.array([0, 8, 4]),
        "noise": draw.standard_normal((3, 2, 4, 4)),
    }
    w = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    function = torch.nn.functional

    def linear(x: Any, name: str) -> Any:
        return function.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return function.layer_norm(x, (6,), w[f"{name}.scale"], w[f"{name}.bias"], 1e-5)

    angles = feed["time"][:, None] * (1000 / 9) * 10_000.0 ** (-np.arange(3) / 3)
    features = torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))
    features = function.silu(linear(features, "time"))
    h = linear(torch.tensor(feed["input"]).flatten(1), "in")
    for block in ("block0", "block1"):
        hidden = linear(norm(h, f"{block}.norm"), f"{block}.in") + linear(features, f"{block}.time")
        h = h + linear(function.silu(hidden), f"{block}.out")
    predicted = linear(norm(h, "norm"), "out").reshape(3, 2, 4, 4)
    loss = function.mse_loss(predicted, torch.tensor(feed["noise"]))
    loss.backward()
    executor = d5.framework("reference").executor(network.with_values(values))
    outputs = executor.inference_and_backprop(feed)
    # Sums of some tens of terms near 1, in another order.
    np.testing.assert_allclose(outputs["predicted_noise"], predicted.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(outputs["loss"], loss.item(), rtol=1e-12)
    assert set(executor.gradients()) == set(w), "the waves of the step are not trained"
    for name, gradient in executor.gradients().items():
        np.testing.assert_allclose(gradient, w[name].grad.numpy(), rtol=1e-10, atol=1e-11, err_msg=name)


def test_the_first_prediction_is_zero() -> None:
    network = d5.networks.denoiser(image=8, width=8, layers=1, steps=10)
    made = d5.AddNoise(10)(batch(), IDS, 0)
    outputs = d5.framework("reference").executor(network).inference(made)
    assert not outputs["predicted_noise"].any()
    assert float(outputs["loss"]) == pytest.approx(float(np.square(made["noise"]).mean()), rel=1e-6)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "onnxruntime"])
@pytest.mark.parametrize("after", [3, 8])
def test_an_interrupted_training_resumes_bit_identically(framework: str, after: int, tmp_path: Path) -> None:
    from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint

    def trainer() -> d5.Trainer:
        network = d5.networks.denoiser(image=8, width=16, layers=1, steps=10)
        train, test = (
            d5.ShuffleSampler(part, 256, seed=3, transforms=[d5.AddNoise(10)]) for part in (DIGITS.train, DIGITS.test)
        )
        return d5.Trainer(d5.framework(framework).executor(network), d5.Adam(0.01), train, test, seed=5)

    class Save(d5.Event):
        def after_all(self, trainer: Any) -> None:
            if trainer.step == after:
                write_checkpoint(tmp_path / "state.safetensors", trainer.state_dict(), {})
                raise d5.StopTraining("interrupted")

    whole, first, second = trainer(), trainer(), trainer()
    observers = [d5.FrechetDistance(samples=20).observer() for _ in range(2)]
    whole.train(2, [observers[0]])
    first.train(2, [Save()])
    second.load_state_dict(read_checkpoint(tmp_path / "state.safetensors")[0])
    second.train(2 - second.epoch, [observers[1]])
    assert second.step == whole.step
    for name, value in whole.executor.state_dict().items():
        np.testing.assert_array_equal(second.executor.state_dict()[name], value)
    assert observers[0].value() == observers[1].value()


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="steps=1; allowed: an integer of at least 2"):
        d5.AddNoise(1)
    with pytest.raises(UsageError, match="samples are uint8"):
        d5.AddNoise(5)({"input": np.zeros((2, 3), np.uint8)}, np.arange(2), 0)
    with pytest.raises(UsageError, match="no part 'input'"):
        d5.AddNoise(5)({"x": np.zeros((2, 3))}, np.arange(2), 0)
    with pytest.raises(UsageError, match="samples without identities"):
        d5.AddNoise(5)(batch(), None, 0)
    other = d5.framework("reference").executor(d5.networks.denoiser(image=8, width=4, layers=1, steps=6))
    with pytest.raises(UsageError, match="the network has 6 steps, and AddNoise 5; allowed: equal numbers"):
        d5.AddNoise(5).generate(other, 2, 0)
    for count in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match=r"count is .*; allowed: an integer of at least 1"):
            d5.AddNoise(6).generate(other, count, 0)  # type: ignore[arg-type]
    lenet = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    with pytest.raises(UsageError, match="remedy: the network denoiser"):
        d5.AddNoise(5).generate(lenet, 2, 0)
    with pytest.raises(UsageError, match="got width = 5 for a denoiser; allowed: an even number"):
        d5.networks.denoiser(width=5)
    broken = d5.networks.denoiser(image=8, width=4, layers=1, steps=5)
    broken = broken.with_values({"out.bias": np.full(64, np.nan, np.float32)})
    with pytest.raises(UsageError, match="is not finite: training has diverged"):
        d5.AddNoise(5).generate(d5.framework("reference").executor(broken), 2, 0)
