"""Samplers: the same proposals from the same stored trials, and better ones than at random."""

import dataclasses
import json
import math
import statistics
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import qmc

from deep5.core.errors import UnknownName, UsageError
from deep5.core.seeds import generator
from deep5.results.sweep.trial import FAILED, FINISHED, PRUNED, Trial, rank_value
from deep5.search.samplers import SAMPLERS, make_sampler
from deep5.search.space import Space

SPACE = Space.of(
    {
        "kind": "choice(a, b)",
        "rate": "log(1e-4, 1)",
        "share": "uniform(0, 1)",
        "count": "int(1, 6)",
        "depth": "logint(1, 64, 7)",
        "extra": "uniform(0, 1) if kind=b",
    }
)
SEARCHING = ("random", "tpe", "cmaes", "evolution", "swarm", "qmc")


def loss(settings):
    """Least, 0, at kind=b, rate=0.01, share=0.7, count=3, depth=8, extra=0.2."""
    value = (math.log10(settings["rate"]) + 2) ** 2 + 4 * (settings["share"] - 0.7) ** 2
    value += 0.1 * (settings["count"] - 3) ** 2 + 0.1 * (math.log2(settings["depth"]) - 3) ** 2
    return value + ((settings["extra"] - 0.2) ** 2 if settings["kind"] == "b" else 0.5)


def search(name, count, *, seed=0, parallel=1, space=SPACE, direction="lower", of=loss, trials=()):
    """Trials as a folder holds them: only ended ones that the sampler may know of have an outcome."""
    sampler, trials = make_sampler(name, space, direction, seed=seed, parallel=parallel), list(trials)
    for number in range(len(trials), count):
        settings = json.loads(json.dumps(sampler.propose(number, trials)))
        space.check(settings)
        value = of(settings) * (1 if direction == "lower" else -1)
        trials.append(Trial(number=number, settings=settings, state=FINISHED, value=value))
    return trials


def unknown(trials, known):
    return [own if own.number < known else dataclasses.replace(own, state=None, value=None) for own in trials]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("name", SEARCHING)
def test_a_new_sampler_proposes_the_identical_trial_from_what_is_stored(name, parallel):
    trials = search(name, 40, parallel=parallel)
    for number in (0, 1, 9, 11, 12, 25, 39):
        sampler = make_sampler(name, SPACE, "lower", seed=0, parallel=parallel)
        stored = unknown(trials[:number], sampler.required(number))
        assert sampler.propose(number, stored) == trials[number].settings
        assert sampler.propose(number, stored) == trials[number].settings  # again, if it did not reach the folder


@pytest.mark.parametrize("name", SEARCHING)
def test_another_process_proposes_the_identical_trial(name, tmp_path):
    trials = search(name, 20)
    program = (
        "import json, sys; from deep5.search.samplers import make_sampler; from deep5.search.space import Space; "
        "from deep5.results.sweep.trial import Trial; name, space, rows = json.loads(sys.argv[1]); "
        "trials = [Trial(number=n, settings=s, state='finished', value=v) for n, (s, v) in enumerate(rows)]; "
        "print(json.dumps(make_sampler(name, Space.of(space), 'lower', seed=0, parallel=1).propose(19, trials)))"
    )
    given = json.dumps([name, SPACE.texts(), [(own.settings, own.value) for own in trials[:19]]])
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == trials[19].settings


@pytest.mark.parametrize("name", SEARCHING)
def test_the_direction_mirrors_the_search_and_the_seed_changes_it(name):
    lower, higher, other = search(name, 24), search(name, 24, direction="higher"), search(name, 24, seed=1)
    assert [own.settings for own in lower] == [own.settings for own in higher]
    assert [own.settings for own in lower] != [own.settings for own in other]


@pytest.mark.parametrize("name", ["tpe", "cmaes", "evolution", "swarm"])
def test_what_learns_is_better_than_random_search_in_the_median_of_nine_seeds(name):
    best = {
        own: statistics.median(min(t.value for t in search(own, 60, seed=seed)) for seed in range(9))
        for own in (name, "random")
    }
    assert best[name] < best["random"]


