"""Pruners: Optuna's decisions, from stored trials, whenever and however often a curve is looked at."""

import json
import math

import numpy as np
import optuna
import pytest

from deep5.core.errors import UnknownName, UsageError
from deep5.results.sweep.trial import FINISHED, PRUNED, Trial
from deep5.search.pruners import PRUNERS, Watch, check_pruner
from deep5.search.space import Space

SPACE = Space.of({"rate": "uniform(0, 1)"})
EPOCHS = 9


def curve(number, sign):
    """A noisy loss that falls to its own level, or its negative."""
    draws = np.random.default_rng(number)
    level, noise = draws.random(), draws.normal(0, 0.05, EPOCHS)
    return [(epoch, sign * float(level + 1 / epoch + noise[epoch - 1])) for epoch in range(1, EPOCHS + 1)]


def stored(name, direction, count, look):
    """Trials one after another; `look` splits a curve into what is seen at each look."""
    trials = []
    for number in range(count):
        watch = Watch(name, SPACE, direction, trials, number, EPOCHS)
        verdict = watch.verdict
        for seen in look(curve(number, 1 if direction == "lower" else -1)):
            verdict = watch.hear(seen)
        trial = Trial(
            number=number,
            settings={"rate": number / count},
            state=PRUNED if verdict.pruned else FINISHED,
            value=verdict.curve[-1][1],
            curve=json.loads(json.dumps(verdict.curve)),
            rungs=json.loads(json.dumps(verdict.rungs)),
        )
        trials.append(trial)
    return trials


def at_once(points):
    return [points]


def one_by_one(points):
    return [points[:end] for end in range(1, len(points) + 1)]


def repeatedly(points):
    return [points[:2], points[:2], [], points[:7], points]


def own_pruner(name):
    kinds = optuna.pruners
    return {
        "median": lambda: kinds.MedianPruner(n_startup_trials=5),
        "hyperband": lambda: kinds.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3),
        "asha": lambda: kinds.SuccessiveHalvingPruner(min_resource=1, reduction_factor=4),
    }[name]()


@pytest.mark.parametrize("direction", ["lower", "higher"])
@pytest.mark.parametrize("name", [name for name in PRUNERS if name != "none"])
def test_decisions_are_those_of_optuna_in_one_process(name, direction):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="deep5",
        direction="minimize" if direction == "lower" else "maximize",
        pruner=own_pruner(name),
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    ended = []
    for number in range(40):
        trial = study.ask()
        last, pruned = 0.0, False
        for epoch, value in curve(number, 1 if direction == "lower" else -1):
            trial.report(value, epoch)
            last, pruned = value, trial.should_prune()
            if pruned:
                break
        ended.append((epoch, pruned))
        study.tell(trial, last if not pruned else None, state=None if not pruned else optuna.trial.TrialState.PRUNED)
    ours = stored(name, direction, 40, at_once)
    assert [(own.curve[-1][0], own.state == PRUNED) for own in ours] == ended
    assert 5 < sum(pruned for _, pruned in ended) < 40


@pytest.mark.parametrize("look", [one_by_one, repeatedly])
@pytest.mark.parametrize("name", PRUNERS)
def test_how_often_a_curve_is_looked_at_changes_nothing(name, look):
    assert stored(name, "lower", 25, look) == stored(name, "lower", 25, at_once)


def test_what_comes_after_the_epoch_of_pruning_does_not_count():
    trials = stored("median", "lower", 12, at_once)
    watch = Watch("median", SPACE, "lower", trials, 12, EPOCHS)
    worse = [(1, 99.0), (2, 0.0), (3, 0.0)]
    assert watch.hear(worse).pruned
    assert watch.hear([*worse, (4, -5.0)]).curve == ((1, 99.0),)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["median", "hyperband", "asha"])
def test_a_diverged_trial_is_pruned_at_once(name, value):
    verdict = Watch(name, SPACE, "lower", [], 0, EPOCHS).hear([(1, value), (2, 0.0)])
    assert verdict.pruned
    assert len(verdict.curve) == 1


def test_trials_that_may_still_run_do_not_count():
    trials = stored("median", "lower", 12, at_once)
    for known, pruned in ((12, True), (3, False)):  # Optuna's median starts after five trials
        assert Watch("median", SPACE, "lower", trials, known, EPOCHS).hear([(1, 99.0)]).pruned == pruned


def test_what_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'median'"):
        check_pruner("medain", 5, False, "test_loss")
    with pytest.raises(UsageError, match=r"no value after each epoch.*remedy: --pruner none"):
        check_pruner("asha", 5, True, "time_to_accuracy")
    with pytest.raises(UsageError, match="trials of 1 epoch"):
        check_pruner("median", 1, False, "test_loss")
    check_pruner("none", 1, True, "time_to_accuracy")
