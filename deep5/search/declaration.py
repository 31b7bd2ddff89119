"""The declaration of a sweep: what can be checked before a process is started."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from typing import Any

from deep5.compare.candidate import check_plain, content_hash
from deep5.compare.processes import check_limits
from deep5.core.canonical import canonical, canonical_hash
from deep5.core.errors import Deep5Error, UsageError, brief, suggestion
from deep5.core.metric import Metric
from deep5.measuring.environment import describe_software, environment_hash
from deep5.recipe.experiment import Experiment, recipe_parts
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.recipe.register import check_reachable
from deep5.results.schema import metric_labels, metric_row
from deep5.results.study.record import TIME
from deep5.results.sweep.record import SWEEP_VERSION
from deep5.run.choice import workload_of
from deep5.run.load import timed_metrics
from deep5.search.pruners import check_pruner
from deep5.search.sampler import Sampler
from deep5.search.samplers import make_sampler
from deep5.search.space import Space

__all__ = ["UNFINISHED", "Declaration", "declare"]

UNFINISHED = "the sweep is not finished"
"""The note of a sweep until all its trials have ended."""

# Fraction of the training samples that a sweep holds out, unless the recipe or the caller states another.
_VALIDATION = 0.1
# Combinations of choices whose components are checked before the first trial.
_MOST_CHECKED = 64


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A sweep as declared.

    Attributes:
        recipe: At its size, with the common settings.
        name_or_path: How `deep5 run` finds it.
        document: sweep.json at the beginning.
        space: The space.
        sampler: The sampler.
        content: Hash of the recipe's content; trials of another one do not belong to the sweep.
        epochs: Most epochs of a trial.
        threads: Threads within an operator.
        processors: Processors of each run, for all its ranks.
        timed: Whether the goal is a time.
    """

    recipe: Recipe
    name_or_path: str
    document: dict[str, Any]
    space: Space
    sampler: Sampler
    content: str
    epochs: int
    threads: int
    processors: int
    timed: bool


