"""samples.csv: every raw value of a run in long form, bit-exact."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from deep5.core.errors import UsageError
from deep5.core.metric import Sample
from deep5.results.reading import read_rows

__all__ = ["SAMPLES", "SampleRow", "read_samples", "sample_rows", "samples_text", "stream_samples"]

SAMPLES = "samples.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRow:
    """One line of samples.csv.

    Attributes:
        metric: Name of the metric.
        index: Index among the metric's samples, from 0, in order of time.
        value: In `unit`; double precision, infinities and NaN included.
        unit: The metric's unit.
        step: Steps completed when it was taken, or None.
        epoch: Epochs completed when it was taken, or None.
        time_s: Seconds since training began, or None.
    """

    metric: str
    index: int
    value: float
    unit: str
    step: int | None = None
    epoch: int | None = None
    time_s: float | None = None


_COLUMNS = tuple(field.name for field in fields(SampleRow))


def sample_rows(metric: str, unit: str, samples: Iterable[Sample]) -> list[SampleRow]:
    """The rows of one metric's samples, in their order.

    >>> sample_rows("loss", "nat", [Sample(0.5, step=3)])[0]
    SampleRow(metric='loss', index=0, value=0.5, unit='nat', step=3, epoch=None, time_s=None)
    """
    return [
        SampleRow(metric=metric, index=index, unit=unit, **sample._asdict()) for index, sample in enumerate(samples)
    ]


def samples_text(rows: Iterable[SampleRow]) -> str:
    """The rows as CSV with a header line; None is an empty cell, a number has its shortest exact form (`repr`)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        # float() first: the `repr` of a NumPy scalar includes its type.
        writer.writerow(
            (
                row.metric,
                int(row.index),
                repr(float(row.value)),
                row.unit,
                "" if row.step is None else int(row.step),
                "" if row.epoch is None else int(row.epoch),
                "" if row.time_s is None else repr(float(row.time_s)),
            )
        )
    return out.getvalue()


def read_samples(path: Path) -> dict[str, list[SampleRow]]:
    """Read samples.csv back: rows by metric, in file order; the exact inverse of `samples_text`.

    Raises:
        NotThere: The file does not exist.
        UsageError: The file cannot be read, or a line is not a sample.
    """
    found: dict[str, list[SampleRow]] = {}
    for row in stream_samples(path):
        found.setdefault(row.metric, []).append(row)
    return found


def stream_samples(path: Path) -> Iterator[SampleRow]:
    """The rows of samples.csv in file order, lazily; errors as for `read_samples`."""
    for number, line in read_rows(path, _COLUMNS):
        try:
            metric, index, value, unit, step, epoch, time_s = line
            yield SampleRow(
                metric=metric,
                index=int(index),
                value=float(value),
                unit=unit,
                step=int(step) if step else None,
                epoch=int(epoch) if epoch else None,
                time_s=float(time_s) if time_s else None,
            )
        except ValueError as error:
            raise UsageError(f"{path}, line {number} is not a sample: {line!s:.200} ({error!s:.100})") from error
