"""Whether the nested graphs of If, Loop and Scan have as many inputs and outputs as their nodes.

ONNX's own checks leave gaps: its inference reads beyond the end of a list, and an engine may, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from deep5.core.errors import NetworkError
from deep5.networks.onnx.element_types import called

__all__ = ["check_bodies"]

# The opset in which Scan lost its batch axis and the input with the lengths of sequences.
_SCAN = 9


def check_bodies(what: str, proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Check the numbers of inputs and outputs of nested graphs.

    Args:
        what: Name of the model in messages.
        proto: The model.
        nodes: Its nodes, including those of functions and nested graphs.

    Raises:
        NetworkError: A graph has another number than its node needs.
    """
    opset = next((entry.version for entry in proto.opset_import if not entry.domain), None)
    for node in nodes:
        if node.domain or node.op_type not in ("If", "Loop", "Scan"):
            continue
        bodies = {entry.name: entry.g for entry in node.attribute if entry.HasField("g")}
        for name, body in bodies.items():
            if node.op_type != "Scan" or (opset or 0) >= _SCAN:
                _check_body(what, node, name, body)


def _check_body(what: str, node: onnx.NodeProto, name: str, body: onnx.GraphProto) -> None:
    given, made = len(node.input), len(node.output)
    if node.op_type == "If":
        takes, gives, why = 0, made, f"the node has {made} outputs"
    elif node.op_type == "Loop":
        takes, gives = max(given, 2), made + 1
        why = f"the node has {given} inputs and {made} outputs, and the body's condition is one more"
    else:
        takes, gives, why = given, made, f"the node has {given} inputs and {made} outputs"
    for kind, found, expected in (("inputs", len(body.input), takes), ("outputs", len(body.output), gives)):
        if found != expected:
            raise NetworkError(
                f"{what} is not valid ONNX: {called(node.name, node.op_type, node.output)}: its graph {name!r} has "
                f"{found} {kind}; allowed: {expected}, as {why}; remedy: export the model again"
            )
