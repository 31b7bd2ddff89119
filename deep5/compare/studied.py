"""The candidates of a study, from a recipe's STUDY or from variations, and the target they must reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deep5.core.errors import RecipeError, UnknownName, UsageError
from deep5.recipe.experiment import Experiment
from deep5.recipe.lines import RecipeLines
from deep5.recipe.of_model import ARGUMENTS
from deep5.recipe.recipe import FULL, Recipe, load_recipe
from deep5.recipe.variants import candidates_of
from deep5.results.time_to_target import Target
from deep5.run.choice import workload_of

__all__ = ["chosen", "load_study", "target_of"]

_EXAMPLE = "a dict such as {'adam': {'optimizer': 'adam'}, …}"


def load_study(
    name_or_path: str | Path, size: str = FULL, varied: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Recipe, dict[str, dict[str, Any]]]:
    """A recipe and the settings to compare: a dict STUDY in its file, from a candidate's name to settings.

    Args:
        name_or_path: A registered name, the path of a Python file, or a model in place of a recipe.
        size: One of the recipe's sizes.
        varied: By candidate, settings in place of a STUDY.

    Raises:
        RecipeError: No such recipe, no STUDY in it, or a STUDY that is not a dict of settings.
        UsageError: Settings that the recipe does not accept; both a STUDY and `varied`; or other arguments of a model
            in place of a recipe.
    """
    recipe = load_recipe(name_or_path)
    at_size = recipe.at_size(size)
    if not workload_of(Experiment.of(at_size)).studied:
        raise UsageError(f"{recipe.name} trains nothing; allowed: a recipe that trains a network; remedy: deep5 run")
    study, where = recipe.study, f"{recipe.path or name_or_path}"
    if varied is not None:
        if study is not None:
            raise UsageError(
                f"--vary, and {where} has a STUDY; allowed: one of them; remedy: omit --vary (--only NAMES "
                "selects candidates of the STUDY), or remove the STUDY from a copy of the recipe"
            )
        study = varied
    if study is None and recipe.path is None:
        raise UsageError(
            f"{where} is a model, which has no STUDY; allowed: --vary with a mutable part and its values; remedy: "
            "--vary optimizer=adam,momentum"
        )
    if study is None:
        raise RecipeError(
            f"{where}: STUDY is None; allowed: {_EXAMPLE}; remedy: add one to the file, or "
            "--vary optimizer=adam,momentum"
        )
    if not study:
        raise RecipeError(f"{where}: STUDY is {study!r:.60}; allowed: {_EXAMPLE}")
    for name, own in study.items():
        if recipe.in_place is not None and (other := [key for key in own if key.partition(".")[0] in ARGUMENTS]):
            raise UsageError(
                f"the candidate {name!r} sets {other[0]!r}, which makes another model; allowed: one model in a study; "
                f"remedy: --set {other[0]}=… for all candidates, and a study of each model"
            )
    lines = at_size.lines if varied is None else RecipeLines(None, None)
    return at_size, candidates_of(study, lines, at_size.with_settings)


def target_of(recipe: Recipe, requested: Target | None = None) -> tuple[Target | None, list[str]]:
    """The target of a study, and notes on it.

    Args:
        recipe: Its TimeToAccuracy or EpochsToAccuracy states the target.
        requested: A target to use instead.

    Raises:
        UsageError: A target that no metric of the recipe can evaluate.
    """
    names = {metric.name for metric, _ in recipe.metrics}
    stated = [
        (metric.name, metric.target)  # type: ignore[attr-defined]
        for metric, _ in recipe.metrics
        if metric.name in ("time_to_accuracy", "epochs_to_accuracy")
    ]
    goals = {goal for _, goal in stated}
    if requested is None:
        if len(goals) > 1:
            shown = ", ".join(f"{goal:g} %" for goal in sorted(goals))
            return None, [f"METRICS state several targets ({shown}), so the study has none; remedy: --target"]
        return (Target(metric="test_accuracy", goal=goals.pop()) if goals else None), []
    if requested.metric == "test_accuracy":
        measured = "test_accuracy" in names or "epochs_to_accuracy" in names
        measured = measured or ("time_to_accuracy", requested.goal) in stated
    else:
        measured = requested.metric in names
    if not measured:
        remedy = "d5.TestAccuracy()" if requested.metric == "test_accuracy" else "d5.TestLoss()"
        raise UsageError(
            f"the target is a {requested}, and {recipe.name} has the metrics {', '.join(sorted(names)) or 'none'}; "
            f"allowed: a metric that is measured; remedy: ({remedy}, None) in METRICS"
        )
    own = requested.metric == "test_accuracy" and goals == {requested.goal}
    return (Target(metric=requested.metric, goal=requested.goal) if own else requested), []


def chosen(settings: Mapping[str, Mapping[str, Any]], only: str | Sequence[str] | None) -> dict[str, Mapping[str, Any]]:
    """Select candidates.

    Args:
        settings: By candidate.
        only: Names; or names separated by commas, or one name, which may contain commas; None: all.

    Raises:
        UnknownName: There is no candidate with such a name.
    """
    if only is None:
        return dict(settings)
    if isinstance(only, str):
        only = [only] if only in settings else [name.strip() for name in only.split(",") if name.strip()]
    names = list(only)
    for name in names:
        if name not in settings:
            raise UnknownName("candidate", name, settings)
    return {name: settings[name] for name in names}
