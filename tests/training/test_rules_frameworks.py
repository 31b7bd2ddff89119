"""Every update rule on every framework: the same steps, resumed in the middle, and a convex problem solved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.training.optimizer import RuleOptimizer
from optimizer_table import CASES, batch, distance, info, network, one_thread  # noqa: F401 - a fixture

# Tracing and compiling take a second per rule: all of them in the full suite, some always.
ALWAYS = ("lamb",)
STEPS = 8


# Rates of rules without a twin.
ALONE = {"accelegrad": 0.5, "muon": 0.02, "adafactor": 0.05, "shampoo": 0.1}


def named(names: Any = CASES) -> list[Any]:
    return [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in names]


def hyper_of(name: str) -> dict[str, Any]:
    """Arguments with which the digits are learned and every state has an effect."""
    twins = CASES[name].twins
    found = twins["jax" if "jax" in twins else "pytorch"].rule if twins else {"lr": ALONE[name]}
    return {**found, "start": 2} if name == "averaged_sgd" else dict(found)


def trained(name: str, framework: str, dtype: str, steps: int = STEPS) -> dict[str, Any]:
    """The parameters after some steps, and their values in evaluation."""
    executor = d5.framework(framework).executor(network(dtype))
    optimizer = RuleOptimizer(CASES[name].rule(**hyper_of(name)))
    optimizer.bind(executor)
    for step in range(steps):
        optimizer.step(batch(step, dtype), info(step, 16))
    assert optimizer.train_step.traces == 1
    found = executor.state_dict()
    with optimizer.averaged():
        return found | {f"{key} in evaluation": value for key, value in executor.state_dict().items()}


@pytest.mark.parametrize("name", named())
def test_every_framework_takes_the_same_steps(name: str) -> None:
    """In float64 to rounding; ONNX Runtime in float32 to its rounding.

    Sums in another order differ by 1e-16 (6e-8 in float32), which rules that divide by small roots amplify.
    """
    reference = trained(name, "reference", "float64")
    moved = distance({key: value for key, value in reference.items() if "evaluation" not in key}, _initial("float64"))
    assert moved > 1e-2
    for framework in ("pytorch", "tensorflow", "jax"):
        assert distance(trained(name, framework, "float64"), reference) <= 1e-10, framework
    assert distance(trained(name, "onnxruntime", "float32"), reference) <= 1e-4


def _initial(dtype: str) -> dict[str, Any]:
    start = network(dtype)
    return {key: start.initial(key) for key in start.parameter_specs}


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax", "onnxruntime"])
@pytest.mark.parametrize("name", named())
def test_a_run_that_is_resumed_ends_with_the_same_bits(name: str, framework: str) -> None:
    def start() -> Any:
        executor = d5.framework(framework).executor(network("float32"))
        optimizer = RuleOptimizer(CASES[name].rule(**hyper_of(name)))
        optimizer.bind(executor)
        return executor, optimizer

    whole, optimizer = start()
    for step in range(STEPS):
        if step == STEPS // 2:
            states = whole.state_dict(), optimizer.state_dict()
        optimizer.step(batch(step, "float32"), info(step, 16))
    resumed, other = start()
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])
    for step in range(STEPS // 2, STEPS):
        other.step(batch(step, "float32"), info(step, 16))
    for got, want in ((resumed.state_dict(), whole.state_dict()), (other.state_dict(), optimizer.state_dict())):
        assert got.keys() == want.keys()
        for key, value in want.items():
            np.testing.assert_array_equal(got[key], value, err_msg=key)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if name not in {"sgd"}])
def test_a_state_that_is_forgotten_is_seen(name: str) -> None:
    """The test above would fail if any state were not restored: all of them have an effect."""
    rule = CASES[name].rule(**CASES[name].hyper)
    live = {"w": np.array([1.0, -2.0, 0.5])}
    kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach(live)
    # The first gradients are the largest, so that remembering and forgetting them differ.
    draw = np.random.default_rng(0).standard_normal((4, 3)) * np.array([[10.0], [1.0], [0.1], [0.1]])

    def go(begin: int, end: int) -> None:
        for step in range(begin, end):
            kernel.prepare(info(step))
            kernel.update({"w": draw[step]}, info(step))

    fresh = kernel.state_dict()
    go(0, 3)
    middle, at = kernel.state_dict(), live["w"].copy()

    def after(state: dict[str, Any]) -> Any:
        live["w"][...] = at
        kernel.load_state_dict(state)
        go(3, 4)
        with kernel.averaged():
            return np.concatenate([live["w"], *(np.ravel(value) for value in kernel.state_dict().values())])

    want = after(middle)
    for key, value in fresh.items():
        assert not np.array_equal(after({**middle, key: value}), want), key


@pytest.mark.parametrize("name", CASES)
def test_a_convex_problem_is_solved_as_fast_as_by_gradient_descent(name: str) -> None:
    """Least squares with eigenvalues from 0.1 to 2, so L = 2.

    Gradient descent with a rate of 1 / L guarantees f(w_T) - f* <= L |w_0 - w*|^2 / (2 T) (Nesterov, Introductory
    lectures on convex optimization, 2004, corollary 2.1.2, whose denominator is T + 4). Every rule does, with the rate
    of the table, which decreases with the root of the steps where necessary.
    """
    case = CASES[name]
    curvature, solution = np.array([0.1, 0.5, 1.0, 2.0]), np.array([1.0, -1.0, 2.0, 0.5])
    start, steps = np.array([3.0, 2.0, -1.0, 2.0]), 1000
    bound = curvature.max() * np.sum((start - solution) ** 2) / (2 * (steps + 4))

    def excess(sign: float, steps: int) -> float:
        rule, live = case.rule(**case.tuned), {"w": start.copy()}
        rate = sign * rule.lr
        kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(4,), dtype="float64")})
        kernel.attach(live)
        for step in range(steps):
            rule.lr = rate / np.sqrt(step + 1) if case.falls else rate
            kernel.prepare(info(step))
            kernel.update({"w": curvature * (live["w"] - solution)}, info(step))
        with kernel.averaged():
            return float(0.5 * np.sum(curvature * (live["w"] - solution) ** 2))

    assert excess(1.0, 0) > 100 * bound
    assert excess(1.0, steps) <= bound
    # Only descent meets the bound: with the other sign a rule moves away from the solution.
    assert excess(-1.0, 20) > excess(1.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_digits_are_learned(name: str) -> None:
    """Three hundred steps from chance, log(10), to below half of it."""
    case = CASES[name]
    hyper = {**hyper_of(name), **({"lr": 0.01} if case.falls and name not in {"amsgrad", "lars", "lion"} else {})}
    executor = d5.framework("reference").executor(network("float32"))
    optimizer = RuleOptimizer(case.rule(**hyper))
    optimizer.bind(executor)
    losses = [float(optimizer.step(batch(step, "float32"), info(step, 16))["loss"]) for step in range(300)]
    assert np.mean(losses[-20:]) < 0.5 * np.log(10)
