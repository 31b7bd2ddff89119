"""A study: a recipe with each of several settings and seeds, its runs side by side in pictures and a table."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.canonical import canonical
from deep5.compare.plan import check_plain, content_hash
from deep5.compare.processes import check_limits, run_process
from deep5.environment import default_threads
from deep5.errors import Deep5Error, MissingDependency, OutputError, RunFailed, UsageError
from deep5.machine_load import CROWDED
from deep5.pinning import processors
from deep5.recipe import FULL, Recipe
from deep5.results.result import Result, load
from deep5.results.study_record import STUDY, Study
from deep5.results.time_to_target import Reached, Target, time_to_target
from deep5.seeds import generator
from deep5.study_candidates import chosen, load_study, target_of
from deep5.terminal import counted

__all__ = ["run_study"]

_RUNS = "runs"


def run_study(
    recipe: str | Path,
    varied: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    size: str = FULL,
    only: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    common: Mapping[str, Any] | None = None,
    target: Target | None = None,
    time_limit_s: float = 3600.0,
    memory_limit_bytes: int | None = None,
    out: str | Path = "results",
    tell: Callable[[str], object] | None = None,
) -> Study:
    """Run a recipe with each settings and each seed, and draw accuracy against epoch and loss against time.

    Each run has a fresh process of its own, one after the other, pinned to as many processors as the candidate of most
    threads has: with others, seconds would be those of another machine. Seed
    after seed all candidates run, in an order that the seed draws, so that what changes on the machine meanwhile falls
    on all of them. A run that fails, crashes or is ended at a limit is noted, counts as one that never reached the
    target, and the others go on.

    Args:
        recipe: A registered name, or the path of a Python file.
        varied: By candidate, settings in JSON's types, in place of the STUDY in the file.
        size: One of the recipe's sizes.
        only: These candidates, with commas between; None: all.
        seeds: Of weights, order and noise; each candidate has the same ones.
        common: Settings of all candidates, such as the framework.
        target: What the runs have to reach; None: what the recipe's metrics state, if they do.
        time_limit_s: Of one run.
        memory_limit_bytes: Of one run; None: nine tenths of what is free now.
        out: Where the study's folder goes.
        tell: Takes a line before each run.

    Raises:
        RecipeError: No such recipe, no candidates, or settings that another process could not be given.
        UsageError: No candidate, no seed, settings that do not fit, a target that no metric judges, a limit that is
            none, or a folder that cannot be written.
    """
    found, candidates = load_study(recipe, size, varied)
    settings, common = chosen(candidates, only), common or {}
    if not settings or not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"a study of {list(settings)} with the seeds {list(seeds)}; allowed: at least one each, once")
    for name, own in settings.items():
        if both := sorted(set(own) & set(common)):
            raise UsageError(f"{both[0]!r} is set for all and by the candidate {name!r}; allowed: one of them")
    check_plain([varied or {}, common], "the settings")
    memory_limit_bytes = check_limits(time_limit_s, memory_limit_bytes)
    made = {
        (name, seed): found.with_settings({**common, **own, "seed": seed})
        for name, own in settings.items()
        for seed in seeds
    }
    contents = {key: content_hash(own) for key, own in made.items()}  # what cannot be hashed is refused
    # Of all runs alike: with other processors, seconds would be those of another machine.
    threads = max(own.value("threads") or default_threads("") or 1 for own in made.values())
    if threads > len(processors(threads)):
        raise UsageError(
            f"{threads} threads; allowed: at most {len(processors(threads))}, the processors of this process"
        )
    target, told = target_of(found, target)
    fixed = found.fixed_hash()
    folder = _folder(Path(out), found.name)
    runs: dict[str, list[Result]] = {name: [] for name in settings}
    failures: dict[str, list[str]] = {name: [] for name in settings}
    reached: dict[str, dict[int, Reached]] = {name: {} for name in settings}
    crowded: list[float] = []

    def study(*notes: str, finished: bool = False) -> Study:
        return Study(
            folder=folder,
            recipe=found.name,
            hash=fixed,
            size=found.size,
            seeds=seeds,
            settings={name: canonical({**common, **own}, strict=False) for name, own in settings.items()},
            runs=runs,
            failures=failures,
            target=target,
            reached=reached if target is not None else {},
            finished=finished,
            notes=(*told, *_crowded(crowded), *notes),
        )

    def run(name: str, seed: int, scratch: str) -> Result:
        request = {
            "kind": "study",
            "job": "run",
            "recipe": found.name if recipe == found.name else str(Path(recipe).resolve()),
            "size": size,
            "varied": varied,
            "candidate": name,
            "settings": {**common, "seed": seed},
            "content": contents[name, seed],
            "out": str(folder / _RUNS),
        }
        outcome = run_process(
            request,
            Path(scratch),
            threads=threads,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
        )
        if outcome.answer is None or outcome.reason is not None:
            raise RunFailed(str(outcome.reason))
        if (outcome.answer["others_share"] or 0.0) >= CROWDED:
            crowded.append(outcome.answer["others_share"])
        return load(folder / _RUNS / Path(outcome.answer["run"]).name, root=folder)

    try:
        for seed in seeds:
            order = generator(seed, "study").permutation(len(settings))
            for name in (list(settings)[place] for place in order):
                if tell is not None:
                    tell(f"{name}, seed {seed}")
                try:
                    with tempfile.TemporaryDirectory(prefix="deep5-study-") as scratch:
                        result = run(name, seed, scratch)
                    if target is not None:
                        reached[name][seed] = time_to_target(result, target)
                    runs[name].append(result)
                except Deep5Error as error:
                    failures[name].append(f"seed {seed}: {error}")
                    reached[name][seed] = Reached.never(f"failed: {error}")
                # Whatever ends the study, it holds what was done.
                _written(folder, study("the study is not finished"), {})
        drawn, missing = _drawn(found, runs, len(seeds), target)
        finished = study(*missing, finished=True)
        _written(folder, finished, drawn)
    except KeyboardInterrupt:
        _written(folder, study("the study was interrupted"), {})
        raise KeyboardInterrupt(
            f"interrupted; what the study left is in {folder}: its finished runs are results like any other ('deep5 "
            "report' shows them), but a study does not go on; remedy: the command again, for a new one"
        ) from None
    except OSError as error:
        raise OutputError(f"the study cannot go on: {error}; what it left is in {folder}") from error
    return finished


def _crowded(shares: Sequence[float]) -> list[str]:
    if not shares:
        return []
    runs = counted(len(shares), "run")
    return [f"other programs took up to {max(shares):.0%} of the processors in {runs}; remedy: a quiet machine"]


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
    if not there:
        return {}, ["nothing was drawn: no run came to its end"]
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
