"""Results under a root as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import MissingDependency, UsageError
from deep5.results.choosing import chosen, columns_of, rows_with_units, unmatched
from deep5.results.index import list_results
from deep5.results.kind import COMPARISON_KIND, FILES
from deep5.results.long_form import SAMPLE_COLUMNS, ended_candidates, sample_records
from deep5.results.reading import TABLE_ROWS, read_object, shown_path
from deep5.results.stored import UNREADABLE, Stored

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load"]

_JOINED = (
    "run_id", "kind", "compared", "mode", "folder", "recipe", "hash", "size", "division", "framework", "ranks",
    "status", "comparable",
)  # fmt: skip
_TYPES = {"level": "Int64", "threads": "Int64", "ranks": "Int64", "accepted": "boolean", "seconds": "float64"}


def load(
    root: str | Path = "results", *, where: Mapping[str, Any] | None = None, samples: bool = False
) -> pd.DataFrame:
    """All results under a root, one row per run, comparison or study, the newest last.

    Columns are those of `deep5.results.stored.Stored` (`run_id`, `kind`, `recipe`, `hash`, …), then `metric.NAME` in
    the unit that `frame.attrs["units"]` gives by column, for comparisons `verdict.CANDIDATE`, `ratio.CANDIDATE` and its
    interval `ratio_low.CANDIDATE` to `ratio_high.CANDIDATE` (`CANDIDATE[WORKLOAD]` for several workloads), and
    `set.KEY` for each mutable part of a recipe. Rows with the same string under `comparable` ran the same fixed part of
    a recipe at the same size and may be compared; rows without one may not. An unreadable folder is a row with the
    status "unreadable" and the `reason`.

    Args:
        root: A folder of result folders, or one of them.
        where: Required value by column; a string may contain file-name wildcards.
        samples: Return one row per raw sample instead (`metric`, `index`, `value`, `unit`, `step`, `rank`, …), with
            columns that identify its result. A run of several ranks has the samples of each.

    Raises:
        UsageError: The folder or a column does not exist, or samples are not in deep5's format.
        MissingDependency: pandas is not installed.

    >>> import tempfile
    >>> import deep5 as d5
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name in ("first", "second"):
    ...     with d5.record(name, out=folder.name, quiet=True) as run:
    ...         with run.epoch():
    ...             for loss in (0.75, 0.25):
    ...                 with run.step(batch_size=8):
    ...                     run.log(loss=loss)
    >>> frame = d5.results.load(folder.name)
    >>> sorted(frame["recipe"]), frame["metric.training_loss"].tolist(), frame.attrs["units"]["metric.training_loss"]
    (['first', 'second'], [0.5, 0.5], 'nat')
    >>> samples = d5.results.load(folder.name, where={"recipe": "second"}, samples=True)
    >>> samples[samples["metric"] == "training_loss"][["step", "value"]].values.tolist()
    [[0, 0.75], [1, 0.25]]
    >>> folder.cleanup()
    """
    pandas = _pandas()
    if where is not None and not isinstance(where, Mapping):
        raise UsageError(f"where is {where!r:.60}; allowed: a mapping such as {{'recipe': 'digits_lenet'}}")
    listing = list_results(root)
    rows, units = rows_with_units(listing.results)
    rows = [{**row, "_at": place} for place, row in enumerate(rows)]
    kept = chosen(rows, where or {})
    if samples:
        found = [listing.results[row["_at"]] for row in kept]
        return _long(pandas, Path(root), found)
    names = [name for name in columns_of(rows) if name != "_at"]
    data = {name: [row.get(name) for row in kept] for name in names}
    frame = pandas.DataFrame({name: _column(pandas, name, values) for name, values in data.items()}, columns=names)
    frame.attrs["units"] = units
    frame.attrs["notes"] = [*listing.notes, *unmatched(rows, where or {})]
    return frame


def _column(pandas: Any, name: str, values: list[Any]) -> Any:
    if name in _TYPES:
        return pandas.array([_fitting(value) for value in values], dtype=_TYPES[name])
    if name.startswith(("metric.", "ratio")):
        return pandas.array([float("nan") if value is None else value for value in values], dtype="float64")
    if name == "started":
        return pandas.to_datetime(pandas.Series(values, dtype="object"), utc=True, errors="coerce", format="ISO8601")
    return pandas.Series(values, dtype="object")


def _fitting(value: Any) -> Any:
    """The value if a 64-bit column can hold it."""
    return None if isinstance(value, int) and abs(value) >= 2**63 else value


def _long(pandas: Any, root: Path, results: Iterable[Stored]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in (*_JOINED, *SAMPLE_COLUMNS)}
    for own in results:
        if own.status == UNREADABLE:
            continue
        row = own.row()
        number = len(columns["value"])
        ended: dict[str | None, str] = {}
        if own.kind == COMPARISON_KIND:
            ended = ended_candidates(read_object(root / own.folder / FILES[own.kind]), own.kind)
        for record in sample_records(root / own.folder, own.kind, ranks=own.ranks or 1):
            if len(columns["value"]) == TABLE_ROWS:
                raise UsageError(
                    f"the results under {shown_path(root)} have more than {TABLE_ROWS} samples; allowed: at most as "
                    "many; remedy: where=…, or 'deep5 export --format parquet'"
                )
            for name, value in record.items():
                columns[name].append(value)
        for name in _JOINED:
            columns[name] += [row[name]] * (len(columns["value"]) - number)
        if ended:
            # Samples of a rejected candidate do not count, whatever the status of the others.
            own_labels = columns["candidate"][number:]
            columns["status"][number:] = [ended.get(label, row["status"]) for label in own_labels]
    try:
        made: pd.DataFrame = pandas.DataFrame(
            {name: _typed(pandas, SAMPLE_COLUMNS.get(name, str), values) for name, values in columns.items()}
        )
    except (ArithmeticError, TypeError, ValueError) as error:  # TypeError: integers from 2**63 to 2**64
        raise UsageError(f"a sample under {root} does not fit into 64 bits: {error}") from error
    return made


def _typed(pandas: Any, kind: type, values: list[Any]) -> Any:
    if kind is float:
        return pandas.array([float("nan") if value is None else value for value in values], dtype="float64")
    # An object column stays a series: an array would become a string array, which only supports UTF-8.
    return pandas.array(values, dtype="Int64") if kind is int else pandas.Series(values, dtype="object")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingDependency(
            "results.load needs pandas, which is not installed; remedy: pip install 'deep5[report]'"
        ) from error
    return pandas
