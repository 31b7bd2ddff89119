"""The names of the values that a network computes: a row for each that is not named after its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.networks.analysis.analysis import Layer
from deep5.networks.analysis.picture import shortened
from deep5.results.name_lines import name_lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_values"]

# Maximum number of characters of a node's name, and of a line of a value's; those of values are complete.
_NODE = 40


def print_values(layers: Sequence[Layer], console: Console) -> None:
    """Print the complete names of the values that each node computes, as `fetch`, `feed` and `wrt=` take them.

    Nodes whose values are named after them, as `NetworkBuilder` does, are described by one sentence.

    Args:
        layers: The nodes.
        console: The console to print on.
    """
    from rich.text import Text

    own = [layer for layer in layers if layer.values and not _named_after_node(layer)]
    usual = "NODE_output, and further ones NODE_1_output, NODE_2_output, …"
    if not own:
        console.print(Text(f"The value that a node computes is named {usual}."))
        return
    others = f" (of other nodes: {usual})" if len(own) < len(layers) else ""
    console.print(Text(f"Values for executor.fetch, feed and wrt=, and the nodes that compute them{others}:"))
    node_width = min(_NODE, console.width // 2, max(len(layer.name) for layer in own))
    width = min(max(8, console.width - node_width - 4), max(len(name) for layer in own for name in layer.values))
    rows = []
    for layer in own:
        for name in layer.values:
            first, *further = name_lines([name], width)
            rows += [f" {first:{width}}  {shortened(layer.name, node_width)}", *(f"   {line}" for line in further)]
    console.print(Text("\n".join(rows)), no_wrap=True, overflow="ignore", crop=False)


def _named_after_node(layer: Layer) -> bool:
    usual = {f"{layer.name}{f'_{place}' if place else ''}_output" for place in range(len(layer.values) + 1)}
    return usual.issuperset(layer.values)
