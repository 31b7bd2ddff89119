"""Which computed values a network's operators must know during tracing, and whether they can be known then.

Shapes, axes, starts, repeat counts and loop conditions are settings: the shape of the result depends on their values.
Constants are known when the source is written. Values computed from dimensions and constants only are known while JAX
traces, and are computed then. All other values are known only when the network runs: such a network runs operator by
operator, and the host reads its settings.
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

# Their results depend only on the shapes of their inputs.
EXTENTS = ("Shape", "Size")
_DRAWN = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")


class HostValues(NamedTuple):
    """Which settings of a network are computed.

    Attributes:
        traced: Names of values that are computed from dimensions and constants only, and that settings depend on.
        reason: A description of the first setting that is computed from other values; empty if there is none, so that
            the network can be traced.
    """

    traced: frozenset[str]
    reason: str


def find_host_values(network: Network) -> HostValues:
    """Check all nodes, including those of subgraphs."""
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
    """The subgraphs of a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def _chain(value: ir.Value) -> set[str] | None:
    """The values on the way to a value; None if it depends on more than dimensions and constants."""
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
