"""What a file itself states about its tensors: torch's signature, and the list that deep5 writes.

PyTorch's exporter writes every floating-point number that it does not compute as an initial value: weights, buffers,
the square root of two in a GELU, the mask of an attention. The file's metadata lists which of them are parameters.
deep5 lists the parameters of every file that it writes, and marks its constants.

References:
    torch.export.ExportGraphSignature, whose string the exporter of PyTorch 2.6 and newer stores in the graph's
    metadata; onnxscript.optimizer, which records all original sources of a folded value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief
from deep5.networks.onnx.reading import nodes_of
from deep5.networks.onnx.specs import initial_specs

__all__ = ["Stated", "forget_statements", "state", "stated_by_file"]

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_ENTRY = re.compile(r"^\S+: (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']*)'", re.MULTILINE)
_NAME = re.compile(r"'([^']*)'")
# deep5's own: a JSON list of names in the model's metadata, and a mark on each Constant node.
_PARAMETERS = "deep5.parameters"
_CONSTANT = "deep5.constant"


class Stated(NamedTuple):
    """What a file states, and who states it.

    Attributes:
        learned: By name, the reason why a tensor is a parameter, or computed from one.
        fixed: By name, the reason why a tensor is neither.
        names_all: Whether `learned` has every parameter that kept its name, as torch's signature does.
    """

    learned: dict[str, str]
    fixed: dict[str, str]
    names_all: bool


def stated_by_file(proto: onnx.ModelProto) -> Stated:
    """What the file states about its initial values and Constant nodes; both are empty if it states nothing.

    Raises:
        NetworkError: deep5's own list is not a list of names.
    """
    signed = _entry(proto.graph.metadata_props, _SIGNATURE) is not None
    stated = Stated({}, {}, names_all=signed)
    _torch(proto, stated)
    _own(proto, stated)
    for name in stated.learned:
        stated.fixed.pop(name, None)
    return stated


def forget_statements(model: ir.Model) -> None:
    """Remove the statements from the metadata: they do not cover what is added to the network later."""
    model.graph.metadata_props.pop(_SIGNATURE, None)
    model.metadata_props.pop(_PARAMETERS, None)


def state(model: ir.Model) -> None:
    """List the parameters of a network and mark its constants, so that its file is read with the same parameters.

    Args:
        model: The network's model; its metadata is changed in place.
    """
    model.metadata_props[_PARAMETERS] = json.dumps(list(initial_specs(model.graph).parameters))
    for node in model.graph.all_nodes():
        if node.domain == "" and node.op_type == "Constant":
            node.metadata_props[_CONSTANT] = ""


def _torch(proto: onnx.ModelProto, stated: Stated) -> None:
    text = _entry(proto.graph.metadata_props, _SIGNATURE)
    if text is None:
        return
    for kind, name in _ENTRY.findall(text):
        reasons = stated.learned if kind == "PARAMETER" else stated.fixed
        reasons[name] = f"{kind} in torch's signature"
    parameters = frozenset(stated.learned)
    for value in proto.graph.value_info:
        if (sources := _entry(value.metadata_props, _FOLDED)) is not None:
            if parameters.isdisjoint(_NAME.findall(sources)):
                stated.fixed[value.name] = "folded by torch from constants"
            else:
                stated.learned[value.name] = "folded by torch from parameters"


def _own(proto: onnx.ModelProto, stated: Stated) -> None:
    kept = [
        name
        for node in nodes_of(proto)
        if node.op_type == "Constant" and _entry(node.metadata_props, _CONSTANT) is not None
        for name in node.output
    ]
    stated.fixed.update(dict.fromkeys(kept, "a constant of deep5"))
    text = _entry(proto.metadata_props, _PARAMETERS)
    if text is not None:
        stated.learned.update(dict.fromkeys(_names(text), "a parameter of deep5"))
    elif kept or proto.producer_name == "deep5":  # versions before 0.2 wrote no list
        names = [tensor.name for tensor in proto.graph.initializer]
        stated.learned.update(dict.fromkeys(names, "an initial value of deep5"))


def _names(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NetworkError(f"the model's {_PARAMETERS} is {brief(text)}; allowed: a list of names in JSON")
    return names


def _entry(entries: Iterable[onnx.StringStringEntryProto], key: str) -> str | None:
    return next((entry.value for entry in entries if entry.key == key), None)
