"""Tables: a target column and feature columns of a CSV or Parquet file or a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.training.dataset import ArrayDataset, Splits
from deep5.training.datasets.class_names import class_numbers, mapping_sentence
from deep5.training.datasets.splitting import selected
from deep5.training.datasets.table_columns import MISSING, Column, Role, Rows, column_of
from deep5.training.datasets.table_inputs import check_features, input_matrix
from deep5.training.datasets.table_source import RawTable, read_table

__all__ = ["table"]

_TASKS = ("classification", "regression")
_ENCODINGS = ("one_hot", "codes")
_MISSING = ("error", "drop", "mean")
# A target of integers with at most as many different values is a class, if there are twice as many rows.
_FEW = 20


@dataclass(kw_only=True)
class _Read:
    """The columns of a table, before the split; `kept` are the rows that remain, of `rows`."""

    target: Column
    features: list[Column]
    rows: Rows
    kept: np.ndarray
    decisions: list[str] = field(default_factory=list)


def table(
    path: Any,
    *,
    target: str,
    features: Sequence[str] | None = None,
    task: str | None = None,
    categorical: Sequence[str] = (),
    encoding: str = "one_hot",
    standardize: bool = True,
    missing: str = "error",
    missing_values: Sequence[str] = (),
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    test_path: Any = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    r"""A table: feature columns as inputs and a target column as label, from CSV, Parquet or a data frame.

    Columns of numbers and booleans become one input each, columns of strings one input for each different string. All
    decisions are in the description, which `deep5 show dataset` prints.

    Args:
        path: A .csv, .tsv, .csv.gz or .parquet file in UTF-8; or a data frame (pandas, Polars, Arrow).
        target: The column to predict.
        features: The feature columns, in order; None: all others.
        task: "classification" or "regression"; None: classification for strings, booleans and integers of at most 20
            different values that repeat, else regression.
        categorical: Further feature columns to treat as categories, such as codes that are integers.
        encoding: How categories become inputs: "one_hot", or "codes" from 0 in sorted order.
        standardize: Whether columns of numbers are reduced by the mean and divided by the standard deviation of their
            training part; not those of booleans, categories or the target.
        missing: What to do with missing values: "error"; "drop" the row; or the "mean" of the training part for a
            feature of numbers and an own category for others.
        missing_values: Further strings that stand for a missing value in a CSV file, besides an empty cell, NA, NaN,
            null, None and ?.
        separator: The separator of a CSV file; None: comma, semicolon, tab or |, inferred from its first line.
        columns: Names of all columns, for a CSV file without a line of names.
        test_path: The test samples, a table with the same columns; None: a seeded fraction of the rows, stratified by
            class for classification.
        test_share: That fraction.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep; None: all.
        test_limit: The same for the test samples.

    Returns:
        Samples `input` float32 (inputs,) and `label`: int64 () for classes, float32 (1,) for a regression.

    Raises:
        UsageError: A file or column is missing, a cell has no value or one that does not fit its column (the message
            names file, row, column and value), or an argument is out of its range.
        MissingDependency: pyarrow is not installed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "points.csv")
    ...     _ = path.write_text("x,color,kind\n" + "1.5,red,a\n2.5,blue,b\n" * 5)
    ...     data = d5.datasets.table(path, target="kind", test_share=0.2)
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (8, 2, {'input': 'float32[3]', 'label': 'int64[]'})
    """
    what = "table"
    for name, given, allowed in (("encoding", encoding, _ENCODINGS), ("missing", missing, _MISSING)):
        if given not in allowed:
            raise UsageError(f"{what} with {name} {brief(given)}; allowed: {', '.join(map(repr, allowed))}")
    if task is not None and task not in _TASKS:
        raise UsageError(
            f"{what} with task {brief(task)}; allowed: {', '.join(map(repr, _TASKS))}, or None to infer it"
        )
    if not isinstance(target, str):
        raise UsageError(
            f"{what}: got target={brief(target)}; allowed: the name of a column; remedy: target={str(target)!r:.60}"
        )
    for name, names in (("features", features), ("categorical", categorical), ("columns", columns)):
        _check_strings(what, name, names)
    if features is not None and target in features:
        raise UsageError(f"{what}: the target {target!r} is among the features; allowed: other columns")
    wanted = None if features is None else [*features, target]
    sources = [read_table(what, path, "path", wanted=wanted, separator=separator, columns=columns)]
    if test_path is not None:
        sources.append(read_table(what, test_path, "test_path", wanted=wanted, separator=separator, columns=columns))
    classify = task == "classification"
    read = _columns(
        what, sources, target, features, categorical, (*MISSING, *missing_values), missing, classify=classify
    )
    classes, labels = _labels(what, read, task)
    first = int((read.kept < sources[0].content.num_rows).sum())
    separate = len(sources) > 1
    chosen = selected(
        what,
        first,
        labels[:first] if classes else None,
        test_length=len(read.kept) - first if separate else None,
        test_labels=labels[first:] if classes and separate else None,
        given="the tables given",
        classes=classes,
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    parts = [chosen.train, chosen.test + first if separate else chosen.test]
    unseen = [name for number, name in enumerate(classes) if not (labels[parts[0]] == number).any()]
    if unseen:
        read.decisions.append(f"no training row has the class {', '.join(map(repr, unseen[:5]))}")
    inputs = input_matrix(what, read.features, parts[0], encoding=encoding, standardize=standardize)
    if not classes:
        labels = labels.astype(np.float32)[:, None]
    train, test = (ArrayDataset({"input": inputs.values[ids], "label": labels[ids]}) for ids in parts)
    return Splits(
        train=train,
        test=test,
        split_hash=chosen.hash,
        description={
            "source": f"table {' and '.join(source.name for source in sources)}",
            **{
                f"{name}_sha256": source.sha256
                for name, source in zip(("file", "test_file"), sources, strict=False)
                if source.sha256 is not None
            },
            "samples": {"train": len(train), "test": len(test)},
            "task": "classification" if classes else "regression",
            "target": target,
            **({"classes": classes} if classes else {}),
            "columns": {column.name: column.describe() for column in (*read.features, read.target)},
            "inputs": inputs.names,
            "split": chosen.text,
            "preparation": inputs.preparation,
            "decisions": [sentence for source in sources[:1] for sentence in source.decisions]
            + read.decisions
            + inputs.decisions,
            "hash": "all bytes of the inputs and labels",
        },
    )


def _check_strings(what: str, name: str, names: Any) -> None:
    if names is None:
        return
    texts = isinstance(names, (list, tuple)) and all(isinstance(one, str) for one in names)
    if not texts or len(set(names)) < len(names) or (name != "categorical" and not names):
        raise UsageError(f"{what}: got {name}={brief(names)}; allowed: a list of different column names")


def _columns(
    what: str,
    sources: Sequence[RawTable],
    target: str,
    features: Sequence[str] | None,
    categorical: Sequence[str],
    tokens: Sequence[str],
    missing: str,
    *,
    classify: bool,
) -> _Read:
    """All columns with their types, and the rows that are kept."""
    import pyarrow as pa

    from deep5.core.errors import suggestion

    names = sources[0].content.column_names
    for one in (target, *categorical):
        if one not in names:
            which = "target" if one == target else "categorical column"
            raise UsageError(
                f"{what}: {sources[0].name} has no column {one!r:.60}, the {which}; allowed: {', '.join(names[:20])}"
                f"{', …' if len(names) > 20 else ''}{suggestion(one, names)}"
            )
    chosen = [name for name in names if name != target] if features is None else list(features)
    if not chosen:
        raise UsageError(f"{what}: {sources[0].name} has only the column {target!r}; allowed: at least one feature")
    if unused := [one for one in categorical if one not in chosen and one != target]:
        raise UsageError(f"{what}: got categorical={unused}; allowed: columns that are features")
    rows = Rows(names=tuple(s.name for s in sources), counts=tuple(s.content.num_rows for s in sources))
    if len(sources) > 1:
        if sources[0].typed != sources[1].typed:
            raise UsageError(f"{what}: a CSV file and a table with types; allowed: two of one kind")
        lacking = [name for name in (*chosen, target) if name not in sources[1].content.column_names]
        if lacking:
            raise UsageError(
                f"{what}: the test table {sources[1].name} has no column {lacking[0]!r}; allowed: the columns of "
                f"{sources[0].name}"
            )
    try:
        content = pa.concat_tables(
            [source.content.select([*chosen, target]) for source in sources], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise UsageError(
            f"{what}: the columns of {sources[0].name} and {sources[1].name} differ in type "
            f"({' '.join(str(error).split())[:120]})"
        ) from error
    typed = sources[0].typed
    made = [
        column_of(what, name, content[name], rows, typed=typed, category=name in categorical, missing=tokens)
        for name in chosen
    ]
    role: Role = "classes" if classify else "target"
    goal = column_of(
        what, target, content[target], rows, typed=typed, category=target in categorical, missing=tokens, role=role
    )
    read = _Read(target=goal, features=made, rows=rows, kept=np.arange(sum(rows.counts)))
    _settle_missing(what, read, missing)
    read.decisions += check_features(what, read.features, read.target)
    return read


def _settle_missing(what: str, read: _Read, missing: str) -> None:
    """Reject missing values or drop their rows, as the caller says."""
    columns = [read.target] if missing == "mean" else [*read.features, read.target]
    absent = np.logical_or.reduce([column.missing for column in columns])
    if not absent.any():
        return
    if missing != "drop":
        row = int(absent.argmax())
        column = next(column for column in columns if column.missing[row])
        count = sum(int(column.missing.sum()) for column in columns)
        options = "missing='drop'" + (
            "" if missing == "mean" else f", missing='mean' or features= without {column.name!r}"
        )
        raise UsageError(
            f"{what}: {read.rows.at(row)}, column {column.name!r}: the value is missing ({count} are in all); allowed: "
            f"a value in every cell; remedy: {options}"
        )
    read.kept = np.flatnonzero(~absent)
    if not len(read.kept):
        raise UsageError(
            f"{what}: every row has a missing value; remedy: missing='mean', or features= with fewer columns"
        )
    read.target = read.target.taken(read.kept)
    read.features = [column.taken(read.kept) for column in read.features]
    read.decisions.append(f"{int(absent.sum())} of {len(absent)} rows with missing values are dropped")


def _labels(what: str, read: _Read, task: str | None) -> tuple[list[str], np.ndarray]:
    """The classes and the label of each row; no classes for a regression, whose labels are float64."""
    target = read.target
    values = target.values
    if target.kind == "category":
        if task == "regression":
            raise UsageError(
                f"{what}: {read.rows.at(int(read.kept[0]))}, column {target.name!r}: got "
                f"{target.categories[int(values[0])]!r:.60} as the target of a regression; allowed: numbers"
            )
        shown: Any = np.array(target.categories, dtype=object)[values]
        # Sorted by the column's own order: integers by value.
        known = [name for number, name in enumerate(target.categories) if (values == number).any()]
        if len(known) < 2:
            class_numbers(list(shown), f"{what}: the values of the target {target.name!r}")
        classes = known
        labels = np.searchsorted([target.categories.index(name) for name in known], values).astype(np.int64)
    else:
        few = target.integral and len(np.unique(values)) <= min(_FEW, len(values) // 2)
        if task == "regression" or (task is None and target.kind == "number" and not few):
            if task is None:
                read.decisions.append(
                    f"the target {target.name!r} has numbers: a regression; task='classification' overrules"
                )
            if np.all(values == values[0]):
                raise UsageError(
                    f"{what}: the target {target.name!r} is {values[0]:g} in every row; allowed: values that differ"
                )
            return [], values
        if not target.integral:
            raise UsageError(
                f"{what}: {read.rows.at(int(read.kept[0]))}, column {target.name!r}: got {values[0]:g} as a class; "
                "allowed: integers or strings; remedy: task='regression'"
            )
        labels, classes = class_numbers(values.astype(np.int64), f"{what}: the values of the target {target.name!r}")
        if task is None and target.kind == "number":
            read.decisions.append(
                f"the target {target.name!r} has {len(classes)} integers: classes; task='regression' overrules"
            )
    if sentence := mapping_sentence(classes):
        read.decisions.append(sentence)
    return classes, labels
