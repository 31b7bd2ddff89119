"""Schedules: hand-computed values, properties, and their effect at each step on every framework."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deep5 as d5
from deep5.core.canonical import canonical, canonical_hash
from deep5.core.errors import UnknownName, UsageError
from deep5.core.events import StepInfo
from deep5.core.plugins import load, registered
from deep5.training.batch_sizes import GrowingBatches
from deep5.training.hyper import hyper_reader, hyper_setter, hyper_value
from deep5.training.schedules import plan_of

# A few operations in float64 on numbers of about 1.
ROUNDING = 1e-15


def values(schedule: d5.Schedule, plan: d5.Plan, steps: Any) -> list[float]:
    return [schedule.value(plan.info_at(step), plan) for step in steps]


def by_epoch(schedule: d5.Schedule, epochs: Any, plan: d5.Plan | None = None) -> list[float]:
    """At the first step of each epoch, without knowing the number of steps."""
    return [schedule.value(StepInfo(step=99, epoch=epoch), plan or d5.Plan(epochs=90)) for epoch in epochs]


# Computed by hand

TEN = d5.Plan(epochs=4, steps=10)


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        (d5.Constant(0.5), (0, 39, 1000), (0.5, 0.5, 0.5)),
        (d5.StepDecay(0.8, 0.5, steps=15), (0, 14, 15, 29, 30, 39), (0.8, 0.8, 0.4, 0.4, 0.2, 0.2)),
        (d5.StepDecay(0.8, 0.5, epochs=2), (0, 19, 20, 39), (0.8, 0.8, 0.4, 0.4)),
        (d5.StepDecay(0.8, 0.5, epochs=1.5), (0, 14, 15, 29, 30), (0.8, 0.8, 0.4, 0.4, 0.2)),
        (d5.Piecewise(epochs={0: 1.0, 1: 0.5, 3: 0.25}), (0, 9, 10, 29, 30, 39), (1, 1, 0.5, 0.5, 0.25, 0.25)),
        (d5.Piecewise(steps={0: 1.0, 7: 0.5, 25: 0.25}), (0, 6, 7, 24, 25, 39), (1, 1, 0.5, 0.5, 0.25, 0.25)),
        (d5.Exponential(0.8, 0.25, steps=10), (0, 5, 10, 20), (0.8, 0.4, 0.2, 0.05)),
        (d5.Exponential(0.8, 0.25, epochs=2), (0, 10, 20, 40), (0.8, 0.4, 0.2, 0.05)),
        # 0.1 + 0.4 (1 - t / 40)²
        (d5.Polynomial(0.5, 0.1, power=2), (0, 10, 20, 39, 40, 50), (0.5, 0.325, 0.2, 0.10025, 0.1, 0.1)),
        (d5.Polynomial(0.4, steps=20), (0, 5, 20, 39), (0.4, 0.3, 0.0, 0.0)),
        (d5.Polynomial(0.4, epochs=1), (0, 5, 10, 39), (0.4, 0.2, 0.0, 0.0)),
        # cos(π/4) = 0.70710678…, cos(π/3) = 1/2
        (d5.Cosine(1.0), (0, 10, 20, 40, 41), (1.0, 0.5 + math.sqrt(0.125), 0.5, 0.0, 0.0)),
        (d5.Cosine(0.5, 0.1, steps=30), (0, 10, 15, 20, 30, 39), (0.5, 0.4, 0.3, 0.2, 0.1, 0.1)),
        (d5.Cosine(0.5, 0.1, epochs=3), (0, 10, 15, 20, 30, 39), (0.5, 0.4, 0.3, 0.2, 0.1, 0.1)),
        (d5.Cosine(0.5, 0.1, steps=10, restarts=True), (0, 5, 9, 10, 15, 30), (0.5, 0.3, None, 0.5, 0.3, 0.5)),
        # Periods of 1, 2 and 4 epochs.
        (
            d5.Cosine(0.5, 0.1, epochs=1, restarts=True, factor=2),
            (0, 5, 10, 20, 30, 50),
            (0.5, 0.3, 0.5, 0.3, 0.5, None),
        ),
        # A cycle of 32 of the 40 steps: up to 16, down to 32, out to 40.
        (d5.OneCycle(0.1, 0.9, 0.02, cycle=0.8), (0, 8, 16, 24, 32, 36, 40), (0.1, 0.5, 0.9, 0.5, 0.1, 0.06, 0.02)),
        (d5.OneCycle(0.95, 0.85, 0.95, cycle=1, steps=20), (0, 5, 10, 20, 30), (0.95, 0.9, 0.85, 0.95, 0.95)),
        # Half cosines: the middle of a phase is its mean, its quarter is (1 - 1 / sqrt 2) / 2 of the way.
        (
            d5.OneCycle(0.1, 0.9, 0.02, cycle=0.8, anneal="cos"),
            (0, 4, 8, 16, 24, 32, 36, 40),
            (0.1, 0.1 + 0.4 * (1 - math.sqrt(0.5)), 0.5, 0.9, 0.5, 0.1, 0.06, 0.02),
        ),
        (d5.OneCycle(0.1, 0.9, 0.1, anneal="cos", rise=0.25), (0, 5, 10, 25, 40), (0.1, 0.5, 0.9, 0.5, 0.1)),
        (d5.OneCycle(0.1, 0.9, 0.1, rise=0.25), (0, 5, 10, 25, 40), (0.1, 0.5, 0.9, 0.5, 0.1)),
        (d5.WarmUp(0.4, steps=4), (0, 1, 2, 3, 4, 39), (0.0, 0.1, 0.2, 0.3, 0.4, 0.4)),
        (d5.WarmUp(0.4, 0.2, epochs=1), (0, 5, 9, 10), (0.2, 0.3, 0.38, 0.4)),
        (d5.WarmUp(0.4, 0.2, epochs=0.5), (0, 1, 4, 5), (0.2, 0.24, 0.36, 0.4)),
        # To the schedule's value at step 20, the straight line's middle; from there it continues unchanged.
        (d5.WarmUp(d5.Polynomial(0.8), steps=20), (0, 10, 19, 20, 30, 40), (0.0, 0.2, 0.38, 0.4, 0.2, 0.0)),
        # Delayed: the line takes the twenty remaining steps.
        (d5.WarmUp(d5.Polynomial(0.8), steps=20, delay=True), (0, 10, 20, 30, 40), (0.0, 0.4, 0.8, 0.4, 0.0)),
        (d5.WarmUp(d5.Cosine(0.8), epochs=2, delay=True), (0, 10, 20, 30, 40), (0.0, 0.4, 0.8, 0.4, 0.0)),
        (
            d5.WarmUp(d5.StepDecay(0.8, 0.5, epochs=1), epochs=1, delay=True),
            (5, 10, 19, 20, 30),
            (0.4, 0.8, 0.8, 0.4, 0.2),
        ),
        (d5.WarmUp(d5.StepDecay(0.8, 0.5, epochs=1), epochs=1), (5, 10, 19, 20, 30), (0.2, 0.4, 0.4, 0.2, 0.1)),
        (d5.WarmUp(d5.Piecewise(steps={0: 1.0, 5: 0.5}), steps=4, delay=True), (4, 8, 9), (1.0, 1.0, 0.5)),
        (d5.WarmUp(d5.Exponential(0.8, 0.25, epochs=1), steps=5, delay=True), (5, 10, 15), (0.8, 0.4, 0.2)),
    ],
    ids=repr,
)
def test_by_hand(schedule: d5.Schedule, steps: tuple[int, ...], expected: tuple[float | None, ...]) -> None:
    found = values(schedule, TEN, steps)
    for value, wanted in zip(found, expected, strict=True):
        assert isinstance(value, float)
        if wanted is not None:
            assert value == pytest.approx(wanted, rel=1e-14, abs=ROUNDING)


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        (d5.WarmUp(d5.Cosine(0.1, epochs=1, restarts=True), steps=3, delay=True), (3, 13, 23, 33), (0.1,) * 4),
        (d5.WarmUp(d5.StepDecay(0.1, 0.1, epochs=1), steps=3, delay=True), (12, 13, 22, 23), (0.1, 0.01, 0.01, 0.001)),
        (
            d5.WarmUp(d5.Piecewise(epochs={0: 1.0, 1: 0.5, 2: 0.25}), steps=3, delay=True),
            (12, 13, 22, 23),
            (1.0, 0.5, 0.5, 0.25),
        ),
        (d5.Cosine(0.1, epochs=0.1, restarts=True), range(10), (0.1,) * 10),
        # Periods of 0.3, 0.6 and 1.2 epochs: from the steps 0, 3, 9 and 21 on.
        (d5.Cosine(0.1, epochs=0.3, restarts=True, factor=2), (0, 3, 6, 9, 15, 21), (0.1, 0.1, 0.05, 0.1, 0.05, 0.1)),
    ],
    ids=repr,
)
def test_a_period_ends_in_spite_of_rounding(schedule: d5.Schedule, steps: Any, expected: tuple[float, ...]) -> None:
    """2.3 - 0.3 and 3 · 0.1 are not exactly 2 and 0.3."""
    assert values(schedule, TEN, steps) == pytest.approx(expected, rel=1e-14)


def test_a_decay_by_parts_of_epochs_falls_at_the_right_steps() -> None:
    plan = d5.Plan(epochs=90, steps=10)
    assert values(d5.StepDecay(1.0, 0.5, epochs=2.4), plan, range(900)) == [0.5 ** (step // 24) for step in range(900)]
    assert values(d5.StepDecay(1.0, 0.5, epochs=0.7), plan, range(900)) == [0.5 ** (step // 7) for step in range(900)]


def test_the_first_and_the_last_value_are_exact() -> None:
    for schedule in (d5.Cosine(0.3, 0.1), d5.Polynomial(0.3, 0.1), d5.OneCycle(0.3, 0.9, 0.1)):
        assert values(schedule, TEN, (0, 40)) == [0.3, 0.1]
    assert values(d5.WarmUp(0.3, 0.1, epochs=1), TEN, (0, 10)) == [0.1, 0.3]


def test_whole_epochs_need_no_number_of_steps() -> None:
    """A stream has no length, and a step decay by epochs needs none."""
    assert by_epoch(d5.StepDecay(0.4, 0.5, epochs=30), (0, 29, 30, 60, 89)) == [0.4, 0.4, 0.2, 0.1, 0.1]
    assert by_epoch(d5.Piecewise(epochs={0: 3, 1: 2, 80: 1}), (0, 1, 79, 80)) == [3, 2, 2, 1]


@pytest.mark.parametrize(
    "schedule",
    [
        d5.Cosine(0.1),
        d5.Polynomial(0.1),
        d5.OneCycle(0.1, 0.2, 0.0),
        d5.Exponential(0.1, 0.5, epochs=3),
        d5.StepDecay(0.1, epochs=2.5),
        d5.WarmUp(0.1, epochs=1),
        d5.Cosine(0.1, epochs=1, restarts=True),
    ],
    ids=repr,
)
def test_what_needs_a_length_says_so(schedule: d5.Schedule) -> None:
    for steps in (None, lambda epoch: None):
        with pytest.raises(
            UsageError, match=r"number of steps of an epoch is not known .*; remedy: give lengths in steps"
        ):
            schedule.value(StepInfo(step=4, epoch=1), d5.Plan(epochs=3, steps=steps))


def test_lengths_in_steps_need_no_length_of_the_data() -> None:
    stream = d5.Plan(epochs=3)
    warm = d5.WarmUp(d5.Cosine(0.4, steps=20), steps=10, delay=True)
    found = [warm.value(StepInfo(step=step), stream) for step in (0, 5, 10, 20, 30, 99)]
    assert found == pytest.approx([0.0, 0.2, 0.4, 0.2, 0.0, 0.0], abs=ROUNDING)


def test_epochs_of_several_lengths() -> None:
    """Growing batches: 8, 4 and 2 steps."""
    plan = d5.Plan(epochs=3, steps=lambda epoch: 8 >> epoch, batch_size=lambda epoch: 32 << epoch)
    assert plan.total_steps == 14
    assert values(d5.Cosine(1.0), plan, (7,)) == [0.5]
    firsts = d5.Cosine(1.0, epochs=4, restarts=True)
    # Half of four epochs is at the end of the second.
    assert values(firsts, plan, (0, 12)) == [1.0, 0.5]
    assert values(d5.WarmUp(0.4, epochs=2), plan, (0, 6, 11, 12)) == pytest.approx([0.0, 0.2, 0.4 * 11 / 12, 0.4])
    assert values(d5.LinearScaling(0.1, 64), plan, (0, 7, 8, 11, 12)) == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.2])


def test_linear_scaling_does_not_look_at_the_batch() -> None:
    """The last batch of an epoch is smaller, but the learning rate is not."""
    plan, scaled = d5.Plan(epochs=1, steps=10, batch_size=1024), d5.LinearScaling(d5.Constant(0.1))
    assert [scaled.value(StepInfo(step=9, batch_size=size), plan) for size in (1024, 7, 1)] == [0.4] * 3
    with pytest.raises(UsageError, match="the batch size is not known beforehand"):
        scaled.value(StepInfo(), d5.Plan(epochs=1, steps=10))


def test_a_warm_up_of_a_scaled_rate_starts_at_the_unscaled_one() -> None:
    """Goyal et al., section 2.2: from η to k η."""
    plan = d5.Plan(epochs=90, steps=156, batch_size=8192)
    rate = d5.WarmUp(d5.LinearScaling(d5.Piecewise(epochs={0: 0.1, 30: 0.01})), 0.1, epochs=5)
    assert values(rate, plan, (0, 390, 780, 156 * 30)) == pytest.approx([0.1, 1.65, 3.2, 0.32], rel=1e-14)


def test_a_warm_up_that_does_not_end_in_time() -> None:
    for warm in (d5.WarmUp(0.1, epochs=4), d5.WarmUp(0.1, steps=40), d5.WarmUp(0.1, steps=99, delay=True)):
        with pytest.raises(
            UsageError, match=r"^WarmUp: got .*, and the training is over after 40 steps in 4 epochs; allo"
        ):
            warm.value(StepInfo(), TEN)
    assert values(d5.WarmUp(0.1, steps=39), TEN, (39,)) == [0.1]


def test_an_epoch_that_was_cut_short_does_not_run_ahead() -> None:
    """The step count continues when an epoch starts over: its share stays below one."""
    rate = d5.Exponential(1.0, 0.5, epochs=1)
    assert rate.value(StepInfo(step=45, epoch=1), TEN) == 0.25
    assert rate.value(StepInfo(step=3, epoch=1), TEN) == 0.5


# Properties

numbers = st.floats(0.01, 10.0)
plans = st.builds(
    lambda steps: d5.Plan(epochs=len(steps), steps=steps.__getitem__),
    st.lists(st.integers(1, 30), min_size=2, max_size=6),
)
inner = st.one_of(
    st.builds(d5.Constant, numbers),
    st.builds(d5.Cosine, numbers, numbers),
    st.builds(lambda a, b, p: d5.Polynomial(a, b, power=p), numbers, numbers, st.floats(0.5, 3)),
    st.builds(lambda a, f: d5.StepDecay(a, f, epochs=1), numbers, st.floats(0.1, 2)),
    st.builds(d5.OneCycle, numbers, numbers, numbers),
)


@settings(max_examples=60, deadline=None)
@given(plans, inner, numbers, st.data())
def test_a_warm_up_is_a_straight_line_that_meets_its_schedule(
    plan: d5.Plan, schedule: d5.Schedule, start: float, data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, plan.total_steps - 1))
    warm = d5.WarmUp(schedule, start, steps=length)
    found = values(warm, plan, range(plan.total_steps + 1))
    assert found[0] == start
    line = np.linspace(start, schedule.value(plan.info_at(length), plan), length + 1)
    np.testing.assert_allclose(found[: length + 1], line, rtol=1e-12)
    assert found[length:] == values(schedule, plan, range(length, plan.total_steps + 1))


@settings(max_examples=60, deadline=None)
@given(plans, numbers, numbers, numbers)
def test_between_their_ends(plan: d5.Plan, start: float, middle: float, end: float) -> None:
    steps = range(plan.total_steps + 3)
    # The rounding of the last operation may exceed a bound.
    for schedule, low, high in (
        (d5.Cosine(start, end), min(start, end), max(start, end)),
        (d5.Polynomial(start, end, power=0.7), min(start, end), max(start, end)),
        (d5.OneCycle(start, middle, end), min(start, middle, end), max(start, middle, end)),
        (d5.Cosine(start, end, epochs=1, restarts=True, factor=1.5), min(start, end), max(start, end)),
    ):
        found = values(schedule, plan, steps)
        assert min(found) >= low * (1 - 1e-14)
        assert max(found) <= high * (1 + 1e-14)
    down = values(d5.Cosine(max(start, end), min(start, end)), plan, steps)
    assert np.diff(down).max() <= 1e-15 * down[0]


@settings(max_examples=60, deadline=None)
@given(plans, st.data())
def test_a_plan_counts_steps_and_epochs_alike(plan: d5.Plan, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, plan.total_steps - 1))
    later = plan.beginning(begin)
    done = [later.epochs_done(plan.info_at(step)) for step in range(plan.total_steps)]
    assert done == sorted(done)
    assert done[begin] == 0
    for epoch in range(plan.epochs):
        assert plan.epochs_done(plan.info_at(plan.first_step(epoch))) == epoch
        assert plan.step_at(epoch) == plan.first_step(epoch)
        assert plan.info_at(plan.first_step(epoch)).epoch == epoch
    for step in range(begin, plan.total_steps):
        assert later.step_at(done[step]) == step


# Bad arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: d5.Constant("0.1"), "Constant: got start='0.1'; allowed: a finite number"),  # type: ignore[arg-type]
        (lambda: d5.Constant(math.nan), "Constant: got start=nan"),
        (lambda: d5.Cosine(True), "Cosine: got start=True"),
        (lambda: d5.Cosine(0.1, math.inf), "Cosine: got end=inf"),
        (lambda: d5.Cosine(0.1, steps=0), "Cosine: got steps=0; allowed: an integer of at least 1"),
        (lambda: d5.Cosine(0.1, steps=1.5), "Cosine: got steps=1.5"),  # type: ignore[arg-type]
        (lambda: d5.Cosine(0.1, epochs=0), "Cosine: got epochs=0; allowed: a number above 0"),
        (lambda: d5.Cosine(0.1, epochs=1, steps=1), "Cosine: got steps=1 and epochs=1; allowed: one of them"),
        (lambda: d5.Cosine(0.1, restarts=True), "Cosine: got neither steps nor epochs"),
        (lambda: d5.Cosine(0.1, restarts=1, epochs=1), "Cosine: got restarts=1; allowed: True or False"),  # type: ignore[arg-type]
        (lambda: d5.Cosine(0.1, factor=2), "Cosine: got factor=2; allowed: .* 1 without restarts"),
        (
            lambda: d5.Cosine(0.1, epochs=1, restarts=True, factor=0.5),
            "Cosine: got factor=0.5; allowed: a number of at l",
        ),
        (lambda: d5.StepDecay(0.1), "StepDecay: got neither steps nor epochs; .*; remedy: epochs=30, say"),
        (lambda: d5.StepDecay(0.1, 0, epochs=1), "StepDecay: got factor=0; allowed: a number above 0"),
        (lambda: d5.Exponential(0.1, -0.5, epochs=1), "Exponential: got factor=-0.5; allowed: a number above 0"),
        (lambda: d5.Polynomial(0.1, power=0), "Polynomial: got power=0; allowed: a number above 0"),
        (d5.Piecewise, "Piecewise: got neither epochs nor steps; allowed: one of them"),
        (lambda: d5.Piecewise(epochs={0: 1}, steps={0: 1}), "Piecewise: got epochs and steps; allowed: one of them"),
        (lambda: d5.Piecewise(epochs={30: 0.1}), r"Piecewise: got epochs=\{30: 0.1\}, with no value to begin with"),
        (lambda: d5.Piecewise(epochs={}), "Piecewise: got .* with no value to begin with"),
        (lambda: d5.Piecewise(epochs=[0.1, 0.01]), r"Piecewise: got epochs=\[0.1, 0.01\]; allowed: a dict"),  # type: ignore[arg-type]
        (lambda: d5.Piecewise(epochs={0: 1, -1: 2}), "Piecewise: got -1 among the epochs"),
        (lambda: d5.Piecewise(steps={0: 1, 1.5: 2}), "Piecewise: got 1.5 among the steps"),  # type: ignore[dict-item]
        (lambda: d5.Piecewise(steps={0: 1, 5: math.nan}), "Piecewise: got nan from 5 on; allowed: a finite number"),
        (lambda: d5.OneCycle(0.1, 0.2, 0.0, cycle=0), "OneCycle: got cycle=0; allowed: a number above 0 and at most 1"),
        (lambda: d5.OneCycle(0.1, 0.2, 0.0, cycle=1.1), "OneCycle: got cycle=1.1"),
        (
            lambda: d5.OneCycle(0.1, 0.2, 0.0, anneal="cosine"),
            "OneCycle: got anneal='cosine'; allowed: 'linear' or 'cos'",
        ),  # type: ignore[arg-type]
        (
            lambda: d5.OneCycle(0.1, 0.2, 0.0, rise=1),
            "OneCycle: got rise=1; allowed: a number between 0 and 1, or None",
        ),
        (lambda: d5.OneCycle(0.1, 0.2, 0.0, rise="0.3"), "OneCycle: got rise='0.3'"),  # type: ignore[arg-type]
        (lambda: d5.WarmUp(0.1), "WarmUp: got neither steps nor epochs"),
        (lambda: d5.WarmUp("cosine", epochs=1), "WarmUp: got 'cosine'; allowed: a schedule, such as .*, or a number"),  # type: ignore[arg-type]
        (lambda: d5.WarmUp(d5.Cosine, epochs=1), "WarmUp: got the class Cosine, which needs arguments; remedy: Cosine"),  # type: ignore[arg-type]
        (lambda: d5.WarmUp(0.1, epochs=1, delay="no"), "WarmUp: got delay='no'; allowed: True or False"),  # type: ignore[arg-type]
        (lambda: d5.WarmUp(0.1, math.nan, epochs=1), "WarmUp: got start=nan"),
        (lambda: d5.LinearScaling(0.1, 0), "LinearScaling: got reference=0; allowed: a batch size"),
        (lambda: d5.LinearScaling(None), "LinearScaling: got None; allowed: a schedule"),  # type: ignore[arg-type]
        (lambda: d5.Scheduled({}), "Scheduled: got no schedule; remedy: "),
        (lambda: d5.Scheduled(d5.Cosine(0.1)), "Scheduled: got Cosine.*; allowed: a dict from hyperparameters"),  # type: ignore[arg-type]
        (lambda: d5.Scheduled({"lr": "cosine"}), "schedule of 'lr': got 'cosine'; allowed: a schedule"),  # type: ignore[dict-item]
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        make()


# For recipes

EVERY = [
    d5.Constant(0.1),
    d5.StepDecay(0.1, epochs=30),
    d5.Piecewise(epochs={0: 0.1, 30: 0.01}),
    d5.Exponential(0.1, 0.9, epochs=1),
    d5.Polynomial(0.1, power=2),
    d5.Cosine(0.1, epochs=2, restarts=True),
    d5.OneCycle(0.1, 0.2, 0.001),
    d5.WarmUp(d5.Cosine(0.1), epochs=5),
    d5.LinearScaling(d5.Cosine(0.1)),
]


def test_schedules_are_values() -> None:
    hashes = [canonical_hash(canonical({"lr": schedule}, "schedules")) for schedule in EVERY]
    assert len(set(hashes)) == len(EVERY)
    for schedule in EVERY:
        json.dumps(canonical(schedule, "schedules"), allow_nan=False)
        again = eval(repr(schedule), vars(d5))  # noqa: S307 - what it prints is how it is made
        assert again == schedule
        assert hash(again) == hash(schedule)
        with pytest.raises(AttributeError, match=r"cannot assign|no attribute"):
            schedule.start = 1  # type: ignore[attr-defined]
    assert d5.Cosine(0.1) != d5.Cosine(0.2)
    assert canonical(d5.WarmUp(d5.Constant(1.0), epochs=5), "schedules")["schedule"] == {
        "schedule": "Constant",
        "start": 1.0,
    }


def test_a_piecewise_schedule_keeps_no_dict_of_the_callers() -> None:
    given = {0: 0.1}
    schedule = d5.Piecewise(epochs=given)
    given[1] = 9.0
    assert by_epoch(schedule, (1,)) == [0.1]
    assert d5.Piecewise(epochs={5: 1, 0: 2}) == d5.Piecewise(epochs={0: 2, 5: 1})


def test_they_are_registered() -> None:
    kinds = {type(schedule) for schedule in EVERY}
    assert {load("schedules", name) for name in registered("schedules")} >= kinds
    assert load("events", "scheduled") is d5.Scheduled


# On a trainer


class Line:
    """y = x · w, squared error; the same in plain NumPy."""

    def __init__(self, dtype: str) -> None:
        draw = np.random.default_rng(7)
        self.x, noise = draw.standard_normal((22, 3)).astype(dtype), draw.standard_normal((22, 1))
        self.y = (self.x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * noise).astype(dtype)
        build = d5.NetworkBuilder("line", dtype=dtype)
        product = build.op("MatMul", build.input("x", ("N", 3)), build.parameter("w", (3, 1), d5.networks.zeros))
        error = build.op("Sub", product, build.input("y", ("N", 1)))
        self.network = build.network({"loss": build.op("ReduceMean", build.op("Mul", error, error), keepdims=0)})
        self.data = d5.ArrayDataset({"x": self.x, "y": self.y})

    def by_hand(self, sampler: Any, epochs: int, rate: Callable[[int, int], Mapping[str, float]]) -> np.ndarray:
        """Momentum in float64, hyperparameters by (step, epoch)."""
        w, v, step = np.zeros((3, 1)), np.zeros((3, 1)), 0
        for epoch in range(epochs):
            for ids, _ in sampler.batches(epoch):
                x, y = self.x[ids].astype(np.float64), self.y[ids].astype(np.float64)
                hyper = rate(step, epoch)
                v = hyper.get("momentum", 0.0) * v + 2 / len(ids) * x.T @ (x @ w - y)
                w = w - hyper["lr"] * v
                step += 1
        return w


class Watch(d5.Event):
    """The values in effect at each step, from the trainer instead of the schedule."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.traces: list[int] = []

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        rule = getattr(trainer.optimizer, "rule", None)
        self.seen.append(() if rule is None else tuple(getattr(rule, name) for name in rule.hyper))

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        step = getattr(trainer.optimizer, "train_step", None)
        self.traces.append(getattr(step, "traces", 0))


