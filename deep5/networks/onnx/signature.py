"""Check a node against its operator's schema: the number of inputs and outputs, and the attributes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief, suggestion

__all__ = ["check_signature"]

_OPTION = onnx.defs.OpSchema.FormalParameterOption
_ENDLESS = 1 << 30


def check_signature(node: ir.Node, opset: int, what: str) -> None:
    """Reject a node of ONNX's own domain that its operator's schema does not allow.

    Args:
        node: The node; its operator exists in that opset.
        opset: The version of ONNX's operators.
        what: The prefix of messages.

    Raises:
        NetworkError: Too few or too many inputs or outputs, a missing required input or attribute, an unknown
            attribute, or an attribute of the wrong type.
    """
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    inputs, names = list(node.inputs), [formal.name for formal in schema.inputs]
    given = len(inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if not schema.min_input <= len(inputs) <= schema.max_input:
        raise NetworkError(
            f"{what}: {node.op_type} got {_count(given, 'input')}{', None among them' if None in node.inputs else ''}; "
            f"allowed: {_allowed(schema.min_input, schema.max_input, 'input', names)}"
        )
    for position, value in enumerate(inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if value is None and formal.option != _OPTION.Optional:
            raise NetworkError(
                f"{what}: {node.op_type} got no input {position} ({formal.name}), which it needs; allowed: the name of "
                "a value"
            )
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        results = [formal.name for formal in schema.outputs]
        raise NetworkError(
            f"{what}: {node.op_type} got {_count(len(node.outputs), 'output')}; allowed: "
            f"{_allowed(schema.min_output, schema.max_output, 'output', results)}"
        )
    _check_attributes(node, schema, what)


def _check_attributes(node: ir.Node, schema: onnx.defs.OpSchema, what: str) -> None:
    known = schema.attributes
    for name, given in node.attributes.items():
        if name not in known:
            raise NetworkError(
                f"{what}: {node.op_type} has no attribute {name!r}; allowed: {', '.join(sorted(known)) or 'none'}"
                f"{suggestion(name, known)}"
            )
        wanted, got = known[name].type.name, given.type.name
        if got != wanted:
            remedy = f"; remedy: {name}={float(given.as_int())}" if (got, wanted) == ("INT", "FLOAT") else ""
            raise NetworkError(
                f"{what}: {node.op_type} got {name}={brief(given.value)}, {_KINDS.get(got, got.lower())}; allowed: "
                f"{_KINDS.get(wanted, wanted.lower())}{remedy}"
            )
    for name, entry in known.items():
        if entry.required and name not in node.attributes:
            raise NetworkError(
                f"{what}: {node.op_type} got no attribute {name!r}, which it needs; allowed: "
                f"{_KINDS.get(entry.type.name, entry.type.name.lower())}; remedy: {name}=…"
            )


_KINDS = {
    "FLOAT": "a float",
    "FLOATS": "a list of floats",
    "GRAPH": "a graph",
    "INT": "an integer",
    "INTS": "a list of integers",
    "STRING": "a string",
    "STRINGS": "a list of strings",
    "TENSOR": "a tensor",
}


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _allowed(least: int, most: int, noun: str, names: Sequence[str]) -> str:
    listed = f" ({', '.join(names)})" if names else ""
    if most >= _ENDLESS:
        return f"at least {_count(least, noun)}{listed}"
    return f"{_count(most, noun) if least == most else f'{least} to {most} {noun}s'}{listed}"
