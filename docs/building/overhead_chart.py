"""The chart of what deep5 costs: steps through deep5 over hand-written steps, from the tables of `overhead.md`.

The home page draws it while the site is built. README shows the file `docs/site_files/overhead.svg`, which
`python docs/building/overhead_chart.py` writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import table_figures
from deep5.core.charts import PALETTE, altair, converter
from deep5.results.report.theme import INK, themed
from drawn_charts import drawn

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "results" / "overhead.md"
FILE = ROOT / "docs" / "site_files" / "overhead.svg"

SECTION = "Networks, against code written for the framework"
FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
"""Those whose opponent is written for the same framework, with its name; ONNX Runtime has no training."""
NAME = re.compile(r"`overhead_(?P<framework>[a-z]+)_\w+_step`")


def costs() -> list[dict[str, Any]]:
    """The rows of training steps whose opponent is written for the same framework, in the page's order."""
    found = []
    for row in table_figures.table_after(TABLES.read_text(encoding="utf-8"), SECTION):
        name = NAME.fullmatch(row["recipe"])
        if name is not None and name["framework"] in FRAMEWORKS:
            low, high = map(float, row["interval"].split(" … "))
            what = re.sub(r" with `[^`]*`|, step$", "", row["what"])
            framework = FRAMEWORKS[name["framework"]]
            found.append({"framework": framework, "what": what, "ratio": float(row["ratio"]), "low": low, "high": high})
    return found


def chart() -> Any:
    """A row for each step, in a panel for each framework."""
    alt = altair()
    rows = costs()
    figures = "format(datum.ratio, '.3f') + ' (' + format(datum.low, '.3f') + ' to ' + format(datum.high, '.3f') + ')'"
    scale = alt.Scale(domain=[min(row["low"] for row in rows) - 0.01, max(row["high"] for row in rows) + 0.01])
    base = alt.Chart().encode(
        alt.Y("what:N", sort=None, title=None, axis=alt.Axis(labelLimit=220, ticks=False, domain=False))
    )
    x = alt.X("ratio:Q", scale=scale, title="time of a step through deep5 / hand-written; left of 1, deep5 is faster")
    panel = (
        alt.layer(
            alt.Chart().mark_rule(color=INK, strokeDash=[4, 3]).encode(alt.X("one:Q", scale=scale)),
            base.mark_rule(strokeWidth=3, color=PALETTE[0]).encode(alt.X("low:Q", scale=scale), x2="high:Q"),
            base.mark_point(filled=True, size=60, opacity=1, color=PALETTE[0]).encode(x),
            base.transform_calculate(figures=figures)
            .mark_text(align="left", dx=10)
            .encode(x=alt.value(280), text="figures:N"),
        )
        .transform_calculate(one="1")
        .properties(width=280, height=alt.Step(20))
    )
    row = alt.Row("framework:N", sort=list(FRAMEWORKS.values()), title=None)
    header = alt.Header(labelAngle=0, labelAlign="left", labelOrient="top", labelFontWeight="bold")
    return panel.facet(row=row.header(header), data=alt.Data(values=rows), spacing=6).resolve_scale(y="independent")


def draw(subject: str) -> str:
    """The chart for a page of the site; there is one, so that `subject` is empty."""
    if subject:
        raise ValueError(f"the chart of the overhead has no subjects; got: {subject!r}; remedy: leave it out")
    return drawn(chart(), "Ratios of training steps through deep5 to hand-written ones, with 95 % intervals")


def file_content() -> str:
    """The chart as a file, on a white ground."""
    return str(converter().vegalite_to_svg(themed(chart()))) + "\n"


if __name__ == "__main__":
    FILE.write_text(file_content(), encoding="utf-8")
