"""Coupled weight decay, λ w added to the gradient, is that of torch's optimizers, on every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError

FRAMEWORKS = ("pytorch", "jax", "tensorflow", "onnxruntime", "openvino")
DECAY = 0.3
# The rule, and torch's optimizer with the same arguments.
TWINS: dict[str, tuple[Callable[[], d5.UpdateRule], str, dict[str, Any]]] = {
    "sgd": (lambda: d5.SGD(lr=0.1), "SGD", {"lr": 0.1}),
    "momentum": (lambda: d5.Momentum(lr=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (lambda: d5.Nesterov(lr=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (lambda: d5.Adam(lr=0.1, epsilon=1e-6), "Adam", {"lr": 0.1, "eps": 1e-6}),
    "amsgrad": (
        lambda: d5.AMSGrad(lr=0.1, epsilon=1e-6, bias_correction=True),
        "Adam",
        {"lr": 0.1, "eps": 1e-6, "amsgrad": True},
    ),
    "rmsprop": (
        lambda: d5.RMSProp(lr=0.1, rho=0.9, epsilon=1e-6),
        "RMSprop",
        {"lr": 0.1, "alpha": 0.9, "eps": 1e-6},
    ),
    "adagrad": (lambda: d5.AdaGrad(lr=0.1, epsilon=1e-6), "Adagrad", {"lr": 0.1, "eps": 1e-6}),
    "adadelta": (
        lambda: d5.AdaDelta(lr=0.1, rho=0.9, epsilon=1e-6),
        "Adadelta",
        {"lr": 0.1, "rho": 0.9, "eps": 1e-6},
    ),
}


def draw(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"w": rng.standard_normal((3, 4)), "b": rng.standard_normal(5)}


def kernel_run(rule: d5.UpdateRule, steps: int, backend: str, **options: Any) -> dict[str, np.ndarray]:
    live = draw(0)
    specs = {name: d5.TensorSpec(shape=value.shape, dtype="float64") for name, value in live.items()}
    kernel = d5.bind_rule(rule, specs, pipeline=d5.GradientPipeline(**options), backend=backend)
    kernel.attach(live)
    for step in range(steps):
        kernel.update(draw(step + 1), d5.StepInfo(step=step, batch_size=1))
    return live


@pytest.mark.parametrize("backend", ["c", "numpy"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("name", TWINS)
def test_it_is_torch_s_weight_decay(name: str, clip_norm: float | None, backend: str) -> None:
    torch = pytest.importorskip("torch")
    make, native, arguments = TWINS[name]
    own = [torch.tensor(value) for value in draw(0).values()]
    optimizer = getattr(torch.optim, native)(own, weight_decay=DECAY, **arguments)
    for step in range(20):
        for value, gradient in zip(own, draw(step + 1).values(), strict=True):
            value.grad = torch.tensor(gradient)
        if clip_norm is not None:
            norm = torch.sqrt(sum(torch.sum(value.grad**2) for value in own))
            for value in own:
                value.grad *= min(1.0, clip_norm / float(norm))
        optimizer.step()
    found = kernel_run(make(), 20, backend, clip_norm=clip_norm, coupled_weight_decay=DECAY)
    for value, want in zip(found.values(), own, strict=True):
        # float64; the order of operations differs. Without the decay the result is off by more than 1e-3.
        np.testing.assert_allclose(value, want.numpy(), rtol=1e-9, atol=1e-11)
    without = kernel_run(make(), 20, backend, clip_norm=clip_norm)
    assert max(float(np.abs(without[key] - found[key]).max()) for key in found) > 1e-3


def trained(framework: str, rule: d5.UpdateRule, **options: Any) -> Any:
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    network = d5.networks.mlp(features=6, hidden=5, classes=3)
    executor = d5.framework(framework).executor(network, seed=3)
    executor.load_state_dict(d5.framework("reference").executor(network, seed=3).state_dict())
    optimizer = d5.RuleOptimizer(rule, **options)
    optimizer.bind(executor)
    for step in range(5):
        rng = np.random.default_rng(step)
        batch = {"input": rng.standard_normal((4, 6)).astype("float32"), "label": rng.integers(0, 3, 4)}
        optimizer.step(batch, d5.StepInfo(step=step, batch_size=4))
    return {name: np.array(value) for name, value in executor.state_dict().items()}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["momentum", "adam", "accelegrad", "muon"])
def test_every_back_end_decays_alike(name: str, framework: str) -> None:
    rules = {"momentum": d5.Momentum, "adam": d5.Adam, "accelegrad": d5.AcceleGrad, "muon": d5.Muon}
    bias = d5.ParameterGroup(lambda name: name.endswith("bias"), coupled_weight_decay=0.0)
    options: dict[str, Any] = {"coupled_weight_decay": DECAY, "weight_decay": None, "groups": [bias]}
    want = trained("reference", rules[name](), **options)
    without = trained("reference", rules[name]())
    for key, value in trained(framework, rules[name](), **options).items():
        # float32 over five steps, which Adam and Muon amplify.
        np.testing.assert_allclose(value, want[key], rtol=2e-3, atol=2e-4, err_msg=key)
    assert any(float(np.abs(want[key] - without[key]).max()) > 1e-3 for key in want)


def test_accelegrad_decays_the_point_of_the_gradient() -> None:
    """The decay is the gradient of a penalty there, so a quadratic loss may contain it instead."""
    live, other = {"w": np.ones(3)}, {"w": np.ones(3)}
    spec = {"w": d5.TensorSpec(shape=(3,), dtype="float64")}
    one = d5.bind_rule(d5.AcceleGrad(), spec, pipeline=d5.GradientPipeline(coupled_weight_decay=DECAY))
    two = d5.bind_rule(d5.AcceleGrad(), spec)
    one.attach(live)
    two.attach(other)
    for step in range(6):
        info = d5.StepInfo(step=step, batch_size=1)
        one.prepare(info)
        two.prepare(info)
        one.update({"w": live["w"] - 2.0}, info)
        two.update({"w": other["w"] - 2.0 + DECAY * other["w"]}, info)
        np.testing.assert_allclose(live["w"], other["w"], rtol=1e-12)


def test_it_is_a_hyperparameter_and_is_checked() -> None:
    with pytest.raises(UsageError, match="coupled_weight_decay: got -1; allowed: a finite number of at least 0"):
        d5.RuleOptimizer(d5.SGD(), coupled_weight_decay=-1)
    optimizer = d5.RuleOptimizer(d5.SGD(), coupled_weight_decay=0.1)
    optimizer.set_hyper("coupled_weight_decay", 0.2)
    assert optimizer.hyper["coupled_weight_decay"] == 0.2
    assert optimizer.describe()["coupled_weight_decay"] == 0.2
