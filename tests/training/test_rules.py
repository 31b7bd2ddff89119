"""Update rules: hand-computed steps, torch's own, every array library, convergence, and an unforeseen one."""

from __future__ import annotations

import math
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.core.tensors import TensorSpec
from deep5.training.eager import EagerRule
from deep5.training.rule import State, ThreeStepOptimizer, UpdateRule

RULES = {
    "sgd": lambda: d5.SGD(0.1),
    "momentum": lambda: d5.Momentum(0.1, 0.9),
    "nesterov": lambda: d5.Momentum(0.1, 0.9, nesterov=True),
    "adam": lambda: d5.Adam(0.01),
    "lars": lambda: d5.LARS(0.5, trust=0.01),
    "accelegrad": lambda: d5.AcceleGrad(0.5),
}
# At most the order of operations differs: about 1e-16 per step, over at most twenty steps.
ROUNDING = 1e-13


def info(step: int) -> StepInfo:
    return StepInfo(step=step, batch_size=1)


def run(rule: UpdateRule, starts: dict[str, Any], gradients: list[dict[str, Any]], backend: str | None = None) -> Any:
    """The kernel and the live parameters after one step per set of gradients, float64."""
    live = {name: np.array(value, np.float64) for name, value in starts.items()}
    specs = {name: TensorSpec(shape=value.shape, dtype="float64") for name, value in live.items()}
    kernel = d5.bind_rule(rule, specs, backend=backend)
    kernel.attach(live)
    for step, grads in enumerate(gradients):
        kernel.prepare(info(step))
        kernel.update({name: np.array(value, np.float64) for name, value in grads.items()}, info(step))
    return kernel, live


# Two parameters, one gradient per step, in plain numbers.
W, GRADS = [1.0, -2.0], [[0.5, 0.25], [-1.0, 0.125], [0.75, -0.5], [0.25, 2.0]]


def by_hand(rule: UpdateRule) -> list[float]:
    _, live = run(rule, {"w": W}, [{"w": grad} for grad in GRADS])
    return live["w"].tolist()


def test_sgd_by_hand() -> None:
    want = [w - sum(0.1 * grad[i] for grad in GRADS) for i, w in enumerate(W)]
    assert by_hand(d5.SGD(0.1)) == pytest.approx(want, rel=ROUNDING)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_by_hand(nesterov: bool) -> None:
    want = []
    for i, start in enumerate(W):
        w, v = start, 0.0
        for grad in GRADS:
            v = 0.9 * v + grad[i]
            w -= 0.1 * (grad[i] + 0.9 * v if nesterov else v)
        want.append(w)
    assert by_hand(d5.Momentum(0.1, 0.9, nesterov=nesterov)) == pytest.approx(want, rel=ROUNDING)


def test_adam_by_hand() -> None:
    lr, beta1, beta2, epsilon = 0.01, 0.8, 0.95, 0.1  # an epsilon with a visible effect, outside of the root
    want = []
    for i, start in enumerate(W):
        w, m, v = start, 0.0, 0.0
        for t, grad in enumerate(GRADS, start=1):
            m = beta1 * m + (1 - beta1) * grad[i]
            v = beta2 * v + (1 - beta2) * grad[i] ** 2
            w -= lr * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon)
        want.append(w)
    assert by_hand(d5.Adam(lr, beta1, beta2, epsilon)) == pytest.approx(want, rel=ROUNDING)


def test_lars_by_hand() -> None:
    lr, momentum, decay, trust = 0.5, 0.9, 0.01, 0.02
    w, v = list(W), [0.0, 0.0]
    for grad in GRADS:
        w_norm, g_norm = math.hypot(*w), math.hypot(*grad)
        rate = trust * w_norm / (g_norm + decay * w_norm)
        v = [momentum * vi + rate * (gi + decay * wi) for vi, gi, wi in zip(v, grad, w, strict=True)]
        w = [wi - lr * vi for wi, vi in zip(w, v, strict=True)]
    assert by_hand(d5.LARS(lr, momentum, decay, trust)) == pytest.approx(w, rel=ROUNDING)


def test_lars_has_one_rate_a_tensor_and_rate_one_where_a_norm_is_zero() -> None:
    _, live = run(
        d5.LARS(0.5, trust=0.01), {"bias": [0.0, 0.0], "w": [3.0, 4.0]}, [{"bias": [1.0, 2.0], "w": [0.0, 0.0]}]
    )
    assert live["bias"].tolist() == [-0.5, -1.0]
    # The gradient is zero: λ = 1, and only weight decay changes the weights.
    assert live["w"].tolist() == pytest.approx([3 - 0.5 * 0.0005 * 3, 4 - 0.5 * 0.0005 * 4], rel=ROUNDING)


