"""What the charts of a report share: their limits, names at the left, and notes on what they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deep5.results.markup import clean
from deep5.results.reading import NotThere, opened
from deep5.results.samples_file import SAMPLES

__all__ = [
    "ROWS",
    "SECONDS",
    "WIDTH",
    "Drawing",
    "check_size",
    "left_out",
    "rows_axis",
    "spread",
    "unique_names",
    "within",
]

ROWS = 24
"""Maximum number of rows of a chart; the table has all."""

WIDTH = 300
"""Width of a panel in pixels."""

SECONDS = (1e-10, 1e8)
"""Range of times that can be drawn on one axis."""

# Pixels of a character; characters of a name.
_LETTER, _NAME = 7.4, 28
_SAMPLES_BYTES = 64 << 20


class Drawing(NamedTuple):
    """A chart.

    Attributes:
        name: Name of its file.
        title: Title of its caption.
        about: Description in a sentence or two, for its caption and for screen readers.
        chart: The Altair chart.
        standing: A note above it if its results are not finished, full-size and closed.
    """

    name: str
    title: str
    about: str
    chart: Any
    standing: str = ""


def check_size(folder: Path, name: str = SAMPLES) -> None:
    """Check the number of samples, which are read into memory for a chart: about a million at most.

    Args:
        folder: The result folder.
        name: Name of the file with the samples.

    Raises:
        UsageError: There are more.
    """
    try:
        with opened(folder / name, most_bytes=_SAMPLES_BYTES):
            pass
    except NotThere:
        pass


def unique_names(names: Iterable[str]) -> list[str]:
    """Names as a chart shows them: short, without control characters, and no two the same.

    >>> unique_names(["ring", "ring", "an algorithm with a long name"])
    ['ring', 'ring (2)', 'an algorithm with a long na…']
    """
    found: list[str] = []
    for name in names:
        whole = clean(name)
        short = " ".join((whole if len(whole) <= _NAME else whole[: _NAME - 1] + "…").split()) or "?"
        number, own = 1, short
        while own in found:
            number += 1
            own = f"{short} ({number})"
        found.append(own)
    return found


def within(value: Any, bounds: tuple[float, float]) -> bool:
    """Whether a value is there and within bounds, both ends included."""
    return value is not None and bounds[0] <= value <= bounds[1]


def left_out(drawn: int, whole: int) -> str:
    """A sentence on the rows that a chart does not show; empty if it shows all.

    >>> left_out(24, 25), left_out(24, 24)
    (' 1 of 25 rows is not drawn; the table has them all.', '')
    """
    if drawn == whole:
        return ""
    verb = "is" if whole - drawn == 1 else "are"
    return f" {whole - drawn} of {whole} rows {verb} not drawn; the table has them all."


def rows_axis(alt: Any, names: Sequence[str]) -> Any:
    """An axis of names at the left, from top to bottom."""
    # A browser's characters may be wider than those that vl-convert measures.
    room = max(map(len, names)) * _LETTER
    axis = alt.Axis(labelLimit=room, minExtent=room, ticks=False, domain=False, labelPadding=6)
    return alt.Y("name:N", sort=list(names), title=None, axis=axis)


def spread(values: Sequence[float]) -> list[float]:
    """The values, extended on either side if they are nearly equal: an axis needs a length.

    >>> spread([1.0, 4.0]), spread([1.05])
    ([1.0, 4.0], [1.05, 1.0, 1.1025])
    """
    least, most = min(values), max(values)
    return [*values, least / 1.05, most * 1.05] if most < 1.02 * least else list(values)
