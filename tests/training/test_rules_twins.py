"""Every update rule against the frameworks' own optimizers: 200 steps on a real network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.training.optimizer import RuleOptimizer
from optimizer_table import CASES, Twin, batch, distance, info, network, one_thread  # noqa: F401 - a fixture

FRAMEWORKS = ("pytorch", "tensorflow", "jax")
STEPS = 200
PAIRS = [(name, framework) for name, case in CASES.items() for framework in case.twins]
# Tracing and compiling take a second per pair: all of them in the full suite, all of PyTorch's and some others always.
COMPILED = [pair for pair in PAIRS if pair[1] != "pytorch"]
CHOSEN = np.random.default_rng(5).choice(len(COMPILED), 3, replace=False)
ALWAYS = [pair for pair in PAIRS if pair[1] == "pytorch"] + [COMPILED[index] for index in CHOSEN]


def marked() -> list[Any]:
    return [pytest.param(*pair, marks=() if pair in ALWAYS else pytest.mark.slow) for pair in PAIRS]


def made(name: str, framework: str, native: bool, hyper: Any, trained: d5.Network | None = None) -> Any:
    """An executor and its optimizer: deep5's rule or the framework's own."""
    executor = d5.framework(framework).executor(trained or network())
    own = d5.framework(framework).optimizer(name) if native else None
    optimizer: Any = own(**hyper) if own else RuleOptimizer(CASES[name].rule(**hyper))
    optimizer.bind(executor)
    return executor, optimizer


@contextmanager
def averaged(optimizer: Any) -> Iterator[None]:
    """The values for evaluation, if they differ from the parameters."""
    if hasattr(optimizer, "averaged"):
        with optimizer.averaged():
            yield
    else:
        yield


def compared(
    name: str, framework: str, twin: Twin, steps: int, trained: d5.Network | None = None
) -> tuple[float, float]:
    """The relative distance of the parameters, and of their values in evaluation, after some steps."""
    (one, ours), (two, theirs) = (
        made(name, framework, native, hyper, trained) for native, hyper in ((False, twin.rule), (True, twin.native))
    )
    for step in range(steps):
        feed = batch(step, flat=trained is None)
        ours.step(feed, info(step, 16))
        theirs.step(feed, info(step, 16))
    apart = distance(one.state_dict(), two.state_dict())
    assert np.isfinite(apart)
    # Both have learned something: a network that does not change would show nothing.
    assert distance(one.state_dict(), {key: one.network.initial(key) for key in one.network.parameter_specs}) > 1e-2
    with averaged(ours), averaged(theirs):
        return apart, distance(one.state_dict(), two.state_dict())


def test_the_native_names_are_those_of_the_table() -> None:
    for framework in FRAMEWORKS:
        native = set(d5.framework(framework).optimizers()) - {"lbfgs"}
        assert native == {name for name, case in CASES.items() if framework in case.twins}, framework


@pytest.mark.parametrize(("name", "framework"), marked())
def test_a_rule_takes_the_same_200_steps_as_the_framework_s_own(name: str, framework: str) -> None:
    twin = CASES[name].twins[framework]
    assert max(compared(name, framework, twin, STEPS)) <= twin.tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "pytorch" in case.twins])
def test_lenet_takes_the_same_200_steps_as_torch_s_own(name: str) -> None:
    twin = CASES[name].twins["pytorch"]
    # A deeper network: roundings grow by another factor of ten.
    apart = compared(name, "pytorch", twin, STEPS, d5.networks.lenet(dtype="float64"))
    assert max(apart) <= 10 * twin.tolerance


@pytest.mark.parametrize("name", ["adam", "rmsprop", "adagrad"])
def test_where_epsilon_stands_is_seen(name: str) -> None:
    """With a sizable epsilon Keras's own step is a different one, as the table states."""
    twin = CASES[name].twins["tensorflow"]
    hyper = {**twin.rule, "epsilon": 1e-2}
    assert compared(name, "tensorflow", Twin(rule=hyper, native=hyper), 20)[0] > 1e-4


@pytest.mark.parametrize(
    ("name", "framework", "changed"),
    [
        ("amsgrad", "pytorch", {"bias_correction": False}),
        ("nadam", "pytorch", {"momentum_decay": 0.6}),
        ("averaged_sgd", "pytorch", {"start": 19}),
    ],
)
def test_the_arguments_of_a_twin_matter(name: str, framework: str, changed: dict[str, Any]) -> None:
    twin = CASES[name].twins[framework]
    wrong = Twin(rule={**twin.rule, **changed}, native=twin.native)
    assert max(compared(name, framework, wrong, 40)) > 100 * twin.tolerance
