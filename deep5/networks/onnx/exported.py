"""What torch.export wrote into a file about its initial values: which are parameters, and what was made of parameters.

PyTorch's exporter writes every floating-point number that it does not compute as an initial value: weights, buffers,
the square root of two in a GELU, the mask of an attention. Which of them are parameters stands beside them.

References:
    torch.export.ExportGraphSignature, whose text the exporter of PyTorch 2.6 and newer puts into the graph's metadata;
    onnxscript.optimizer, which notes what a folded value was computed from, all the way back.
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
    """Names of initial values that are parameters or were computed from some, and of those that are neither."""

    learned: frozenset[str]
    fixed: frozenset[str]


def said_by_exporter(proto: onnx.ModelProto) -> Said | None:
    """What the exporter said of the initial values; None where it did not export the file, or said nothing."""
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
    """Make Constant nodes of the initial values that are not parameters, and forget what was said.

    Of a value that nothing was said of, single numbers and what holds an infinity (a mask) are constants: so a weight
    that another tool renamed stays one. Values that training changes, or that only set an operator, stay as they are.

    Args:
        model: The model, with inferred shapes; changed in place.
        said: What the exporter said of it.
    """
    graph = model.graph
    # What is added to the network later on is not spoken of.
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
    # In memory: an attribute cannot lie in another file.
    node = ir.node("Constant", [], {"value": ir.Tensor(np.array(tensor.numpy()), tensor.dtype)})
    made = node.outputs[0]
    made.shape, made.type = value.shape, value.type
    value.replace_all_uses_with(made)
    made.name = graph.initializers.pop(str(value.name)).name
    graph.insert_before(graph[0], node)
