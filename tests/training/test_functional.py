"""`FunctionalRule`, evaluated in NumPy, against the compiled kernel: two implementations of one traced rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import plugins
from deep5.core.errors import RuleError, ShapeError, UsageError
from deep5.core.executors import ParameterGroup
from deep5.core.tensors import TensorSpec
from deep5.training.functional import FunctionalRule
from deep5.training.kernel import bind_rule

RULES = ["accelegrad", "adam", "lars", "momentum", "sgd"]
SPECS = {"w": TensorSpec(shape=(3, 4), dtype="float64"), "b": TensorSpec(shape=(5,), dtype="float64")}


class NumPyFunctions:
    def function(self, name: str) -> Any:
        return getattr(np, name)

    def cast(self, value: Any, dtype: str) -> Any:
        return np.asarray(value, dtype=dtype)

    def sum(self, value: Any) -> Any:
        return np.sum(value)

    def broadcast(self, value: Any, like: Any) -> Any:
        return np.full_like(like, value)


class Global(d5.UpdateRule):
    """A rule with a sum over the model, a state of shape () and a branch."""

    hyper = ("lr", "limit")
    scope = "model"

    def __init__(self, lr: float = 0.1, limit: float = 0.5) -> None:
        self.lr, self.limit = lr, limit

    def init_state(self, param: Any) -> dict[str, Any]:
        xp = d5.array_namespace(param)
        return {"count": xp.zeros((), dtype=param.dtype), "mean": 0.5 * param}

    def sums(self, grad: Any, param: Any, state: Any) -> dict[str, Any]:
        return {"square": d5.array_namespace(grad).sum(grad * grad)}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        xp = d5.array_namespace(grad)
        norm = xp.sqrt(self.square)
        scale = xp.where(norm > self.limit, self.limit / norm, xp.asarray(1.0))
        mean = state["mean"] + (grad - state["mean"]) / (state["count"] + 1)
        return param - self.lr * scale * mean, {"count": state["count"] + 1, "mean": mean}


def _rule(name: str) -> Any:
    return Global() if name == "global" else plugins.load("optimizers", name)(lr=0.05)


def _values(seed: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: draw.standard_normal(spec.shape).astype(dtype) for name, spec in SPECS.items()}


@pytest.mark.parametrize("name", [*RULES, "global"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_agrees_with_the_kernel(name: str, dtype: str) -> None:
    specs = {key: TensorSpec(shape=spec.shape, dtype=dtype) for key, spec in SPECS.items()}
    rule = _rule(name)
    live = _values(0, dtype)
    kernel = bind_rule(rule, specs)
    kernel.attach(live)
    functional = FunctionalRule(rule, specs, NumPyFunctions())
    parameters = _values(0, dtype)
    states = functional.initial(parameters, functional.given(d5.StepInfo(batch_size=1)))
    # A few roundings per step, in another order for sums; ten steps.
    tolerance = 1e-12 if dtype == "float64" else 5e-6
    for step in range(10):
        rule.lr = 0.05 if step < 5 else 0.01
        info = d5.StepInfo(step=step, batch_size=4)
        gradients = _values(step + 1, dtype)
        kernel.prepare(info)
        given = functional.given(info)
        prepared = functional.prepare(parameters, states, given)
        if functional.prepares:
            for key, value in prepared.items():
                np.testing.assert_allclose(value, live[key], rtol=tolerance, atol=tolerance)
        kernel.update(gradients, info)
        parameters, states = functional.update(gradients, parameters, states, given)
        for key, value in parameters.items():
            assert value.dtype == dtype
            np.testing.assert_allclose(value, live[key], rtol=tolerance, atol=tolerance)
    assert functional.check_state(states).keys() == kernel.state_dict().keys()
    for key, value in kernel.state_dict().items():
        assert np.asarray(states[key]).dtype == value.dtype
        np.testing.assert_allclose(states[key], value, rtol=tolerance, atol=tolerance)
    evaluated = functional.evaluate(parameters, states, functional.given(d5.StepInfo(batch_size=1)))
    with kernel.averaged():
        for key, value in evaluated.items():
            np.testing.assert_allclose(value, live[key], rtol=tolerance, atol=tolerance)


def test_groups_and_frozen_parameters() -> None:
    rule = plugins.load("optimizers", "sgd")(lr=1.0)
    groups = (ParameterGroup(lambda name: name == "b", lr=0.5),)
    functional = FunctionalRule(rule, SPECS, NumPyFunctions(), groups=groups)
    start, gradients = _values(0), _values(1)
    new, _ = functional.update(gradients, start, {}, functional.given(d5.StepInfo()))
    np.testing.assert_array_equal(new["w"], start["w"] - gradients["w"])
    np.testing.assert_array_equal(new["b"], start["b"] - 0.5 * gradients["b"])
    frozen = FunctionalRule(
        rule, SPECS, NumPyFunctions(), groups=(ParameterGroup(lambda name: name == "b", frozen=True),)
    )
    assert frozen.names == ("w",)
    assert list(frozen.update(gradients, start, {}, frozen.given(d5.StepInfo()))[0]) == ["w"]


def test_refusals() -> None:
    rule = plugins.load("optimizers", "momentum")(lr=1.0)
    with pytest.raises(RuleError, match="matches no parameter"):
        FunctionalRule(rule, SPECS, NumPyFunctions(), groups=(ParameterGroup(lambda name: False, lr=1.0),))
    with pytest.raises(RuleError, match="hyperparameters of Momentum"):
        FunctionalRule(rule, SPECS, NumPyFunctions(), groups=(ParameterGroup(lambda name: True, rl=1.0),))
    with pytest.raises(RuleError, match="nothing to train by Momentum: got 2 parameters, all of them frozen"):
        FunctionalRule(rule, SPECS, NumPyFunctions(), groups=(ParameterGroup(lambda name: True, frozen=True),))
    assert FunctionalRule(rule, {}, NumPyFunctions()).names == ()  # without parameters nothing is frozen
    functional = FunctionalRule(rule, SPECS, NumPyFunctions())
    with pytest.raises(UsageError, match="info: got 0; allowed: a StepInfo"):
        functional.given(0)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="missing or unknown"):
        functional.check_state({})
    good = functional.initial(_values(0), functional.given(d5.StepInfo(batch_size=1)))
    key = next(iter(good))
    with pytest.raises(ShapeError, match="got float32"):
        functional.check_state({**good, key: good[key].astype("float32")})
