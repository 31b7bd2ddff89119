"""The frameworks' own optimizers are called alike, and say so where they cannot run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.errors import UsageError
from deep5.events import StepInfo

FRAMEWORKS = ("pytorch", "tensorflow")
INFO = StepInfo(batch_size=2)
USES: dict[str, Callable[[Any], object]] = {
    "step": lambda optimizer: optimizer.step({}, INFO),
    "set_hyper": lambda optimizer: optimizer.set_hyper("lr", 0.1),
    "state_dict": lambda optimizer: optimizer.state_dict(),
    "load_state_dict": lambda optimizer: optimizer.load_state_dict({"momentum_buffer/w": np.zeros(1)}),
}


@pytest.mark.parametrize("name", ["adam", "momentum", "sgd"])
def test_names_and_defaults_are_the_same_everywhere(name: str) -> None:
    kinds = [d5.framework(framework).optimizers()[name] for framework in FRAMEWORKS]
    signatures = {str(inspect.signature(kind)) for kind in kinds}
    assert len(signatures) == 1
    records = [kind(lr=0.25).describe() for kind in kinds]
    assert [record.pop("native") for record in records] == list(FRAMEWORKS)
    assert records[0] == records[1]
    assert records[0]["lr"] == 0.25


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("use", USES)
def test_an_optimizer_that_is_not_bound_says_so(framework: str, use: str) -> None:
    with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
        USES[use](d5.framework(framework).optimizer("momentum")())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("sgd", {"lr": 0.125}),
        ("momentum", {"lr": 0.125, "momentum": 0.75, "nesterov": True}),
        ("adam", {"lr": 0.125, "beta1": 0.75, "beta2": 0.5, "epsilon": 0.25}),
    ],
)
def test_hyperparameters_reach_the_framework(framework: str, name: str, hyper: dict[str, Any]) -> None:
    """One parameter, whose gradient is the input: the first two steps are known in closed form."""
    build = d5.NetworkBuilder("product", dtype="float64")
    weight = build.parameter("w", (1,), lambda rng, shape: np.ones(shape))
    loss = build.op("ReduceSum", build.op("Mul", build.input("x", (1,)), weight), keepdims=0)
    executor = d5.framework(framework).executor(build.network({"loss": loss}))
    optimizer = d5.framework(framework).optimizer(name)(**hyper)
    optimizer.bind(executor)
    lr, beta, momentum = hyper["lr"], hyper.get("beta1", 0.0), hyper.get("momentum", 0.0)
    w, m, v, velocity = 1.0, 0.0, 0.0, 0.0
    for step, g in enumerate((2.0, -1.0)):
        optimizer.step({"x": np.array([g])}, StepInfo(step=step, batch_size=1))
        velocity = momentum * velocity + g
        m, v = beta * m + (1 - beta) * g, 0.5 * v + 0.5 * g * g
        c1, c2 = 1 - beta ** (step + 1), 1 - 0.5 ** (step + 1)
        # Keras adds epsilon to a root that is not corrected for bias.
        root = np.sqrt(v / c2) + 0.25 if framework == "pytorch" else (np.sqrt(v) + 0.25) / np.sqrt(c2)
        w -= lr * {"sgd": g, "momentum": g + momentum * velocity, "adam": m / c1 / root}[name]
        # Keras holds its hyperparameters in float32; these are exact there, the powers of beta are not.
        np.testing.assert_allclose(executor.state_dict()["w"], [w], rtol=1e-7)
