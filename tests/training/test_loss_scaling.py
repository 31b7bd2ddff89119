"""Static and dynamic loss scaling: skipped steps, the scale in the state, and an exact resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError, UsageError
from deep5.training.loss_scale import LossScale, check_scaling
from deep5.training.optimizer import RuleOptimizer
from pipeline_cases import FRAMEWORKS, batch, bound, info, network, parameters

START = 2.0**16
EVERYWHERE = (*FRAMEWORKS, pytest.param("tensorflow:xla", marks=pytest.mark.slow))


def whole(run: Any, optimizer: RuleOptimizer) -> dict[str, np.ndarray]:
    """Parameters and the rule's states, without the scale."""
    state = optimizer.state_dict()
    return {**run.state_dict(), **{key: np.asarray(value) for key, value in state.items() if "/" in key}}


def same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def overflowing(step: int, value: float = np.inf) -> dict[str, np.ndarray]:
    """A batch with a gradient that is not finite."""
    inputs = batch(step)
    inputs["input"][3, 2] = value
    return inputs


@pytest.mark.parametrize("framework", EVERYWHERE)
@pytest.mark.parametrize("kind", ["adam", "accelegrad"])
def test_a_skipped_step_changes_nothing_but_the_scale(framework: str, kind: str) -> None:
    rules = {"adam": d5.Adam, "accelegrad": d5.AcceleGrad}
    run, optimizer = bound(framework, rules[kind](lr=0.05), loss_scale="dynamic", clip_norm=0.5)
    plain, twin = bound(framework, rules[kind](lr=0.05), clip_norm=0.5)
    optimizer.step(batch(0), info(0))
    twin.step(batch(0), info(0))
    before = whole(run, optimizer)
    for step in (1, 2):
        optimizer.step(overflowing(step, np.inf if step == 1 else np.nan), info(step))
        same(whole(run, optimizer), before)
        assert (optimizer.loss_scale, optimizer.skipped_steps) == (START / 2**step, step)
    for step in range(1, 5):
        # The rule counts updates: skipped steps do not affect its bias corrections.
        optimizer.step(batch(step), info(step + 2))
        twin.step(batch(step), info(step))
    assert optimizer.train_step.traces == 1
    for name, value in parameters(plain).items():
        # A power of two scales exactly, without underflow; the order of a compiler's sums depends on the program.
        np.testing.assert_allclose(parameters(run)[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_scale_doubles_after_so_many_good_steps(framework: str) -> None:
    _, optimizer = bound(framework, d5.SGD(lr=0.01), loss_scale="dynamic")
    state = optimizer.state_dict()
    assert state["hyper"] == {"values": {"lr": 0.01}, "groups": []}  # without the scale, which the step determines
    assert {key: float(value) for key, value in optimizer.train_step.state_dict().items()} == {
        "loss_scale": START,
        "good_steps": 0.0,
        "skipped_steps": 0.0,
    }
    optimizer.load_state_dict({**state, "good_steps": np.array(1998)})
    optimizer.step(batch(0), info(0))
    assert optimizer.loss_scale == START
    optimizer.step(batch(1), info(1))
    assert optimizer.loss_scale == 2 * START
    assert int(optimizer.state_dict()["good_steps"]) == 0
    optimizer.load_state_dict({**state, "good_steps": np.array(1999)})
    optimizer.step(overflowing(2), info(2))  # not a good one
    assert (optimizer.loss_scale, int(optimizer.state_dict()["good_steps"])) == (START / 2, 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_scale_that_is_too_large_falls_until_gradients_fit(framework: str) -> None:
    rectified = d5.networks.mlp(features=6, hidden=5, classes=3, activation="relu", seed=3)
    run, optimizer = bound(framework, d5.SGD(lr=1e-30), rectified, loss_scale="dynamic")
    optimizer.load_state_dict({**optimizer.state_dict(), "loss_scale": np.array(2.0**100)})
    inputs = batch(0)
    inputs["input"] *= 1e12  # the gradient is finite, 2^100 times it is not
    for step in range(40):
        before = whole(run, optimizer)
        optimizer.step(inputs, info(step))
        if optimizer.skipped_steps == step + 1:
            same(whole(run, optimizer), before)
    assert 5 < optimizer.skipped_steps < 35
    assert optimizer.loss_scale == 2.0 ** (100 - optimizer.skipped_steps)


def test_the_scale_stays_within_bounds() -> None:
    scale = LossScale("float16")
    assert scale.scale == 2.0**15  # 2^16 exceeds float16
    for _ in range(2 * 2000):
        scale.update(finite=True)
    assert scale.scale == 2.0**15
    for _ in range(40):
        scale.update(finite=False)
    assert (scale.scale, scale.skipped) == (1.0, 40)
    wide = LossScale("float32")
    for _ in range(100 * 2000):
        wide.update(finite=True)
    assert wide.scale == 2.0**100


@pytest.mark.parametrize("framework", EVERYWHERE)
def test_resumes_bit_for_bit(framework: str) -> None:
    batches = [batch(0), overflowing(1), batch(2), batch(3), overflowing(4), overflowing(5), batch(6), batch(7)]

    def go(optimizer: RuleOptimizer, start: int, stop: int) -> None:
        for step in range(start, stop):
            optimizer.step(batches[step], info(step))

    run, optimizer = bound(framework, d5.Adam(lr=0.05), loss_scale="dynamic")
    go(optimizer, 0, 8)
    # If nothing compiles: before, between and after the two skipped steps, too.
    for cut in (2, 4, 5, 6) if framework in ("reference", "pytorch") else (5,):
        first, half = bound(framework, d5.Adam(lr=0.05), loss_scale="dynamic")
        go(half, 0, cut)
        second, rest = bound(framework, d5.Adam(lr=0.05), loss_scale="dynamic")
        second.load_state_dict(first.state_dict())
        rest.load_state_dict(half.state_dict())
        go(rest, cut, 8)
        same(whole(second, rest), whole(run, optimizer))
        same(rest.state_dict(), optimizer.state_dict())
    assert optimizer.skipped_steps == 3


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_halves_scale_alike(framework: str) -> None:
    run, optimizer = bound(framework, d5.Adam(lr=0.05), loss_scale="dynamic", clip_norm=0.5)
    other, twin = bound(framework, d5.Adam(lr=0.05), loss_scale="dynamic", clip_norm=0.5)
    for step, inputs in enumerate([batch(0), overflowing(1), batch(2), batch(3)]):
        optimizer.step(inputs, info(step))
        half = twin.train_step
        half.backprop(inputs, info(step))
        if step == 0:  # the output of `backprop` is scaled
            gradients = {name: np.asarray(d5.to_numpy(value)) for name, value in other.gradients().items()}
            other.inference_and_backprop(inputs)
            for name, value in other.gradients().items():
                np.testing.assert_allclose(gradients[name], START * np.asarray(d5.to_numpy(value)), rtol=1e-4)
            half.backprop(inputs, info(step))
        half.apply(other.gradients(), info(step))
        assert (twin.loss_scale, twin.skipped_steps) == (optimizer.loss_scale, optimizer.skipped_steps)
    for name, value in parameters(run).items():
        np.testing.assert_allclose(parameters(other)[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_modifier_sees_unscaled_gradients_and_hides_no_overflow(framework: str) -> None:
    def quiet(name: str, param: Any, grad: Any) -> Any:
        return param * 0.0 + 1.0  # finite for any gradient

    run, optimizer = bound(framework, d5.SGD(lr=0.5), modifier=quiet, loss_scale="dynamic")
    before = parameters(run)
    optimizer.step(overflowing(0), info(0))
    assert optimizer.skipped_steps == 1
    for name, value in parameters(run).items():
        np.testing.assert_array_equal(value, before[name])
    optimizer.step(batch(1), info(1))
    for name, value in parameters(run).items():
        np.testing.assert_allclose(value, before[name] - 0.5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_static_scale_may_change(framework: str) -> None:
    run, optimizer = bound(framework, d5.Adam(lr=0.05), loss_scale=8.0)
    other, twin = bound(framework, d5.Adam(lr=0.05))
    for step in range(4):
        optimizer.set_hyper("loss_scale", 8.0 * 4**step)
        optimizer.step(batch(step), info(step))
        twin.step(batch(step), info(step))
    assert optimizer.train_step.traces == 1
    assert optimizer.loss_scale == 512.0
    for name, value in parameters(other).items():
        np.testing.assert_allclose(parameters(run)[name], value, rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    _, optimizer = bound("reference", d5.SGD(), loss_scale="dynamic")
    state = optimizer.state_dict()
    with pytest.raises(UsageError, match=r"loss_scale: got 2\.0, but it is dynamic and the step finds it"):
        optimizer.set_parameter("loss_scale", 2.0)
    with pytest.raises(ShapeError, match="the optimizer's state has no 'good_steps'; allowed: that of a step with a"):
        optimizer.load_state_dict({key: value for key, value in state.items() if key != "good_steps"})
    with pytest.raises(ShapeError, match=r"state 'loss_scale': got array\(nan\); allowed: a finite number of at least"):
        check_scaling({**state, "loss_scale": np.array(np.nan)})
    _, plain = bound("reference", d5.SGD())
    with pytest.raises(ShapeError, match="missing or unknown entries"):
        plain.load_state_dict(state)
    _, odd = bound("reference", d5.SGD(), loss_scale=1e300)
    with pytest.raises(UsageError, match=r"loss_scale: got 1e\+300 .*at most 3\.4e\+38"):
        odd.step(batch(0), info(0))


def test_the_state_of_a_device_step_is_of_its_own_network() -> None:
    assert set(bound("device", d5.Adam(), network(), loss_scale="dynamic")[1].state_dict()) == set(
        bound("pytorch", d5.Adam(), network(), loss_scale="dynamic")[1].state_dict()
    )