@pytest.mark.parametrize("name", ["tpe", "cmaes", "evolution", "swarm"])
@pytest.mark.parametrize("outcome", [math.nan, math.inf, -math.inf, None, "failed", "pruned"])
def test_outcomes_without_a_finite_value_do_not_end_the_search(name, outcome):
    trials = search(name, 16)
    if isinstance(outcome, str):
        about = {"state": FAILED, "value": None} if outcome == "failed" else {"state": PRUNED, "curve": ((1, 9.0),)}
    else:
        about = {"value": outcome}
    trials[::3] = [dataclasses.replace(own, **about) for own in trials[::3]]
    more = search(name, 24, trials=trials)
    assert len(more) == 24


def test_a_failed_trial_ranks_behind_every_other():
    trials = [
        Trial(number=0, settings={}, state=state, value=value)
        for state, value in ((FINISHED, 1e300), (FINISHED, math.nan), (FAILED, None), (FAILED, 0.0))
    ]
    assert [rank_value(own, "lower") for own in trials] == [1e300, math.inf, math.inf, math.inf]
    assert rank_value(dataclasses.replace(trials[0], value=3.0), "higher") == -3.0


def test_evolution_changes_one_parameter_of_a_recent_trial():
    trials = search("evolution", 120, parallel=3)
    for own in trials[40:]:
        recent = trials[own.number - 2 - 20 : own.number - 2]

        def changed(other, own=own):
            keys = set(own.settings) & set(other.settings)
            return [key for key in keys if own.settings[key] != other.settings[key]]

        # A parameter that a choice makes apply is drawn with it.
        assert any(len(changed(own_)) <= 1 and len(set(own.settings) ^ set(own_.settings)) <= 1 for own_ in recent)


def test_a_lucky_trial_dies_of_age():
    trials = search("evolution", 60)
    trials[25] = dataclasses.replace(trials[25], value=-1e9, settings={**trials[25].settings, "share": 0.123456})
    more = search("evolution", 90, trials=trials[:26])
    heirs = [own.number for own in more[26:] if own.settings["share"] == 0.123456]
    assert heirs
    again = search("evolution", 200, trials=trials[:26])
    parents = [own.number for own in again if own.number > 46 and own.settings == trials[25].settings]
    assert not parents


def test_evolution_finds_an_architecture_and_says_so_over_random_search():
    """A space that is a function of choices: the stages that a depth has."""
    texts = {"depth": "choice(1, 2, 3, 4)", "block": "choice(plain, residual, dense)"}
    for stage in (1, 2, 3):
        deep = f"if depth in ({', '.join(map(str, range(stage, 5)))})"
        texts |= {f"width_{stage}": f"choice(8, 16, 32, 64) {deep}", f"kernel_{stage}": f"choice(1, 3, 5, 7) {deep}"}
    space = Space.of(texts)

    def of(settings):
        value = abs(settings["depth"] - 3) + (settings["block"] != "residual")
        value += sum(abs(math.log2(own) - 5) for key, own in settings.items() if key.startswith("width"))
        return value + sum(abs(own - 3) / 2 for key, own in settings.items() if key.startswith("kernel"))

    best = {
        name: [min(own.value for own in search(name, 120, seed=seed, space=space, of=of)) for seed in range(9)]
        for name in ("evolution", "random")
    }
    assert statistics.median(best["evolution"]) < statistics.median(best["random"])


def test_a_swarm_moves_as_its_equations_state():
    space = Space.of({"x": "uniform(0, 1)", "y": "uniform(0, 1)"})
    trials = search("swarm", 36, space=space, of=lambda own: (own["x"] - 0.3) ** 2 + (own["y"] - 0.6) ** 2)
    size = 10 + int(2 * math.sqrt(2))
    assert size == 12
    points = np.array([[own.settings["x"], own.settings["y"]] for own in trials])
    values = np.array([own.value for own in trials])
    inertia, pull = 1 / (2 * math.log(2)), 0.5 + math.log(2)
    speed = None
    for number in (5 + size, 5 + 2 * size):  # one particle, moved twice
        mine = points[5:number:size]
        own = mine[values[5:number:size].argmin()]
        common = points[: number - 5][values[: number - 5].argmin()]
        draws = generator(0, "sweep", "swarm", number)
        at = points[number - size]
        if speed is None:
            other = generator(0, "sweep", "swarm", 5)
            speed = (np.array([other.random(), other.random()]) - at) / 2
        drawn = np.array([[draws.random(), draws.random()] for _ in range(2)])
        speed = inertia * speed + pull * (drawn[:, 0] * (own - at) + drawn[:, 1] * (common - at))
        moved = np.clip(at + speed, 0, 1)
        speed[moved != at + speed] = 0
        assert points[number] == pytest.approx(moved, abs=1e-12)  # the same arithmetic in another order


