"""A study: a recipe with each of several settings and seeds, its runs side by side in pictures and a table."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.canonical import canonical
from deep5.errors import Deep5Error, MissingDependency, OutputError, RecipeError, UsageError
from deep5.recipe import FULL, Recipe, load_recipe
from deep5.recipe_file import read_recipe_file
from deep5.results.result import Result
from deep5.results.study_record import STUDY, Study
from deep5.results.time_to_target import Reached, Target, time_to_target
from deep5.seeds import generator

__all__ = ["load_study", "run_study", "target_of"]

_RUNS = "runs"


def load_study(
    name_or_path: str | Path, size: str = FULL, varied: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Recipe, dict[str, dict[str, Any]]]:
    """A recipe and the settings that are compared: a dict STUDY in its file, from a candidate's name to settings.

    Args:
        name_or_path: A registered name, or the path of a Python file.
        size: One of the recipe's sizes.
        varied: By candidate, settings in place of a STUDY.

    Raises:
        RecipeError: No such recipe, no STUDY in it, or one that is no dict of settings.
        UsageError: Settings that the recipe does not take; a STUDY and `varied`.
    """
    recipe = load_recipe(name_or_path)
    if recipe.path is None:
        raise RecipeError(f"the recipe {name_or_path} has no file; allowed: one that has")
    at_size = recipe.at_size(size)
    if at_size.operators or at_size.timing:
        raise UsageError(f"{recipe.name} trains nothing; allowed: a recipe that trains a network; remedy: deep5 run")
    scope, _ = read_recipe_file(recipe.path)
    study = scope.get("STUDY")
    if varied is not None:
        if study is not None:
            raise UsageError(
                f"--vary, and {recipe.path} has a STUDY; allowed: one of them; remedy: leave --vary out (--only NAMES "
                "takes some of the STUDY), or take the STUDY out of a copy of the recipe"
            )
        study = varied
    if study is None:
        raise RecipeError(
            f"{recipe.path}: STUDY is None; allowed: a dict such as {{'adam': {{'optimizer': 'adam'}}, …}}; remedy: "
            "one in the file, or --vary optimizer=adam,momentum"
        )
    if not isinstance(study, Mapping) or not study or not all(isinstance(own, Mapping) for own in study.values()):
        raise RecipeError(
            f"{recipe.path}: STUDY is {study!r:.60}; allowed: a dict such as {{'adam': {{'optimizer': 'adam'}}, …}}"
        )
    for name, own in study.items():
        if not isinstance(name, str) or not name:
            raise RecipeError(f"{recipe.path}: STUDY names the candidate {name!r}; allowed: a text")
        if "seed" in own:
            raise UsageError(f"the candidate {name!r} sets 'seed'; allowed: --seeds, which every candidate has")
        at_size.with_settings(own)  # refuses what is none of its mutable parts, before anything runs
    return at_size, {name: dict(own) for name, own in study.items()}


def target_of(recipe: Recipe, asked: Target | None = None) -> tuple[Target | None, list[str]]:
    """The target of a study, and what is to be said of it.

    Args:
        recipe: Its TimeToAccuracy or EpochsToAccuracy states the target.
        asked: In its place.

    Raises:
        UsageError: A target that no metric of the recipe could judge.
    """
    names = {metric.name for metric, _ in recipe.metrics}
    stated = [
        (metric.name, metric.target)  # type: ignore[attr-defined]
        for metric, _ in recipe.metrics
        if metric.name in ("time_to_accuracy", "epochs_to_accuracy")
    ]
    goals = {goal for _, goal in stated}
    if asked is None:
        if len(goals) > 1:
            told = ", ".join(f"{goal:g} %" for goal in sorted(goals))
            return None, [f"METRICS state several targets ({told}), so no time to target was judged: --target says one"]
        return (Target(metric="test_accuracy", goal=goals.pop()) if goals else None), []
    if asked.metric == "test_accuracy":
        judged = "test_accuracy" in names or "epochs_to_accuracy" in names
        judged = judged or ("time_to_accuracy", asked.goal) in stated
    else:
        judged = asked.metric in names
    if not judged:
        remedy = "d5.TestAccuracy()" if asked.metric == "test_accuracy" else "d5.TestLoss()"
        raise UsageError(
            f"the target is a {asked}, and {recipe.name} has the metrics {', '.join(sorted(names)) or 'none'}; "
            f"allowed: a metric that is measured; remedy: ({remedy}, None) in METRICS"
        )
    own = asked.metric == "test_accuracy" and goals == {asked.goal}
    return (Target(metric=asked.metric, goal=asked.goal) if own else asked), []


def run_study(
    recipe: Recipe,
    settings: Mapping[str, Mapping[str, Any]],
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    common: Mapping[str, Any] | None = None,
    target: Target | None = None,
    out: str | Path = "results",
    tell: Callable[[str], None] | None = None,
) -> Study:
    """Run a recipe with each settings and each seed, and draw accuracy against epoch and loss against time.

    Seed after seed all candidates run, in an order that the seed draws, so that what changes on the machine meanwhile
    falls on all of them. A run that fails is noted, counts as one that never reached the target, and the others go on.

    Args:
        recipe: A training recipe, at the size to run.
        settings: By candidate, mutable parts set anew.
        seeds: Of weights, order and noise; each candidate has the same ones.
        common: Settings of all candidates, such as the framework.
        target: What the runs have to reach; None: what the recipe's metrics state, if they do.
        out: Where the study's folder goes.
        tell: Takes a line before each run.

    Raises:
        UsageError: No candidate, no seed, settings that do not fit, a target that no metric judges, or a folder that
            cannot be written.
    """
    from deep5.run import execute

    if not settings or not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"a study of {list(settings)} with the seeds {list(seeds)}; allowed: at least one each, once")
    for name, own in settings.items():
        both = sorted(set(own) & set(common or {}))
        if both:
            raise UsageError(f"{both[0]!r} is set for all and by the candidate {name!r}; allowed: one of them")
    made = {
        (name, seed): recipe.with_settings({**(common or {}), **own, "seed": seed})
        for name, own in settings.items()
        for seed in seeds
    }
    target, told = target_of(recipe, target)
    fixed = recipe.fixed_hash()
    folder = _folder(Path(out), recipe.name)
    runs: dict[str, list[Result]] = {name: [] for name in settings}
    failures: dict[str, list[str]] = {name: [] for name in settings}
    reached: dict[str, dict[int, Reached]] = {name: {} for name in settings}

    def study(*notes: str, finished: bool = False) -> Study:
        return Study(
            folder=folder,
            recipe=recipe.name,
            hash=fixed,
            size=recipe.size,
            seeds=seeds,
            settings={name: canonical({**(common or {}), **own}, strict=False) for name, own in settings.items()},
            runs=runs,
            failures=failures,
            target=target,
            reached=reached if target is not None else {},
            finished=finished,
            notes=(*told, *notes),
        )

    try:
        for seed in seeds:
            order = generator(seed, "study").permutation(len(settings))
            for name in (list(settings)[place] for place in order):
                if tell is not None:
                    tell(f"{name}, seed {seed}")
                try:
                    result = execute(made[name, seed], out=folder / _RUNS, quiet=True)
                    if target is not None:
                        reached[name][seed] = time_to_target(result, target)
                    runs[name].append(result)
                except Deep5Error as error:
                    failures[name].append(f"seed {seed}: {error}")
                    reached[name][seed] = Reached.never(f"failed: {error}")
                # Whatever ends the study, it holds what was done.
                _written(folder, study("the study is not finished"), {})
    except KeyboardInterrupt:
        _written(folder, study("the study was interrupted"), {})
        raise KeyboardInterrupt(f"interrupted; what the study left is in {folder}") from None
    drawn, missing = _drawn(recipe, runs, len(seeds), target)
    finished = study(*missing, finished=True)
    _written(folder, finished, drawn)
    return finished


def _folder(out: Path, name: str) -> Path:
    """A new folder of a study."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = out.absolute() / f"{name}-study-{now}-{secrets.token_hex(3)}"
    try:
        (folder / _RUNS).mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"cannot make {folder}: {error.strerror or error}; allowed: a folder that can be written; remedy: --out"
        ) from error
    return folder


