"""Check that a node has the inputs and attributes that its operator's schema requires, of the right types.

ONNX's own checker does so too, but too late: its inference runs first, and crashes the process if some are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from deep5.core.errors import NetworkError, brief
from deep5.networks.onnx.element_types import called
from deep5.networks.onnx.protos import nested_nodes

__all__ = ["check_settings"]

# Attributes that count something and have no "automatic" value: engines divide by them, and store 32 bits.
_COUNTS = frozenset({
    "blocksize", "dilations", "group", "hidden_size", "kernel_shape", "kv_num_heads", "num_outputs", "q_num_heads",
    "strides",
})  # fmt: skip
# Attributes that count elements around or in an image: a few bytes would request gigabytes.
_SIZES = frozenset({"output_padding", "output_shape", "pads"})
_MOST = (1 << 31) - 1


def check_settings(what: str, proto: onnx.ModelProto) -> None:
    """Reject a node that lacks an input or attribute, or has an attribute of the wrong type or a count below 1.

    Args:
        what: Name of the model in messages.
        proto: The model, in which ONNX's own domain is always called "".

    Raises:
        NetworkError: The first such node, what it lacks or contains, and what is allowed; or an attribute outside of a
            function that refers to one of a function, which ONNX's checker accepts.
    """
    for node in nested_nodes(proto.graph.node):
        for entry in node.attribute:
            if entry.ref_attr_name:
                raise NetworkError(
                    f"{what}: {called(node.name, str(node.op_type), node.output)}: its attribute {entry.name!r} refers "
                    f"to an attribute {brief(entry.ref_attr_name)} of a function, and it is in none; allowed: a value; "
                    "remedy: write the value into the file"
                )
    bodies = [(proto.graph.node, proto.opset_import)]
    bodies += [(function.node, function.opset_import) for function in proto.functions]
    own = {(function.domain, function.name) for function in proto.functions}
    for nodes, imports in bodies:
        versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}
        for node in nested_nodes(nodes):
            if (node.domain, node.op_type) not in own and (reason := _wrong(node, versions)):
                this = called(node.name, str(node.op_type), node.output)
                raise NetworkError(f"{what} is not valid ONNX: {this}: {reason}")


def _wrong(node: onnx.NodeProto, versions: Mapping[str, int]) -> str | None:
    version = versions.get(node.domain)
    if version is None or not 0 < version <= _MOST or not onnx.defs.has(node.op_type, version, node.domain):
        return None  # `check_operators` reports unknown operators
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    return _inputs(node, schema) or _attributes(node, schema)


def _inputs(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> str | None:
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"got {len(node.input)} inputs; allowed: {_between(schema.min_input, schema.max_input)}"
    for name, formal in zip(node.input, schema.inputs, strict=False):
        if not name and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            return f"the input {formal.name!r} is left out; allowed: a value, since it is required"
    return None


def _attributes(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> str | None:
    held = {entry.name: entry for entry in node.attribute}
    for name, known in schema.attributes.items():
        entry = held.get(name)
        if entry is None:
            if known.required:
                return f"the attribute {name!r} is missing; allowed: {_kind(known.type.value)}, which is required"
        elif entry.type and entry.type != known.type.value:
            return f"the attribute {name!r} holds {_kind(entry.type)}; allowed: {_kind(known.type.value)}"
        elif name in _COUNTS and (wrong := _outside(entry)):
            return f"got {name}={brief(wrong[0])}; allowed: 1 to {_MOST}"
        elif name in _SIZES and (large := [number for number in entry.ints if number > _MOST]):
            return f"got {name}={brief(large[0])}; allowed: up to {_MOST}"
    return None


def _outside(entry: onnx.AttributeProto) -> list[int]:
    if entry.ref_attr_name:
        return []
    numbers: Iterable[int] = entry.ints if entry.type == onnx.AttributeProto.INTS else [entry.i]
    return [number for number in numbers if not 1 <= number <= _MOST]


def _kind(kind: int) -> str:
    return str(onnx.AttributeProto.AttributeType.Name(kind)) if 0 <= kind <= 14 else f"the unknown type {kind}"


def _between(least: int, most: int) -> str:
    return f"{least}" if least == most else f"at least {least}" if most >= _MOST else f"{least} to {most}"
