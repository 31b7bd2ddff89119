"""SHA-256 of a network's values, and of its structure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from deep5.core.tensors import TensorSpec

__all__ = ["hash_of_graph", "hash_of_lines", "hash_of_values"]


def hash_of_values(specs: Mapping[str, TensorSpec], value: Callable[[str], np.ndarray]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes.

    Args:
        specs: Specifications of the parameters, then of the buffers.
        value: Returns the value of a name; called for one name at a time.
    """
    digest = hashlib.sha256()
    for name, spec in specs.items():
        digest.update(f"{name} {spec}\n".encode())
        digest.update(value(name).tobytes())
    return digest.hexdigest()


def hash_of_lines(lines: Iterable[str]) -> str:
    """SHA-256 over the lines of a description."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def hash_of_graph(
    graph: ir.Graph,
    *,
    inputs: Mapping[str, TensorSpec],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, np.ndarray],
    outputs: Iterable[str],
    frozen: Iterable[str],
) -> str:
    """SHA-256 over opset, nodes, attributes, inputs and outputs.

    Args:
        graph: The graph.
        inputs: Specifications of the inputs that a caller feeds.
        values: Specifications of the parameters, then of the buffers.
        constants: The other initial values.
        outputs: Names of the outputs.
        frozen: Names of the frozen parameters.
    """
    lines = [f"opset {domain} {version}" for domain, version in sorted(graph.opset_imports.items())]
    lines += [f"input {name} {spec}" for name, spec in inputs.items()]
    lines += [f"parameter {name} {spec}" for name, spec in values.items()]
    lines += [f"constant {name} {array.dtype} {array.tolist()}" for name, array in constants.items()]
    lines += _node_lines(graph)
    lines += [f"output {name}" for name in outputs]
    lines += [f"frozen {name}" for name in sorted(frozen)]
    return hash_of_lines(lines)


def _node_lines(graph: ir.Graph) -> Iterator[str]:
    """One line per node, in execution order: its operator, inputs, outputs and attributes."""
    for node in graph:
        attributes = sorted(f"{key}={_attribute(value)}" for key, value in node.attributes.items())
        sources = [value.name if value is not None else "" for value in node.inputs]
        # A file need not name an output that nothing uses.
        made = [value.name if value.uses() or value.is_graph_output() else "" for value in node.outputs]
        yield f"{node.domain}:{node.op_type} {sources} {made} {attributes}"


def _attribute(attribute: ir.Attr) -> str:
    if isinstance(attribute.value, ir.TensorProtocol):
        array = attribute.value.numpy()
        return f"{array.dtype}{array.shape}{array.tobytes().hex()}"
    return str(attribute.value)