def _written(folder: Path, study: Study, drawn: Mapping[str, bytes]) -> None:
    from deep5.files import write_atomically

    try:
        for name, content in drawn.items():
            write_atomically(folder / name, content)
        write_atomically(folder / STUDY, json.dumps(study.document(), indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {error.strerror or error}; the runs are in it") from error


def _drawn(
    recipe: Recipe, runs: Mapping[str, Sequence[Result]], seeds: int, target: Target | None
) -> tuple[dict[str, bytes], list[str]]:
    """The pictures, and what is missing in them."""
    from deep5.results import training_charts as charts

    there = {name: own for name, own in runs.items() if own}
    goal = target.goal if target is not None and target.metric == "test_accuracy" else None
    made = dict.fromkeys(runs, seeds)
    drawn: dict[str, bytes] = {}
    missing = []
    title = f"{recipe.name}" + (f", {seeds} seeds: mean and extremes" if seeds > 1 else "")
    for name, read in (
        ("accuracy", charts.accuracy_points),
        *([("accuracy_time", charts.accuracy_points)] if goal is not None else []),
        ("loss", charts.loss_points),
    ):
        try:
            points = read(there)
            undrawn = charts.undrawn(points, made)
            if undrawn and name != "accuracy_time":
                missing.append(f"{name}.svg does not show all runs: {undrawn}")
            if name == "loss":
                chart = charts.loss_chart(points, title, seeds=made)
            else:
                by = "seconds" if name == "accuracy_time" else "epoch"
                chart = charts.accuracy_chart(points, title, goal=goal, by=by, seeds=made)
            drawn |= charts.pictures(name, chart)
        except (MissingDependency, UsageError) as error:
            missing.append(f"no {name}.svg was drawn: {error}")
    return drawn, missing
