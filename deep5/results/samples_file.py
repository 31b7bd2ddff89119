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

__all__ = ["SAMPLES", "SampleRow", "quoted", "read_samples", "sample_rows", "samples_text", "stream_samples"]

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
        SampleRow(metric=metric, index=index, value=value, unit=unit, step=step, epoch=epoch, time_s=time_s)
        for index, (value, step, epoch, time_s) in enumerate(samples)
    ]


def samples_text(rows: Iterable[SampleRow], lines: Iterable[str] = ()) -> str:
    """The rows as CSV with a header line; None is an empty cell, a number has its shortest exact form (`repr`).

    Args:
        rows: The rows.
        lines: Lines before them, in the same form, of a recording with many millions.
    """
    out = [quoted(*_COLUMNS), *lines]
    metric, unit, names = None, None, ("", "")
    for row in rows:
        if row.metric != metric or row.unit != unit:
            metric, unit = row.metric, row.unit
            names = quoted(metric), quoted(unit)
        # float() first: the `repr` of a NumPy scalar includes its type.
        step = "" if row.step is None else int(row.step)
        epoch = "" if row.epoch is None else int(row.epoch)
        time = "" if row.time_s is None else repr(float(row.time_s))
        out.append(f"{names[0]},{int(row.index)},{float(row.value)!r},{names[1]},{step},{epoch},{time}")
    out.append("")
    return "\n".join(out)


def quoted(*cells: str) -> str:
    """Cells as they are in a line of samples.csv; only names can need quotation marks."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
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
