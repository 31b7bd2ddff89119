"""Names of values inside the nested graphs of If, Loop and Scan, which a network neither returns nor replaces."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from deep5.core.errors import UsageError, brief
from deep5.networks.nodes import subgraphs

__all__ = ["refuse_nested"]


def refuse_nested(nodes: Iterable[ir.Node], name: object, what: str) -> None:
    """Refuse the name of a value inside a nested graph, and say where it is.

    Args:
        nodes: The nodes of the network.
        name: The name.
        what: What the caller uses it for.

    Raises:
        UsageError: The value is inside a nested graph.
    """
    owner = next((node for node in nodes if _holds(node, name)), None)
    if owner is None:
        return
    often = "which may not run" if owner.op_type == "If" else "which runs once for each iteration"
    several = "both branches" if owner.op_type == "If" else "the body"
    raise UsageError(
        f"{what}: got {brief(name)}, a value inside {owner.name!r} ({owner.op_type}), {often}; allowed: values outside "
        f"nested graphs; remedy: make it an output of {several} in the file, and use the node's output"
    )


def _holds(node: ir.Node, name: object) -> bool:
    waiting = list(subgraphs(node).values())
    while waiting:
        graph = waiting.pop()
        if any(value.name == name for value in (*graph.inputs, *graph.initializers.values())):
            return True
        for inner in graph:
            if any(value.name == name for value in inner.outputs):
                return True
            waiting += subgraphs(inner).values()
    return False
