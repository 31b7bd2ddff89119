"""Renders a chart's specification for the page, or as a file for a paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from deep5.core.charts import converter
from deep5.core.errors import UsageError
from deep5.results.markup import Markup, element, escape
from deep5.results.report.chart_parts import Drawing
from deep5.results.report.theme import inline, themed

__all__ = ["FORMATS", "Pen", "file_of"]

FORMATS = ("svg", "pdf", "png")
"""File formats of a figure."""

_SCALE = 3  # pixels of a PNG per pixel of the chart: 288 per inch


def file_of(drawing: Drawing, kind: str) -> bytes:
    """A chart as the content of a file.

    Args:
        drawing: The chart.
        kind: One of `FORMATS`.

    Raises:
        MissingDependency: vl-convert is not installed.
        UsageError: It cannot be drawn.
    """
    convert = converter()
    specification = themed(drawing.chart, drawing.standing)
    try:
        if kind == "svg":
            return bytes(convert.vegalite_to_svg(specification).encode())
        if kind == "pdf":
            return bytes(convert.vegalite_to_pdf(specification))
        return bytes(convert.vegalite_to_png(specification, scale=_SCALE))
    except ValueError as error:
        raise UsageError(f"{drawing.name} cannot be drawn ({str(error)[:200]}); remedy: check its numbers") from error


class Pen:
    """Draws and numbers the charts of one page."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def drawn(self, make: Callable[[], Drawing | None]) -> Markup | None:
        """The figure of the chart that a function makes; errors as of both.

        Args:
            make: Returns the chart, or None.
        """
        return self.figure(make())

    def figure(self, drawing: Drawing | None) -> Markup | None:
        """A chart with its caption; None for None.

        Raises:
            MissingDependency: vl-convert is not installed.
            UsageError: It cannot be drawn.
        """
        if drawing is None:
            return None
        svg = file_of(drawing, "svg").decode()
        label = ". ".join(filter(None, (drawing.title, drawing.standing, drawing.about)))
        drawn = Markup(inline(svg, escape(label), next(self._numbers)))
        scroll = element(
            "div", drawn, class_="scroll", role="region", tabindex="0", aria_label=f"chart: {drawing.title}"
        )
        return element("figure", scroll, element("figcaption", element("b", drawing.title), ". ", drawing.about))