def declare(
    name_or_path: str | Path,
    texts: Mapping[str, str],
    goal: str,
    trials: int | None,
    sampler: str,
    pruner: str,
    size: str,
    seed: int,
    common: Mapping[str, Any],
    validation: float | None,
    workers: int,
    parallel: int | None,
    time_limit_s: float,
    memory_limit_bytes: int | None,
) -> Declaration:
    """Check everything that can be checked before a process is started; arguments and errors as of `run_sweep`."""
    base = load_recipe(name_or_path).at_size(size)
    if not workload_of(Experiment.of(base)).studied:
        raise UsageError(f"{base.name} trains nothing; allowed: a recipe that trains a network")
    for name, count in (("workers", workers), ("parallel", parallel), ("trials", trials)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise UsageError(f"{name} is {count!r:.40}; allowed: an integer of at least 1")
    space = Space.of(texts)
    if both := sorted(set(space.parameters) & set(common)):
        raise UsageError(f"{both[0]!r} is set for all trials and in the space; allowed: one of them")
    for key in ("seed", "validation"):
        if key in space.parameters:
            raise UsageError(f"{key!r} in the space; allowed: parts that do not change what trials are compared by")
    settings, samples = _held_out(base, dict(common), validation)
    if "threads" not in {*settings, *space.parameters} and base.value("threads") is None:
        settings["threads"] = 1
    check_plain([settings], "the settings")
    settings = canonical(settings, strict=False)
    recipe = base.with_settings(settings)
    combinations = _combinations(recipe, space)
    metric, label = _goal(recipe, goal)
    threads = max(int(own.value("threads") or 1) for own in combinations)
    processors = max((own.ranks or 1) * int(own.value("threads") or 1) for own in combinations)
    timed = bool(timed_metrics([(metric, None)]))
    if timed and workers > 1:
        raise UsageError(
            f"{label} is a time, and {workers} workers run at the same time; allowed: 1, so that no run slows another "
            "down; remedy: --workers 1"
        )
    epochs = _most_epochs(recipe, space)
    check_pruner(pruner, epochs, timed, label)
    chosen = make_sampler(sampler, space, metric.direction, seed=seed, parallel=parallel or workers)
    if trials is None and chosen.limit is None:
        raise UsageError(f"the sampler {sampler} without a number of trials; allowed: --trials N")
    notes = chosen.notes()
    count = trials or chosen.limit or 0
    if chosen.limit is not None and count > chosen.limit:
        notes.append(f"the grid has {chosen.limit} combinations, fewer than {count} trials")
        count = chosen.limit
    if all(own.steps for own in space.parameters.values()) and chosen.limit is None:
        combinations_all = math.prod(own.steps for own in space.parameters.values())
        if combinations_all < count:
            notes.append(f"the space has at most {combinations_all} combinations, some of which are tried again")
    if samples == "test":
        notes.append(
            "test samples choose the settings, so the best value is no estimate for other samples; remedy: "
            f"--validation {_VALIDATION:g}"
        )
    check_limits(time_limit_s, memory_limit_bytes)
    software = describe_software()
    content = content_hash(recipe)
    document = {
        "schema_version": SWEEP_VERSION,
        "recipe": recipe.name if name_or_path == recipe.name else str(Path(name_or_path).absolute()),
        "hash": recipe.fixed_hash(),
        "size": size,
        "space": space.texts(),
        "settings": settings,
        "goal": {"metric": label, "unit": metric.unit, "direction": metric.direction, "samples": samples},
        "sampler": sampler,
        "pruner": pruner,
        "trials": count,
        "seed": seed,
        "parallel": parallel or workers,
        "time_limit_s": time_limit_s,
        "memory_limit_bytes": memory_limit_bytes,
        "provenance": {
            "contents": canonical_hash([content]),
            "environment": environment_hash(software=software),
            "commit": software["commit"],
        },
        "started": datetime.now(UTC).strftime(TIME),
        "resumed": [],
        "finished": False,
        "notes": [*notes, UNFINISHED],
    }
    return Declaration(
        recipe=recipe,
        name_or_path=str(document["recipe"]),
        document=document,
        space=space,
        sampler=chosen,
        content=content,
        epochs=epochs,
        threads=threads,
        processors=processors,
        timed=timed,
    )


def _held_out(base: Recipe, settings: dict[str, Any], share: float | None) -> tuple[dict[str, Any], str]:
    """The common settings with the held-out share, and the samples that choose: "validation", "test" or "none"."""
    own = settings.get("validation", base.value("validation"))
    if share is not None and "validation" in settings:
        raise UsageError("--validation and --set validation; allowed: one of them")
    if base.value("validation_sampler") is None:
        if share:
            raise UsageError(f"--validation {share:g}, and {base.name} evaluates no samples; allowed: --validation 0")
        return settings, "none"
    if share is None:
        share = own if own is not None else _VALIDATION
        if "validation" in settings and own is None:
            share = 0.0
    if not share:
        if own is not None and "validation" not in settings:
            settings["validation"] = None
        return settings, "test"
    if share != base.value("validation"):
        settings["validation"] = share
    return settings, "validation"


def _goal(recipe: Recipe, name: str) -> tuple[Metric, str]:
    """The metric to search by, and its label."""
    rows = [metric_row(metric, goal, evaluated=False, scope="") for metric, goal in recipe.metrics]
    labels = metric_labels(rows)
    wanted = f"test_{name.removeprefix('validation_')}" if name.startswith("validation_") else name
    if wanted not in labels:
        names = [
            f"validation_{label.removeprefix('test_')}" if label.startswith("test_") else label for label in labels
        ]
        allowed = ", ".join(names) or "none"
        raise UsageError(
            f"the goal {name!r:.80} is not a metric of {recipe.name}; allowed: {allowed}{suggestion(name, names)}"
        )
    return recipe.metrics[labels.index(wanted)][0], wanted


def _combinations(recipe: Recipe, space: Space) -> list[Recipe]:
    """The recipe with each combination of choices, numbers in the middle of their ranges; its parts fit together.

    Raises:
        UsageError: A parameter of the space is not a mutable part, or a component does not take an argument.
    """
    chosen = [own for own in space.parameters.values() if own.kind == "choice"]
    found, seen = [], set[str]()
    positions = dict.fromkeys(space.parameters, 0.5)
    places = product(*([(place + 0.5) / len(own.values) for place in range(len(own.values))] for own in chosen))
    for combination in islice(places, _MOST_CHECKED):
        settings = space.chosen({**positions, **{own.key: at for own, at in zip(chosen, combination, strict=True)}})
        if (text := json.dumps(settings, sort_keys=True)) in seen:
            continue
        seen.add(text)
        try:
            made = recipe.with_settings(settings)
            check_reachable(made)
            workload_of(Experiment.of(made)).check_arguments(recipe_parts(made))
        except Deep5Error as error:
            shown = ", ".join(f"{key}={brief(value)}" for key, value in settings.items())
            raise UsageError(f"the space, at {shown}: {error}") from error
        found.append(made)
    for key in space.parameters:
        for end in (0.0, 1.0):
            settings = space.chosen({**positions, key: end})
            try:
                recipe.with_settings(settings)
            except Deep5Error as error:
                raise UsageError(f"the space, at {key}={brief(settings.get(key))}: {error}") from error
    workload_of(Experiment.of(found[0])).check()
    return found


def _most_epochs(recipe: Recipe, space: Space) -> int:
    own = space.parameters.get("epochs")
    if own is None:
        return int(recipe.value("epochs"))
    return int(max(own.values, default=own.high))
