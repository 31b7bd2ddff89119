"""Charts as SVG within a page, in the theme of `deep5 report`; `chart_style` has their colors on a dark page."""

from __future__ import annotations

import html
import re
import zlib
from typing import Any

from deep5.core.charts import converter
from deep5.results.report.theme import labeled, themed


def drawn(chart: Any, label: str) -> str:
    """An Altair chart.

    Args:
        chart: The chart.
        label: What it shows, for readers who do not see it.
    """
    return inlined(converter().vegalite_to_svg(themed(chart)), label)


def inlined(svg: str, label: str) -> str:
    """An SVG that deep5 or Altair drew, with a description; its identifiers differ from those of others on the page."""
    # A blank line would end the block of HTML.
    dense = re.sub(r"\n\s*\n", "\n", svg[svg.index("<svg") :].strip())
    return labeled(dense, html.escape(label), zlib.crc32(dense.encode()))
