"""HTML for notebooks: the analysis of a network, the parts of a data set, and the checks of an operator."""

from __future__ import annotations

from typing import Any

from deep5.core.notebook import html_of
from deep5.networks.analysis.analysis import NetworkAnalysis
from deep5.operators.checks.report import OperatorReport
from deep5.results.markup import Markup, element, named
from deep5.results.network_record import NetworkRecord
from deep5.results.report.parts import note
from deep5.results.report.tables import Cell, table
from deep5.training.dataset import Splits

__all__ = ["analysis_fragment", "report_fragment", "splits_fragment"]

_LAYERS = ("layer", "operator", "output", "parameters", "FLOPs", "memory", "share")
_MARKS = {"passed": "good", "FAILED": "bad", "not evaluated": "warn"}


@html_of.register
def analysis_fragment(found: NetworkAnalysis) -> str:
    """The layers of a network with their costs, and the totals, as HTML."""
    record = NetworkRecord(source=found.name, found=found)
    return element(
        "div",
        _title(found.name, f"{len(found.layers)} layers"),
        table("Totals", ("quantity", "value"), record.totals(), sortable=False),
        table("Layers", _LAYERS, ([*row[:3], *map(_figure, row[3:])] for row in record.rows()), sortable=False),
        note(record.notes(), "Notes", ""),
    )


@html_of.register
def splits_fragment(splits: Splits) -> str:
    """The parts of a data set: number of samples, and shape and element type of each part of a sample."""
    rows = [
        (part, _count(samples), name, str(spec)) for part, samples in _parts(splits) for name, spec in _specs(samples)
    ]
    about = [(key, _short(value)) for key, value in splits.description.items()]
    return element(
        "div",
        _title("data set", ", ".join(f"{_count(samples)} samples to {part}" for part, samples in _parts(splits))),
        table("Parts of a sample", ("split", "samples", "part", "elements"), rows, sortable=False),
        table("Description", ("key", "value"), about, sortable=False) if about else None,
    )


@html_of.register
def report_fragment(report: OperatorReport) -> str:
    """The checks of an operator with errors and tolerances, as HTML."""
    rows = [
        (
            row.check,
            *(Cell.number(value) for value in (row.error, row.allowed, row.ulps)),
            Cell(shown=row.verdict, mark=_MARKS.get(row.verdict, "")),
        )
        for row in report.rows
    ]
    bad = [f"{row.check}: {row.note}" for row in report.failures]
    notes = [f"{row.check}: {row.note}" for row in report.rows if row.note and row.verdict != "FAILED"]
    return element(
        "div",
        element("p", element("strong", named(report.verdict, 400))),
        note(bad, "Failed checks", "bad"),
        table("Checks", ("check", "error", "allowed", "ulps", "verdict"), rows, sortable=False),
        note(notes, "Notes", ""),
    )


def _title(name: str, more: str) -> Markup:
    return element("p", element("strong", named(name)), f": {more}")


def _figure(text: str) -> Cell:
    """A cell of a formatted number."""
    return Cell(shown=text, order=0.0)


def _parts(splits: Splits) -> list[tuple[str, Any]]:
    return [(name, samples) for name in ("train", "test") if (samples := getattr(splits, name)) is not None]


def _count(samples: Any) -> str:
    try:
        return f"{len(samples):,}"
    except TypeError:  # a stream of unknown length
        return "an unknown number of"


def _specs(samples: Any) -> list[tuple[str, Any]]:
    return list(getattr(samples, "specs", {}).items()) or [("-", "unknown")]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 400 else f"{text[:399]}…"
