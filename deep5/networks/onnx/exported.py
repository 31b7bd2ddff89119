"""The exporter's metadata on initial values: which are parameters, and which were computed from parameters.

PyTorch's exporter writes every floating-point number that it does not compute as an initial value: weights, buffers,
the square root of two in a GELU, the mask of an attention. The file's metadata lists which of them are parameters.

References:
    torch.export.ExportGraphSignature, whose string the exporter of PyTorch 2.6 and newer stores in the graph's
    metadata; onnxscript.optimizer, which records all original sources of a folded value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from deep5.networks.constants import FLOATS, role

__all__ = ["Said", "make_constants", "said_by_exporter"]

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_ENTRY = re.compile(r"^\S+: (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']*)'", re.MULTILINE)
_NAME = re.compile(r"'([^']*)'")


class Said(NamedTuple):
    """Names of initial values that are parameters or derive from parameters, and of those that are neither."""

    learned: frozenset[str]
    fixed: frozenset[str]


def said_by_exporter(proto: onnx.ModelProto) -> Said | None:
    """The exporter's signature of the initial values; None if the file contains none."""
    text = _entry(proto.graph.metadata_props, _SIGNATURE)
    if text is None:
        return None
    learned, fixed = set[str](), set[str]()
    for kind, name in _ENTRY.findall(text):
        (learned if kind == "PARAMETER" else fixed).add(name)
    parameters = frozenset(learned)
    for value in proto.graph.value_info:
        if (sources := _entry(value.metadata_props, _FOLDED)) is not None:
            (fixed if parameters.isdisjoint(_NAME.findall(sources)) else learned).add(value.name)
    return Said(frozenset(learned), frozenset(fixed - learned))


def make_constants(model: ir.Model, said: Said) -> None:
    """Turn the initial values that are not parameters into Constant nodes, and remove the exporter's signature.

    Of the values that the signature does not list, only single numbers and values that contain an infinity (masks)
    become constants: a weight that another tool renamed stays a parameter. Values that training changes, or that only
    configure an operator, stay as they are.

    Args:
        model: The model, with inferred shapes; changed in place.
        said: The exporter's signature.
    """
    graph = model.graph
    # The signature does not cover values that are added to the network later.
    graph.metadata_props.pop(_SIGNATURE, None)
    for name, value in list(graph.initializers.items()):
        tensor, roles = value.const_value, {role(use.node, use.idx) for use in value.uses()}
        if tensor is None or tensor.dtype not in FLOATS or roles - {"value", "setting"} or "value" not in roles:
            continue
        if value.is_graph_output() or name in said.learned:
            continue
        if name in said.fixed or tensor.size <= 1 or np.isinf(tensor.numpy()).any():
            _replace(graph, value, tensor)


def _entry(entries: Iterable[onnx.StringStringEntryProto], key: str) -> str | None:
    return next((entry.value for entry in entries if entry.key == key), None)


def _replace(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    # In memory: an attribute cannot refer to an external file.
    node = ir.node("Constant", [], {"value": ir.Tensor(np.array(tensor.numpy()), tensor.dtype)})
    made = node.outputs[0]
    made.shape, made.type = value.shape, value.type
    value.replace_all_uses_with(made)
    made.name = graph.initializers.pop(str(value.name)).name
    graph.insert_before(graph[0], node)
