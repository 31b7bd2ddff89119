"""Building blocks of all charts: axes with units, colors by name, titles, panels of one width, and files.

Requires the packages of the extra `report`: Altair, and vl-convert, which renders without a browser.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, log2, log10
from typing import Any

from deep5.core.errors import MissingDependency
from deep5.core.quantities import seconds, size

__all__ = [
    "PALETTE",
    "PERCENT",
    "WIDTH",
    "above_title",
    "altair",
    "by_name",
    "converter",
    "doubling",
    "files",
    "headed",
    "line_styles",
    "logarithmic",
    "names_axis",
    "powers_of_two",
    "same_axis",
    "stacked",
    "ticks",
]

WIDTH = 440
"""Width of every panel in pixels; with its axis it fits a column of a paper."""

PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#7b5ea7",
    "#8c6d46",
    "#6b6b6b",
    "#b5bd00",
)
"""Six of Okabe and Ito's colors, which color-blind readers can distinguish, and four intermediate ones."""

PERCENT = "format(100 * datum.value, '.0f') + ' %'"
"""The labels of an axis of fractions."""

# When the colors run out, further lines are dashed.
_DASHES = ([1, 0], [5, 3], [2, 2])
# In pixels: average width of a letter, height of a line of text, and width of an axis with its numbers and title.
_LETTER, _LINE, _AXIS = 6.5, 15, 48
_TICKS, _PADDING = 6, 8
_PLAIN = "format(datum.value, '.3~g')"


