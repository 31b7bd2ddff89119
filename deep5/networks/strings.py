"""Networks of strings: which values are strings, and which back-ends may still run a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.core.tensors import TensorSpec
from deep5.networks.onnx.contributed_types import CONTRIBUTED

__all__ = ["check_kinds", "elsewhere"]

# The reference has none of ONNX Runtime's own operators, and only the reference takes strings.
_NOWHERE = "compute what reads strings before the network, and feed numbers"


def elsewhere(node: ir.Node, change: str = "") -> str:
    """The back-ends that may run a node that another one refuses, as a remedy; ONNX Runtime takes no strings.

    Args:
        node: The node.
        change: A change of the file that is a remedy, too, except for strings.

    >>> elsewhere(ir.node("Det", [ir.Value(name="x")]))
    "framework 'onnxruntime' or 'reference'"
    """
    if _reads_strings(node):
        return _for_strings([node, *(() if node.graph is None else node.graph)])
    makers = (value.producer() for value in node.inputs if value is not None)
    around = any(maker is not None and maker.domain == CONTRIBUTED for maker in (node, *makers))
    others = "'onnxruntime'" if around else "'onnxruntime' or 'reference'"
    return f"{change}{', or ' if change else ''}framework {others}"


def check_kinds(
    inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], nodes: Iterable[ir.Node] = ()
) -> None:
    """Reject inputs and outputs of types that only the reference supports.

    Args:
        inputs: The network's inputs.
        outputs: Its outputs.
        nodes: Its nodes.

    Raises:
        Unsupported: One is a string, a list or optional.
    """
    for kind, specs in (("input", inputs), ("output", outputs)):
        for name, spec in specs.items():
            if spec.collection or spec.dtype == "string":
                remedy = "framework 'reference'" if spec.collection else _for_strings(nodes)
                raise Unsupported(f"the {kind} {name!r} is {spec}; allowed: tensors of numbers; remedy: {remedy}")


def _for_strings(nodes: Iterable[ir.Node]) -> str:
    return _NOWHERE if any(node.domain == CONTRIBUTED for node in nodes) else "framework 'reference'"


def _reads_strings(node: ir.Node) -> bool:
    """Whether a node's values, or the inputs of its graph, are strings."""
    values = (*node.inputs, *node.outputs, *(() if node.graph is None else node.graph.inputs))
    return any(value is not None and value.dtype == ir.DataType.STRING for value in values)
