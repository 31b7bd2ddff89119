"""Why ONNX refuses a model, with the node and the remedy; used only on the way to an error."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx
import onnx_ir as ir
from onnx.helper import make_tensor_type_proto

from deep5.core.errors import NetworkError, OperatorError, ShapeError, suggestion
from deep5.networks.custom import standing_in
from deep5.networks.onnx.element_types import called, check_element_types, type_name
from deep5.networks.onnx.fitting import check_extents
from deep5.operators.registry import registered_operator, registered_operators

__all__ = [
    "check_by_onnx",
    "check_operators",
    "complete_outputs",
    "explained",
    "first_line",
    "is_unranked",
    "unknown_operator",
    "unregistered",
    "worded",
]

_INVALID, _INCONSISTENT = "is not valid ONNX", "is inconsistent"
# As much of an error's message: some list all elements of an attribute.
_LONGEST = 2000
_SAID = re.compile(r"\(op_type:(\w+), node name: #(\d+)\): (.*)")


def first_line(error: Exception) -> str:
    """The first line of an error's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0].removeprefix("[ShapeInferenceError] ") if lines else type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def unknown_operator(operator: str, opset: int) -> str:
    """What to say of an operator that ONNX does not have, with the closest that it has."""
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return (
        f"No Op registered for {repr(operator)[1:-1]} with domain_version of {opset}; allowed: the operators of ONNX "
        f"(https://onnx.ai/onnx/operators), and functions that the model defines{suggestion(operator, known)}"
    )


def unregistered(domain: str, operator: str) -> str:
    """What to say of an operator of a domain that is not ONNX's, with the closest that was registered."""
    known = sorted(f"{own}.{name}" for own, name in registered_operators())
    return (
        f"no operator {operator!r} of the domain {domain!r} is registered; allowed: {', '.join(known) or 'none'}"
        f"{suggestion(f'{domain}.{operator}', known)}; remedy: d5.register_operator({operator!r}, domain={domain!r}) "
        "on its class, before the network is made"
    )


