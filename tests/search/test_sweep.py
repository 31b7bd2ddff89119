"""Sweeps: real runs, whose folder determines what comes next, however they are interrupted."""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command import Command
from deep5.audit.folders import audit
from deep5.core.errors import Deep5Error, OutputError, RecipeError, RunFailed, UsageError
from deep5.measuring.pinning import processors
from deep5.recipe.settings import parse_setting
from deep5.results.folder import locked
from deep5.results.index import list_results
from deep5.results.result import load
from deep5.results.sweep.log import TRIALS, TrialLog, read_trials
from deep5.results.sweep.record import load_sweep, settings_words
from deep5.results.sweep.trial import FAILED, FINISHED, PRUNED, Trial
from deep5.search.sweep import run_sweep

RECIPE = '''
"""A small network on synthetic data."""

import deep5 as d5

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 16, "hidden": 16, "classes": 4},
    "dataset": "synthetic", "dataset_kwargs": {"shape": (16,), "classes": 4, "train": 400, "test": 100},
}
MUTABLE = {"framework": "reference", "batch_size": 50, "optimizer": "adam", "epochs": 4}
METRICS = [(d5.TestLoss(), None), (d5.TestAccuracy(), None), (d5.WallClockTime(), None)]
SIZES = {"smoke": {"epochs": 1}}
'''
SPACE = {
    "optimizer": "choice(adam, momentum)",
    "optimizer_kwargs.lr": "log(1e-4, 1)",
    "optimizer_kwargs.momentum": "uniform(0.5, 0.99) if optimizer=momentum",
    "batch_size": "choice(25, 50)",
}
needs_two = pytest.mark.skipif(len(processors(2)) < 2, reason="two workers need two processors")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.py"
    path.write_text(RECIPE)
    return path


def search(recipe, out, **more):
    return run_sweep(recipe, **{"space": SPACE, "goal": "test_loss", "trials": 4, "out": out, **more})


def told(sweep):
    """What must not depend on when and by whom a sweep was run."""
    return [(t.number, t.settings, t.state, t.value, t.curve, t.rungs, t.epochs, t.steps) for t in sweep.trials]


@pytest.fixture(scope="module")
def pruned(recipe, tmp_path_factory):
    """A sweep that was never interrupted."""
    return search(recipe, tmp_path_factory.mktemp("whole"), trials=10, pruner="asha", parallel=2)


