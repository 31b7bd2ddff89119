"""Sections of comparable runs, with their metrics, curves, breakdowns and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from deep5.core.quantities import counts_time
from deep5.core.terminal import counted
from deep5.results.markup import Markup, clean, element, named
from deep5.results.report.breakdown import breakdown_drawing, breakdown_rows
from deep5.results.report.code_times import times_drawing, times_tables
from deep5.results.report.collective_times import collective_drawing, collective_table
from deep5.results.report.curves import learning_curves
from deep5.results.report.drawing import Pen
from deep5.results.report.environment import machine_state
from deep5.results.report.groups import Group, badges, labels
from deep5.results.report.loading_rates import loading_drawing, loading_table
from deep5.results.report.numbers import number, ratio
from deep5.results.report.operator_times import operator_drawing, operator_table
from deep5.results.report.parts import guarded, note, what_ran
from deep5.results.report.ranks_part import ranks_part
from deep5.results.report.serving_times import serving_drawing, serving_table
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result, Verdict

__all__ = ["group_part", "group_title", "metric_cell", "metric_table", "run_list"]

_MARKS = {"passed": "good", "FAILED": "bad"}
_FEW = 2
_CAPTION = "Each metric with its interval and goal, if any"
# Up to this many runs have their own charts and machine tables.
_ALONE = 20


def group_title(group: Group) -> str:
    """Recipe, and its number of runs."""
    return f"{group.recipe['name']}: {counted(len(group.runs), 'run')}"


def outcome(run: Result) -> tuple[str, str]:
    """The outcome of a run in a word, and its mark."""
    if run.status != "success":
        return run.status, "bad"
    return {True: ("accepted", "good"), False: ("NOT accepted", "bad"), None: ("finished, not evaluated", "")}[
        run.accepted
    ]


def run_list(group: Group) -> Markup:
    """One sentence per run, runs that were not accepted first."""
    listed = sorted(zip(labels(group.runs), group.runs, strict=True), key=lambda pair: bool(pair[1]))
    said = []
    for name, run in listed[:20]:
        word, mark = outcome(run)
        reasons = "; ".join(run.reasons)
        seed = run.document["seeds"].get("run") if isinstance(run.document.get("seeds"), dict) else None
        text = (
            named(name),
            "" if seed is None else f", seed {number(seed)}",
            ": ",
            element("b", word, class_=mark or None),
        )
        said.append(element("li", *text, ", ", named(reasons, 300)) if reasons else element("li", *text))
    if len(listed) > 20:
        said.append(element("li", f"and {len(listed) - 20} more, in the table below"))
    return element("ul", said, class_="verdicts")


def metric_cell(verdict: Verdict | None) -> Cell:
    """A metric's value with its unit, its interval, and its result against the goal."""
    if verdict is None:
        return Cell.number(None)
    if verdict.value is None:
        return Cell(shown=named(f"- ({verdict.missing})" if verdict.missing else "-", 60), order=float("nan"))
    shown = ratio if verdict.is_ratio else number
    text = shown(verdict.value) + (f" {verdict.unit}" if math.isfinite(verdict.value) else "")
    if verdict.interval is not None:
        text += f" ({shown(verdict.interval[0])} to {shown(verdict.interval[1])})"
    if verdict.goal is not None:
        text += f", {verdict.word}: goal {verdict.goal.relation} {number(verdict.goal.bound)}"
    return Cell(shown=named(text, 100), order=verdict.value, mark=_MARKS.get(verdict.word, ""))


def metric_table(runs: Sequence[Result], names: Sequence[str], timed: bool = True) -> Markup:
    """Metrics of comparable runs: one row per run, or one column per run if there are few.

    Args:
        runs: The runs.
        names: Their names.
        timed: Whether their times compare; otherwise metrics of time are left out.
    """
    every = [verdict for run in runs for verdict in run.verdicts if timed or not counts_time(verdict.unit)]
    metrics = list(dict.fromkeys(verdict.label for verdict in every))
    if len(runs) <= _FEW:
        return _upright(runs, names, metrics)
    rows = []
    for name, run in zip(names, runs, strict=True):
        own = {verdict.label: verdict for verdict in run.verdicts}
        word, mark = outcome(run)
        seed: Any = (run.document.get("seeds") or {}).get("run")
        division = Cell(shown=run.division, mark="warn" if run.division == "open" else "")
        ranks = [Cell.number(run.rank_count)] if _several(runs) else []
        cells = [*ranks, *(metric_cell(own.get(metric)) for metric in metrics)]
        rows.append(
            [named(name), Cell.number(seed), Cell(shown=word, mark=mark), division, *cells, named(run.folder.name)]
        )
    columns = [*(["ranks"] if _several(runs) else []), *(metric.replace("_", " ")[:60] for metric in metrics)]
    return table(_CAPTION, ["run", "seed", "outcome", "division", *columns, "folder"], rows)


def _several(runs: Sequence[Result]) -> bool:
    return any(run.rank_count > 1 for run in runs)


