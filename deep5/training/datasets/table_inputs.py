"""The inputs of a table's samples: numbers standardized by their training part, categories as one-hot or codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.terminal import counted
from deep5.training.datasets.table_columns import Column

__all__ = ["Inputs", "check_features", "input_matrix"]

# A category of more values is more likely a name or a number of the row.
_MOST_CATEGORIES = 1000
_ABSENT = "(missing)"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of all rows.

    Attributes:
        values: float32, shape (rows, inputs).
        names: The name of each input: its column, and for one-hot inputs `column=value`.
        preparation: What was done to the columns, as a sentence.
        decisions: Further statements.
    """

    values: np.ndarray
    names: list[str]
    preparation: str
    decisions: list[str]


def check_features(what: str, features: Sequence[Column], target: Column) -> list[str]:
    """Statements about constant and duplicate columns, and those of a different string in each row.

    Raises:
        UsageError: A feature equals the target in every row, or has so many different strings that it names the rows.
    """
    found: list[str] = []
    seen: dict[bytes, str] = {}
    for column in features:
        values = column.values
        if _same(column, target):
            raise UsageError(
                f"{what}: the feature {column.name!r} equals the target {target.name!r} in every row, so it gives the "
                "label away; remedy: features= without it"
            )
        if len(column.categories) > _MOST_CATEGORIES:
            raise UsageError(
                f"{what}: the column {column.name!r} has {len(column.categories)} different strings, such as "
                f"{column.categories[0]!r:.40}; allowed: at most {_MOST_CATEGORIES}; remedy: features= without it"
            )
        if column.categories and len(column.categories) == (~column.missing).sum() > 2:
            found.append(
                f"the column {column.name!r} has another string in each row, such as {column.categories[0]!r:.40}: "
                "a category without information; features= without it"
            )
        if np.all(values == values[0]):
            found.append(f"the column {column.name!r} is constant and carries no information")
            continue
        key = f"{column.kind} {column.categories}".encode() + values.tobytes()
        if (other := seen.setdefault(key, column.name)) != column.name:
            found.append(f"the column {column.name!r} repeats {other!r}")
    return found


def _same(column: Column, target: Column) -> bool:
    if column.kind == "category" and target.kind == "category":
        return column.categories == target.categories and bool(np.array_equal(column.values, target.values))
    return "category" not in (column.kind, target.kind) and bool(np.array_equal(column.values, target.values))


def input_matrix(
    what: str, features: Sequence[Column], train: np.ndarray, *, encoding: str, standardize: bool
) -> Inputs:
    """The inputs of all rows.

    Args:
        what: The data set, for messages.
        features: The columns.
        train: Indices of the training rows, from which means and standard deviations (of the population) come.
        encoding: "one_hot" or "codes", of categories.
        standardize: Whether numbers are standardized.
    """
    parts: list[np.ndarray] = []
    names: list[str] = []
    decisions: list[str] = []
    numbers = one_hot = codes = 0
    for column in features:
        if column.kind == "category":
            values, categories = column.values, list(column.categories)
            if column.missing.any():
                values = np.where(column.missing, len(categories), values)
                categories.append(_ABSENT)
                absent = counted(int(column.missing.sum()), "missing value")
                decisions.append(f"{absent} of {column.name!r}: the category {_ABSENT}")
            if encoding == "codes":
                codes += 1
                parts.append(values.astype(np.float32)[:, None])
                names.append(column.name)
            else:
                one_hot += 1
                parts.append((values[:, None] == np.arange(len(categories))).astype(np.float32))
                names += [f"{column.name}={category}" for category in categories]
            continue
        values = column.values
        if column.missing.any():
            seen = values[train][~column.missing[train]]
            if not len(seen):
                raise UsageError(
                    f"{what}: no training sample has a value of {column.name!r}; remedy: features= without it"
                )
            values = np.where(column.missing, seen.mean(), values)
            absent = counted(int(column.missing.sum()), "missing value")
            decisions.append(f"{absent} of {column.name!r}: set to the training mean")
        if column.kind == "number":
            numbers += 1
            if standardize:
                own = values[train]
                deviation = own.std()
                values = (values - own.mean()) / (deviation if deviation > 0 else 1.0)
        with np.errstate(over="ignore"):
            parts.append(values.astype(np.float32)[:, None])
        if not np.isfinite(parts[-1]).all():
            raise UsageError(
                f"{what}: the column {column.name!r} has values up to {np.abs(values).max():g}; allowed: values that "
                "float32 holds; remedy: standardize=True, or another unit"
            )
        names.append(column.name)
    said = []
    if numbers:
        how = "standardized by mean and standard deviation of the training part" if standardize else "unchanged"
        said.append(f"{counted(numbers, 'column')} of numbers {how}")
    if one_hot:
        said.append(f"{counted(one_hot, 'category column')} as one-hot")
    if codes:
        said.append(f"{counted(codes, 'category column')} as codes from 0 in sorted order")
    if (truth := len(features) - numbers - one_hot - codes) > 0:
        said.append(f"{counted(truth, 'column')} of booleans as 0 and 1")
    return Inputs(values=np.concatenate(parts, axis=1), names=names, preparation="; ".join(said), decisions=decisions)
