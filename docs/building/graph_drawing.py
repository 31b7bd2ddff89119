"""Draws a graph of boxes from top to bottom as SVG, in the colors of the page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from deep5.networks.analysis.layout import Point, layered

__all__ = ["Box", "svg"]

# Pixels of a letter of 12 px, of the height of a box of two lines and of one, and the widest picture.
_LETTER, _TALL, _FLAT, _WIDEST = 7.2, 38.0, 24.0, 640.0
_LINE = "var(--md-default-fg-color--light)"
_STYLES = {
    "end": f"fill: none; stroke: {_LINE}",
    "plain": f"fill: var(--md-code-bg-color); stroke: {_LINE}",
    "accent": "fill: var(--md-code-bg-color); stroke: var(--md-typeset-a-color); stroke-width: 1.5",
}


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of one or two lines.

    Attributes:
        kind: `end`, with round sides, for what enters and leaves; `plain`; or `accent`.
        lines: What is written on it; the first of two is bold.
    """

    kind: str
    lines: tuple[str, ...]

    @property
    def size(self) -> Point:
        """Width and height."""
        return max(map(len, self.lines)) * _LETTER + 16, _TALL if len(self.lines) > 1 else _FLAT


def svg(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], title: str, *, least_px: int) -> str:
    """The graph.

    Args:
        boxes: The boxes.
        edges: From earlier to later boxes, by index.
        title: Says what is shown, for readers that do not see it.
        least_px: The width below which the picture scrolls instead of becoming smaller.
    """
    drawn = layered([box.size for box in boxes], list(dict.fromkeys(edges)))
    width, height = drawn.width + 8, drawn.height + 8
    shown, least = min(width, _WIDEST), min(width, least_px)
    title = html.escape(title)
    line = f'fill="none" style="stroke: {_LINE}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="-4 -4 {width:.0f} '
        f'{height:.0f}" width="{shown:.0f}" style="min-width: {least:.0f}px" font-size="12" '
        f'text-anchor="middle" fill="currentColor">',
        f"<title>{title}</title>",
        *(f'<path d="{_path(points)}" {line}/>' for points in drawn.lanes),
        *(f'<path d="{_path(points)}" {line}/>' for points in drawn.ends),
        # Edges that end at one point share a head, because lines are translucent.
        *dict.fromkeys(_head(points[-1]) for points in drawn.ends),
        *(_box(box, corner) for box, corner in zip(boxes, drawn.corners, strict=True)),
        "</svg>",
    ]
    return "\n".join(parts)


def _path(points: Sequence[Point]) -> str:
    (x, begin), (_, top), (to, bottom), (_, end) = points
    middle = (top + bottom) / 2
    return f"M{x:.1f} {begin:.1f}V{top:.1f}C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {bottom:.1f}V{end:.1f}"


def _head(end: Point) -> str:
    x, y = end
    return f'<path d="M{x:.1f} {y:.1f}l-4 -7h8z" style="fill: {_LINE}"/>'


def _box(box: Box, corner: Point) -> str:
    (x, y), (width, height) = corner, box.size
    bold = ' font-weight="bold"' if len(box.lines) > 1 else ""
    texts = "".join(
        f'<text x="{x + width / 2:.1f}" y="{y + 16 + 15 * place:.1f}"{"" if place else bold}>{html.escape(line)}</text>'
        for place, line in enumerate(box.lines)
    )
    radius = height / 2 if box.kind == "end" else 4
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" '
        f'style="{_STYLES[box.kind]}"/>{texts}'
    )
