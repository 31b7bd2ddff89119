"""The chart of what deep5 costs: steps through deep5 over hand-written steps, from the tables of `overhead.md`.

The home page draws it while the site is built. README shows the file `docs/site_files/overhead.svg`, which
`python docs/building/overhead_chart.py` writes.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "results" / "overhead.md"
FILE = ROOT / "docs" / "site_files" / "overhead.svg"

FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
"""Those whose opponent is written for the same framework, with its name; ONNX Runtime has no training."""
ROW = re.compile(
    r"^\| `overhead_(?P<framework>[a-z]+)_\w+_step` \| (?P<what>[^|]+), step \| [^|]+ \| "
    r"(?P<ratio>[\d.]+) \| (?P<low>[\d.]+) … (?P<high>[\d.]+) \|",
    re.MULTILINE,
)

WIDTH, LABELS, PLOT, LINE = 480, 212, 148, 19
HEAD, FOOT, MARGIN = 44, 30, 12
# The frame follows the colors of the reader's system, since a picture does not know the page that it is on.
FRAME = (
    "<style>svg{--line:#3f51b5;color:#1f2328}.frame{fill:#fff;stroke:#d1d9e0}"
    "@media(prefers-color-scheme:dark){svg{--line:#8c9eff;color:#e6edf3}.frame{fill:#151b23;stroke:#3d444d}}</style>"
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A row of the tables: the median ratio of a step through deep5 to the hand-written one, with its interval."""

    framework: str
    what: str
    ratio: float
    low: float
    high: float


def costs(page: str) -> list[Cost]:
    """The rows of training steps whose opponent is written for the same framework, in the page's order."""
    return [
        Cost(
            framework=found["framework"],
            what=re.sub(r" with `[^`]*`", "", found["what"]),
            ratio=float(found["ratio"]),
            low=float(found["low"]),
            high=float(found["high"]),
        )
        for found in ROW.finditer(page)
        if found["framework"] in FRAMEWORKS
    ]


def _words(x: float, y: float, words: str, *, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, more: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" {more}/>'


def _chart(rows: list[Cost]) -> tuple[str, float]:
    """The marks of the chart, and its height."""
    low = math.floor(min(row.low for row in rows) * 10) / 10
    high = math.ceil(max(row.high for row in rows) * 20) / 20

    def place(ratio: float) -> float:
        return LABELS + PLOT * (ratio - low) / (high - low)

    names = list(dict.fromkeys(row.framework for row in rows))
    bottom = HEAD + LINE * (len(rows) + len(names))
    strong = ' font-weight="600"'
    marks = [
        _words(MARGIN, 20, "A training step through deep5 / the same step, hand-written", more=strong),
        _words(place(1) - 6, HEAD - 6, "deep5 faster ←", anchor="end", more=' opacity=".75"'),
    ]
    for tenth in range(round(low * 10), math.floor(high * 10 + 1e-9) + 1):
        x, one = place(tenth / 10), tenth == 10
        marks.append(_line(x, HEAD, x, bottom, f'stroke="currentColor" opacity="{0.6 if one else 0.15}"'))
        marks.append(_words(x, bottom + 16, f"{tenth / 10:g}", anchor="middle"))
    y = HEAD - 5
    for name in names:
        y += LINE
        marks.append(_words(MARGIN, y, FRAMEWORKS[name], more=strong))
        for row in (row for row in rows if row.framework == name):
            y += LINE
            marks.append(_words(MARGIN + 10, y, row.what, more=' font-size="11"'))
            wide = 'style="stroke:var(--line)" stroke-width="3" stroke-linecap="round"'
            marks.append(_line(place(row.low), y - 4, place(row.high), y - 4, wide))
            marks.append(f'<circle cx="{place(row.ratio):.1f}" cy="{y - 4}" r="4" style="fill:var(--line)"/>')
            figures = f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"
            marks.append(_words(WIDTH - MARGIN, y, figures, anchor="end", more=' font-size="10"'))
    return "".join(marks), bottom + FOOT


def _svg(*, framed: bool) -> str:
    marks, height = _chart(costs(TABLES.read_text(encoding="utf-8")))
    frame = f'{FRAME}<rect class="frame" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>'
    size = f'width="{WIDTH * 1.4:g}" height="{height * 1.4:g}"' if framed else 'class="overhead"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} role="img" '
        'aria-label="Ratios of training steps through deep5 to hand-written ones, with 95 % intervals" '
        'font-family="system-ui, sans-serif" font-size="12" style="font-variant-numeric:tabular-nums">'
        f'{frame if framed else ""}<g fill="currentColor">{marks}</g></svg>'
    )


def draw(subject: str) -> str:
    """The chart for a page of the site, in the page's colors.

    Args:
        subject: Must be empty, since there is one chart.
    """
    if subject:
        raise ValueError(f"the chart of the overhead has no subjects; got: {subject!r}; remedy: leave it out")
    return _svg(framed=False)


def file_content() -> str:
    """The chart as a file, with a frame that is legible on any page."""
    return _svg(framed=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(file_content(), encoding="utf-8")