def expected(step: int, epoch: int) -> dict[str, float]:
    """Three steps of warm-up to a cosine over 12 steps of 0.3; momentum 0.5, from the third epoch on 0.9."""

    def cosine(t: int) -> float:
        return 0.15 * (1 + math.cos(math.pi * t / 12))

    return {"lr": step / 3 * cosine(3) if step < 3 else cosine(step), "momentum": 0.5 if epoch < 2 else 0.9}


SCHEDULES = {"lr": d5.WarmUp(d5.Cosine(0.3), epochs=1), "momentum": d5.Piecewise(epochs={0: 0.5, 2: 0.9})}


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax", "onnxruntime"])
def test_a_schedule_acts_at_each_step_and_nothing_is_traced_again(framework: str) -> None:
    dtype = "float32" if framework == "onnxruntime" else "float64"
    line = Line(dtype)
    sampler, watch = d5.ShuffleSampler(line.data, 8, seed=3), Watch()
    trainer = d5.Trainer(d5.framework(framework).executor(line.network), d5.Momentum(lr=9.0), sampler)
    trainer.train(4, [d5.Scheduled(SCHEDULES), watch])
    by_hand = [expected(step, step // 3) for step in range(12)]
    assert [seen[0] for seen in watch.seen] == pytest.approx([hyper["lr"] for hyper in by_hand], rel=1e-14)
    assert [seen[1] for seen in watch.seen] == [hyper["momentum"] for hyper in by_hand]
    # Both batch sizes occur in the first epoch.
    assert watch.traces == [watch.traces[0]] * 4
    assert watch.traces[0] >= 1
    # Twelve steps of about twenty operations each.
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    found = d5.to_numpy(trainer.executor.state_dict()["w"])
    np.testing.assert_allclose(found, line.by_hand(sampler, 4, expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_a_schedule_acts_on_native_optimizers(framework: str) -> None:
    line = Line("float64")
    sampler = d5.OrderedSampler(line.data, 8)
    optimizer = d5.framework(framework).optimizer("sgd")(lr=9.0)
    trainer = d5.Trainer(d5.framework(framework).executor(line.network), optimizer, sampler)
    events = d5.Scheduled({"lr": SCHEDULES["lr"]})
    trainer.train(4, [events])
    by_hand = line.by_hand(sampler, 4, lambda step, epoch: {"lr": expected(step, epoch)["lr"]})
    # Keras and Optax may hold the learning rate in float32.
    np.testing.assert_allclose(d5.to_numpy(trainer.executor.state_dict()["w"]), by_hand, rtol=1e-6)
    assert events.values["lr"] == pytest.approx(expected(11, 3)["lr"])


def trainer_of(line: Line, optimizer: Any, batch_size: Any = 8, **options: Any) -> d5.Trainer:
    executor = d5.framework("reference").executor(line.network)
    return d5.Trainer(executor, optimizer, d5.ShuffleSampler(line.data, batch_size, seed=3), **options)


def test_a_run_that_goes_on_has_the_same_values_and_bits() -> None:
    class Keep(d5.Event):
        def after_all(self, trainer: Any) -> None:
            states[trainer.step] = trainer.state_dict()

    line, states = Line("float32"), dict[int, Any]()
    whole = trainer_of(line, d5.Momentum())
    whole.train(4, [d5.Scheduled(SCHEDULES), Keep()])
    for step in (1, 3, 7, 11):
        again = trainer_of(line, d5.Momentum())
        again.load_state_dict(states[step])
        again.train(4 - again.epoch, [d5.Scheduled(SCHEDULES), d5.Event()])
        assert again.step == 12
        np.testing.assert_array_equal(again.executor.state_dict()["w"], whole.executor.state_dict()["w"])


def test_growing_batches_change_the_rate_and_the_last_batch_does_not() -> None:
    line, seen = Line("float32"), []

    class Look(d5.Event):
        def before_step(self, trainer: Any, info: Any) -> None:
            seen.append((info.epoch, info.batch_size, trainer.optimizer.rule.lr))

    sizes = GrowingBatches(start=5)
    trainer_of(line, d5.SGD(), sizes).train(2, [d5.Scheduled({"lr": d5.LinearScaling(0.1, 20)}), Look()])
    assert seen == [
        *[(0, 5, 0.025)] * 4,
        (0, 2, 0.025),
        *[(1, 10, 0.05)] * 2,
        (1, 2, 0.05),
    ]


def test_an_accumulated_step_is_one_step_of_a_larger_batch() -> None:
    line = Line("float32")
    trainer = trainer_of(line, d5.SGD(), 5, accumulate=2)  # 5 batches, 3 steps
    event = d5.Scheduled({"lr": d5.LinearScaling(d5.Polynomial(0.6), 10)})
    trainer.train(2, [event])
    assert trainer.step == 6
    assert event.values["lr"] == pytest.approx(0.1)  # the sixth step of six
    assert plan_of(trainer).epoch_batch_size(0) == 10


def test_what_a_gradient_pipeline_has_can_be_scheduled() -> None:
    from deep5.training.optimizer import RuleOptimizer

    line, seen = Line("float32"), []

    class Look(d5.Event):
        def before_step(self, trainer: Any, info: Any) -> None:
            seen.append(trainer.optimizer.hyper["clip_norm"])

    optimizer = RuleOptimizer(d5.SGD(), clip_norm=1.0)
    trainer_of(line, optimizer).train(2, [d5.Scheduled({"clip_norm": d5.Piecewise(steps={0: 4.0, 4: 2.0})}), Look()])
    assert seen == [4.0] * 4 + [2.0] * 2


class OwnStep:
    """A user's optimizer with only `set_hyper`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        return {"loss": np.float32(0.5)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Settable(OwnStep):
    def set_hyper(self, name: str, value: float) -> None:
        if name != "lr":
            raise UsageError(f"no hyperparameter {name!r}; allowed: lr")
        self.calls.append((name, value))


def test_an_optimizer_of_a_users_is_set_only_where_something_changes() -> None:
    own = Settable()
    trainer_of(Line("float32"), own).train(4, [d5.Scheduled({"lr": d5.StepDecay(0.5, 0.5, steps=5)})])
    assert own.calls == [("lr", 0.5), ("lr", 0.25), ("lr", 0.125)]


def test_hyperparameters_that_are_not_there() -> None:
    line = Line("float32")
    for optimizer, name, message in (
        (
            d5.Momentum(),
            "larning_rate",
            r"unknown hyperparameter of Momentum 'larning_rate'; allowed: .*lr, .*momentum",
        ),
        (Settable(), "momentum", "schedule of 'momentum' at step 0: no hyperparameter 'momentum'; allowed: lr"),
        (OwnStep(), "lr", r"schedule of 'lr': OwnStep does not let its hyperparameters be set; allowed: .*set_hyper"),
    ):
        run = trainer_of(line, optimizer)
        with pytest.raises(UsageError, match=message):
            run.train(1, [d5.Scheduled({name: 0.1})])
        assert run.step == 0


def test_values_that_are_no_numbers_name_schedule_and_step() -> None:
    class Odd(d5.Schedule):
        def __init__(self, *given: Any) -> None:
            self.given = given

        def value(self, info: StepInfo, plan: d5.Plan) -> float:
            value: float = self.given[min(info.step, len(self.given) - 1)]
            return value

    class Broken(d5.Schedule):
        def value(self, info: StepInfo, plan: d5.Plan) -> float:
            return 1 / (2 - info.step)

    line = Line("float32")
    for schedule, step in ((Odd(0.1, 0.1, math.nan), 2), (Odd(0.1, math.inf), 1), (Odd("fast"), 0), (Broken(), 2)):
        run = trainer_of(line, d5.SGD())
        with pytest.raises(UsageError, match=rf"^schedule of 'lr' at step {step}: "):
            run.train(1, [d5.Scheduled({"lr": schedule})])
        assert run.step == step
    # Integers and NumPy's numbers are numbers.
    run, event = trainer_of(line, d5.SGD()), d5.Scheduled({"lr": Odd(np.float32(0.5), 1)})
    run.train(1, [event])
    assert event.values == {"lr": 1.0}
    assert type(run.optimizer.rule.lr) is float  # type: ignore[attr-defined]


def test_a_schedule_that_needs_a_length_is_refused_before_the_first_step() -> None:
    class Stream:
        def batches(self, epoch: int, start: int = 0) -> Any:
            return iter([(np.arange(8), line.data.batch(np.arange(8)))])

        def steps(self, epoch: int) -> None:
            return None

    line = Line("float32")
    executor = d5.framework("reference").executor(line.network)
    run = d5.Trainer(executor, d5.SGD(), Stream())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^schedule of 'lr' at step 0: the number of steps of an epoch is not known"):
        run.train(1, [d5.Scheduled({"lr": d5.Cosine(0.1)})])
    assert run.step == 0
    run.train(1, [d5.Scheduled({"lr": d5.Cosine(0.1, steps=5)})])
    assert run.step == 1


def test_hyperparameters_are_read_as_they_are() -> None:
    rule = SimpleNamespace(rule=d5.Momentum(0.25, 0.5))
    assert (hyper_value(rule, "lr"), hyper_value(rule, "beta1")) == (0.25, None)
    assert hyper_reader(rule, ["momentum", "lr"], [])() == (0.5, 0.25)
    assert hyper_reader(rule, ["lr"], [])() == (0.25,)
    assert hyper_reader(rule, [], [])() == ()
    hyper_setter(rule, "lr")(0.75)
    assert hyper_reader(rule, ["lr"], [])() == (0.75,)
    native = SimpleNamespace(hyper={"lr": 0.125, "nesterov": True})
    assert (hyper_value(native, "lr"), hyper_value(native, "nesterov")) == (0.125, None)
    scheduled = SimpleNamespace(values={"lr": 0.5})
    assert hyper_reader(native, ["lr", "decay"], [scheduled])() == (0.5, None)
    with pytest.raises(UnknownName, match="unknown hyperparameter of Momentum 'beta1'; allowed: lr, momentum"):
        hyper_setter(rule, "beta1")


def test_what_is_read_is_what_is_in_force() -> None:
    """With a schedule of another parameter, and with an optimizer that owns its step."""
    clipped = d5.RuleOptimizer(d5.SGD(0.25), clip_norm=1.0)
    scheduled = SimpleNamespace(values={"clip_norm": 0.5})
    read = hyper_reader(clipped, ["lr", "clip_norm", "clip_value"], [scheduled])
    assert read() == (0.25, 0.5, None)
    clipped.set_hyper("lr", 0.125)
    clipped.set_hyper("clip_value", 2.0)
    scheduled.values["clip_norm"] = 0.75
    assert read() == (0.125, 0.75, 2.0)
    native: Any = d5.framework("pytorch").optimizer("momentum")(lr=0.5)
    native.bind(d5.framework("pytorch").executor(d5.networks.mlp(features=4, hidden=3, classes=3)))
    read = hyper_reader(native, ["lr", "momentum"], [SimpleNamespace(values={"momentum": 0.75})])
    assert read() == (0.5, 0.75)
    native.set_hyper("lr", 0.25)
    assert (read(), native.hyper["lr"], native.hyper_now["lr"]) == ((0.25, 0.75), 0.5, 0.25)


@pytest.mark.parametrize("anneal", ["linear", "cos"])
@pytest.mark.parametrize("three", [True, False])
def test_one_cycle_is_torch_s(anneal: Any, three: bool) -> None:
    torch = pytest.importorskip("torch")
    steps, share = 101, 0.3
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    native = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.5, total_steps=steps, pct_start=share, anneal_strategy=anneal, three_phase=three,
        div_factor=10.0, final_div_factor=100.0, cycle_momentum=False,
    )  # fmt: skip
    # torch counts the last step as the end: its phases end at share * steps - 1 of steps - 1 (and at twice that).
    up, length = share * steps - 1, steps - 1
    own = d5.OneCycle(
        0.05, 0.5, 0.0005, anneal=anneal, steps=length, cycle=2 * up / length, rise=None if three else up / length
    )
    plan = d5.Plan(epochs=1, steps=steps)
    for step in range(steps):
        # Both in float64.
        assert own.value(d5.StepInfo(step=step), plan) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), (
            step
        )
        optimizer.step()
        if step < steps - 1:
            native.step()


def test_the_hash_of_a_former_one_cycle_stays() -> None:
    assert d5.OneCycle(0.1, 0.2, 0.0).describe().keys() == {
        "schedule",
        "start",
        "peak",
        "end",
        "cycle",
        "epochs",
        "steps",
    }
    assert d5.OneCycle(0.1, 0.2, 0.0, anneal="cos", rise=0.3).describe()["rise"] == 0.3