@pytest.mark.parametrize(
    "text", ["uniform(-1, 3)", "log(1e-4, 1)", "int(1, 9)", "logint(1, 64)", "choice(a, b, c)", "log(1, 8, 4)"]
)
def test_positions_invert_values(text):
    own = Space.of({"x": text}).parameters["x"]
    for position in np.linspace(0.01, 0.99, 37):
        value = own.at(position)
        assert own.at(own.position(value)) == (pytest.approx(value, rel=1e-12) if not own.steps else value)


def test_quasi_random_points_are_scipys():
    keys = list(SPACE.parameters)
    points = qmc.Sobol(len(keys), scramble=True, rng=generator(5, "sweep", "qmc")).random(32)
    sampler = make_sampler("qmc", SPACE, "lower", seed=5, parallel=1)
    assert [sampler.propose(number, ()) for number in range(32)] == [
        SPACE.chosen(dict(zip(keys, map(float, point), strict=True))) for point in points
    ]


def test_random_draws_are_even_and_independent_of_the_order_of_asking():
    sampler = make_sampler("random", SPACE, "lower", seed=0, parallel=1)
    drawn = [sampler.propose(number, ()) for number in range(2000)]
    assert drawn[7] == sampler.propose(7, ())
    shares = np.array([own["share"] for own in drawn])
    # 99.99 % of 2000 even draws have a largest distance from the diagonal (Kolmogorov) below this.
    assert np.abs(np.sort(shares) - (np.arange(2000) + 0.5) / 2000).max() < 2.23 / math.sqrt(2000)
    assert 900 < sum(own["kind"] == "a" for own in drawn) < 1100  # 4.5 standard deviations


def test_a_grid_is_enumerated_and_ends():
    space = Space.of({"a": "choice(x, y)", "b": "int(1, 3)"})
    sampler = make_sampler("grid", space, "lower", seed=0, parallel=1)
    assert sampler.limit == 6
    assert [sampler.propose(number, ()) for number in range(6)] == list(space.grid)


def test_how_many_trials_must_have_ended():
    space = Space.of({"a": "uniform(0, 1)", "b": "uniform(0, 1)"})
    made = {name: make_sampler(name, space, "lower", seed=0, parallel=4) for name in SEARCHING}
    due = {"random": 0, "tpe": 17, "cmaes": 18, "evolution": 17, "swarm": 12, "qmc": 0}
    assert {name: own.required(20) for name, own in made.items()} == due
    assert made["tpe"].required(2) == 0


def test_covariance_adaptation_converges_on_a_rotated_valley():
    """Twice the condition number of the axes: coordinate by coordinate it takes far longer."""
    space = Space.of(dict.fromkeys("abc", "uniform(-5, 5)"))

    def valley(settings):
        a, b, c = settings.values()
        return 100 * (a - b + 1) ** 2 + 10 * (b - c) ** 2 + (a + b + c - 2) ** 2

    trials = search("cmaes", 350, space=space, of=valley)
    assert min(own.value for own in trials[-30:]) < 1e-3 < statistics.median(own.value for own in trials[:30])


@pytest.mark.parametrize(
    "texts", [{"a": "uniform(0, 1)"}, {"a": "choice(x, y)", "b": "uniform(0, 1)"}, {"a": "choice(x, y)"}]
)
def test_covariance_adaptation_needs_two_numbers(texts):
    with pytest.raises(UsageError, match="at least 2; remedy: another sampler"):
        make_sampler("cmaes", Space.of(texts), "lower", seed=0, parallel=1)


def test_an_unknown_sampler_and_the_note_on_what_is_drawn():
    with pytest.raises(UnknownName, match=r"sampler 'tpee'.*did you mean 'tpe'"):
        make_sampler("tpee", SPACE, "lower", seed=0, parallel=1)
    assert sorted(SAMPLERS) == ["cmaes", "evolution", "grid", "qmc", "random", "swarm", "tpe"]
    notes = make_sampler("cmaes", SPACE, "lower", seed=0, parallel=1).notes()
    assert notes == ["cmaes searches numbers that always apply; at random it draws kind, extra"]
