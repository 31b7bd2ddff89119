"""The section of a study: candidates over the same seeds, with means and deviations, learning curves, failures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from statistics import mean, stdev
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.quantities import counts_time
from deep5.core.terminal import counted
from deep5.results.markup import Markup, element, named
from deep5.results.report.collect import ShownStudy
from deep5.results.report.curves import learning_curves
from deep5.results.report.drawing import Pen
from deep5.results.report.groups import badges, differing_inputs, groups
from deep5.results.report.numbers import number
from deep5.results.report.parts import facts, guarded, note
from deep5.results.report.ranks_of_study import scaling_tables, study_drawings
from deep5.results.report.runs_part import metric_table
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result
from deep5.results.study.folder import StudyFolder, load_study_folder
from deep5.results.study.record import without_mean
from deep5.results.time_to_target import MEASURES, Reached, median_to_target

__all__ = ["means_of", "means_table", "rows_to_target", "study_list", "study_part", "study_title"]


_WHEN = re.compile(r"-study-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-")


def study_title(study: ShownStudy) -> str:
    """Recipe, number of candidates, start time (or else the folder's name), and size."""
    when = _WHEN.search(study.folder.name)
    begun = "{}-{}-{} {}:{}:{}".format(*when.groups()) if when else study.folder.name
    return f"{study.recipe}: study of {counted(len(study.settings), 'candidate')}, {begun}, size {study.size}"


def means_of(
    runs: Mapping[str, Sequence[Result]], timed: bool = True
) -> tuple[dict[str, str], dict[str, dict[str, list[float]]]]:
    """The unit of each metric, and the values of all seeds by candidate and metric.

    Args:
        runs: Runs by candidate.
        timed: Whether their times compare; otherwise metrics of time are left out.
    """
    units: dict[str, str] = {}
    values: dict[str, dict[str, list[float]]] = {}
    for name, own in runs.items():
        values[name] = {}
        for run in own:
            for verdict in run.verdicts:
                if not timed and counts_time(verdict.unit):
                    continue
                units.setdefault(verdict.label, verdict.unit)
                if verdict.value is not None:
                    values[name].setdefault(verdict.label, []).append(verdict.value)
    return units, values


def means_table(runs: Mapping[str, Sequence[Result]], timed: bool = True) -> Markup:
    """Mean and deviation of each metric over the seeds, one row per candidate.

    Args:
        runs: Runs by candidate.
        timed: Whether their times compare; otherwise the table has none.
    """
    units, values = means_of(runs, timed=timed)
    columns = ["candidate", "runs", *(f"{name.replace('_', ' ')} ({unit})"[:80] for name, unit in units.items())]
    rows = [
        [named(name), Cell.number(len(own)), *(_mean(values[name].get(label, []), label) for label in units)]
        for name, own in runs.items()
    ]
    return table("Mean and standard deviation over the seeds", columns, rows)


def _mean(values: Sequence[float], label: str) -> Cell:
    if not values:
        return Cell.number(None)
    if not all(map(math.isfinite, values)):
        return Cell(shown=without_mean(values, label), order=math.nan, mark="warn")
    middle = mean(values)
    return Cell(shown=number(middle) + (f" ± {number(stdev(values), 2)}" if len(values) > 1 else ""), order=middle)


def study_list(study: ShownStudy) -> Markup:
    """The fastest candidate to the target; then each candidate's time to it, number of runs, and failures."""
    said = [] if study.finished else [element("li", "the study is ", element("b", "not finished", class_="bad"))]
    timed = _timed(study)
    if isinstance(timed, StudyFolder):
        said.append(element("li", *_first(timed)))
    for name in study.settings:
        failed = len(study.failures[name])
        lost = element("b", f"{failed} failed", class_="bad") if failed else None
        runs = counted(len(study.runs[name]), "run")
        took = f", {_took(timed.reached[name].values(), timed.timed)}" if isinstance(timed, StudyFolder) else None
        said.append(element("li", named(name), f": {runs}", ", " if lost else None, lost, took))
    return element("ul", said, class_="verdicts")


def _timed(study: ShownStudy) -> StudyFolder | str:
    """The study with its times to the target, or why these cannot be evaluated."""
    try:
        return load_study_folder(study.folder)
    except UsageError as error:
        # The page may be shared: it shows the folder's name, not its local path.
        return str(error).replace(str(study.folder), study.folder.name)


def _first(timed: StudyFolder) -> tuple[Markup | str, ...]:
    """The candidate with the smallest median, if there is one."""
    measure = "seconds" if timed.timed else "epochs"
    medians = {
        name: median_to_target([getattr(r, measure) for r in own.values()]) for name, own in timed.reached.items()
    }
    best = min(medians, key=lambda name: medians[name])
    if math.isfinite(medians[best]):
        spread = "; each took, as the median over the seeds (least to most):" if len(medians) > 1 else ""
        return f"first to a {timed.target}: ", element("b", named(best)), spread
    some = any(math.isfinite(reached.seconds) for own in timed.reached.values() for reached in own.values())
    word = element("b", "no candidate", class_="bad")
    return word, f" reached a {timed.target}{' with more than half of its seeds' if some else ''}"


def _took(reached: Collection[Reached], timed: bool) -> str:
    """Medians in seconds and epochs with their ranges, and how many runs did not reach the target."""
    times = []
    for measure in ("seconds", "epochs") if timed else ("epochs",):
        values = [getattr(own, measure) for own in reached]
        middle, least, most = median_to_target(values), min(values), max(values)
        if math.isfinite(middle):
            unit = "epoch" if (measure, middle) == ("epochs", 1) else MEASURES[measure]
            last = number(most, 3) if math.isfinite(most) else "never"
            times.append(f"{number(middle, 3)} {unit}" + (f" ({number(least, 3)} to {last})" if least < most else ""))
    never = sum(not math.isfinite(own.seconds) for own in reached)
    missed = [f"target not reached in {never} of {len(reached)}"] if never else []
    return ", ".join([*times, *missed])


def study_part(study: ShownStudy, place: str, pen: Pen) -> Markup:
    """The section of one study.

    Args:
        study: The study.
        place: The section's identifier.
        pen: Draws its charts.

    Raises:
        MissingDependency: A package of the extra `report` is missing.
    """
    runs = [run for own in study.runs.values() for run in own]
    names = [name for name, own in study.runs.items() for _ in own]
    found = groups(runs)
    failures = [f"{name}: {failure}" for name, own in study.failures.items() for failure in own]
    warnings = [f"{name}: {why}" for name, run in zip(names, runs, strict=True) for why in run.document["warnings"]]
    warnings = [*differing_inputs([(run.folder.name, run.document) for run in runs]), *warnings]
    if len(found) > 1:
        warnings.insert(
            0,
            f"not comparable: its runs are of {len(found)} different fixed parts or inputs; each has a separate table",
        )
    tables: list[Markup] = []
    for group in found:
        own = {
            name: [run for run in of_name if any(run is other for other in group.runs)]
            for name, of_name in study.runs.items()
        }
        there = {name: of_name for name, of_name in own.items() if of_name}
        # A run that failed left no recipe: it is shown with the first group.
        tables.append(_group(study, there, {} if tables else study.failures, group.recipe, pen))
    settings = [
        (name, ", ".join(f"{key} {json.dumps(value, default=str)}" for key, value in own.items()).replace('"', ""))
        for name, own in study.settings.items()
    ]
    return element(
        "section",
        element("h2", named(study_title(study), 80), id=place),
        note(failures, "Failed runs", "bad"),
        note([*warnings, *study.notes], "Warnings"),
        guarded("the time to the target", lambda: _to_target(study)),
        guarded("the scaling", lambda: scaling_tables(study)),
        guarded("the pictures of ranks", lambda: _of_ranks(study, pen)),
        tables or element("p", "None of its runs can be shown.", class_="note warn"),
        element("h3", "Settings"),
        guarded("the settings", lambda: facts([*settings, ("folder", study.folder.name)])),
        aria_labelledby=place,
    )


def _to_target(study: ShownStudy) -> Markup | None:
    """Each candidate's time to the target, or why it cannot be evaluated."""
    timed = _timed(study)
    if isinstance(timed, str):
        return note([timed], "No time to the target", "")
    columns, found = rows_to_target(timed)
    rows = [[named(name), *map(Cell.number, medians), by] for name, medians, by in found]
    return table(f"Until a {timed.target}: median over the seeds", columns, rows)


def rows_to_target(timed: StudyFolder) -> tuple[list[str], list[tuple[str, list[float], str]]]:
    """Heads of a table of times to the target; by candidate the medians of all measures, and how many runs had them."""
    measures = {measure: unit for measure, unit in MEASURES.items() if timed.timed or measure != "seconds"}
    columns = ["candidate", *(m if m == unit else f"{m} ({unit})" for m, unit in measures.items()), "reached by"]
    rows = []
    for name, own in timed.reached.items():
        medians = [median_to_target([getattr(reached, measure) for reached in own.values()]) for measure in measures]
        there = sum(math.isfinite(reached.seconds) for reached in own.values())
        rows.append((name, medians, f"{there} of {len(own)}"))
    return columns, rows


def _group(
    study: ShownStudy,
    runs: Mapping[str, Sequence[Result]],
    failures: Mapping[str, Sequence[str]],
    recipe: Mapping[str, object],
    pen: Pen,
) -> Markup:
    flat = [run for own in runs.values() for run in own]
    names = [name for name, own in runs.items() for _ in own]
    about: Any = {"finished": study.finished, "notes": study.notes}
    return element(
        "div",
        badges(recipe),
        element("h3", "Metrics"),
        guarded("the means", lambda: means_table(runs, study.timed)),
        element("h3", "Learning curves"),
        element(
            "div",
            [
                guarded(what, partial(pen.drawn, partial(draw, runs, failures, **about)))
                for what, draw in learning_curves(study.timed).items()
            ],
            class_="charts",
        ),
        element("h3", "Run by run"),
        guarded("the runs", lambda: metric_table(flat, names, study.timed)),
    )


def _of_ranks(study: ShownStudy, pen: Pen) -> Markup | None:
    made = [guarded(f"the picture {name}", partial(pen.drawn, make)) for name, make in study_drawings(study)]
    return element("div", made, class_="charts") if any(made) else None
