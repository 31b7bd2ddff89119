"""The `.ts` format of the time series classification archive: series of one or several dimensions, with classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError, brief

__all__ = ["TimeSeries", "parse_ts"]

_FLAGS = ("timestamps", "missing", "univariate", "equallength", "targetlabel")
_NUMBERS = {"dimensions": "dimensions", "dimension": "dimensions", "serieslength": "serieslength"}
_TAGS = (
    "@problemName, @timeStamps, @missing, @univariate, @dimensions, @equalLength, @seriesLength, @classLabel, "
    "@targetLabel, @data"
)
_MISSING = "?"


@dataclass(frozen=True, kw_only=True)
class TimeSeries:
    """The content of a `.ts` file.

    Attributes:
        name: The problem's name; empty if the file has none.
        classes: The names of the classes in the order of the header; none: the series have no classes.
        series: Float64 of shape (length, dimensions) each, NaN where a value is missing.
        labels: The class of each series, from 0, int64 of shape (series,); None: they have no classes.
    """

    name: str
    classes: tuple[str, ...]
    series: tuple[np.ndarray, ...]
    labels: np.ndarray | None


def parse_ts(name: str, content: bytes) -> TimeSeries:
    """Parse a `.ts` file.

    A header of tags, in upper or lower case, then `@data`, then a series per line: its dimensions, separated by colons,
    each with its values, separated by commas, and in the end the class. `?` is a missing value, and a line that begins
    with `#` a comment. All dimensions of a series have the same length; without `@equalLength true`, other series may
    have others.

    Args:
        name: The file's name, for messages.
        content: Its bytes, UTF-8.

    Raises:
        UsageError: A line is not of this format, or does not follow from the header; the message names file and line.
            So do time stamps and target values, which deep5 does not read.

    References:
        Bagnall et al., The UEA multivariate time series classification archive, 2018, arXiv:1811.00075 (the archive).

    >>> found = parse_ts("two.ts", b"@dimensions 2\\n@classLabel true yes no\\n@data\\n1,2,3:4,?,6:no\\n7:8:yes\\n")
    >>> found.labels, [each.tolist() for each in found.series]
    (array([1, 0]), [[[1.0, 4.0], [2.0, nan], [3.0, 6.0]], [[7.0, 8.0]]])
    """
    header, series, labels = _Header(), [], []
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}, line {number} is not UTF-8; allowed: the format .ts") from error
    for number, line in enumerate(map(str.strip, lines), start=1):
        where = f"{name}, line {number}"
        if not line or line.startswith("#"):
            continue
        if not header.complete:
            header.read(where, line)
        else:
            fields = line.split(":")
            if header.classes:
                labels.append(header.label(where, fields.pop()))
            series.append(header.series(where, fields))
    if not header.complete:
        raise UsageError(f"{name} has no line @data; allowed: a header of {_TAGS}, then the series")
    if not series:
        raise UsageError(f"{name} has no series after @data; allowed: at least one")
    return TimeSeries(
        name=header.name,
        classes=tuple(header.classes),
        series=tuple(series),
        labels=np.array(labels, np.int64) if header.classes else None,
    )


class _Header:
    """The tags so far, and what they require of a series."""

    def __init__(self) -> None:
        self.complete, self.name = False, ""
        self.classes: dict[str, int] = {}
        self._seen: set[str] = set()
        self._flags: dict[str, bool] = {}
        self._sizes: dict[str, int] = {}

    def read(self, where: str, line: str) -> None:
        """Read one line before the data."""
        tag, *given = line.split()
        key = _NUMBERS.get(tag[1:].lower(), tag[1:].lower())
        if tag[0] != "@" or key not in {*_FLAGS, *_NUMBERS.values(), "problemname", "classlabel", "data"}:
            raise UsageError(f"{where}: got {brief(line)}; allowed before the data: {_TAGS}, or a comment after #")
        if key in self._seen:
            raise UsageError(f"{where}: the tag {tag} is there twice; allowed: once")
        self._seen.add(key)
        if key == "data":
            self.complete = True
            self._check(where)
        elif key == "problemname":
            self.name = " ".join(given)
        elif key in self._sizes or key in _NUMBERS.values():
            if (
                len(given) != 1
                or not given[0].isascii()
                or not given[0].isdigit()
                or len(given[0]) > 9
                or int(given[0]) < 1
            ):
                raise UsageError(f"{where}: got {brief(line)}; allowed: {tag} and an integer of at least 1")
            self._sizes[key] = int(given[0])
        else:
            self._flag(where, tag, key, given)

    def _flag(self, where: str, tag: str, key: str, given: list[str]) -> None:
        value = {"true": True, "false": False}.get(given[0].lower()) if given else None
        classes = given[1:]
        if value is None or (classes and not (value and key == "classlabel")):
            raise UsageError(f"{where}: got {brief(' '.join([tag, *given]))}; allowed: {tag} true, or {tag} false")
        if key == "classlabel" and value:
            self.classes = {each: place for place, each in enumerate(classes)}
            if not classes or len(self.classes) < len(classes):
                raise UsageError(f"{where}: got the classes {brief(classes)}; allowed: at least one, each once")
        if value and key in ("timestamps", "targetlabel"):
            what = "time stamps" if key == "timestamps" else "target values"
            raise UsageError(f"{where}: the series have {what}; allowed: {tag} false, series of values with classes")
        self._flags[key] = value

    def _check(self, where: str) -> None:
        """Check that the tags agree."""
        dimensions = self._sizes.get("dimensions")
        if self._flags.get("univariate") and dimensions not in (None, 1):
            raise UsageError(
                f"{where}: the header has @univariate true and @dimensions {dimensions}; allowed: one of them"
            )
        if self._flags.get("univariate"):
            self._sizes["dimensions"] = 1
        if self._flags.get("equallength") is False and "serieslength" in self._sizes:
            raise UsageError(f"{where}: the header has @equalLength false and @seriesLength; allowed: one of them")
        self._equal = self._flags.get("equallength", "serieslength" in self._sizes)

    def label(self, where: str, given: str) -> int:
        """The number of a class."""
        found = self.classes.get(given.strip())
        if found is None:
            raise UsageError(f"{where}: got the class {brief(given)}; allowed: {', '.join(self.classes)[:200]}")
        return found

    def series(self, where: str, fields: list[str]) -> np.ndarray:
        """The values of a line, float64 of shape (length, dimensions)."""
        expected = self._sizes.setdefault("dimensions", len(fields))
        if len(fields) != expected:
            raise UsageError(f"{where}: got {len(fields)} dimensions; allowed: {expected}, as before")
        rows = [[self._value(where, each) for each in field.split(",")] for field in fields]
        length = len(rows[0])
        for place, row in enumerate(rows):
            if len(row) != length:
                raise UsageError(
                    f"{where}: dimension {place + 1} has {len(row)} values and the first {length}; allowed: as many"
                )
        if self._equal and length != self._sizes.setdefault("serieslength", length):
            raise UsageError(f"{where}: got {length} values; allowed: {self._sizes['serieslength']}, as before")
        return np.ascontiguousarray(np.array(rows, np.float64).T)

    def _value(self, where: str, given: str) -> float:
        text = given.strip()
        if text == _MISSING and self._flags.get("missing", True):
            return math.nan
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        # Python also takes 1_000, nan and inf.
        if not math.isfinite(value) or "_" in text:
            missing = f", or {_MISSING} for a missing one" if self._flags.get("missing", True) else ""
            raise UsageError(f"{where}: got the value {brief(given)}; allowed: a finite number{missing}")
        return value
