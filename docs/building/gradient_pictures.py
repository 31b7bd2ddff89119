"""Draws a network and the gradient graph that deep5 writes for it, as one graph."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mkdocs.exceptions import PluginError

import deep5 as d5
from deep5.networks.gradients import gradient_network
from graph_drawing import Box, svg

__all__ = ["SUBJECTS", "draw"]

SUBJECTS: dict[str, Callable[[], d5.Network]] = {
    "mlp": functools.partial(d5.networks.mlp, features=2, hidden=3, classes=2)
}


def draw(subject: str) -> str:
    """The picture as SVG: nodes of the network plain, those that its rules added with an accent.

    Raises:
        PluginError: There is no picture of this name.
    """
    if subject not in SUBJECTS:
        raise PluginError(f"no picture of gradients {subject!r}; allowed: {', '.join(SUBJECTS)}; remedy: one of these")
    boxes, edges = _graph(gradient_network(SUBJECTS[subject]()))
    forward, backward = (sum(box.kind == kind for box in boxes) for kind in ("plain", "accent"))
    title = f"Network {subject} with its gradient graph: {forward} nodes forward, {backward} backward"
    return svg(boxes, edges, title, least_px=560)


def _graph(network: d5.Network) -> tuple[list[Box], list[tuple[int, int]]]:
    """Boxes, and edges from earlier to later ones; constants and parameters are not drawn."""
    nodes = [node for node in network.model.graph if node.op_type != "Constant"]
    boxes = [Box(kind="end", lines=(name,)) for name in network.inputs]
    makers = {name: place for place, name in enumerate(network.inputs)}
    edges: list[tuple[int, int]] = []
    for node in nodes:
        layer, _, added = str(node.name).partition("/backward")
        own = len(boxes)
        edges += [(makers[value.name], own) for value in node.inputs if value is not None and value.name in makers]
        below = f"of {_short(layer)}" if added else _short(layer)
        boxes.append(Box(kind="accent" if added else "plain", lines=(_short(node.op_type), below)))
        makers.update((str(value.name), own) for value in node.outputs)
    for name in network.outputs:
        edges.append((makers[name], len(boxes)))
        boxes.append(Box(kind="end", lines=(name,)))
    return boxes, edges


def _short(name: str) -> str:
    return name.replace("SoftmaxCrossEntropyLoss", "Loss")