@pytest.mark.daily
def test_each_trial_is_a_run_of_its_settings_on_held_out_samples(pruned):
    assert [trial.number for trial in pruned.trials] == list(range(10))
    assert {trial.state for trial in pruned.trials} == {FINISHED, PRUNED}
    for trial in pruned.trials:
        result = load(pruned.folder / trial.run)
        mutable = result.document["recipe"]["mutable"]
        assert (mutable["optimizer"], mutable["batch_size"]) == (
            trial.settings["optimizer"],
            trial.settings["batch_size"],
        )
        assert mutable["validation"] == 0.1
        assert mutable["optimizer_kwargs"]["lr"] == trial.settings["optimizer_kwargs.lr"]
        if trial.state == FINISHED:
            assert trial.value == result.metric("test_loss") == trial.curve[-1][1]
            assert (trial.epochs, trial.steps) == (4, 4 * -(-360 // trial.settings["batch_size"]))
        else:
            assert result.status in ("aborted", "success")  # where it was done before the pruner looked
            assert trial.value == trial.curve[-1][1]
    assert pruned.best.value == min(own.value for own in pruned.trials if own.state == FINISHED)
    assert load_sweep(pruned.folder) == pruned


def test_the_budget_is_in_the_document(pruned):
    document = json.loads((pruned.folder / "sweep.json").read_text())
    budget, trials = document["budget"], pruned.trials
    assert document["finished"]
    assert budget["trials"] == budget["finished"] + budget["pruned"] + budget["failed"] == 10
    assert budget["epochs"] == sum(own.epochs for own in trials) <= 40
    assert budget["steps"] == sum(own.steps for own in trials)
    assert budget["runs_s"] == pytest.approx(sum(own.wall_s for own in trials))
    assert document["best"]["number"] == pruned.best.number
    assert budget["hosts"] == [os.uname().nodename]
    assert not [note for note in document["notes"] if "not finished" in note]


@needs_two
def test_two_workers_run_the_same_trials(recipe, pruned, tmp_path):
    again = search(recipe, tmp_path, trials=10, pruner="asha", parallel=2, workers=2)
    values = [own[:4] + own[4:6] for own in told(again)]
    assert values == [own[:4] + own[4:6] for own in told(pruned)]


def started(recipe, out, *more):
    program = (
        "import json, sys; from deep5.search.sweep import run_sweep; "
        "recipe, out, space, more = json.loads(sys.argv[1]); "
        "run_sweep(recipe, space, goal='test_loss', out=out, **more)"
    )
    given = json.dumps([str(recipe), str(out), SPACE, dict(more)])
    return subprocess.Popen([sys.executable, "-c", program, given], start_new_session=True)


def deadline_s(process, seconds):
    try:
        return process.wait(seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("seed", range(4))
def test_killed_anywhere_it_ends_with_the_same_trials_each_run_once(recipe, pruned, tmp_path, seed):
    draws = np.random.default_rng(seed)
    about = {"trials": 10, "pruner": "asha", "parallel": 2, "workers": min(2, len(processors(2)))}
    process = started(recipe, tmp_path, *about.items())
    for _ in range(4):
        time.sleep(draws.uniform(0.3, 3.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        folders = [*tmp_path.iterdir()]
        if not folders:  # before the folder was there
            process = started(recipe, tmp_path, *about.items())
            continue
        load_sweep(folders[0])  # it can be read at every moment
        process = started(recipe, tmp_path, *about.items(), ("resume", str(folders[0])))
    assert deadline_s(process, 120) == 0
    [folder] = tmp_path.iterdir()
    done = load_sweep(folder)
    # Epochs and steps of a pruned run are counted up to its end, which comes within a look of the pruner.
    assert [own[:6] for own in told(done)] == [own[:6] for own in told(pruned)]
    assert done.document["finished"]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [f"{number:05d}" for number in range(10)]
    lines = [json.loads(line) for line in (folder / TRIALS).read_text().splitlines()]
    assert sorted(line["number"] for line in lines if "ended" in line) == list(range(10))
    assert not left_processes(folder)


def left_processes(folder):
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


def test_an_interrupted_run_resumes_at_its_checkpoint(recipe, tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text(
        RECIPE.replace('"epochs": 4', '"epochs": 600, "events": [d5.Checkpointer(every_steps=16)]').replace(
            "import deep5 as d5", "import deep5 as d5\n"
        )
    )
    about = {"trials": 1, "space": {"optimizer_kwargs.lr": "log(1e-4, 1)"}}
    whole = search(slow, tmp_path / "whole", **about)
    process = subprocess.Popen(
        [sys.executable, "-m", "deep5", "sweep", str(slow), "--goal", "test_loss", "--trials", "1", "--quiet",
         "--param", "optimizer_kwargs.lr=log(1e-4, 1)", "--out", str(tmp_path / "left")],
        start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not [*tmp_path.glob("left/*/runs/00000/1/*/checkpoints/step-*")] and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    [folder] = (tmp_path / "left").iterdir()
    assert load_sweep(folder).trials[0].state is None
    done = search(slow, tmp_path, resume=folder, **about)
    assert told(done) == told(whole)
    result = load(done.folder / done.trials[0].run)
    assert len(result.document["resumed"]) == 1
    assert result.document["resumed"][0]["step"] > 0


def test_more_trials_continue_a_finished_sweep(recipe, tmp_path):
    whole = search(recipe, tmp_path / "whole", trials=5, size="smoke", sampler="qmc")
    part = search(recipe, tmp_path / "part", trials=2, size="smoke", sampler="qmc")
    more = search(recipe, tmp_path, trials=5, size="smoke", sampler="qmc", resume=part.folder)
    assert told(more) == told(whole)
    with pytest.raises(UsageError, match="has 5 trials; got 2; allowed: as many or more"):
        search(recipe, tmp_path, trials=2, size="smoke", sampler="qmc", resume=part.folder)


def test_trials_that_fail_count_as_worse_and_the_others_continue(recipe, tmp_path):
    space = {"batch_size": "choice(50, 5000)", "optimizer_kwargs.lr": "choice(0.01, 0.1)"}
    done = search(recipe, tmp_path, space=space, sampler="grid", trials=None, size="smoke")
    assert [own.state for own in done.trials] == [FINISHED, FINISHED, FAILED, FAILED]
    assert "'batch_size' is 5000; allowed: at most 360" in done.trials[2].reason
    assert done.best.number in (0, 1)


def test_time_and_memory_limits_end_a_trial(recipe, tmp_path):
    space = {"epochs": "choice(2, 1000000)"}
    done = search(recipe, tmp_path, space=space, sampler="grid", trials=None, time_limit_s=5.0)
    assert [own.state for own in done.trials] == [FINISHED, FAILED]
    assert "did not finish within 5 s; remedy: --time-limit" in done.trials[1].reason


def test_a_sweep_without_hope_ends_early(recipe, tmp_path):
    with pytest.raises(RunFailed, match=r"the first 5 trials of .* failed; the first because it did not finish within"):
        search(recipe, tmp_path, trials=50, sampler="random", time_limit_s=0.05)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"space": {"model_kwargs.hidden": "int(4, 8)"}}, "'model_kwargs' is fixed by the recipe"),
        ({"space": {"optimizer_kwargs.rate": "log(1e-4, 1)"}}, "the space, at .*rate"),
        ({"space": {"optimizer": "choice(adam, adaam)"}}, "the space, at optimizer='adaam'.*did you mean"),
        ({"space": {"btch_size": "int(4, 8)"}}, "unknown key 'btch_size'"),
        ({"space": {"seed": "int(0, 8)"}}, "'seed' in the space"),
        ({"space": {"validation": "uniform(0.1, 0.3)"}}, "'validation' in the space"),
        ({"space": {"batch_size": "int(0, 40)"}}, "the space, at batch_size=0: .*at least 1"),
        ({"space": {"optimizer_kwargs.lr": "choice(nan, 0.1)"}}, "allowed: finite numbers"),
        ({"engine": "dusk"}, "did you mean 'dask'"),
        ({"engine": "dask:nowhere"}, "not the address of a scheduler"),
        ({"space": {"optimizer_kwargs.lr": "uniform(1, 1)"}}, "empty range"),
        ({"space": {"optimizer_kwargs.lr": "uniform(0, inf)"}}, "infinite range"),
        (
            {"goal": "validation_los"},
            "'validation_los' is not a metric of small; allowed: validation_loss, .*did you mean 'validation_loss'",
        ),
        ({"goal": "wall_clock_time", "pruner": "median"}, "no value after each epoch"),
        ({"size": "smoke", "pruner": "asha"}, "trials of 1 epoch"),
        ({"sampler": "tpee"}, "did you mean 'tpe'"),
        ({"pruner": "medain"}, "did you mean 'median'"),
        ({"sampler": "cmaes", "space": {"batch_size": "choice(25, 50)"}}, "at least 2"),
        ({"sampler": "grid"}, "whose values cannot be counted"),
        ({"trials": None}, "allowed: --trials N"),
        ({"trials": 0}, "trials is 0; allowed: an integer of at least 1"),
        ({"workers": 4096}, r"4096 workers .*remedy: --workers"),
        ({"validation": 1.5}, "a fraction above 0 and below 1"),
        ({"common": {"batch_size": 25}}, "'batch_size' is set for all trials and in the space"),
        ({"common": {"epochs": {1}}}, "."),
        ({"time_limit_s": 0.0}, "above 0 s"),
        ({"memory_limit_bytes": 5}, "at least 256 MiB"),
        ({"size": "huge"}, "no size 'huge'"),
        ({"resume": "."}, "holds no sweep.json"),
    ],
)
def test_what_is_refused_before_a_process_starts(recipe, tmp_path, more, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Deep5Error, match=message):
        search(recipe, tmp_path / "out", **more)
    assert not [*tmp_path.glob("out/*")]


@needs_two
def test_times_are_not_measured_side_by_side(recipe, tmp_path):
    with pytest.raises(UsageError, match="wall_clock_time is a time, and 2 workers"):
        search(recipe, tmp_path, goal="wall_clock_time", workers=2)


def test_a_recipe_that_trains_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="trains nothing"):
        search("overhead_adam_large", tmp_path)


def test_test_samples_choose_only_by_request_and_the_result_says_so(recipe, tmp_path):
    done = search(recipe, tmp_path, trials=1, size="smoke", sampler="random", validation=0)
    assert done.document["goal"]["samples"] == "test"
    assert any(note.startswith("test samples choose the settings") for note in done.document["notes"])
    assert "validation" not in load(done.folder / done.trials[0].run).document["recipe"]["mutable"]


def test_a_fixed_validation_part_cannot_be_left_out(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(RECIPE.replace('"train": 400, "test": 100},', '"train": 400, "test": 100}, "validation": 0.25,'))
    with pytest.raises(UsageError, match="'validation' is fixed"):
        search(path, tmp_path, trials=1, validation=0)


def test_the_recipes_own_validation_part_is_kept(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(RECIPE.replace('"epochs": 4', '"epochs": 1, "validation": 0.25'))
    done = search(path, tmp_path, trials=1, sampler="random")
    assert done.document["goal"]["samples"] == "validation"
    assert load(done.folder / done.trials[0].run).document["recipe"]["mutable"]["validation"] == 0.25


@pytest.fixture
def left(recipe, tmp_path):
    return search(recipe, tmp_path, trials=2, size="smoke", sampler="random").folder


def resumed(recipe, left, **more):
    return search(recipe, left.parent, **{"trials": 3, "size": "smoke", "sampler": "random", "resume": left, **more})


def test_another_declaration_is_not_resumed(recipe, left):
    for more, message in (
        ({"seed": 1}, "has seed: 0; got 1"),
        ({"sampler": "qmc"}, "has sampler: 'random'; got 'qmc'"),
        ({"goal": "test_accuracy"}, "has goal"),
        ({"space": {**SPACE, "batch_size": "choice(25, 100)"}}, "has batch_size in its space: 'choice"),
        ({"parallel": 2}, "has parallel: 1; got 2; .*remedy: --parallel 1"),
    ):
        with pytest.raises(UsageError, match=message):
            resumed(recipe, left, **more)


def test_a_changed_recipe_is_not_resumed(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(RECIPE)
    folder = search(path, tmp_path, trials=1, size="smoke", sampler="random").folder
    path.write_text(RECIPE.replace('"hidden": 16', '"hidden": 8'))
    with pytest.raises(UsageError, match="started with other recipe files"):
        resumed(path, folder)


def test_a_recipe_that_changes_during_the_sweep_ends_it(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(RECIPE)

    def change(line):
        if "trial 1" in line:
            path.write_text(RECIPE.replace('"hidden": 16', '"hidden": 8'))

    with pytest.raises(RecipeError, match="has changed since the start of the sweep"):
        search(path, tmp_path, trials=4, size="smoke", sampler="random", tell=change)
    assert len([own for own in load_sweep(next(tmp_path.glob("*-sweep-*"))).trials if own.state]) == 1


def test_two_drivers_on_one_folder(recipe, left):
    lock = locked(left)
    try:
        with pytest.raises(UsageError, match="a run still writes to"):
            resumed(recipe, left)
    finally:
        os.close(lock)
    assert len(resumed(recipe, left).trials) == 3


@pytest.mark.parametrize("tail", [b"", b'{"numb', b'{"number": 2, "settings": {"optimizer": "adam"'])
def test_a_torn_last_line_is_left_out(recipe, left, tail):
    before = read_trials(left)
    with (left / TRIALS).open("ab") as file:
        file.write(tail)
    assert read_trials(left) == before
    assert [own.number for own in resumed(recipe, left).trials] == [0, 1, 2]
    assert len(read_trials(left)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "[]", "{}", '{"number": 7, "settings": {}}', '{"number": true, "settings": {}}', '{"number": 2}',
        '{"number": 0, "ended": {}}', '{"number": 2, "settings": []}', '{"number": 2, "settings": {"a": NaN}}',
        '{"number": -1, "ended": {}}', '{"number": 1e999, "settings": {}}', "[" * 4000,
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(recipe, left, line):
    with (left / TRIALS).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UsageError, match="line 5 is damaged"):
        resumed(recipe, left)


@pytest.mark.parametrize(("key", "value"), [("trials", "2"), ("space", []), ("goal", {}), ("schema_version", "9")])
def test_a_damaged_declaration_is_named(recipe, left, key, value):
    document = json.loads((left / "sweep.json").read_text())
    (left / "sweep.json").write_text(json.dumps({**document, key: value}))
    with pytest.raises(UsageError, match="allowed: what"):
        resumed(recipe, left)


def test_settings_outside_the_space_are_damage(recipe, left):
    text = (left / TRIALS).read_text()
    (left / TRIALS).write_text(text.replace('"batch_size": 50', '"batch_size": 51').replace(": 25}", ": 26}"))
    with pytest.raises(UsageError, match=r"the trial .* it is damaged"):
        resumed(recipe, left)


def test_a_full_disk_loses_no_line(tmp_path):
    log = TrialLog(tmp_path)
    log.propose(Trial(number=0, settings={"a": 1}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / TRIALS).stat().st_size + 10, before[1]))
        with pytest.raises(OutputError, match=r"cannot write .*trials.jsonl"):
            log.propose(Trial(number=1, settings={"a": 2}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [own.settings for own in read_trials(tmp_path)] == [{"a": 1}]
    TrialLog(tmp_path).propose(Trial(number=1, settings={"a": 2}))
    assert [own.settings for own in read_trials(tmp_path)] == [{"a": 1}, {"a": 2}]


def test_links_are_not_followed(recipe, left, tmp_path):
    target = tmp_path / "elsewhere"
    shutil.copy(left / TRIALS, target)
    (left / TRIALS).unlink()
    (left / TRIALS).symlink_to(target)
    with pytest.raises(UsageError, match="is a link"):
        load_sweep(left)


def test_the_command(deep5: Command, recipe: Path, tmp_path: Path):
    space = tmp_path / "space.toml"
    space.write_text('[parameters]\n"optimizer_kwargs.lr" = "log(1e-4, 1)"\n')
    command = ["sweep", str(recipe), "--size", "smoke", "--goal", "validation_accuracy", "--space", str(space)]
    command += ["--param", "batch_size=choice(25, 50)", "--sampler", "random", "--out", str(tmp_path / "out")]
    status, out, _ = deep5(*command, "--trials", "2")
    assert status == 0
    for text in ("validation_accuracy [%]", "budget: 2 trials of 2 (2 finished)", "the best settings: deep5 run"):
        assert text in out
    [folder] = (tmp_path / "out").iterdir()
    status, out, _ = deep5(*command, "--trials", "3", "--resume", str(folder), "--json")
    document = json.loads(out)
    assert document["budget"]["trials"] == 3
    assert document["folder"] == str(folder)
    assert deep5(*command, "--trials", "1", "--param", "batch_size=int(1, 2)")[0] == 2
    status, _, err = deep5(*command, "--trials", "1", "--param", "clip_norm")
    assert (status, "KEY=RANGE" in err) == (2, True)
    status, _, err = deep5("sweep", str(recipe), "--goal", "test_loss", "--trials", "1")
    assert (status, "a space without parameters" in err) == (2, True)


def test_a_sweep_without_any_value_exits_with_3(deep5: Command, recipe: Path, tmp_path: Path):
    words = ["--goal", "test_loss", "--param", "batch_size=int(20, 50)", "--sampler", "random", "--trials", "2"]
    status, _, err = deep5("sweep", str(recipe), *words, "--time-limit", "0.05", "--out", str(tmp_path))
    assert status == 3
    assert "no trial of" in err
    assert "did not finish within 0.05 s" in err


def test_a_report_and_an_export_leave_a_sweep_out_and_say_how_to_see_it(pruned, deep5: Command):
    status, _, err = deep5("report", str(pruned.folder))
    assert (status, "remedy: deep5 show sweep" in err) == (2, True)
    status, _, err = deep5("export", str(pruned.folder), "-o", "out", "--format", "csv")
    assert (status, "is a sweep; remedy: deep5 export" in err) == (2, True)


def test_the_audit_finds_nothing_in_a_sweep_and_lists_it_as_one_result(pruned):
    report = audit([pruned.folder])
    assert not report.findings, report.findings
    assert report.folders == 11
    [row] = list_results(pruned.folder.parent).results
    assert (row.kind, row.status, row.recipe) == ("sweep", "success", "small")
    assert row.metrics == {"validation_loss": (pruned.best.value, "nat")}


def _edit_trial(folder, number, **changes):
    lines = [json.loads(line) for line in (folder / TRIALS).read_text().splitlines()]
    for line in lines:
        if line["number"] == number and "ended" in line:
            line["ended"] |= changes
    (folder / TRIALS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _edit(folder, **changes):
    document = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**document, **changes}))


def _finished(folder):
    return next(own.number for own in read_trials(folder) if own.state == FINISHED)


DAMAGES = {
    "a better value": (lambda folder: _edit_trial(folder, _finished(folder), value=0.001), "test_loss of the trial"),
    "a hidden trial": (lambda folder: _edit(folder, trials=11), "finished with 10 ended trials of 11"),
    "a smaller budget": (
        lambda folder: _edit(folder, budget={**json.loads((folder / "sweep.json").read_text())["budget"], "epochs": 3}),
        "the budget",
    ),
    "another best": (
        lambda folder: _edit(folder, best={**json.loads((folder / "sweep.json").read_text())["best"], "number": 9}),
        "the best trial",
    ),
    "a removed run": (lambda folder: shutil.rmtree(folder / "runs" / "00000"), "does not exist"),
    "a run of no trial": (lambda folder: shutil.copytree(folder / "runs/00000", folder / "runs/00042"), "to no trial"),
    "other settings": (
        lambda folder: (folder / TRIALS).write_text(
            (folder / TRIALS).read_text().replace('"optimizer": "adam"', '"optimizer": "momentum"')
        ),
        "optimizer of the trial",
    ),
    "a missing note": (
        lambda folder: _edit(
            folder, goal={**json.loads((folder / "sweep.json").read_text())["goal"], "samples": "test"}
        ),
        "the note that test samples choose",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_audit_finds_what_was_changed(pruned, tmp_path, damage):
    change, message = DAMAGES[damage]
    folder = tmp_path / pruned.folder.name
    shutil.copytree(pruned.folder, folder)
    change(folder)
    assert any(message in str(finding) for finding in audit([folder]).findings), audit([folder]).findings


def test_what_a_sweep_shows(pruned, deep5: Command):
    status, out, _ = deep5("show", "sweep", str(pruned.folder))
    assert (status, "validation_loss" in out, "pruned)" in out) == (0, True, True)
    status, out, _ = deep5("show", "sweep", str(pruned.folder), "--all")
    assert all(f" {state}" in out for state in ("finished", "pruned"))
    status, out, _ = deep5("show", "sweep", str(pruned.folder), "--json")
    assert [trial["number"] for trial in json.loads(out)["trials"]] == list(range(10))
    status, _, err = deep5("show", "sweep", str(pruned.folder.parent))
    assert (status, "holds no sweep.json" in err) == (2, True)


def test_the_command_of_the_best_settings_runs_them(pruned, tmp_path):
    words = [*shlex.split(pruned.command)[1:], "--quiet", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "deep5", *words], check=True)
    [folder] = tmp_path.iterdir()
    recipe = load(folder).document["recipe"]
    assert "validation" not in recipe["mutable"]
    assert recipe["mutable"]["optimizer_kwargs"]["lr"] == pruned.best.settings["optimizer_kwargs.lr"]


@pytest.mark.parametrize(
    "value",
    ["adam", "native:adam", "True", "None", "1", "it's", "a b", "own.py:Rule", 1, 0.1, True, None, [1, "x"], {}],
)
def test_settings_survive_the_command_line(value):
    option, text = settings_words({"key": value})
    assert option == "--set"
    assert parse_setting(text) == ("key", value)
