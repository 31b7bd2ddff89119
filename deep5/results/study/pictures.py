"""Charts of a study: accuracy and loss over epochs, by batch size, scaling, accuracy against bytes or staleness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from deep5.core.charts import above_title, altair, files
from deep5.core.errors import MissingDependency, UsageError
from deep5.results.result import Result
from deep5.results.time_to_target import Target

__all__ = ["study_pictures", "trade_charts"]

# Characters of a line above a chart.
_LINE = 84


def trade_charts(
    recipe: str, runs: Mapping[str, Sequence[Result]], target: Target | None
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A study's charts of trade-offs, by file name: batch sizes, scaling, and accuracy against bytes or staleness.

    Args:
        recipe: Name of the recipe.
        runs: The finished runs, by candidate.
        target: The target of the runs, or None.

    Returns:
        A name, and a function that makes an Altair chart, or returns None if the study does not apply.
    """
    from deep5.results.study.tradeoffs import COSTS

    yield "batches", partial(_batches, recipe, runs)
    yield "scaling", partial(_scaling, recipe, runs)
    for metric in COSTS:
        yield metric, partial(_trade, recipe, runs, target, metric)


def _batches(recipe: str, runs: Mapping[str, Sequence[Result]]) -> Any:
    from deep5.results.study.batches import batch_chart, batch_points

    points = batch_points(runs)
    return batch_chart(points, recipe) if points else None


def _scaling(recipe: str, runs: Mapping[str, Sequence[Result]]) -> Any:
    from deep5.results.study.scaling import scaling_of
    from deep5.results.study.scaling_chart import scaling_chart

    scalings = scaling_of(runs)
    return scaling_chart(scalings, recipe) if scalings else None


def _trade(recipe: str, runs: Mapping[str, Sequence[Result]], target: Target | None, metric: str) -> Any:
    from deep5.results.study.tradeoffs import synchronous_ones, tradeoff_chart, tradeoffs

    paid = tradeoffs(runs, metric, target)
    if not paid:
        return None
    across = synchronous_ones(runs, target) if metric == "staleness" else []
    shown = {point.candidate for point in (*paid, *across)}
    without = [name for name in runs if name not in shown]
    note = f"not drawn, without a value: {', '.join(without)}" if without else ""
    return tradeoff_chart(paid, metric, recipe, target, note, across)


def study_pictures(
    recipe: str,
    runs: Mapping[str, Sequence[Result]],
    seeds: int,
    target: Target | None,
    notes: Sequence[str] = (),
    timed: bool = True,
) -> tuple[dict[str, bytes], list[str]]:
    """Draw all charts that apply.

    Args:
        recipe: Name of the recipe.
        runs: The finished runs, by candidate.
        seeds: Number of seeds of each candidate.
        target: The target of the runs, or None.
        notes: Notes of the study; the one on other programs' use of the processors also appears on the charts.
        timed: Whether times compare; otherwise nothing is drawn over time.

    Returns:
        Files by name, and what they lack, one sentence each.
    """
    from deep5.results.charts import training as charts
    from deep5.results.standing import standing

    there = {name: own for name, own in runs.items() if own}
    if not there:
        return {}, ["nothing was drawn: no run finished"]
    goal = target.goal if target is not None and target.metric == "test_accuracy" else None
    made = dict.fromkeys(runs, seeds)
    above = standing([run for own in there.values() for run in own], notes=notes)
    missing = []
    title = recipe + (f", {seeds} seeds: mean and extremes" if seeds > 1 else "")

    def accuracy(name: str, by: str) -> Any:
        points = charts.accuracy_points(there)
        undrawn = charts.undrawn(points, made)
        if undrawn and by == "epoch":
            missing.append(f"{name}.svg does not show all runs: {undrawn}")
        return charts.accuracy_chart(points, title, goal=goal, by=by, seeds=made)

    def loss() -> Any:
        points = charts.loss_points(there)
        if undrawn := charts.undrawn(points, made):
            missing.append(f"loss.svg does not show all runs: {undrawn}")
        return charts.loss_chart(points, title, seeds=made)

    makers: list[tuple[str, Callable[[], Any]]] = [("accuracy", partial(accuracy, "accuracy", "epoch"))]
    if goal is not None and timed:
        makers.append(("accuracy_time", partial(accuracy, "accuracy_time", "seconds")))
    if timed:
        makers += [("loss", loss), *trade_charts(recipe, there, target)]
    drawn: dict[str, bytes] = {}
    lacking: list[str] = []
    for name, make in makers:
        try:
            chart = make()
            if chart is not None:
                drawn |= files(name, _under(above, chart), page=True)
        except MissingDependency as error:
            lacking.append(f"{name}.svg")
            why = str(error)
        except UsageError as error:
            missing.append(f"no {name}.svg was drawn: {error}")
    if lacking:
        # They share one remedy, so it is stated once.
        missing.append(f"no {', '.join(lacking)} was drawn: {why}; then 'deep5 report' on this folder draws it")
    return drawn, missing


def _under(above: str, chart: Any) -> Any:
    """A chart, with the reasons why its results are not finished, full-size and closed above its title."""
    if not above:
        return chart
    return chart.properties(title=altair().Title(**above_title(chart.to_dict().get("title", {}), above, _LINE)))
