"""The page of columns: of data frames, of exports and of samples.csv, from the code that writes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import pandas

from deep5.bench.serving.records import Request
from deep5.results import frame
from deep5.results.export.tables import RUN_COLUMNS
from deep5.results.long_form import SAMPLE_COLUMNS, SAMPLE_MEANINGS
from deep5.results.ranks_file import RankRow
from deep5.results.round_samples import RoundSample
from deep5.results.samples_file import SampleRow
from deep5.results.stored import Stored
from tables import code, require, table, with_code

EXAMPLE = """\
import deep5 as d5

frame = d5.results.load("results")
print(frame[["recipe", "framework", "metric.test_accuracy"]])
print(frame.attrs["units"]["metric.test_accuracy"])

samples = d5.results.load("results", samples=True, where={"recipe": "digits_lenet"})
losses = samples[samples["metric"] == "training_loss"]
print(losses.groupby(["run_id", "epoch"])["value"].mean())
"""
"""tests/project/test_reference_pages.py runs it."""

PAGE = """\
# Columns of results

Results are files. `d5.results.load` reads them as a data frame of pandas, `deep5 results` shows them as a table, and
`deep5 export` writes all samples as CSV or Parquet. [Results](../how_to/results.md) explains how to use them.

```python
{example}```

## One row per result

`d5.results.load(root)` returns a row per run, comparison or study. `deep5 results` takes the same names in `--columns`,
`--sort` and `--where`. What a result does not have is `None`, `NaN` or `<NA>`.

{rows}

Further columns depend on the results:

{families}

## One row per sample

`d5.results.load(root, samples=True)` returns a row per raw value of runs and comparisons. It begins with columns of the
result, as above: {joined}. Then follow:

{samples}

## Exports

`deep5 export FOLDER --format csv` and `--format parquet` write the same columns of samples. The columns before them are
{run_columns}. In CSV, an absent value is an empty cell, and a number has its shortest exact form. Parquet has the types
`string`, `int64` and `double`.

## Files in a result folder

`samples.csv` of a run, and `samples-rank-N.csv` of rank N from 1 on:

{run_file}

`samples.csv` of a comparison:

{round_file}

`requests.csv` of a serving run, a row per request; times are on the run's clock, since the start of the load:

{request_file}

`ranks.json` of a run of several ranks, an entry per rank:

{ranks}

Metrics write further files, which [their reference](api/metrics.md) describes: `confusion.csv`, `sampling.csv`,
`staleness.csv` and `time_breakdown.csv`. The documents `result.json`, `comparison.json`, `origin.json` and `pack.json`
have [schemas](schemas.md).
"""
FAMILIES: Mapping[str, tuple[str, str]] = {
    "metric.NAME": ("float64", "Value of a metric of a run. `frame.attrs['units']` has its unit by column."),
    "verdict.CANDIDATE": ("object", "Verdict of a comparison: `faster`, `slower` or `no difference shown`."),
    "ratio.CANDIDATE": ("float64", "Ratio of the candidate's time to the baseline's."),
    "ratio_low.CANDIDATE": ("float64", "Lower end of the interval of the ratio."),
    "ratio_high.CANDIDATE": ("float64", "Upper end of the interval of the ratio."),
    "set.KEY": ("object", "A mutable part of the recipe, such as `set.optimizer_kwargs.lr`."),
}
"""Columns whose names depend on the results: type and meaning; of several workloads, `ratio.CANDIDATE[WORKLOAD]`."""


def attributes(kind: type) -> dict[str, str]:
    """The meanings of a class's fields, by name, from its docstring.

    >>> attributes(RoundSample)["seconds"]
    'Seconds per call or step.'
    """
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    return {name: " ".join(said.split()) for name, said in re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, re.M)}


def unit_of(name: str) -> str:
    """The unit of a column by its name.

    >>> unit_of("time_s"), unit_of("sent_bytes"), unit_of("seconds"), unit_of("value"), unit_of("rank")
    ('s', 'bytes', 's', 'in `unit`', '')
    """
    if name == "value":
        return "in `unit`"
    return "s" if name == "seconds" or name.endswith("_s") else "bytes" if name.endswith("_bytes") else ""


def stored_meanings() -> dict[str, str]:
    """The meanings of the columns of a row per result, in their order."""
    known = {**attributes(Stored), "comparable": inspect.getdoc(Stored.comparable) or ""}
    return {name: known.get(name, "").split("\n\n")[0] for name in Stored(folder="", kind="").row()}


def pages() -> dict[str, str]:
    """The page.

    Raises:
        PluginError: A column without a meaning.
    """
    stored = stored_meanings()
    samples = {name: SAMPLE_MEANINGS.get(name, "") for name in SAMPLE_COLUMNS}
    require("columns of results", stored.items(), "the docstring of deep5.results.stored.Stored")
    require("columns of samples", samples.items(), "deep5.results.long_form.SAMPLE_MEANINGS")
    dtypes = {name: _dtype(frame._column(pandas, name, [None])) for name in stored}
    kinds = {name: _dtype(frame._typed(pandas, kind, [])) for name, kind in SAMPLE_COLUMNS.items()}
    families = [(code(name), kind, about) for name, (kind, about) in FAMILIES.items()]
    return {
        "reference/result_columns.md": PAGE.format(
            example=EXAMPLE,
            rows=_table(stored, dtypes, units=False),  # the meaning of the only one with a unit has it
            families=table(("column", "type", "meaning"), families),
            joined=_names(frame._JOINED),
            samples=_table(samples, kinds),
            run_columns=_names(RUN_COLUMNS),
            run_file=_fields(SampleRow),
            round_file=_fields(RoundSample),
            request_file=_fields(Request),
            ranks=_fields(RankRow),
        )
    }


def _dtype(column: Any) -> str:
    return str(column.dtype)


def _names(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)


def _table(meanings: Mapping[str, str], types: Mapping[str, str], *, units: bool = True) -> str:
    return table(
        ("column", "type", "unit", "meaning"),
        [(code(name), types[name], unit_of(name) * units, with_code(about)) for name, about in meanings.items()],
    )


def _fields(kind: type) -> str:
    """The fields of a line of a file."""
    known = attributes(kind)
    hints = get_type_hints(kind)
    names = list(hints)
    require(f"fields of {kind.__name__}", [(name, known.get(name)) for name in names], "its docstring")
    types = {
        name: getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
        for name, hint in hints.items()
    }
    types = {
        name: said.replace(" | None", ", or empty").replace("tuple[str, ...]", "list of str")
        for name, said in types.items()
    }
    return _table({name: known[name] for name in names}, types)
