"""Check that a node's inputs have element types that its operator's ONNX schema allows."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError

__all__ = ["called", "check_element_types", "element_type", "type_name"]

_KINDS = {f"tensor({kind.name.lower()})": kind for kind in ir.DataType}


class _Place(NamedTuple):
    """One input or output in a schema."""

    name: str
    variable: str
    allowed: frozenset[ir.DataType]
    shared: bool


class _Signature(NamedTuple):
    """The inputs and outputs of a schema; its last place also describes all further values."""

    inputs: tuple[_Place, ...]
    outputs: tuple[_Place, ...]


def check_element_types(model: ir.Model, what: str) -> None:
    """Reject nodes, nested graphs included, whose values have element types that their operator does not accept.

    Values that share a type variable in the operator's schema must have one element type. Some back-ends do not check
    this: they would round the values of one input differently.

    Args:
        model: The model, with inferred types; values of unknown type and operators without a schema are not checked.
        what: Its name in messages.

    Raises:
        NetworkError: The first such node, its operator, and its inputs' element types.
    """
    versions = model.graph.opset_imports
    for node in model.graph.all_nodes():
        signature = _signature(node.op_type, versions.get(node.domain), node.domain)
        if signature is None:
            continue
        bound: dict[str, ir.DataType] = {}
        for values, places in ((node.inputs, signature.inputs), (node.outputs, signature.outputs)):
            last = len(places) - 1
            for index, value in enumerate(values):
                # Inconsistent attributes can produce more values than the schema has places.
                kind = None if value is None or last < 0 else _kind(value)
                if value is None or kind is None:
                    continue
                place = places[min(index, last)]
                if place.allowed and kind not in place.allowed:
                    allowed = ", ".join(sorted(map(type_name, place.allowed)))
                    raise NetworkError(
                        f"{what} is not valid ONNX: {_called(node)} takes no {type_name(kind)}, which {value.name!r} "
                        f"holds; allowed for {place.name}: {allowed}; remedy: a Cast"
                    )
                if place.shared and bound.setdefault(place.variable, kind) != kind:
                    raise NetworkError(f"{what} is not valid ONNX: {_mixed(node, signature, place.variable)}")


def called(name: str | None, operator: str, outputs: Iterable[str | None]) -> str:
    """The name of a node in messages; many nodes have no name."""
    known = repr(name) if name else f"that computes {', '.join(map(repr, filter(None, outputs)))}"
    return f"the node {known} ({repr(operator)[1:-1]})"  # in a damaged file it may contain a newline


def element_type(kind: ir.DataType) -> str:
    """The name of an element type in a `TensorSpec`.

    Raises:
        NetworkError: The element type is undefined.
    """
    if kind == ir.DataType.UNDEFINED:
        raise NetworkError("a value has no element type; remedy: declare it, or an attribute that says which")
    return "string" if kind == ir.DataType.STRING else str(kind.numpy())


def type_name(kind: ir.DataType) -> str:
    """NumPy's name of an element type, or ONNX's if NumPy has none."""
    return kind.name.lower() if kind in (ir.DataType.UNDEFINED, ir.DataType.STRING) else str(kind.numpy())


def _mixed(node: ir.Node, signature: _Signature, variable: str) -> str:
    held: list[str] = []
    kinds: set[ir.DataType] = set()
    names: dict[str, None] = {}
    for values, places in ((node.inputs, signature.inputs), (node.outputs, signature.outputs)):
        if len(kinds) > 1:
            break  # the inputs suffice
        for index, value in enumerate(values):
            place = places[min(index, len(places) - 1)]
            if place.variable == variable and value is not None and (kind := _kind(value)) is not None:
                held.append(f"{value.name!r} {type_name(kind)}")
                kinds.add(kind)
                names[place.name] = None
    return (
        f"{_called(node)} mixes element types: {', '.join(held)}; allowed: one type for {' and '.join(names)}; "
        "remedy: a Cast"
    )


def _called(node: ir.Node) -> str:
    return called(node.name, node.op_type, [value.name for value in node.outputs])


def _kind(value: ir.Value) -> ir.DataType | None:
    """The element type of an array; None if it is unknown, and for sequences and optionals."""
    if value.type is None and value.const_value is not None:
        return value.const_value.dtype
    if not isinstance(value.type, ir.TensorType) or value.type.dtype == ir.DataType.UNDEFINED:
        return None
    return value.type.dtype


@functools.cache
def _signature(operator: str, version: int | None, domain: str) -> _Signature | None:
    if version is None or not onnx.defs.has(operator, version, domain):
        return None
    schema = onnx.defs.get_schema(operator, version, domain)
    return _Signature(tuple(map(_place, schema.inputs)), tuple(map(_place, schema.outputs)))


def _place(formal: onnx.defs.OpSchema.FormalParameter) -> _Place:
    known = frozenset(_KINDS[text] for text in formal.types if text in _KINDS)
    variadic = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    # A concrete type, such as tensor(int64), is not a variable and does not constrain other places.
    shared = "(" not in formal.type_str and (formal.is_homogeneous or not variadic)
    return _Place(formal.name, formal.type_str, known, shared)
