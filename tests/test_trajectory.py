"""Two back-ends, one trajectory: PyTorch and the NumPy reference train `digits_lenet` on the same weights and batches.

Float32 results of right implementations differ in rounding, and training magnifies differences. So the proof has
parts: (a) float64, free-running; (b) float32, each step restarted from the float64 state; (c) gradients; (d) float32,
free-running, which the smooth LeNet (tanh, average pooling) allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.recipes import digits_lenet
from deep5.training.datasets.uci_digits import digits

STEPS = 100
RULES: dict[str, Callable[[], d5.UpdateRule]] = {
    "adam": lambda: d5.Adam(**digits_lenet.MUTABLE["optimizer_kwargs"]),  # type: ignore[arg-type]
    "momentum": lambda: d5.Momentum(lr=0.02, momentum=0.9),
}
SPLITS = digits(**digits_lenet.FIXED["dataset_kwargs"])  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread each, given back at the end: two cores are shared by whatever else runs."""
    frameworks = [d5.framework(name) for name in ("pytorch", "reference")]
    network = d5.networks.mlp(features=2, hidden=2, classes=2)
    before = [framework.executor(network).settings()["threads"] for framework in frameworks]
    for framework in frameworks:
        framework.set_threads(1)
    yield
    for framework, threads in zip(frameworks, before, strict=True):
        framework.set_threads(threads)


def network(dtype: str = "float32", seed: int = 0) -> d5.Network:
    made: d5.Network = d5.networks.lenet(**digits_lenet.FIXED["model_kwargs"], dtype=dtype, seed=seed)  # type: ignore[arg-type]
    return made


def feeds(of: d5.Network, steps: int = STEPS) -> Iterator[tuple[d5.StepInfo, dict[str, np.ndarray]]]:
    """The recipe's batches, the small ones at the end of an epoch included."""
    sampler = d5.ShuffleSampler(SPLITS.train.cast(of.inputs), digits_lenet.MUTABLE["batch_size"])  # type: ignore[arg-type]
    step = 0
    for epoch in range(steps):
        for ids, inputs in sampler.batches(epoch):
            if step == steps:
                return
            yield d5.StepInfo(step=step, epoch=epoch, batch_size=len(ids)), inputs
            step += 1


def curve(framework: str, dtype: str, rule: d5.UpdateRule) -> np.ndarray:
    executor = d5.framework(framework).executor(network(dtype))
    step = executor.train_step(rule)
    return np.array([float(d5.to_numpy(step(inputs, info)["loss"])) for info, inputs in feeds(executor.network)])


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_loss_curves_agree(rule: str, dtype: str, tolerance: float) -> None:
    """(a) and (d): 100 steps, free-running; the tolerances are those that the specification states."""
    ours, theirs = (curve(name, dtype, RULES[rule]()) for name in ("pytorch", "reference"))
    assert len(ours) == STEPS
    assert ours[-10:].mean() < 0.5 * ours[0]  # it learns: two constants would agree as well
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=0)


def test_the_comparison_can_fail() -> None:
    """A step size wrong by one part in a thousand is seen."""
    right, wrong = (curve("reference", "float32", d5.Adam(lr=lr)) for lr in (0.003, 0.003003))
    assert np.abs(right / wrong - 1).max() > 1e-4


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("framework", ["pytorch", "reference"])
def test_a_float32_step_from_the_float64_state(framework: str, rule: str) -> None:
    """(b) and (c): the next loss within 1e-5, the gradient within a relative norm of 1e-5, at states along the way."""
    made = d5.framework(framework)
    double, single = made.executor(network("float64")), made.executor(network("float32"))
    steps = double.train_step(RULES[rule]()), single.train_step(RULES[rule]())
    judged: list[float] = []
    for info, inputs in feeds(double.network, 60):
        small = {
            name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in inputs.items()
        }
        restart = info.step % 5 == 0
        if restart:
            single.load_state_dict({name: value.astype(np.float32) for name, value in double.state_dict().items()})
            state = steps[0].state_dict()
            steps[1].load_state_dict({name: np.asarray(value).astype(np.float32) for name, value in state.items()})
            losses = []
            for executor, feed in ((double, inputs), (single, small)):
                losses.append(float(d5.to_numpy(executor.inference_and_backprop(feed)["loss"])))
            assert losses[1] == pytest.approx(losses[0], rel=1e-5)
            for name, value in double.gradients().items():
                exact = d5.to_numpy(value)
                error = np.linalg.norm(d5.to_numpy(single.gradients()[name]) - exact)
                judged.append(float(error / np.linalg.norm(exact)))
        steps[0](inputs, info)
        if restart:
            steps[1](small, info)
            after = [
                float(d5.to_numpy(executor.inference(feed)["loss"]))
                for executor, feed in ((double, inputs), (single, small))
            ]
            assert after[1] == pytest.approx(after[0], rel=1e-5)
    assert len(judged) == 12 * 10
    assert max(judged) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_agree_between_the_two(dtype: str) -> None:
    """(c) across back-ends, by parameter."""
    executors = [d5.framework(name).executor(network(dtype, seed=3)) for name in ("pytorch", "reference")]
    _, inputs = next(feeds(executors[0].network))
    for executor in executors:
        executor.inference_and_backprop(inputs)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for name, value in executors[0].gradients().items():
        exact = d5.to_numpy(value)
        other = d5.to_numpy(executors[1].gradients()[name])
        assert np.linalg.norm(other - exact) <= tolerance * np.linalg.norm(exact), name


@pytest.mark.parametrize("framework", ["pytorch", "reference"])
def test_digits_lenet_reaches_its_goal_for_three_seeds(framework: str) -> None:
    for seed in range(3):
        executor = d5.framework(framework).executor(network(seed=seed))
        batch_size: Any = digits_lenet.MUTABLE["batch_size"]
        trainer = d5.Trainer(
            executor,
            RULES["adam"](),
            d5.ShuffleSampler(SPLITS.train, batch_size, seed=seed),
            d5.OrderedSampler(SPLITS.test, 256),
        )
        trainer.train(digits_lenet.FIXED["epochs"])  # type: ignore[arg-type]
        assert trainer.scores["accuracy"] >= 97
        assert trainer.scores["samples"] == len(SPLITS.test)