def ticks(values: Iterable[float], gap: float = 0.0) -> list[float]:
    """Positions of the ticks of a logarithmic axis: the powers of ten, and values between them if fewer than three fit.

    Args:
        values: The plotted values, all positive.
        gap: Minimum distance between two ticks, as a fraction of the axis.

    >>> ticks([0.8e-3, 0.2]), ticks([0.8, 6.0])
    ([0.001, 0.01, 0.1], [1.0, 2.0, 5.0])
    >>> ticks([1.0, 1.41]), ticks([0.96, 1.15], 0.2)
    ([1.0, 1.2, 1.4], [1.0, 1.05, 1.1])
    """
    seen = list(values)
    least, most = min(seen), max(seen)
    decades = range(floor(log10(least)) - 1, ceil(log10(most)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        every = (float(f"{step}e{decade}") for decade in decades for step in steps)
        found = sorted({tick for tick in every if least <= tick <= most})
        if len(found) >= 3:
            break
    else:
        found = _even(least, most)
    while len(found) > _TICKS:
        first = next((place for place, tick in enumerate(found) if _is_power(tick)), 0) % 2
        found = found[first::2]  # a power of ten stays
    kept: list[float] = []
    for tick in sorted(found, key=lambda tick: not _is_power(tick)):  # powers of ten first
        if all(abs(log10(tick / other)) >= gap * log10(most / least) for other in kept):
            kept.append(tick)
    return sorted(kept) or [float(f"{(least * most) ** 0.5:.3g}")]


def _is_power(tick: float) -> bool:
    return tick == float(f"1e{floor(log10(tick))}")


def _even(least: float, most: float) -> list[float]:
    """Multiples of the largest step (1, 2 or 5 times a power of ten) with three multiples in a span below ten."""
    first = floor(log10(most))
    for decade in range(first, first - 6, -1):
        for step in (5, 2, 1):
            size = float(f"{step}e{decade}")
            found = [float(f"{n * step}e{decade}") for n in range(ceil(least / size), floor(most / size) + 1)]
            if len(found) >= 3:
                return found
    return []


def powers_of_two(values: Iterable[float]) -> list[float]:
    """Positions of the ticks of a logarithmic axis of sizes in bytes: powers of two, as few as fit.

    Args:
        values: The plotted values, all positive.

    >>> powers_of_two([4, 1 << 22]), powers_of_two([1000, 9000]), powers_of_two([1000, 1100])
    ([4.0, 128.0, 4096.0, 131072.0, 4194304.0], [1024.0, 2048.0, 4096.0, 8192.0], [1000.0, 1050.0, 1100.0])
    """
    seen = list(values)
    first, last = ceil(log2(min(seen))), floor(log2(max(seen)))
    if last - first < 2:
        return ticks(seen)
    step = next(step for step in (1, 2, 5, 10, 20) if (last - first) // step < _TICKS)
    return [2.0**power for power in range(first, last + 1, step)]


def logarithmic(
    alt: Any,
    kind: Any,
    field: str,
    values: Sequence[float],
    title: str,
    shown: Callable[[float], str] | None = seconds,
    height: int = 180,
) -> Any:
    """A logarithmic axis whose tick labels have units: 300 us, 20 ms, 1 s.

    Args:
        alt: Altair.
        kind: `alt.X` or `alt.Y`.
        field: Field of the data.
        values: The plotted values.
        title: Title of the axis.
        shown: A value with its unit, by a function of `deep5.core.quantities`; None: plain numbers.
        height: Height of the panel in pixels, for a vertical axis.
    """
    extent = {"minExtent": _AXIS, "maxExtent": _AXIS} if kind is alt.Y else {}
    gap = _LINE / (height - 2 * _PADDING) if kind is alt.Y else 0.0
    places = powers_of_two(values) if shown is size else ticks(values, gap)
    label = f"{json.dumps([shown(place) for place in places])}[indexof({places}, datum.value)]" if shown else _PLAIN
    axis = alt.Axis(values=places, labelExpr=label, labelOverlap=False, **extent)
    return kind(field, scale=alt.Scale(type="log", nice=False, padding=_PADDING), axis=axis, title=title)


def names_axis(alt: Any, labels: Sequence[str]) -> Any:
    """An axis with names at the positions 0, 1, 2, …; rotated if the longest name does not fit."""
    turned = max(map(len, labels)) * _LETTER > WIDTH / len(labels)
    return alt.Axis(
        values=list(range(len(labels))),
        labelExpr=f"{json.dumps(list(labels))}[datum.value]",
        labelAngle=-30 if turned else 0,
        grid=False,
        ticks=False,
        labelOverlap=False,
    )


def doubling(alt: Any, field: str, values: Sequence[int], title: str) -> Any:
    """A horizontal axis with base-2 logarithmic scale and a tick at each of the values."""
    return alt.X(
        field,
        scale=alt.Scale(type="log", base=2, nice=False, padding=10),
        axis=alt.Axis(values=list(values), format="d", labelOverlap=False),
        title=title,
    )


def same_axis(axis: Any, field: str) -> Any:
    """Another field on the same axis: layers share an axis only if all of them specify it identically."""
    stated = axis.to_dict()
    return type(axis)(field, **{name: stated[name] for name in ("scale", "axis", "title") if name in stated})


def by_name(channel: Any, field: str, looks: Mapping[str, Any], **more: Any) -> Any:
    """A color, dash or shape for each name.

    Args:
        channel: `alt.Color`, `alt.StrokeDash` or `alt.Shape`.
        field: Field of the data.
        looks: Color, dash or shape by name, in the order of the legend.
        more: Further arguments of the channel.
    """
    scale = {"domain": list(looks), "range": list(looks.values())}
    return channel(field, sort=list(looks), scale=scale, **more)


def line_styles(names: Sequence[str]) -> tuple[dict[str, str], dict[str, list[int]]]:
    """A color and a dash for every line, so that no two of up to thirty lines share both.

    Args:
        names: Distinct names of the lines.

    >>> colors, dashes = line_styles([f"line {number}" for number in range(11)])
    >>> colors["line 0"] == colors["line 10"], dashes["line 0"], dashes["line 10"]
    (True, [1, 0], [5, 3])
    """
    rows = [divmod(place, len(PALETTE)) for place in range(len(names))]
    colors = {name: PALETTE[column] for name, (_, column) in zip(names, rows, strict=True)}
    dashes = {name: _DASHES[min(row, len(_DASHES) - 1)] for name, (row, _) in zip(names, rows, strict=True)}
    return colors, dashes


def _with_plain_axes(chart: Any) -> Any:
    return chart.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal")


def stacked(
    alt: Any, panels: Sequence[Any], title: str, notes: Sequence[str] = (), legend: Mapping[str, Any] | None = None
) -> Any:
    """Panels below each other under one title.

    Args:
        alt: Altair.
        panels: From top to bottom.
        title: Title of the chart, or empty.
        notes: Lines below the title.
        legend: Settings of the legend; default: four columns.
    """
    made = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", x="independent")
    if title or notes:
        below = {"subtitle": list(notes)} if notes else {}
        made = made.properties(title=alt.Title(title, anchor="start", fontSize=13, **below))
    return (
        _with_plain_axes(made)
        .configure_title(fontSize=12, fontWeight="normal", subtitleFontSize=11, anchor="start")
        .configure_legend(orient="top", labelFontSize=12, **(legend or {"columns": 4}))
    )


def headed(alt: Any, made: Any, title: str, below: str = "") -> Any:
    """A chart with a title, a wrapped subtitle, and a legend whose symbols show line and dash."""
    lines = textwrap.wrap(below, 84 if title else 60)
    if title:
        under = {"subtitle": lines} if lines else {}
        made = made.properties(title=alt.Title(title, anchor="start", fontSize=13, subtitleFontSize=11, **under))
    elif lines:  # Vega draws no subtitle below an empty title
        made = made.properties(title=alt.Title(lines, anchor="start", fontSize=11))
    return _with_plain_axes(made).configure_legend(
        orient="right",
        labelFontSize=12,
        labelLimit=360,
        symbolType="stroke",
        symbolOpacity=1,
        symbolSize=300,
        symbolStrokeWidth=2,
    )


def above_title(title: Any, sentence: str, letters: int, **defaults: Any) -> dict[str, Any]:
    """A title's specification with a sentence above it.

    Args:
        title: The title in the specification: an object, a string, or a list of strings.
        sentence: The sentence to add.
        letters: Maximum length of a line.
        defaults: Settings that the title may override.
    """
    own = title if isinstance(title, dict) else {"text": title}
    text = own.get("text", [])
    lines = [*textwrap.wrap(sentence, letters), *([text] if isinstance(text, str) else text)]
    return {"anchor": "start", **defaults, **own, "text": lines}


def altair() -> Any:
    """Altair.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import altair as found
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return found


def converter() -> Any:
    """vl-convert, which turns the specification of a chart into an image.

    Raises:
        MissingDependency: It is not installed, or cannot run within this process' limit of address space.
    """
    from deep5.core.drawing_engine import check_engine

    check_engine()
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return vl_convert


def files(name: str, chart: Any, *, page: bool = False) -> dict[str, bytes]:
    """A chart as `NAME.svg` and `NAME.png`.

    Args:
        name: Base name of the files.
        chart: An Altair chart.
        page: Whether to write `NAME.html` as well, which works offline.

    Raises:
        MissingDependency: vl-convert is not installed.
    """
    # Names of files that are not UTF-8 have characters that no drawing can hold.
    convert, spec = converter(), json.dumps(chart.to_dict(), ensure_ascii=False).encode(errors="replace").decode()
    found = {
        f"{name}.svg": convert.vegalite_to_svg(spec).encode(),
        f"{name}.png": convert.vegalite_to_png(spec, scale=2),
    }
    if page:
        found[f"{name}.html"] = convert.vegalite_to_html(spec, bundle=True).encode()
    return found


def _missing(error: ModuleNotFoundError) -> MissingDependency:
    return MissingDependency(
        f"pictures need the package {error.name!r}, which is not installed; remedy: pip install 'deep5[report]'"
    )
