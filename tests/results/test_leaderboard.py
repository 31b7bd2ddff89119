"""Leaderboards: ranks by exact tests over seeds, of audited runs only."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import mannwhitneyu

from deep5.core.errors import UsageError
from deep5.results.leaderboard import leaderboard

RECIPE = '''
"""A small network on synthetic data."""

import deep5 as d5

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 16, "hidden": 16, "classes": 4},
    "dataset": "synthetic", "dataset_kwargs": {"shape": (16,), "classes": 4, "train": 400, "test": 100},
}
MUTABLE = {"framework": "reference", "batch_size": 50, "optimizer": "adam", "epochs": 1}
METRICS = [(d5.TestLoss(), None), (d5.TestAccuracy(), "> 1"), (d5.Throughput(), None)]
'''


def ran(optimizer, seed, accuracy, division="closed", *, machine="m", accepted=True, status="success", **mutable):
    row = {"name": "test_accuracy", "unit": "%", "direction": "higher", "goal": "> 1", "parameters": {}}
    speed = {"name": "throughput", "unit": "samples/s", "direction": "higher", "goal": None, "parameters": {}}
    parts = {"fixed": {}, "mutable": {"optimizer": optimizer, "seed": seed, **mutable}}
    document = {
        "recipe": {"name": "r", "size": "full", "hash": "h", **parts},
        "metrics": [speed, row],
        "framework": {"name": "reference", "version": "1"},
        "ranks": 1,
        "provenance": {"recipe_source": "s" * 64, "environment": machine},
        "seeds": {"run": seed},
        "started": f"{seed}",
    }
    verdicts = [SimpleNamespace(label=own["name"], value=accuracy) for own in (speed, row)]

    class Ran(SimpleNamespace):
        def __bool__(self):
            return accepted

    return Ran(
        document=document, verdicts=verdicts, status=status, division=division, folder=Path(f"{optimizer}-{seed}")
    )


def board(runs, **chosen):
    return leaderboard(runs, {}, **{"recipe": None, "size": None, "by": None, **chosen})


GOOD, BAD, WORST = (97.0, 97.5, 98.0, 98.5, 96.5), (90.0, 90.5, 91.0, 91.5, 92.0), (80.0, 81.0, 82.0, 83.0, 84.0)


def entries(**values):
    return [ran(name, seed, value) for name, own in values.items() for seed, value in enumerate(own)]


def test_ranks_count_who_is_shown_to_be_better():
    like_good = [value + 0.1 for value in GOOD]
    found = board(entries(bad=BAD, good=GOOD, like=like_good, worst=WORST))
    assert (found.metric, found.direction) == ("test_accuracy", "higher")  # the first one with a goal
    # 5 against 5: 2 of 252 divisions are as extreme, and six pairs hold together at 5 %.
    assert mannwhitneyu(GOOD, BAD, method="exact").pvalue == pytest.approx(2 / 252)
    assert [(own.name, own.rank) for own in found.entries] == [
        ("reference, optimizer like", 1),
        ("reference, optimizer good", 1),
        ("reference, optimizer bad", 3),
        ("reference, optimizer worst", 4),
    ]
    assert [row[0] for row in found.rows("closed")] == ["1=", "1=", "3", "4"]
    assert found.remarks() == ["=: no difference shown between entries of equal rank"]


def test_three_seeds_show_nothing_and_one_seed_is_listed():
    found = board(entries(good=GOOD[:3], worst=WORST[:3], one=(50.0,)))
    assert [own.rank for own in found.entries] == [1, 1, 1]
    assert [own.median for own in found.entries] == [97.5, 81.0, 50.0]
    assert found.entries[-1].interval is None


def test_divisions_are_apart_and_what_does_not_count_is_named():
    runs = [*entries(good=GOOD), *(ran("own", seed, 99.0 + seed / 10, "open") for seed in range(5))]
    runs += [ran("good", 0, 12.0), ran("lost", 0, 1.0, status="failed"), ran("nan", 0, float("nan"))]
    runs += [ran("held", 0, 99.0, validation=0.1)]
    found = board(runs)
    assert [(own.division, own.rank) for own in found.entries] == [("closed", 1), ("open", 1)]
    assert len(found.entries[0].values) == 5
    why = " ".join(found.left_out.values())
    for told in ("the seed 0 of its entry is there already", "status is failed", "no finite value", "held out"):
        assert told in why


def test_times_are_ranked_on_one_machine_only():
    runs = [ran("a", 0, 1.0), ran("b", 0, 2.0, machine="other")]
    assert [own.median for own in board(runs).entries] == [2.0, 1.0]
    with pytest.raises(UsageError, match="throughput is a time, and the runs are of 2 machines"):
        board(runs, by="throughput")
    assert [own.median for own in board(runs[:1], by="throughput").entries] == [1.0]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"by": "test_acuracy"}, "'test_acuracy' is not a metric of r; allowed: .*did you mean 'test_accuracy'"),
        ({"recipe": "s"}, "runs of none; allowed: one recipe"),
        ({"size": "smoke"}, "runs of none; allowed: one recipe"),
    ],
)
def test_what_is_refused(chosen, told):
    with pytest.raises(UsageError, match=told):
        board(entries(good=GOOD), **chosen)


def test_the_command_ranks_a_study_and_leaves_out_what_was_changed(tmp_path, deep5):
    recipe = tmp_path / "small.py"
    recipe.write_text(RECIPE)
    words = ["study", str(recipe), "--vary", "optimizer=adam,momentum", "--seeds", "2", "--quiet"]
    for _ in range(2):
        assert deep5(*words, "--out", str(tmp_path / "out")).status == 0
    answer = deep5("leaderboard", str(tmp_path / "out"), "--json")
    assert answer.status == 0, answer.err
    document = json.loads(answer.out)
    names = [own["name"] for own in document["entries"]]
    assert names == ["reference, optimizer momentum", "reference, optimizer adam"]
    assert [own["rank"] for own in document["entries"]] == [1, 1]
    assert len(document["left_out"]) == 4  # the other study repeats the seeds
    first = next(Path(path) for own in document["entries"] for path in own["runs"].values())
    result = json.loads((first / "result.json").read_text())
    result["metrics"][1]["value"] = 100.0
    (first / "result.json").write_text(json.dumps(result))
    page = tmp_path / "board.html"
    answer = deep5("leaderboard", str(tmp_path / "out"), "-o", str(page))
    assert answer.status == 0, answer.err
    assert "of the audit; the first: " in " ".join(answer.out.split())
    text = page.read_text()
    assert "Closed division" in text
    assert "optimizer momentum" in text
    assert "http" not in text.replace("http-equiv", "")
    for more, told in ((["-o", "board.txt"], "whose name ends in .html"), (["--by", "none"], "is not a metric")):
        answer = deep5("leaderboard", str(tmp_path / "out"), *more)
        assert (answer.status, told in answer.err) == (2, True)
    answer = deep5("leaderboard", str(tmp_path / "nowhere"))
    assert (answer.status, "no run counts: " in answer.err, "is not a folder" in answer.err) == (2, True, True)
