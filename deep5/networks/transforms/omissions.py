"""Nodes of registered operators that leave optional inputs out, in a form without gaps, which every back-end reads."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.custom import OMITTED, is_custom
from deep5.networks.network import Network

__all__ = ["without_omissions"]


def without_omissions(network: Network) -> Network:
    """The network in which an attribute states the positions of omitted inputs of registered operators' nodes.

    Returns:
        The network itself if no such node omits an input.
    """
    if not any(map(_omits, network.nodes)):
        return network
    model = network.model.clone()
    for node in list(model.graph.all_nodes()):
        if not _omits(node):
            continue
        given = list(node.inputs)
        while given and given[-1] is None:
            given.pop()
        gaps = [position for position, value in enumerate(given) if value is None]
        present = [value for value in given if value is not None]
        node.resize_inputs(len(present))
        for position, value in enumerate(present):
            node.replace_input_with(position, value)
        if gaps:
            node.attributes[OMITTED] = ir.AttrInt64s(OMITTED, gaps)
    return Network(model)


def _omits(node: ir.Node) -> bool:
    return is_custom(node) and any(value is None for value in node.inputs)
