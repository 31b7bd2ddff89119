"""Pictures of a study: accuracy and loss, a band over the seeds; scaling; what accuracy costs in bytes or staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deep5.errors import MissingDependency, UsageError
from deep5.results.result import Result
from deep5.results.time_to_target import Target

__all__ = ["study_pictures"]


def study_pictures(
    recipe: str, runs: Mapping[str, Sequence[Result]], seeds: int, target: Target | None
) -> tuple[dict[str, bytes], list[str]]:
    """Draw what there is.

    Args:
        recipe: Its name.
        runs: By candidate, those that came to their end.
        seeds: How many each candidate has.
        target: What the runs had to reach, or None.

    Returns:
        Files by name, and what is missing in them, a sentence each.
    """
    from deep5.results import training_charts as charts
    from deep5.results.study_scaling import scaling_of
    from deep5.results.study_scaling_chart import scaling_chart
    from deep5.results.study_tradeoffs import COSTS, tradeoff_chart, tradeoffs

    there = {name: own for name, own in runs.items() if own}
    if not there:
        return {}, ["nothing was drawn: no run came to its end"]
    goal = target.goal if target is not None and target.metric == "test_accuracy" else None
    made = dict.fromkeys(runs, seeds)
    drawn: dict[str, bytes] = {}
    missing = []
    title = recipe + (f", {seeds} seeds: mean and extremes" if seeds > 1 else "")
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
    try:
        if scalings := scaling_of(there):
            drawn |= charts.pictures("scaling", scaling_chart(scalings, recipe))
    except (MissingDependency, UsageError) as error:
        missing.append(f"no scaling.svg was drawn: {error}")
    for metric in COSTS:
        try:
            if paid := tradeoffs(there, metric, target):
                without = [name for name in there if name not in {point.candidate for point in paid}]
                told = f"not drawn, for it has no value: {', '.join(without)}" if without else ""
                drawn |= charts.pictures(metric, tradeoff_chart(paid, metric, recipe, target, told))
        except (MissingDependency, UsageError) as error:
            missing.append(f"no {metric}.svg was drawn: {error}")
    return drawn, missing
