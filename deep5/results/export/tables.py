"""Raw samples in long form, joined with the columns that distinguish runs, as CSV and as Parquet; bit-exact."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from deep5.core.errors import MissingDependency, UsageError
from deep5.results.csv_cells import csv_lines
from deep5.results.export.source import Source
from deep5.results.long_form import SAMPLE_COLUMNS, ended_candidates, sample_records

__all__ = ["RUN_COLUMNS", "csv_file", "csv_rows", "parquet_file", "parquet_table"]

_BATCH = 50_000

RUN_COLUMNS: dict[str, type] = {
    "run_id": str,
    "kind": str,
    "recipe": str,
    "hash": str,
    "size": str,
    "division": str,
    "framework": str,
    "version": str,
    "device": str,
    "status": str,
    "started": str,
    "threads": int,
    "ranks": int,
    "host": str,
    "cpu": str,
    "environment": str,
    "commit": str,
    "comparable": str,
}
"""Name and type of the columns before those of a sample."""


def _records(source: Source) -> Iterator[tuple[Any, ...]]:
    ended = ended_candidates(source.document, source.about.kind)
    about = {name: getattr(source.about, name) for name in RUN_COLUMNS}
    for record in sample_records(source.folder, source.about.kind, ranks=source.about.ranks or 1):
        status = ended.get(record["candidate"], about["status"])
        yield *{**about, "status": status}.values(), *(record[name] for name in SAMPLE_COLUMNS)


def csv_rows(source: Source) -> str:
    """The samples of one result as lines of CSV, bit-exact; None is an empty cell."""
    return csv_lines(_records(source))


def csv_file(parts: Iterable[str]) -> bytes:
    """A file of such lines with their header."""
    return (csv_lines([(*RUN_COLUMNS, *SAMPLE_COLUMNS)]) + "".join(parts)).encode()


def parquet_table(source: Source) -> Any:
    """The samples of one result as a pyarrow table; NaN stays NaN, and None becomes null.

    Raises:
        MissingDependency: pyarrow is not installed.
        UsageError: An integer has more than 64 bits.
    """
    pyarrow, _ = _pyarrow()
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in {**RUN_COLUMNS, **SAMPLE_COLUMNS}.items()])
    batches = []
    try:
        # In batches: all samples as Python numbers would take many times the memory.
        rows = _records(source)
        while records := list(islice(rows, _BATCH)):
            columns = zip(*records, strict=True)
            arrays = [pyarrow.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
            batches.append(pyarrow.record_batch(arrays, schema=schema))
    except (ArithmeticError, ValueError) as error:
        raise UsageError(
            f"{source.folder}: a sample does not fit into Parquet: {error}; remedy: --format csv"
        ) from error
    return pyarrow.Table.from_batches(batches, schema=schema)


def parquet_file(parts: Iterable[Any]) -> bytes:
    """A file of such tables.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    pyarrow, parquet = _pyarrow()
    out = io.BytesIO()
    parquet.write_table(pyarrow.concat_tables(parts), out)
    return out.getvalue()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependency(
            "--format parquet needs pyarrow, which is not installed; remedy: pip install 'deep5[report]'"
        ) from error
    return pyarrow, parquet
