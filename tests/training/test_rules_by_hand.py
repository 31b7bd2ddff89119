"""Every update rule against its paper: a hand-computed step, and the paper's equations in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import plugins
from deep5.core.errors import RuleError
from deep5.training.rule import UpdateRule
from optimizer_table import CASES, STEP_OPTIMIZERS, info

# At most the order of operations differs: about 1e-16 per step over a dozen steps.
ROUNDING = 1e-13
DRAW = np.random.default_rng(11)
START = DRAW.standard_normal(5).tolist()
GRADS = DRAW.standard_normal((12, 5)).tolist()


def run(rule: UpdateRule, start: list[float], grads: Any, backend: str | None = None) -> tuple[list[float], Any]:
    """The parameter after one step per gradient, and its value in evaluation."""
    live = {"w": np.array(start)}
    kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(len(start),), dtype="float64")}, backend=backend)
    kernel.attach(live)
    for step, grad in enumerate(grads):
        kernel.prepare(info(step))
        kernel.update({"w": np.array(grad)}, info(step))
    found = live["w"].tolist()
    with kernel.averaged():
        return found, live["w"].tolist()


def test_every_registered_optimizer_is_in_the_table() -> None:
    assert sorted([*CASES, *STEP_OPTIMIZERS]) == sorted(plugins.registered("optimizers"))
    for name, case in CASES.items():
        assert plugins.load("optimizers", name) is case.rule, name


@pytest.mark.parametrize("name", CASES)
def test_a_step_worked_by_hand(name: str) -> None:
    case = CASES[name]
    found, evaluated = run(case.rule(**case.hand), case.start, case.grads)
    assert found == pytest.approx(case.after, rel=ROUNDING)
    assert evaluated == pytest.approx(case.evaluated or case.after, rel=ROUNDING)


@pytest.mark.parametrize("backend", ["c", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_the_equations_of_the_paper(name: str, backend: str) -> None:
    """With arguments that make every term visible, including all the rule's hyperparameters."""
    case = CASES[name]
    rule = case.rule(**case.hyper)
    assert set(rule.hyper) <= set(case.hyper)
    want, evaluated = case.paper(START, GRADS, **case.hyper)
    assert run(rule, START, GRADS, backend) == (
        pytest.approx(want, rel=ROUNDING),
        pytest.approx(evaluated, rel=ROUNDING),
    )


@pytest.mark.parametrize("name", CASES)
def test_every_hyperparameter_counts(name: str) -> None:
    """Changing any of them by a tenth has an effect: the comparison with the paper would detect a missing one."""
    case = CASES[name]
    whole = run(case.rule(**case.hyper), START, GRADS)
    for hyper in set(case.rule.hyper) - set(case.matrices):
        changed = case.rule(**{**case.hyper, hyper: 0.9 * case.hyper[hyper]})
        assert not np.allclose(run(changed, START, GRADS), whole, rtol=1e-6), hyper


def test_amsgrad_corrects_the_bias_where_it_is_told_to() -> None:
    case = CASES["amsgrad"]
    hyper = {**case.hyper, "bias_correction": True}
    want, _ = case.paper(START, GRADS, **hyper)
    found, _ = run(d5.AMSGrad(**hyper), START, GRADS)
    assert found == pytest.approx(want, rel=ROUNDING)
    assert not np.allclose(want, case.paper(START, GRADS, **case.hyper)[0], rtol=1e-2)


def test_amsgrad_s_second_moment_never_falls() -> None:
    """After one large gradient the steps stay short; Adam's grow again."""
    grads = [[100.0]] + [[0.01]] * 300
    small, large = (run(rule(lr=0.001, beta2=0.9), [0.0], grads)[0][0] for rule in (d5.AMSGrad, d5.Adam))
    assert abs(small) < 0.1 * abs(large)


@pytest.mark.parametrize("start", [-1, 1.5, True, "2"])
def test_averaging_from_a_step_that_is_none_is_refused(start: Any) -> None:
    with pytest.raises(RuleError, match=r"AveragedSGD: got start=.*; allowed: an integer of at least 0"):
        d5.AveragedSGD(start=start)


def test_nesterov_is_momentum_that_looks_ahead() -> None:
    one = run(d5.Nesterov(0.1, 0.8), START, GRADS)
    assert one == run(d5.Momentum(0.1, 0.8, nesterov=True), START, GRADS)
    assert one != run(d5.Momentum(0.1, 0.8), START, GRADS)


def test_lamb_has_the_ratio_one_where_a_norm_is_zero() -> None:
    rule = d5.LAMB(lr=0.5, epsilon=0.5, weight_decay=0.0)
    found, _ = run(rule, [0.0, 0.0], [[1.5, -1.5]])
    assert found == pytest.approx([-0.375, 0.375], rel=ROUNDING)
    assert run(rule, [3.0, 4.0], [[0.0, 0.0]])[0] == [3.0, 4.0]


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_zero_move_nothing_but_decay(name: str) -> None:
    """And give no NaN, with the default arguments."""
    rule = CASES[name].rule()
    if "weight_decay" in rule.hyper:
        rule.weight_decay = 0.0
    found, evaluated = run(rule, [1.0, -2.0, 0.0], [[0.0] * 3] * 5)
    assert found == evaluated == [1.0, -2.0, 0.0]


@pytest.mark.parametrize("decay", [0.0, 1e-7, 0.004, 1.0, 20000.0])
def test_the_product_of_nadams_momenta_is_that_of_all_steps(decay: float) -> None:
    """Also at the ends of the blocks computed at once, and for any step requested first."""
    product, reached = 1.0, {}
    for t in range(1, 5000):
        product *= 1 - 0.5 * 0.96 ** (decay * t)
        reached[t] = product
    rule = d5.Nadam(momentum_decay=decay)
    for t in (4999, 1, 2, 1023, 1024, 1025, 2047, 2048, 3072, 4096):
        got = rule.new_input(d5.StepInfo(step=t - 1))["product"]
        # A few thousand roundings of the plain product, each of half an ulp at most.
        assert got == pytest.approx(rule.beta1**t * reached[t], rel=t * 2.3e-16, abs=1e-307)