def test_accelegrad_by_hand() -> None:
    lr, diameter, bound = 0.5, 2.0, 3.0
    y, z = list(W), list(W)
    squares, weights, weighted = 0.0, 0.0, [0.0, 0.0]
    for t, grad in enumerate(GRADS):
        alpha = 1.0 if t <= 2 else (t + 1) / 4
        tau = 1 / alpha
        squares += alpha**2 * sum(gi * gi for gi in grad)
        eta = lr * 2 * diameter / math.sqrt(bound**2 + squares)
        x = [tau * zi + (1 - tau) * yi for zi, yi in zip(z, y, strict=True)]
        z = [zi - alpha * eta * gi for zi, gi in zip(z, grad, strict=True)]
        y = [xi - eta * gi for xi, gi in zip(x, grad, strict=True)]
        weights += alpha
        weighted = [total + alpha * yi for total, yi in zip(weighted, y, strict=True)]
    kernel, live = run(d5.AcceleGrad(lr, diameter, bound), {"w": W}, [{"w": grad} for grad in GRADS])
    assert live["w"].tolist() == pytest.approx(y, rel=ROUNDING)
    with kernel.averaged():
        assert live["w"].tolist() == pytest.approx([total / weights for total in weighted], rel=ROUNDING)


def test_accelegrad_s_share_is_alpha_over_the_sum_of_the_alphas() -> None:
    total = 0.0
    for t in range(50):
        given = d5.AcceleGrad().new_input(info(t))
        total += given["alpha"]
        assert given["share"] == pytest.approx(given["alpha"] / total, rel=1e-14)  # one rounding per step


