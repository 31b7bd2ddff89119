"""The section of a study of ranks or batch sizes: tables of scaling, and charts of accuracy and time against cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from deep5.results.markup import Markup, element
from deep5.results.report.chart_parts import Drawing
from deep5.results.report.collect import ShownStudy
from deep5.results.report.tables import table
from deep5.results.result import Result
from deep5.results.standing import standing
from deep5.results.study.pictures import trade_charts
from deep5.results.study.scaling import Scaling, scaling_cells, scaling_of

__all__ = ["scaling_tables", "scalings_of", "study_drawings"]

_CAPTIONS = {
    "batches": (
        "Batch sizes",
        "Test accuracy and training time against the batch size; growing batches count by their first size.",
    ),
    "scaling": ("Scaling", "Throughput and parallel efficiency against the number of ranks, compared with the ideal."),
    "communication_volume": (
        "Bytes sent",
        "Test accuracy, and time to the target where a candidate reached it, against the bytes that all ranks sent.",
    ),
    "staleness": (
        "Staleness",
        "Test accuracy, and time to the target where a candidate reached it, against the mean staleness; dashed: "
        "synchronous schemes, which have none.",
    ),
}

_Runs = Mapping[str, Sequence[Result]]


def study_drawings(study: ShownStudy) -> Iterator[tuple[str, Callable[[], Drawing | None]]]:
    """The charts that a study of ranks or batch sizes draws itself: a name, and a function that returns it or None.

    Args:
        study: The study. All its runs count together, whatever their fixed parts, as in the study's own charts: the
            number of ranks may be a fixed part, and the compared work is the same.
    """
    there = _whole(study)
    if not study.timed:
        return
    for name, make in trade_charts(study.recipe, there, study.target):
        yield name, partial(_drawing, name, make, study, there)


def _drawing(name: str, make: Callable[[], Any], study: ShownStudy, runs: _Runs) -> Drawing | None:
    chart = make()
    if chart is None:
        return None
    title, about = _CAPTIONS[name]
    every = [run for own in runs.values() for run in own]
    return Drawing(name, title, about, chart, standing(every, finished=study.finished, notes=study.notes))


def scaling_tables(study: ShownStudy) -> Markup | None:
    """Speedup, efficiency and serial fraction, one table per kind of scaling; None if nothing is scaled.

    Args:
        study: The study.
    """
    scalings = scalings_of(study)
    if not scalings:
        return None
    parts: list[Markup] = []
    for scaling in scalings:
        parts.append(table(f"{scaling.title}: median over the seeds", *scaling_cells(scaling)))
        parts += [element("p", note, class_="quiet") for note in scaling.notes()]
    return element("div", element("h3", "Scaling"), parts)


def scalings_of(study: ShownStudy) -> Sequence[Scaling]:
    """The scaling of the study's finished runs; empty if nothing is scaled, or its times do not compare."""
    return scaling_of(_whole(study)) if study.timed else []


def _whole(study: ShownStudy) -> _Runs:
    """The runs that finished, of candidates that have any."""
    whole = {name: [run for run in own if run.status == "success"] for name, own in study.runs.items()}
    return {name: own for name, own in whole.items() if own}
