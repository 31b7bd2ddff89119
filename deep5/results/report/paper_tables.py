"""The numbers of a report as LaTeX tables: runs, operators, comparisons, studies and their scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean, median, stdev
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.quantities import digits, ratio, time_unit
from deep5.core.terminal import counted
from deep5.results.comparison import ComparisonResult
from deep5.results.comparison_table import quick_note
from deep5.results.report import numbers
from deep5.results.report.collect import Collection, ShownStudy, Unreadable
from deep5.results.report.figures import made
from deep5.results.report.groups import groups_of_study
from deep5.results.report.latex import Column, TeX, escape, joined, number, tabular
from deep5.results.report.operator_times import operator_rows
from deep5.results.report.ranks_of_study import scalings_of
from deep5.results.report.study_part import means_of, rows_to_target, study_title
from deep5.results.result import Result, Verdict
from deep5.results.standing import standing
from deep5.results.study.folder import load_study_folder
from deep5.results.study.record import without_mean
from deep5.results.study.scaling import Scaling, scaling_cells

__all__ = ["report_tables"]

_Table = tuple[str, bytes] | None
_ABSENT, _FEW = "-", 3
_RELATIONS = {"<=": "≤", ">=": "≥", "<": "<", ">": ">"}


def report_tables(found: Collection) -> tuple[dict[str, bytes], list[Unreadable]]:
    """Every table of a report by file name, and those that cannot be written, with the reason.

    Args:
        found: The contents of the report.
    """
    return made(_makers(found), "tex")


def _makers(found: Collection) -> Iterator[tuple[str, Callable[[], _Table]]]:
    for result in found.comparisons:
        yield result.folder.name, partial(_comparison, result)
    for run in found.runs:
        yield run.folder.name, partial(_metrics, run)
        yield run.folder.name, partial(_operators, run)
    for study in found.studies:
        for place, runs in enumerate(groups_of_study(study.runs)):
            whose = study.folder.name + (f"-{place + 1}" if place else "")
            yield whose, partial(_means, study, runs)
        yield study.folder.name, partial(_to_target, study)
        yield study.folder.name, partial(_scalings, study)


def _origin(folder: str, document: Mapping[str, Any]) -> str:
    recipe = document["recipe"]
    return f"result {folder}, recipe {recipe['name']}, hash {recipe.get('hash')}"


def _written(
    name: str, about: Sequence[str], columns: Sequence[Column], rows: Sequence[Sequence[object]], below: str
) -> _Table:
    return (name, tabular(about, columns, rows, below).encode()) if rows else None


def _digits(value: Any, most: int, *, of_ratio: bool = False) -> TeX:
    """A number with so many significant digits; a word for one that is none."""
    parsed = numbers.as_float(value)
    if parsed is None or not math.isfinite(parsed):
        return escape(numbers.number(value))
    if of_ratio:
        return number(ratio(parsed, most))
    return number(digits(parsed) if most == _FEW else f"{parsed:.{most}g}")


def _span(low: Any, high: Any, most: int = _FEW, *, of_ratio: bool = False) -> TeX:
    if None in (low, high):
        return escape(_ABSENT)
    return joined(_digits(low, most, of_ratio=of_ratio), " to ", _digits(high, most, of_ratio=of_ratio))


def _metrics(run: Result) -> _Table:
    columns = [("l", "metric"), ("r", "value"), ("l", "unit"), ("l", "interval"), ("l", "goal"), ("l", "verdict")]
    rows = [
        [
            row.label.replace("_", " "),
            _digits(row.value, 6, of_ratio=row.is_ratio),
            row.unit or _ABSENT,
            _ABSENT
            if row.interval is None
            else joined(_span(*row.interval, 5, of_ratio=row.is_ratio), _confidence(row)),
            _ABSENT if row.goal is None else joined(_RELATIONS[row.goal.relation], " ", _digits(row.goal.bound, 6)),
            row.word,
        ]
        for row in run.verdicts
    ]
    about = [f"metrics of a run, {run.status}", _origin(run.folder.name, run.document)]
    return _written("metrics", about, columns, rows, standing([run]))


def _confidence(row: Verdict) -> str:
    return "" if row.confidence is None else f" ({100 * row.confidence:g} %)"


def _comparison(result: ComparisonResult) -> _Table:
    document = result.document
    verdicts = {(row["workload"], row["candidate"]): row for row in result.verdicts}
    several = len({row["workload"] for row in result.results}) > 1
    unit, time, span = _times(result.results)
    columns = [("l", "candidate"), *([("l", "workload")] if several else []), ("r", f"median ({unit})")]
    columns += [("l", f"interval ({unit})"), ("l", "ratio (interval)"), ("l", "verdict")]
    rows: list[list[object]] = []
    for row in sorted(result.results, key=lambda row: (row["workload"], _order(row["median_s"]))):
        verdict = verdicts.get((row["workload"], row["candidate"]))
        cells = [row["candidate"], *([row["workload"]] if several else [])]
        cells += [time(row["median_s"]), span(row["low_s"], row["high_s"])]
        if verdict is not None:
            cells += [_ratio(verdict), verdict["word"]]
        else:
            cells += ["1", "baseline"] if row["candidate"] == document["baseline"] else [_ABSENT, _ABSENT]
        rows.append(cells)
    timed = {row["candidate"] for row in result.results}
    for row in result.candidates:
        if row["label"] not in timed:
            rows.append([row["label"], *([_ABSENT] * (len(columns) - 2)), row["status"]])
    about = [
        f"comparison of {document['kind']}, {document['mode']}, threads: {document['threads']}",
        _origin(result.folder.name, document),
        f"ratio: time over that of {document['baseline']}, below 1 is faster",
        *([quick_note(document)] if document["mode"] == "quick" else []),
    ]
    return _written("verdicts", about, columns, rows, standing([result]))


def _order(value: Any) -> float:
    parsed = numbers.as_float(value)
    return math.inf if parsed is None or math.isnan(parsed) else parsed


def _ratio(verdict: Mapping[str, Any]) -> TeX:
    each = " a sample" if verdict["per"] == "sample" else ""
    span = "" if verdict["low"] is None else joined(" (", _span(verdict["low"], verdict["high"], of_ratio=True), ")")
    return joined(_digits(verdict["ratio"], _FEW, of_ratio=True), each, span)


def _operators(run: Result) -> _Table:
    found = operator_rows(run)
    unit, time, span = _times(found)
    columns = [("l", "candidate"), ("l", "problem"), ("l", "size"), ("l", "direction")]
    columns += [
        ("r", f"median ({unit})"),
        ("l", f"interval ({unit})"),
        ("r", "GFLOP/s"),
        ("r", "GB/s"),
        ("r", "of peak"),
    ]
    rows = [
        [
            *(row[key] for key in ("candidate", "problem")),
            row.get("title", _ABSENT),
            row["direction"],
            time(row.get("median_s")),
            span(row.get("low_s"), row.get("high_s")),
            *(_digits(row.get(key), _FEW) for key in ("gflop_s", "gbyte_s")),
            numbers.percent(row.get("share_of_roofline")),
        ]
        for row in found
    ]
    about = ["times of operators per call", _origin(run.folder.name, run.document)]
    return _written("operators", about, columns, rows, standing([run]))


def _times(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Callable[[Any], TeX], Callable[[Any, Any], TeX]]:
    """The unit of the medians, and how a time and an interval in it are written."""
    known = [own for row in rows if (own := numbers.as_float(row.get("median_s"))) is not None and math.isfinite(own)]
    unit, factor = time_unit(median(known) if known else 1.0)

    def time(value: Any) -> TeX:
        parsed = numbers.as_float(value)
        return _digits(value if parsed is None else parsed / factor, _FEW)

    def span(low: Any, high: Any) -> TeX:
        return escape(_ABSENT) if None in (low, high) else joined(time(low), " to ", time(high))

    return unit, time, span


def _about(study: ShownStudy, what: str) -> list[str]:
    run = next((run for own in study.runs.values() for run in own), None)
    origin = f"result {study.folder.name}" if run is None else _origin(study.folder.name, run.document)
    return [f"{what}; {study_title(study)}", origin]


def _standing(study: ShownStudy, runs: Mapping[str, Sequence[Result]]) -> str:
    every = [run for own in runs.values() for run in own]
    return standing(every, finished=study.finished, notes=study.notes)


def _means(study: ShownStudy, runs: Mapping[str, Sequence[Result]]) -> _Table:
    units, values = means_of(runs, study.timed)
    heads = [f"{name} ({counted(len(own), 'run')})" for name, own in runs.items()]
    columns = [("l", "metric"), ("l", "unit"), *(("r", head) for head in heads)]
    rows = [
        [label.replace("_", " "), unit or _ABSENT, *(_mean(values[name].get(label, []), label) for name in runs)]
        for label, unit in units.items()
    ]
    about = _about(study, "mean and standard deviation over the seeds")
    return _written("means", about, columns, rows, _standing(study, runs))


def _mean(values: Sequence[float], label: str) -> TeX:
    if not values:
        return escape(_ABSENT)
    if not all(map(math.isfinite, values)):
        return escape(without_mean(values, label))
    middle = number(numbers.number(mean(values)))
    return joined(middle, " ± ", number(numbers.number(stdev(values), 2))) if len(values) > 1 else middle


def _to_target(study: ShownStudy) -> _Table:
    try:
        stored = load_study_folder(study.folder)
    except UsageError:  # an unfinished study, or one without a target, has no such table
        return None
    heads, found = rows_to_target(stored)
    rows = [[name, *(number(numbers.number(value)) for value in medians), by] for name, medians, by in found]
    columns = [("l", heads[0]), *(("r", head) for head in heads[1:])]
    about = _about(study, f"until a {stored.target}, median over the seeds")
    return _written("target", about, columns, rows, _standing(study, study.runs))


def _scalings(study: ShownStudy) -> _Table:
    found = scalings_of(study)
    if not found:
        return None
    return "scaling", "\n".join(_scaling(study, own) for own in found).encode()


def _scaling(study: ShownStudy, scaling: Scaling) -> str:
    heads, rows = scaling_cells(scaling)
    columns = [("l", heads[0]), *(("r", head.replace("[", "(").replace("]", ")")) for head in heads[1:])]
    cells = [[name, *map(number, own)] for name, *own in rows]
    about = _about(study, f"{scaling.title}, median over the seeds")
    return tabular(about, columns, cells, _standing(study, study.runs))
