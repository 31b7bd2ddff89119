"""Whether a sampler was better than random search: an exact test over the seeds of sweeps."""

import itertools
import json
from pathlib import Path

import pytest
from scipy.stats import wilcoxon

from deep5.core.errors import UsageError
from deep5.results.sweep.record import Sweep
from deep5.results.sweep.trial import FINISHED, Trial
from deep5.results.sweep.versus import versus
from small_recipe import RECIPE


def swept(sampler, seed, value, direction="lower", **more):
    document = {
        "recipe": "r", "hash": "h", "size": "full", "space": {"a": "int(1, 2)"}, "settings": {}, "pruner": "none",
        "goal": {"metric": "test_loss", "unit": "nat", "direction": direction, "samples": "test"}, "trials": 1,
        "parallel": 1, "sampler": sampler, "seed": seed, "finished": True, **more,
    }  # fmt: skip
    trial = Trial(number=0, settings={"a": 1}, state=FINISHED, value=value)
    return Sweep(folder=Path(f"{sampler}-{seed}"), document=document, trials=[trial])


def pairs(gains, direction="lower", sampler="tpe"):
    sign = -1 if direction == "lower" else 1
    sweeps = [swept("random", seed, 1.0 + seed, direction) for seed in range(len(gains))]
    return sweeps + [swept(sampler, seed, 1.0 + seed + sign * own, direction) for seed, own in enumerate(gains)]


@pytest.mark.parametrize("direction", ["lower", "higher"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_verdict_is_that_of_the_signed_rank_test(direction, sign):
    gains = [sign * own for own in (0.1, 0.25, 0.2, 0.4, 0.35, 0.05, 0.5, -0.02)]
    [own] = versus(pairs(gains, direction))
    assert own.p == pytest.approx(wilcoxon(gains, method="exact").pvalue)
    assert own.holds
    assert own.verdict.startswith("better" if sign > 0 else "worse")
    assert own.better == (7 if sign > 0 else 1)
    assert own.difference == pytest.approx(sign * 0.225)


def test_a_verdict_needs_six_seeds():
    for count in range(1, 8):
        [own] = versus(pairs([0.1 * (place + 1) for place in range(count)]))
        assert own.holds == (count >= 6)
        assert own.p == pytest.approx(2 / 2**count)


def test_noise_is_called_a_difference_in_no_more_than_5_percent():
    """Over all signs of six differences, which are equally likely where neither is better."""
    sizes = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    held = [
        versus(pairs([sign * own for sign, own in zip(signs, sizes, strict=True)]))[0].holds
        for signs in itertools.product((1, -1), repeat=6)
    ]
    assert sum(held) == 2  # of 64: all of one sign


def test_several_samplers_share_the_5_percent():
    both = pairs([0.1 * (place + 1) for place in range(6)])
    both += [own for own in pairs([0.1] * 6, sampler="swarm") if own.document["sampler"] == "swarm"]
    assert [own.holds for own in versus(both)] == [False, False]  # each with p = 0.031


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda sweeps: sweeps[:2], "sweeps by random; allowed: random and at least one other sampler"),
        (lambda sweeps: sweeps[2:], "sweeps by tpe; allowed: random and"),
        (lambda sweeps: sweeps[:3], r"sweeps by tpe have the seeds \[0\], and those by random \[0, 1\]"),
        (lambda sweeps: [*sweeps, sweeps[0]], "two sweeps by random have the seed 0; allowed: each seed once"),
        (lambda sweeps: [*sweeps, swept("random", 2, 1.0, trials=9)], "has trials: 9, and random-0: 1; allowed"),
        (lambda sweeps: [*sweeps, swept("random", 2, 1.0, finished=False)], "is not finished; .*remedy: --attach"),
        (lambda sweeps: [*sweeps, swept("random", 2, float("nan"))], "random-2 has no value"),
    ],
)
def test_what_does_not_compare_is_refused(change, told):
    with pytest.raises(UsageError, match=told):
        versus(change(pairs([0.1, 0.2])))


def test_the_command_searches_by_both_in_turn(tmp_path, deep5):
    recipe = tmp_path / "small.py"
    recipe.write_text(RECIPE)
    words = ["sweep", str(recipe), "--goal", "test_loss", "--param", "optimizer_kwargs.lr=log(1e-4, 1)"]
    words += ["--trials", "2", "--sampler", "swarm", "--out", str(tmp_path / "out")]
    answer = deep5(*words, "--versus", "random", "--repeat", "2", "--json")
    assert answer.status == 0, answer.err
    document = json.loads(answer.out)
    [row] = document["verdicts"]
    assert (row["sampler"], row["seeds"], row["holds"]) == ("swarm", 2, False)
    assert len(document["folders"]) == 4
    shown = deep5("show", "sweep", *document["folders"])
    assert shown.status == 0, shown.err
    assert "a difference can be shown from 6 seeds on, at 5 %; remedy: --repeat 6" in " ".join(shown.out.split())
    assert json.loads(deep5("show", "sweep", *document["folders"], "--json").out) == document["verdicts"]
    for more, told in (
        (["--repeat", "2"], "--repeat without --versus"),
        (["--versus", "random", "--sampler", "random"], "--versus random with --sampler random; allowed"),
        (["--versus", "random", "--resume", document["folders"][0]], "and --resume; allowed: another sampler"),
    ):
        answer = deep5(*words, *more)
        assert answer.status == 2
        assert told in answer.err