def _upright(runs: Sequence[Result], names: Sequence[str], metrics: Sequence[str]) -> Markup:
    cells = [{verdict.label: metric_cell(verdict) for verdict in run.verdicts} for run in runs]
    seeds = [(run.document.get("seeds") or {}).get("run") for run in runs]
    outcomes = [outcome(run) for run in runs]
    rows: list[list[Any]] = [
        ["outcome", *(Cell(shown=word, mark=mark) for word, mark in outcomes)],
        ["division", *(Cell(shown=run.division, mark="warn" if run.division == "open" else "") for run in runs)],
        *([["ranks", *(Cell.number(run.rank_count) for run in runs)]] if _several(runs) else []),
        *([named(metric.replace("_", " ")), *(own.get(metric, "-") for own in cells)] for metric in metrics),
        ["folder", *(named(run.folder.name) for run in runs)],
    ]
    heads = [f"{clean(name)[:60]}, seed {number(seed)}" for name, seed in zip(names, seeds, strict=True)]
    return table(_CAPTION, ["metric", *heads], rows, sortable=False)


def group_part(group: Group, place: str, pen: Pen) -> Markup:
    """The section of comparable runs.

    Args:
        group: The runs.
        place: The section's identifier.
        pen: Draws its charts.

    Raises:
        MissingDependency: A package of the extra `report` is missing.
    """
    names = labels(group.runs)
    by_name: dict[str, list[Result]] = {}
    for name, run in zip(names, group.runs, strict=True):
        by_name.setdefault(name, []).append(run)
    warnings = [f"{run.folder.name}: {warning}" for run in group.runs for warning in run.document["warnings"]]
    reasons = [f"{run.folder.name}: {reason}" for run in group.runs for reason in run.reasons]
    return element(
        "section",
        element("h2", named(group_title(group), 80), id=place),
        badges(group.recipe),
        note(reasons, "Not a success, or not accepted", "bad"),
        note(warnings, "Warnings"),
        element("h3", "Metrics"),
        guarded("the metrics", lambda: metric_table(group.runs, names)),
        element(
            "div",
            [guarded(what, partial(pen.drawn, partial(draw, by_name))) for what, draw in learning_curves().items()],
            class_="charts",
        ),
        [guarded("times of operators", partial(_operators, run, pen)) for run in group.runs[:_ALONE]],
        [guarded("times of rounds", partial(_code, run, pen)) for run in group.runs[:_ALONE]],
        [guarded("rates of loading", partial(_loading, run, pen)) for run in group.runs[:_ALONE]],
        [guarded("times of collectives", partial(_collectives, run, pen)) for run in group.runs[:_ALONE]],
        [guarded("latencies of a load", partial(_serving, run, pen)) for run in group.runs[:_ALONE]],
        [guarded("a breakdown of time", partial(_breakdown, run, pen)) for run in group.runs[:_ALONE]],
        [guarded("the ranks", partial(ranks_part, run)) for run in group.runs[:_ALONE]],
        element("h3", "Environment"),
        [guarded("the machine", partial(_machine, run)) for run in group.runs[:_ALONE]],
        element(
            "p",
            "Operators, rounds, rates of loading, collectives, loads, breakdowns, ranks and machines are of the first "
            f"{_ALONE} of these runs.",
            class_="quiet",
        )
        if len(group.runs) > _ALONE
        else None,
        guarded("the recipe", lambda: what_ran(group.recipe)),
        aria_labelledby=place,
    )


def _operators(run: Result, pen: Pen) -> Markup | None:
    numbers = operator_table(run)
    if numbers is None:
        return None
    return element(
        "div", element("h3", "Operators of ", named(run.folder.name)), pen.figure(operator_drawing(run)), numbers
    )


def _code(run: Result, pen: Pen) -> Markup | None:
    numbers = times_tables(run)
    if not numbers:
        return None
    return element("div", element("h3", "Rounds of ", named(run.folder.name)), pen.figure(times_drawing(run)), numbers)


def _loading(run: Result, pen: Pen) -> Markup | None:
    numbers = loading_table(run)
    if numbers is None:
        return None
    return element(
        "div", element("h3", "Loading of ", named(run.folder.name)), pen.figure(loading_drawing(run)), numbers
    )


def _collectives(run: Result, pen: Pen) -> Markup | None:
    numbers = collective_table(run)
    if numbers is None:
        return None
    return element(
        "div", element("h3", "Collectives of ", named(run.folder.name)), pen.figure(collective_drawing(run)), numbers
    )


def _serving(run: Result, pen: Pen) -> Markup | None:
    numbers = serving_table(run)
    if numbers is None:
        return None
    return element("div", element("h3", "Load of ", named(run.folder.name)), pen.figure(serving_drawing(run)), numbers)


def _breakdown(run: Result, pen: Pen) -> Markup | None:
    rows = breakdown_rows(run)
    if not rows:
        return None
    cells = [
        [named(row.part), Cell.seconds(row.seconds), Cell.number(row.percent), named(row.how, 200)] for row in rows
    ]
    return element(
        "div",
        element("h3", "Breakdown of ", named(run.folder.name)),
        pen.figure(breakdown_drawing(run)),
        table("Parts of the time", ["part", "time", "percent", "how it is known"], cells),
    )


def _machine(run: Result) -> Markup:
    system = run.document["system"]
    shown = machine_state(system["before"], system.get("after"))
    return element("details", element("summary", "The machine during ", named(run.folder.name)), shown)
