"""One theme for the page and for paper: each color of a chart is a key that the page's style may replace.

A specification contains the print colors. The page embeds the same chart, and for readers who prefer dark mode, rules
such as `svg [fill="#0072b2"] {fill: …}` map each color to its counterpart: there is one chart, not two.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from deep5.core.charts import PALETTE, above_title
from deep5.core.errors import UsageError

__all__ = ["BAND", "INK", "PHASES", "WORDS", "dark_rules", "inline", "labeled", "themed"]

INK, _SOFT, _GRID, _PAPER, BAND = "#1b1e23", "#545b66", "#dfe3e8", "#ffffff", "#d9dde3"
WORDS = {"faster": PALETTE[0], "slower": PALETTE[1], "no difference shown": PALETTE[8]}
"""Colors of verdicts; their marks also differ in shape."""
PHASES = {"first call": PALETTE[1], "warm-up": PALETTE[3], "steady": PALETTE[0]}

_DARK_PALETTE = (
    "#5ab4f0",
    "#ff9350",
    "#3fd0a4",
    "#e7a3c8",
    "#8fd0fa",
    "#ffc04d",
    "#b79ae0",
    "#c9a87d",
    "#a8adb5",
    "#dbe34a",
)
_DARK = {
    INK: "#e7e9ec",
    _SOFT: "#aab1bb",
    _GRID: "#2c3138",
    _PAPER: "#15171b",
    BAND: "#3a4049",
    **dict(zip(PALETTE, _DARK_PALETTE, strict=True)),
    # Operators: called through deep5, and hand-written.
    "#3b6ea5": "#7fb0e3",
    "#d98032": "#f0a35e",
}
# Characters of a line above a chart.
_LINE = 56
# Elements that Vega uses. Others must not appear in a page.
_ELEMENTS = frozenset({"svg", "g", "path", "rect", "line", "text", "tspan", "defs", "clippath", "title", "desc"})
_ATTRIBUTE = re.compile(
    r"xmlns(:xlink)?|version|class|id|width|height|viewbox|role|aria-[a-z]+|fill(-[a-z]+)?|stroke(-[a-z]+)?|opacity"
    r"|transform|d|[xy][12]?|dx|dy|r|text-anchor|font-[a-z]+|clip-path|pointer-events|display|dominant-baseline"
)


def themed(chart: Any, standing: str = "") -> dict[str, Any]:
    """A chart's specification in the report's theme.

    Args:
        chart: An Altair chart.
        standing: A note placed above the existing text over the chart.
    """
    specification: dict[str, Any] = chart.to_dict()
    own = specification.get("config", {})
    axis: dict[str, Any] = {
        "domainColor": _SOFT,
        "tickColor": _SOFT,
        "gridColor": _GRID,
        "labelColor": INK,
        "titleColor": INK,
    }
    axis |= {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    legend = {
        "orient": "top",
        "columns": min(3, own.get("legend", {}).get("columns", 3)),
        "columnPadding": 26,
        "labelFontSize": 12,
        "labelColor": INK,
        "titleColor": INK,
    }
    specification["config"] = own | {
        "aria": False,  # the page describes the whole, and has a table of the data
        "background": _PAPER,
        "font": "sans-serif",
        "view": {"stroke": None},
        "rule": {"color": INK},
        "axis": own.get("axis", {}) | axis,
        "legend": own.get("legend", {}) | legend,
        "title": own.get("title", {}) | {"color": INK, "subtitleColor": _SOFT, "fontSize": 13, "fontWeight": "normal"},
    }
    if standing:
        specification["title"] = above_title(specification.get("title", {}), standing, _LINE, fontSize=11)
    return specification


def dark_rules() -> str:
    """The style that maps chart colors for readers who prefer dark mode."""
    rules = [
        f'figure svg [{kind}="{colour}" i]{{{kind}:{dark}}}'
        for colour, dark in _DARK.items()
        for kind in ("fill", "stroke")
    ]
    return "@media screen and (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}\n"


def inline(svg: str, label: str, number: int) -> str:
    """Prepare a chart for embedding: labeled, with unique identifiers, and containing only drawing elements.

    Args:
        svg: As rendered by vl-convert.
        label: Description for screen readers; already escaped.
        number: Number of the chart in its page.

    Raises:
        UsageError: It contains something other than drawing elements.
    """
    checker = _Checker()
    checker.feed(svg)
    checker.close()
    return labeled(svg, label, number)


def labeled(svg: str, label: str, number: int) -> str:
    """Label a picture that needs no check, and make its identifiers unique in its page; arguments as for `inline`."""
    svg = re.sub(r'(<[^<>]* id="|="url\(#)', rf"\1picture-{number}-", svg)
    width = re.search(r'^<svg [^<>]*?\bwidth="([0-9.]+)"', svg)
    # Scaled slightly up or down to fit; if it still does not fit, it scrolls.
    natural = float(width[1]) if width else 400.0
    style = f"min-width: {0.84 * natural:.0f}px; max-width: {1.25 * natural:.0f}px"
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="{style}" ', 1)


class _Checker(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        bad = [name for name, _ in attrs if not _ATTRIBUTE.fullmatch(name)]
        bad += [name for name, value in attrs if "url(" in (value or "") and not (value or "").startswith("url(#")]
        if tag not in _ELEMENTS or bad:
            raise UsageError(
                f"a picture holds {tag!r:.40} with {bad!r:.80}; allowed: shapes and text; remedy: report it"
            )
