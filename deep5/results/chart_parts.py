"""What every picture of times is made of: axes with their unit, a heading, panels of one width, files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

from deep5.core.errors import MissingDependency

__all__ = ["COLOURS", "WAYS", "WIDTH", "altair", "files", "heading", "logarithmic", "names_axis", "stacked", "ticks"]

WIDTH = 440
"""Of every panel, in pixels: with its axis it is read in a column of a paper."""
WAYS = {False: "through deep5", True: "bare"}
COLOURS = {"domain": list(WAYS.values()), "range": ["#3b6ea5", "#d98032"]}
"""Of what runs through deep5, and of code by hand."""

# Pixels: of a letter of a name, on average; of the line that a number stands in; of an axis' numbers and their title.
_LETTER, _LINE, _AXIS = 6.5, 15, 48
_TICKS, _PADDING = 6, 8


def ticks(values: Iterable[float], gap: float = 0.0) -> list[float]:
    """Where a logarithmic axis has marks: at the powers of ten, and between them where fewer than three of these fit.

    Args:
        values: What is drawn, each above zero.
        gap: Share of the axis that lies between two marks at least.

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
    for tick in sorted(found, key=lambda tick: not _is_power(tick)):  # a power of ten before what is beside it
        if all(abs(log10(tick / other)) >= gap * log10(most / least) for other in kept):
            kept.append(tick)
    return sorted(kept) or [float(f"{(least * most) ** 0.5:.3g}")]


def _is_power(tick: float) -> bool:
    return tick == float(f"1e{floor(log10(tick))}")


def _even(least: float, most: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, of the largest of which three lie within a span of less than ten."""
    first = floor(log10(most))
    for decade in range(first, first - 6, -1):
        for step in (5, 2, 1):
            size = float(f"{step}e{decade}")
            found = [float(f"{n * step}e{decade}") for n in range(ceil(least / size), floor(most / size) + 1)]
            if len(found) >= 3:
                return found
    return []


def logarithmic(
    alt: Any, kind: Any, field: str, values: Sequence[float], title: str, unit: str = "s", height: int = 180
) -> Any:
    """A logarithmic axis whose marks have their unit: 300µs, 20ms, 1s.

    Args:
        alt: Altair.
        kind: `alt.X` or `alt.Y`.
        field: Of the data.
        values: What is drawn.
        title: Of the axis.
        unit: Empty for a plain number.
        height: Of the panel, in pixels, in which numbers stand above each other.
    """
    label = f"format(datum.value, '.3~s') + '{unit}'" if unit else "format(datum.value, '.3~g')"
    extent = {"minExtent": _AXIS, "maxExtent": _AXIS} if kind is alt.Y else {}
    gap = _LINE / (height - 2 * _PADDING) if kind is alt.Y else 0.0
    axis = alt.Axis(values=ticks(values, gap), labelExpr=label, labelOverlap=False, **extent)
    return kind(field, scale=alt.Scale(type="log", nice=False, padding=_PADDING), axis=axis, title=title)


def names_axis(alt: Any, labels: Sequence[str]) -> Any:
    """Names under the places 0, 1, 2, …; turned where the longest has not the room of one place."""
    turned = max(map(len, labels)) * _LETTER > WIDTH / len(labels)
    return alt.Axis(
        values=list(range(len(labels))),
        labelExpr=f"{json.dumps(list(labels))}[datum.value]",
        labelAngle=-30 if turned else 0,
        grid=False,
        ticks=False,
        labelOverlap=False,
    )


def heading(document: Mapping[str, Any]) -> str:
    """What was timed, on which processor, with how many threads.

    Args:
        document: Of result.json.
    """
    plan = document.get("components", {}).get("plan", {})
    model = document.get("system", {}).get("before", {}).get("cpu", {}).get("model")
    threads = plan.get("threads")
    parts = [plan.get("problems") or plan.get("operator"), model]
    parts.append(plan["device"] if plan.get("device", "cpu") != "cpu" else None)
    parts.append(None if threads is None else f"{threads} thread{'s' * (threads != 1)}")
    return ", ".join(part for part in parts if part)


def stacked(alt: Any, panels: Sequence[Any], title: str) -> Any:
    """Panels below each other under one heading."""
    made = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", x="independent")
    made = made.properties(title=alt.Title(title, anchor="start", fontSize=13)) if title else made
    return (
        made.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .configure_title(fontSize=12, fontWeight="normal", subtitleFontSize=11, anchor="start")
        .configure_legend(orient="top", labelFontSize=12, columns=4)
    )


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


def files(name: str, chart: Any) -> dict[str, bytes]:
    """A picture as `NAME.svg` and `NAME.png`.

    Raises:
        MissingDependency: vl-convert is not installed.
    """
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    spec = chart.to_json()
    return {
        f"{name}.svg": vl_convert.vegalite_to_svg(spec).encode(),
        f"{name}.png": vl_convert.vegalite_to_png(spec, scale=2),
    }


def _missing(error: ModuleNotFoundError) -> MissingDependency:
    return MissingDependency(f"pictures need the package {error.name!r}; remedy: pip install 'deep5[report]'")
