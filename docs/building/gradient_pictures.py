"""Draws a network and the gradient graph that deep5 writes for it, as one graph."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mkdocs.exceptions import PluginError

import deep5 as d5
from deep5.networks.analysis.layout import Point, layered
from deep5.networks.gradients import gradient_network

__all__ = ["SUBJECTS", "draw"]

SUBJECTS: dict[str, Callable[[], d5.Network]] = {
    "mlp": functools.partial(d5.networks.mlp, features=2, hidden=3, classes=2)
}

# Pixels of a letter of 12 px, and of the height of a box.
_LETTER, _BOX = 7.2, 38.0
_STYLES = {
    "end": "fill: none; stroke: var(--md-default-fg-color--light)",
    "forward": "fill: var(--md-code-bg-color); stroke: var(--md-default-fg-color--light)",
    "backward": "fill: var(--md-code-bg-color); stroke: var(--md-typeset-a-color); stroke-width: 1.5",
}


@dataclass(frozen=True, kw_only=True)
class _Box:
    """A node, an input or an output.

    Attributes:
        kind: A key of `_STYLES`.
        lines: What is written on it.
    """

    kind: str
    lines: tuple[str, ...]

    @property
    def size(self) -> Point:
        return max(map(len, self.lines)) * _LETTER + 16, _BOX if len(self.lines) > 1 else 24.0


def _graph(network: d5.Network) -> tuple[list[_Box], list[tuple[int, int]]]:
    """Boxes, and edges from earlier to later ones; constants and parameters are not drawn."""
    nodes = [node for node in network.model.graph if node.op_type != "Constant"]
    boxes = [_Box(kind="end", lines=(name,)) for name in network.inputs]
    makers = {name: place for place, name in enumerate(network.inputs)}
    edges: list[tuple[int, int]] = []
    for node in nodes:
        name = str(node.name)
        own = len(boxes)
        edges += [(makers[value.name], own) for value in node.inputs if value is not None and value.name in makers]
        if "/backward" in name:
            boxes.append(_Box(kind="backward", lines=(_short(node.op_type), f"of {_short(name.partition('/')[0])}")))
        else:
            boxes.append(_Box(kind="forward", lines=(_short(node.op_type), _short(name))))
        makers.update((str(value.name), own) for value in node.outputs)
    for name in network.outputs:
        edges.append((makers[name], len(boxes)))
        boxes.append(_Box(kind="end", lines=(name,)))
    return boxes, list(dict.fromkeys(edges))


def _short(name: str) -> str:
    return name.replace("SoftmaxCrossEntropyLoss", "Loss")


def draw(subject: str) -> str:
    """The picture as SVG, in the colors of the page.

    Raises:
        PluginError: There is no picture of this name.
    """
    if subject not in SUBJECTS:
        raise PluginError(f"no picture of gradients {subject!r}; allowed: {', '.join(SUBJECTS)}; remedy: one of these")
    boxes, edges = _graph(gradient_network(SUBJECTS[subject]()))
    drawn = layered([box.size for box in boxes], edges)
    width, height = drawn.width + 8, drawn.height + 8
    counts = {kind: sum(box.kind == kind for box in boxes) for kind in ("forward", "backward")}
    title = (
        f"Network {subject} with its gradient graph: {counts['forward']} nodes forward, {counts['backward']} backward"
    )
    line = 'fill="none" style="stroke: var(--md-default-fg-color--light)"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="-4 -4 {width:.0f} '
        f'{height:.0f}" width="{min(width, 640):.0f}" style="min-width: 560px" font-size="12" text-anchor="middle" '
        f'fill="currentColor">',
        f"<title>{title}</title>",
        *(f'<path d="{_path(points)}" {line}/>' for points in drawn.lanes),
        *(f'<path d="{_path(points)}" {line}/>{_head(points)}' for points in drawn.ends),
        *(_box(box, corner) for box, corner in zip(boxes, drawn.corners, strict=True)),
        "</svg>",
    ]
    return "\n".join(parts)


def _path(points: Sequence[Point]) -> str:
    (x, begin), (_, top), (to, bottom), (_, end) = points
    middle = (top + bottom) / 2
    return f"M{x:.1f} {begin:.1f}V{top:.1f}C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {bottom:.1f}V{end:.1f}"


def _head(points: Sequence[Point]) -> str:
    x, y = points[-1]
    return f'<path d="M{x:.1f} {y:.1f}l-4 -7h8z" style="fill: var(--md-default-fg-color--light)"/>'


def _box(box: _Box, corner: Point) -> str:
    (x, y), (width, height) = corner, box.size
    bold = ' font-weight="bold"' if len(box.lines) > 1 else ""
    texts = "".join(
        f'<text x="{x + width / 2:.1f}" y="{y + 16 + 15 * place:.1f}"{"" if place else bold}>{html.escape(line)}</text>'
        for place, line in enumerate(box.lines)
    )
    radius = 4 if len(box.lines) > 1 else height / 2
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" '
        f'style="{_STYLES[box.kind]}"/>{texts}'
    )
