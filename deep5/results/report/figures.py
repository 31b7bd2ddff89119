"""The page's charts as files for a paper, from the same specifications."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from deep5.core.errors import Deep5Error, MissingDependency
from deep5.results.report.breakdown import breakdown_drawing
from deep5.results.report.chart_parts import Drawing
from deep5.results.report.charts import phases_chart, ratio_chart, samples_chart
from deep5.results.report.code_times import times_drawing
from deep5.results.report.collect import Collection, Unreadable
from deep5.results.report.collective_times import collective_drawing
from deep5.results.report.curves import learning_curves
from deep5.results.report.drawing import file_of
from deep5.results.report.groups import groups, groups_of_study, labels
from deep5.results.report.loading_rates import loading_drawing
from deep5.results.report.operator_times import operator_drawing
from deep5.results.report.ranks_of_study import study_drawings
from deep5.results.report.serving_times import serving_drawing
from deep5.results.result import Result

__all__ = ["made", "report_figures"]


def report_figures(found: Collection, kind: str) -> tuple[dict[str, bytes], list[Unreadable]]:
    """Every chart of a report by file name, and those that cannot be drawn, with the reason.

    Args:
        found: The contents of the report.
        kind: One of "svg", "pdf" and "png".

    Raises:
        MissingDependency: A package of the extra `report` is missing.
    """

    def file(make: Callable[[], Drawing | None]) -> tuple[str, bytes] | None:
        drawing = make()
        return None if drawing is None else (drawing.name, file_of(drawing, kind))

    return made(((whose, partial(file, make)) for whose, make in _makers(found)), kind)


def made(
    makers: Iterable[tuple[str, Callable[[], tuple[str, bytes] | None]]], kind: str
) -> tuple[dict[str, bytes], list[Unreadable]]:
    """Files by name, and what cannot be drawn or written, with the reason.

    Args:
        makers: Name of a result, and a function that returns what the file shows, and its content; None: no file.
        kind: The end of the files' names.

    Raises:
        MissingDependency: A package of the extra `report` is missing.
    """
    files: dict[str, bytes] = {}
    lost: list[Unreadable] = []
    for whose, make in makers:
        try:
            if (file := make()) is not None:
                what, content = file
                files[_name(whose, what, kind, files)] = content
        except MissingDependency:
            raise
        except Deep5Error as error:
            lost.append(Unreadable(path=whose, reason=str(error)))
        except Exception as error:  # a result may contain anything: the other charts are drawn
            lost.append(Unreadable(path=whose, reason=f"it cannot be drawn ({type(error).__name__}: {error})"[:400]))
    return files, lost


def _makers(found: Collection) -> Iterator[tuple[str, Callable[[], Drawing | None]]]:
    for result in found.comparisons:
        for chart in (ratio_chart, samples_chart, phases_chart):
            yield result.folder.name, partial(chart, result)
    for group in groups(found.runs):
        own: dict[str, list[Result]] = {}
        for name, run in zip(labels(group.runs), group.runs, strict=True):
            own.setdefault(name, []).append(run)
        yield from _curves(group.runs[0].folder.name, own)
        for run in group.runs:
            yield run.folder.name, partial(operator_drawing, run)
            yield run.folder.name, partial(times_drawing, run)
            yield run.folder.name, partial(loading_drawing, run)
            yield run.folder.name, partial(collective_drawing, run)
            yield run.folder.name, partial(serving_drawing, run)
            yield run.folder.name, partial(breakdown_drawing, run)
    for study in found.studies:
        for number, there in enumerate(groups_of_study(study.runs)):
            whose = study.folder.name + (f"-{number + 1}" if number else "")
            lost = {} if number else study.failures
            about: Any = {"finished": study.finished, "notes": study.notes, "timed": study.timed}
            yield from _curves(whose, there, lost, **about)
        for _, make in study_drawings(study):
            yield study.folder.name, make


def _curves(
    whose: str,
    runs: Mapping[str, Sequence[Result]],
    failures: Mapping[str, Sequence[str]] | None = None,
    *,
    finished: bool = True,
    notes: Sequence[str] = (),
    timed: bool = True,
) -> Iterator[tuple[str, Callable[[], Drawing | None]]]:
    for draw in learning_curves(timed).values():
        yield whose, partial(draw, runs, failures, finished=finished, notes=notes)


def _name(whose: str, what: str, kind: str, taken: Mapping[str, Any]) -> str:
    """A unique file name of letters, digits, hyphens and underscores."""
    stem = f"{re.sub('[^A-Za-z0-9_-]', '_', whose)[:80]}-{what}"
    name, number = f"{stem}.{kind}", 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}.{kind}"
    return name
