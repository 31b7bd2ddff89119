"""A plot as inline SVG: axes, lines, steps, points, bars and bands, in the colors of the page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Axis", "Plot", "numbered"]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 30, 46


def numbered(values: Iterable[float]) -> list[tuple[float, str]]:
    """Ticks that show their values."""
    return [(value, f"{value:g}") for value in values]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a plot.

    Attributes:
        title: What it shows, with the unit.
        low: Value at the left or lower end.
        high: Value at the right or upper end.
        ticks: Values that get a number, with the string that is shown.
        logarithmic: Whether equal distances are equal ratios.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """The place of a value between both ends, from 0 to 1; values beyond an end lie on it."""
        low, high, value = (math.log(each) if self.logarithmic else each for each in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(kw_only=True)
class Plot:
    """Marks on two axes; colors are the classes `a` to `d` of `site_files/site.css`.

    Attributes:
        label: What the picture shows, for readers who do not see it.
        x: The horizontal axis.
        y: The vertical axis.
        height: Height in pixels.
    """

    label: str
    x: Axis
    y: Axis
    height: int = HEIGHT
    marks: list[str] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The pixels of a point."""
        across, up = WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM
        return LEFT + across * self.x.share(x), TOP + up * (1 - self.y.share(y))

    def line(self, points: Iterable[tuple[float, float]], color: str, name: str = "", *, dashed: bool = False) -> None:
        """Joins points by straight lines; `name` puts the line into the key."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))
        self.marks.append(f'<polyline class="line {color}{" dashed" * dashed}" points="{joined}"/>')
        self._key(color, name)

    def dots(self, points: Iterable[tuple[float, float]], color: str, name: str = "", radius: float = 3.5) -> None:
        """Draws a circle at each point."""
        for x, y in (self.place(*point) for point in points):
            self.marks.append(f'<circle class="dot {color}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')
        self._key(color, name)

    def bars(self, bars: Iterable[tuple[float, float, float]], color: str, name: str = "") -> None:
        """Draws a bar from `left` to `right` on the lower end of the vertical axis, for each (left, right, value)."""
        for left, right, value in bars:
            (begin, top), (end, floor) = self.place(left, value), self.place(right, self.y.low)
            size = f'width="{end - begin:.1f}" height="{max(floor - top, 0):.1f}"'
            self.marks.append(f'<rect class="bar {color}" x="{begin:.1f}" y="{top:.1f}" {size}/>')
        self._key(color, name)

    def band(self, left: float, right: float, low: float, high: float, color: str, name: str = "") -> None:
        """Shades a rectangle between values of both axes."""
        (begin, top), (end, bottom) = self.place(left, high), self.place(right, low)
        size = f'width="{end - begin:.1f}" height="{bottom - top:.1f}"'
        self.marks.append(f'<rect class="band {color}" x="{begin:.1f}" y="{top:.1f}" {size}/>')
        self._key(color, name)

    def note(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        """Writes a few words at a point."""
        across, down = self.place(x, y)
        self.marks.append(f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>')

    def _key(self, color: str, name: str) -> None:
        if name:
            self.keys.append((color, name))

    def svg(self) -> str:
        """The picture."""
        label = html.escape(self.label, quote=True)
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        lines = [
            f'<svg class="plot" {size} role="img" aria-label="{label}">',
            *self._axes(),
            *self.marks,
            *self._legend(),
        ]
        return "\n".join([*lines, "</svg>"])

    def _axes(self) -> list[str]:
        floor, right = self.height - BOTTOM, WIDTH - RIGHT
        drawn = []
        for value, words in self.x.ticks:
            across = self.place(value, self.y.low)[0]
            drawn.append(f'<text x="{across:.1f}" y="{floor + 16}" text-anchor="middle">{html.escape(words)}</text>')
        for value, words in self.y.ticks:
            down = self.place(self.x.low, value)[1]
            drawn.append(f'<path class="grid" d="M{LEFT} {down:.1f}H{right}"/>')
            drawn.append(f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{html.escape(words)}</text>')
        middle = (LEFT + right) / 2
        drawn += [
            f'<path class="axis" d="M{LEFT} {TOP}V{floor}H{right}"/>',
            f'<text x="{middle}" y="{self.height - 8}" text-anchor="middle">{html.escape(self.x.title)}</text>',
            f'<text x="4" y="14">{html.escape(self.y.title)}</text>',
        ]
        return drawn

    def _legend(self) -> list[str]:
        drawn, right = [], WIDTH - RIGHT
        for color, name in reversed(self.keys):
            right -= round(6.6 * len(name) + 4)
            drawn.append(f'<text x="{right}" y="14">{html.escape(name)}</text>')
            drawn.append(f'<rect class="bar {color}" x="{right - 14}" y="5" width="10" height="10"/>')
            right -= 24
        return drawn