def batches(dtype: str, steps: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(3)
    return [
        {"input": draw.standard_normal((4, 1, 28, 28)).astype(dtype), "label": draw.integers(0, 4, 4)}
        for _ in range(steps)
    ]


def train(framework: str, rule: UpdateRule, dtype: str, steps: int) -> dict[str, np.ndarray]:
    executor = d5.framework(framework).executor(d5.networks.lenet(classes=4, dtype=dtype))
    step = executor.train_step(rule)
    for index, batch in enumerate(batches(dtype, steps)):
        step(batch, StepInfo(step=index, batch_size=4))
    assert step.traces == 1
    return executor.state_dict()


TORCH = {
    "sgd": (lambda: d5.SGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": (lambda: d5.Momentum(0.02, 0.9), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    "nesterov": (
        lambda: d5.Momentum(0.02, 0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    ),
    "adam": (lambda: d5.Adam(0.001), lambda p: torch.optim.Adam(p, lr=0.001)),
}


@pytest.mark.parametrize("name", TORCH)
# 100 steps of a smooth network: float64 stays within 1e-10 of its rounding; float32 accumulates 6e-8 per step.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-4)])
def test_torch_s_own_optimizer_takes_the_same_100_steps(name: str, dtype: str, tolerance: float) -> None:
    ours, theirs = TORCH[name]
    executor: Any = d5.framework("pytorch").executor(d5.networks.lenet(classes=4, dtype=dtype))
    optimizer = theirs(list(executor.leaves().values()))
    for index, batch in enumerate(batches(dtype, 100)):
        executor.inference_and_backprop(batch, info=info(index))
        optimizer.step()
    want = executor.state_dict()
    for framework in ("pytorch", "reference") if dtype == "float64" else ("pytorch",):
        got = train(framework, ours(), dtype, 100)
        for key, value in want.items():
            error = np.linalg.norm(got[key] - value) / np.linalg.norm(value)
            assert error <= tolerance, (framework, key, error)


@pytest.mark.parametrize("name", RULES)
def test_both_back_ends_take_the_same_steps(name: str) -> None:
    one, two = (train(framework, RULES[name](), "float64", 20) for framework in ("pytorch", "reference"))
    for key, value in one.items():
        # Gradients agree to 1e-14; Adam divides by their root, which is small at first.
        np.testing.assert_allclose(two[key], value, rtol=0, atol=1e-9 * np.abs(value).max(), err_msg=key)


@pytest.mark.parametrize("framework", ["pytorch", "reference"])
@pytest.mark.parametrize("name", [name for name in RULES if name != "accelegrad"])
def test_a_learning_rate_of_zero_stops_the_weights_at_once(name: str, framework: str) -> None:
    rule: Any = RULES[name]()
    executor = d5.framework(framework).executor(d5.networks.mlp(features=6, hidden=5, classes=3))
    step, draw = executor.train_step(rule), np.random.default_rng(0)
    feed = {"input": draw.standard_normal((4, 6)).astype(np.float32), "label": draw.integers(0, 3, 4)}
    states = []
    for index in range(6):
        rule.lr = 0.1 if index < 3 else 0.0
        step(feed, info(index))
        states.append(executor.state_dict())
    for key in states[0]:
        assert not np.array_equal(states[1][key], states[2][key])
        np.testing.assert_array_equal(states[2][key], states[5][key])
    assert step.traces == 1


def test_accelegrad_says_that_a_learning_rate_of_zero_does_not_stop_it() -> None:
    assert "does not stop the parameter at once" in (d5.AcceleGrad.__doc__ or "")


@pytest.mark.parametrize("name", RULES)
def test_a_convex_problem_is_solved(name: str) -> None:
    """Least squares in four unknowns, smallest eigenvalue 0.1: the distance to the solution falls at least tenfold."""
    rule: Any = RULES[name]()
    if name == "adam":
        rule.lr = 0.05
    if name == "lars":  # its steps are as long as the weights: it needs a schedule to converge
        rule.lr, rule.trust, rule.weight_decay = 0.5, 0.02, 0.0
    scale, solution = np.array([0.1, 0.5, 1.0, 2.0]), np.array([1.0, -1.0, 2.0, 0.5])
    live = {"w": np.array([3.0, 2.0, -1.0, 2.0])}
    first = np.linalg.norm(live["w"] - solution)
    kernel = d5.bind_rule(rule, {"w": TensorSpec(shape=(4,), dtype="float64")})
    kernel.attach(live)
    for step in range(1000):
        kernel.prepare(info(step))
        kernel.update({"w": scale * (live["w"] - solution)}, info(step))
    with kernel.averaged():
        assert np.linalg.norm(live["w"] - solution) < 0.1 * first


class Yogi(UpdateRule):
    """Zaheer et al., Adaptive methods for nonconvex optimization, NeurIPS 2018, algorithm 2."""

    hyper = ("lr", "beta1", "beta2", "epsilon")

    def __init__(self, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-3) -> None:
        self.lr, self.beta1, self.beta2, self.epsilon = lr, beta1, beta2, epsilon

    def init_state(self, param: Any) -> dict[str, Any]:
        xp = d5.array_namespace(param)
        return {"m": xp.zeros_like(param), "v": xp.full_like(param, 1e-6)}

    def update_rule(self, grad: Any, param: Any, state: State) -> tuple[Any, State]:
        xp = d5.array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = state["v"] - (1 - self.beta2) * xp.sign(state["v"] - grad**2) * grad**2
        return param - self.lr * m / (xp.sqrt(v) + self.epsilon), {"m": m, "v": v}


@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_a_rule_that_nobody_foresaw(backend: str) -> None:
    draw = np.random.default_rng(1)
    start, grads = draw.standard_normal((3, 4)), draw.standard_normal((30, 3, 4))
    _, live = run(Yogi(), {"w": start}, [{"w": grad} for grad in grads], backend)
    w, m, v = start.copy(), np.zeros((3, 4)), np.full((3, 4), 1e-6)
    for grad in grads:
        m = 0.9 * m + (1 - 0.9) * grad
        v = v - (1 - 0.999) * np.sign(v - grad * grad) * grad * grad
        w = w - 0.01 * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(live["w"], w, rtol=ROUNDING)
    d5.check_optimizer(Yogi())


LIBRARIES = {
    "numpy": np.asarray,
    "array_api_strict": array_api_strict.asarray,
    "jax.numpy": jnp.asarray,
    "torch": torch.asarray,
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", [*RULES, "yogi"])
def test_a_rule_runs_as_it_is_on_arrays_of_every_library(name: str, library: str) -> None:
    make, rule = LIBRARIES[library], Yogi() if name == "yogi" else RULES[name]()
    draw = np.random.default_rng(2)
    starts = {"a": draw.standard_normal((3, 4)), "b": draw.standard_normal(5)}
    grads = [{key: draw.standard_normal(value.shape) for key, value in starts.items()} for _ in range(10)]
    kernel, live = run(rule, starts, grads)
    with jax.enable_x64(True):
        eager = EagerRule(rule, {key: make(value) for key, value in starts.items()})
        for step, grad in enumerate(grads):
            eager.prepare(info(step))
            eager.update({key: make(value) for key, value in grad.items()}, info(step))
        for key, value in live.items():
            # Float64, ten steps: sums in another order; libraries round a division or root differently.
            np.testing.assert_allclose(np.asarray(eager.parameters[key]), value, rtol=1e-11, err_msg=key)
        for entry, value in kernel.state_dict().items():
            state, _, key = entry.partition("/")
            np.testing.assert_allclose(np.asarray(eager.states[key][state]), value, rtol=1e-11, err_msg=entry)


def test_evaluation_reads_nothing_of_a_step() -> None:
    class Shared(UpdateRule):
        def new_input(self, info: StepInfo) -> dict[str, float]:
            return {"share": 1.0 / (info.step + 1)}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - self.share * grad, state  # type: ignore[attr-defined]

        def eval_param(self, param: Any, state: Any) -> Any:
            return self.share * param  # type: ignore[attr-defined]

    eager = EagerRule(Shared(), {"w": np.ones(3)})
    eager.update({"w": np.ones(3)}, info(0))
    with pytest.raises(
        RuleError, match=r"Shared\.eval_param .*'share'.*; remedy: keep what new_input and sums give in a"
    ):
        eager.evaluated()


def test_a_three_step_optimizer_without_its_methods_is_refused() -> None:
    with pytest.raises(RuleError, match="Half is a ThreeStepOptimizer without prepare_param; remedy: define them"):
        type("Half", (ThreeStepOptimizer,), {"new_input": lambda self, info: {}})
    with pytest.raises(RuleError, match="without new_input and prepare_param"):
        type("Empty", (ThreeStepOptimizer,), {})


def test_a_rule_without_update_rule_is_refused() -> None:
    with pytest.raises(RuleError, match="Nothing has no update_rule; remedy: define update_rule"):
        type("Nothing", (UpdateRule,), {})()