def check_operators(what: str, proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Refuse a node of ONNX's own domain that is no operator of the model's opset.

    Args:
        what: What messages call the model.
        proto: The model.
        nodes: Its nodes, those of functions and of nested graphs too.

    Raises:
        NetworkError: The first such node, with the operator that is closest.
    """
    opset = next((entry.version for entry in proto.opset_import if not entry.domain), None)
    own = {function.name for function in proto.functions if not function.domain}
    for node in nodes:
        operator = str(node.op_type)  # a string that is not UTF-8 comes as bytes
        # Another version may still have it: then ONNX's checker says so.
        if opset is None or node.domain or operator in own or onnx.defs.has(operator, ""):
            continue
        raise NetworkError(
            f"{what} is not valid ONNX: {called(node.name, operator, node.output)}: {unknown_operator(operator, opset)}"
        )


def complete_outputs(what: str, proto: onnx.ModelProto) -> None:
    """Declare the outputs without a shape as what their nodes compute; without one where only a run determines it.

    Args:
        what: What messages call the model.
        proto: The model, without large weights; changed in place.

    Raises:
        NetworkError: A graph that is not valid, or an output whose element type cannot be inferred either.
    """
    missing = [value for value in proto.graph.output if is_unranked(value)]
    if not missing:
        return
    free = onnx.ModelProto()
    free.CopyFrom(proto)
    for value in filter(is_unranked, free.graph.output):
        value.ClearField("type")
    with standing_in(free):
        try:
            free = onnx.shape_inference.infer_shapes(free, strict_mode=True)
        except (OperatorError, ShapeError):
            raise
        except Exception as error:  # onnx raises its own private classes
            raise explained(free, what, error) from error
    computed = {value.name: value.type for value in free.graph.output}
    passed = {value.name: value.type for value in free.graph.input}
    passed |= {each.name: make_tensor_type_proto(each.data_type, list(each.dims)) for each in free.graph.initializer}
    for value in missing:
        kind = passed.get(value.name, computed[value.name])
        if kind.WhichOneof("value") is not None:
            if not value.type.tensor_type.elem_type or not kind.HasField("tensor_type"):
                value.type.CopyFrom(kind)
            elif kind.tensor_type.HasField("shape"):
                value.type.tensor_type.shape.CopyFrom(kind.tensor_type.shape)
        elif value.type.tensor_type.elem_type:
            continue  # of unknown rank
        elif (node := _foreign(proto, value.name)) is not None:
            raise NetworkError(
                f"{what}: the output {value.name!r} has no shape, and none can be inferred: "
                f"{called(node.name, node.op_type, node.output)} is of the domain {node.domain!r}, of which ONNX has "
                "no such operator and the model no such function; remedy: operators of ONNX, a function in the model, "
                "or, for a back-end that has the operator, a declared shape"
            )
        else:
            raise NetworkError(
                f"{what}: the output {value.name!r} has neither an element type nor a shape, and none can be inferred; "
                "remedy: declare both, with names for dimensions that vary"
            )


def is_unranked(value: onnx.ValueInfoProto) -> bool:
    """Whether a declared array, or a value of no declared type, has no shape."""
    return value.type.WhichOneof("value") in (None, "tensor_type") and not value.type.tensor_type.HasField("shape")


def check_by_onnx(proto: onnx.ModelProto) -> None:
    """Run ONNX's own checker, which requires the shape of an output even where only a run determines it."""
    if any(map(is_unranked, proto.graph.output)):
        given, proto = proto, onnx.ModelProto()
        proto.CopyFrom(given)
        for value in filter(is_unranked, proto.graph.output):
            value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(proto)


def _foreign(proto: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    """The last node, of those that a value is computed from, that nothing is known of."""
    own = {(function.domain, function.name) for function in proto.functions}
    wanted = {name}
    for node in reversed(proto.graph.node):
        if wanted.isdisjoint(node.output):
            continue
        wanted.update(node.input)
        domain, operator = str(node.domain), str(node.op_type)  # as above
        known = (domain, operator) in own or onnx.defs.has(operator, domain)
        if domain and not known and registered_operator(domain, operator) is None:
            return node
    return None


def worded(error: NetworkError, source: object) -> NetworkError:
    """The error to raise where a model cannot be imported, with what is allowed and a remedy.

    Only what ONNX's checker refuses is called invalid.

    Args:
        error: The reason.
        source: An ONNX file, or a model in memory.
    """
    said = str(error)
    if _INVALID in said and not _is_refused(source):
        said = said.replace(_INVALID, _INCONSISTENT, 1)
    if "allowed:" not in said and "remedy" not in said:
        said = (
            f"{said.rstrip('.:')}; allowed: a model that onnx.checker accepts; remedy: export it again, or correct it"
        )
    return error if said == str(error) else type(error)(said)


def _is_refused(source: object) -> bool:
    try:
        onnx.checker.check_model(source if isinstance(source, onnx.ModelProto) else str(source))
    except Exception:  # onnx raises its own private classes
        return True
    return False


def explained(proto: onnx.ModelProto, what: str, error: Exception) -> NetworkError:
    """The error to raise where inference of shapes and types, or ONNX's checker, refused a model.

    Args:
        proto: The model, without large weights.
        what: What messages call it.
        error: What ONNX raised.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for index, node in enumerate(bare.graph.node):
        node.name = f"#{index}"
    try:
        onnx.shape_inference.infer_shapes(bare, strict_mode=True)
        said = None
    except onnx.shape_inference.InferenceError as again:
        said = _SAID.search(first_line(again))
    except Exception:  # onnx raises its own private classes; what it said first is said
        said = None
    # A node of a nested graph may have such a name itself.
    if said is None or int(said[2]) >= len(proto.graph.node) or proto.graph.node[int(said[2])].op_type != said[1]:
        return NetworkError(f"{what} is not valid ONNX: {first_line(error)}")
    # What follows from the inputs only: declarations may contradict it.
    free = onnx.ModelProto()
    free.CopyFrom(proto)
    del free.graph.value_info[:]
    for output in free.graph.output:
        output.ClearField("type")
    try:
        free = onnx.shape_inference.infer_shapes(free)
        known = ir.from_proto(free)
    except Exception:  # as above
        return NetworkError(f"{what} is not valid ONNX: {first_line(error)}")
    try:
        check_element_types(known, what)
        check_extents(known.graph.all_nodes(), what)
    except NetworkError as cause:
        return cause
    values = ir.convenience.create_value_mapping(known.graph)
    node, reason = proto.graph.node[int(said[2])], said[3].removeprefix("[ShapeInferenceError] ")
    this = called(node.name, node.op_type, node.output)
    for output in proto.graph.output:
        declared, computed = output.type.tensor_type.elem_type, values.get(output.name)
        kind = None if computed is None else computed.dtype
        if output.name in node.output and kind is not None and declared not in (0, kind):
            return NetworkError(
                f"{what} is not valid ONNX: the output {output.name!r} is declared as "
                f"{type_name(ir.DataType(declared))}, but {this} computes {type_name(kind)}; remedy: declare that, or "
                "put a Cast after it"
            )
    inputs = ", ".join(f"{name!r} {_shown(values.get(name))}" for name in node.input if name)
    return NetworkError(
        f"{what} is not valid ONNX: {this}: {reason}; got {inputs or 'no inputs'}; "
        "remedy: change the shapes or the attributes, or what the model declares of them"
    )


def _shown(value: ir.Value | None) -> str:
    if value is None or value.dtype is None or value.shape is None:
        return "of unknown shape"
    return f"{type_name(value.dtype)}{value.shape}".replace("SymbolicDim", "")
