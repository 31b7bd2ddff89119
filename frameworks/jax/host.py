"""What a network's operators must know of computed values while JAX traces, and whether it can be known then.

Shapes, axes, starts, the number of repeats or a loop's condition are settings: what is computed by them has another
shape from one to the other. Constants are known when the source is written. What is computed of extents and constants
alone is known while JAX traces, and is computed then. Anything else is known only when the network runs: such a network
runs operator by operator, and its settings are read on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from deep5.frameworks.jax.table import HOST
from deep5.networks.constants import constant_value
from deep5.networks.custom import is_custom
from deep5.networks.network import Network

__all__ = ["HostValues", "find_host_values", "graphs_of"]

# Whose results are known of the shapes of their inputs alone.
EXTENTS = ("Shape", "Size")
_DRAWN = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")


class HostValues(NamedTuple):
    """Which settings of a network are computed.

    Attributes:
        traced: Names of values that are computed of extents and constants alone, and that settings depend on.
        reason: The first setting that is computed of anything else, in words; empty: there is none, so that the network
            can be traced.
    """

    traced: frozenset[str]
    reason: str


def find_host_values(network: Network) -> HostValues:
    """Look through all nodes, those of nested graphs too."""
    traced: set[str] = set()
    for node in network.model.graph.all_nodes():
        for value in () if is_custom(node) or node.op_type not in HOST else HOST[node.op_type](node):
            if value is None or constant_value(value) is not None:
                continue
            chain = _chain(value)
            if chain is None:
                return HostValues(frozenset(), f"{node.name} ({node.op_type}) must know {value.name!r}")
            traced |= chain
    return HostValues(frozenset(traced), "")


def graphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs inside a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def _chain(value: ir.Value) -> set[str] | None:
    """What is computed on the way to a value; None where that depends on more than extents and constants."""
    found, waiting = set[str](), [value]
    while waiting:
        value = waiting.pop()
        if constant_value(value) is not None or value.name in found:
            continue
        node = value.producer()
        if node is None or is_custom(node) or node.op_type in _DRAWN or any(True for _ in graphs_of(node)):
            return None
        if node.op_type not in EXTENTS:
            if not node.inputs:
                return None
            waiting += [own for own in node.inputs if own is not None]
        found.add(str(value.name))
    return found
