"""Tables from CSV and Parquet files and from data frames, as Arrow tables."""

from __future__ import annotations

import codecs
import gzip
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from deep5.core.content_hashes import file_hash
from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.files import absence, is_file
from deep5.core.plugins import missing_dependency
from deep5.training.datasets.text_files import check_encoding, not_utf8

__all__ = ["RawTable", "read_table"]

_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
# Bytes of memory for a byte of a file: the cells, the columns as float64, and the samples.
_GROWTH = 3
_MOST_HEADER_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """A table as it was read.

    Attributes:
        name: The file's name, or the type of the object, for messages.
        content: An Arrow table; the columns of a CSV file are strings.
        typed: Whether the columns have types; not those of a CSV file.
        sha256: SHA-256 of the file; None for an object in memory.
        decisions: What was inferred about the file, as sentences.
    """

    name: str
    content: Any
    typed: bool
    sha256: str | None = None
    decisions: tuple[str, ...] = ()


def read_table(
    what: str,
    given: Any,
    argument: str,
    *,
    wanted: Sequence[str] | None,
    separator: str | None = None,
    columns: Sequence[str] | None = None,
) -> RawTable:
    """Read a table.

    Args:
        what: The data set, for messages.
        given: A path, or a data frame: of pandas, an Arrow table, or any object with `__arrow_c_stream__`.
        argument: The name of the argument, for messages.
        wanted: The columns to read; None: all.
        separator: The separator of a CSV file; None: inferred from its first line.
        columns: Names of the columns of a CSV file without a header line.

    Raises:
        UsageError: The file is missing, empty, corrupt, not UTF-8 or too large for the memory; a column is missing or
            appears twice.
        MissingDependency: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise missing_dependency(f"the data set {what}", error) from error
    if not isinstance(given, (str, os.PathLike)):
        table = _frame(what, given, argument, pa)
        _check_names(what, type(given).__name__, table.column_names)
        found = RawTable(name=type(given).__name__, content=_chosen(what, table, wanted), typed=True)
    else:
        path = Path(given)
        if not is_file(path):
            raise UsageError(
                f"{what}: the file {path} {absence(path)}; allowed: a CSV or Parquet file, or a data frame"
            )
        if path.stat().st_size == 0:
            raise UsageError(f"{what}: the file {path} is empty; allowed: a header line and at least two rows")
        try:
            if path.name.lower().endswith(_PARQUET):
                found = _parquet(what, path, wanted)
            elif path.name.lower().endswith(_TEXT):
                found = _csv(what, path, wanted, separator, columns)
            else:
                raise UsageError(
                    f"{what}: got the file {path}; allowed: names that end in {', '.join((*_TEXT, *_PARQUET))}; "
                    "remedy: save the table as CSV, or give a data frame"
                )
        except (OSError, EOFError) as error:
            raise UsageError(
                f"{what}: {path} cannot be read ({' '.join(str(error).split())[:200]}); allowed: a whole file of the "
                "format that its name ends in; remedy: copy or make it again"
            ) from error
    if found.content.num_rows == 0:
        raise UsageError(f"{what}: {found.name} has no rows; allowed: at least two, or one and a test table")
    return found


def _frame(what: str, given: Any, argument: str, pa: Any) -> Any:
    try:
        if isinstance(given, pa.Table):
            return given
        if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
            _check_names(what, type(given).__name__, [str(name) for name in given.columns])
            _check_objects(what, given)
            return pa.Table.from_pandas(given, preserve_index=False)
        if hasattr(given, "__arrow_c_stream__"):
            return pa.table(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            f"{what}: the {type(given).__name__} cannot be read ({' '.join(str(error).split())[:200]}); remedy: "
            "columns of one type each"
        ) from error
    raise UsageError(
        f"{what}: got {argument}={brief(given)}; allowed: a path as a string, or a data frame; remedy: "
        "pandas.DataFrame(…)"
    )


def _check_objects(what: str, frame: Any) -> None:
    """Reject columns of Python objects that mix strings and numbers.

    Raises:
        UsageError: There is one; the message names column, row and value.
    """
    for position, name in enumerate(frame.columns):
        column = frame.iloc[:, position]
        if str(column.dtype) != "object":
            continue
        values: list[tuple[int, Any]] = [
            (row, value) for row, value in enumerate(column) if isinstance(value, (str, int, float))
        ]
        texts = [(row, value) for row, value in values if isinstance(value, str)]
        numbers = [(row, value) for row, value in values if not isinstance(value, str) and value == value]  # noqa: PLR0124 - NaN
        if texts and numbers:
            row, value = (texts if len(texts) < len(numbers) else numbers)[0]
            raise UsageError(
                f"{what}: the DataFrame, row {row + 1}, column {str(name)!r}: got {value!r:.60} among "
                f"{'numbers' if isinstance(value, str) else 'strings'}; allowed: one type in a column; remedy: "
                f"pandas.to_numeric(frame[{str(name)!r}], errors='coerce'), or astype(str)"
            )


def _parquet(what: str, path: Path, wanted: Sequence[str] | None) -> RawTable:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        _check_names(what, path.name, names)
        chosen = names if wanted is None else _known(what, path.name, wanted, names)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        size = sum(
            group.column(position).total_uncompressed_size
            for group in groups
            for position in range(group.num_columns)
            if group.column(position).path_in_schema.partition(".")[0] in chosen
        )
        _check_memory(what, path, size)
        return RawTable(name=path.name, content=file.read(columns=chosen), typed=True, sha256=file_hash(path))
    except pa.ArrowException as error:
        raise UsageError(
            f"{what}: {path} cannot be read ({' '.join(str(error).split())[:200]}); allowed: a whole Parquet file"
        ) from error


def _csv(
    what: str, path: Path, wanted: Sequence[str] | None, separator: str | None, columns: Sequence[str] | None
) -> RawTable:
    import pyarrow as pa
    from pyarrow import csv

    packed = path.name.lower().endswith(".gz")
    _check_memory(what, path, path.stat().st_size * (8 if packed else 1))
    (before, first), decisions = _first_line(what, path, packed), []
    if not first.strip():
        raise UsageError(f"{what}: the file {path} has only blank lines; allowed: a header line and at least two rows")
    if separator is None:
        outside = re.sub(r'"[^"]*"', "", first)
        separator = max(_SEPARATORS, key=outside.count) if any(sign in outside for sign in _SEPARATORS) else ","
        if separator != ",":
            decisions.append(f"the separator is a {_SEPARATORS[separator]}")
    elif not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
        raise UsageError(f"{what} with separator {separator!r:.60}; allowed: one character, or None to infer it")
    names = [cell.strip().strip('"').strip() for cell in _cells(first, separator)] if columns is None else list(columns)
    if columns is None and any(map(_NUMBER.fullmatch, names)):
        raise UsageError(
            f"{what}: the first line of {path} holds the number {next(filter(_NUMBER.fullmatch, names))!r}; allowed: a "
            "line of column names; remedy: columns=['a', 'b', …] names the columns of a file without such a line"
        )
    unnamed = columns is None and names[0] == "" and len(names) > 1
    if unnamed:
        names[0] = "column 1"
    _check_names(what, path.name, names)
    chosen = names if wanted is None else _known(what, path.name, wanted, names)
    try:
        with pa.input_stream(str(path), compression="gzip" if packed else None) as stream:
            content = csv.read_csv(
                stream,
                # Errors have row numbers if one thread reads.
                read_options=csv.ReadOptions(
                    use_threads=False, column_names=names, skip_rows=before + (columns is None)
                ),
                parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), include_columns=chosen, strings_can_be_null=False
                ),
            )
    except pa.ArrowInvalid as error:
        _check_text(what, path, packed)
        message = re.sub(r"^CSV parse error: ", "", " ".join(str(error).split()))
        # Arrow counts the line of names.
        message = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - (columns is None)}", message)
        if "Empty CSV" in message:
            raise UsageError(
                f"{what}: {path.name} has no rows; allowed: a header line and at least two rows"
            ) from error
        raise UsageError(
            f"{what}: {path}: {message[:200]}; allowed: as many cells in each line as in the first; remedy: quotation "
            f"marks around a cell that holds {separator!r}"
            + ("; or delete the lines before the names of the columns" if len(names) == 1 else "")
        ) from error
    if unnamed and wanted is None:
        cells = content.column(0).to_pylist()
        if cells != [str(row) for row in range(len(cells))]:
            raise UsageError(
                f"{what}: the first column of {path} has no name; allowed: a name for each column; remedy: columns= "
                "with all names, or features= with those to use"
            )
        content = content.remove_column(0)
        decisions.append("the first column has no name and counts the rows: it is left out")
    return RawTable(name=path.name, content=content, typed=False, sha256=file_hash(path), decisions=tuple(decisions))


def _cells(line: str, separator: str) -> list[str]:
    import csv

    # A file of an old Macintosh has carriage returns only: all of it is its first line.
    return next(csv.reader(line.splitlines()[:1], delimiter=separator), [""])


def _first_line(what: str, path: Path, packed: bool) -> tuple[int, str]:
    """The number of blank lines at the beginning, and the line after them."""
    blank = 0
    with gzip.open(path) if packed else path.open("rb") as file:
        raw = file.readline(_MOST_HEADER_BYTES)
        while raw and not raw.removeprefix(codecs.BOM_UTF8).strip():
            blank, raw = blank + 1, file.readline(_MOST_HEADER_BYTES)
    check_encoding(what, path, raw)
    try:
        return blank, raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise not_utf8(what, path, blank + 1, error.start + 1, raw[error.start]) from error


def _check_text(what: str, path: Path, packed: bool) -> None:
    """Reject a file that is not UTF-8.

    Raises:
        UsageError: The message names line and byte.
    """
    with gzip.open(path) if packed else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(what, path, number, error.start + 1, line[error.start]) from error


def _check_names(what: str, name: str, names: Sequence[str]) -> None:
    for one in names:
        if not isinstance(one, str) or not one.strip():
            raise UsageError(
                f"{what}: {name} has a column without a name; allowed: a name for each column; remedy: name it in the "
                "first line, or delete the separator at the end of each line"
            )
        if list(names).count(one) > 1:
            raise UsageError(
                f"{what}: {name} has the column {one!r} twice; allowed: different names; remedy: rename one"
            )


def _known(what: str, name: str, wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    for one in wanted:
        if one not in names:
            raise UsageError(
                f"{what}: {name} has no column {one!r:.60}; allowed: {', '.join(names[:20])}"
                f"{', …' if len(names) > 20 else ''}{suggestion(str(one), names)}"
            )
    return list(wanted)


def _chosen(what: str, table: Any, wanted: Sequence[str] | None) -> Any:
    return table if wanted is None else table.select(_known(what, "the data frame", wanted, table.column_names))


def _check_memory(what: str, path: Path, size: int) -> None:
    room = psutil.virtual_memory().available
    if size * _GROWTH > room:
        raise UsageError(
            f"{what}: {path} needs about {size * _GROWTH} bytes of memory, and {room} are free; remedy: features= with "
            "the columns to use, or the data set arrays with memory-mapped .npy files"
        )
