"""Registered operators as nodes: find a node's operator, infer shapes and types, and create its backward node."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import onnx_ir as ir

from deep5.core.errors import OperatorError
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.factors import step_up_factors
from deep5.networks.onnx.learning_types import declare_types
from deep5.networks.onnx.transposed import write_transposed_pads
from deep5.operators.backward import Backward
from deep5.operators.contract import is_floating, name_of, specs_of
from deep5.operators.cpp import CppOperator
from deep5.operators.omitting import Omitting
from deep5.operators.registry import make_operator, registered_operator

__all__ = [
    "BACKWARD",
    "OMITTED",
    "Extent",
    "backward_attributes",
    "is_custom",
    "operator_of",
    "output_count",
    "standing_in",
]

BACKWARD = ".backward"
"""Suffix of a backward node's operator name, in the same domain."""

OMITTED = "deep5_omitted"
"""The attribute with the positions of a node's omitted inputs, in the form without gaps (`without_omissions`)."""

_NEEDS, _FLOATING = "deep5_needs", "deep5_floating"
_DOMAIN, _OPERATOR, _INDEX = "deep5.inference", "Operator", "index"
_NOBODY_KNOWS = "?"
_ACTIVE = threading.local()
_REGISTERING = threading.Lock()


def is_custom(node: ir.Node) -> bool:
    """Whether a registered operator, or its backward pass, implements a node."""
    return bool(node.domain) and registered_operator(node.domain, node.op_type.removesuffix(BACKWARD)) is not None


def operator_of(node: ir.Node) -> Operator | None:
    """A new operator of the class that implements a node, with the node's attributes; None if none is registered.

    Raises:
        OperatorError: The class does not accept these attributes.
    """
    if not is_custom(node):
        return None
    attributes = {name: attribute(node, name) for name in node.attributes}
    needs, floating = attributes.pop(_NEEDS, ()), attributes.pop(_FLOATING, ())
    omitted = attributes.pop(OMITTED, ())
    operator = make_operator(node.domain, node.op_type.removesuffix(BACKWARD), attributes)
    if omitted:
        operator = _omitting(operator, omitted, str(node.name))
    return Backward(operator, needs, floating) if node.op_type.endswith(BACKWARD) else operator


def _omitting(operator: Operator, omitted: Sequence[int], name: str) -> Operator:
    """The operator without some of its inputs.

    Raises:
        OperatorError: It is written in C++, where every input has memory.
    """
    if isinstance(operator, CppOperator):
        raise OperatorError(
            f"node {name!r} omits input {omitted[0]} of {name_of(operator)}, which is written in C++; allowed: all of "
            "its inputs; remedy: an empty tensor in its place, or an operator in Python"
        )
    return Omitting(operator, omitted)


def backward_attributes(node: ir.Node, needs: Sequence[bool]) -> dict[str, Any]:
    """The attributes of a node's backward node.

    Args:
        node: A node of a registered operator.
        needs: Which of its inputs need a gradient.
    """
    floating = [value.dtype is not None and is_floating(str(value.dtype.numpy())) for value in node.outputs]
    return {**node.attributes, _NEEDS: [int(need) for need in needs], _FLOATING: [int(each) for each in floating]}


def output_count(operator: Operator, inputs: Sequence[ir.Value | None]) -> int | None:
    """The number of outputs of an operator according to its `specs`; None if an input is unknown.

    Args:
        operator: The operator.
        inputs: Values of a graph.

    Raises:
        ShapeError: It does not accept such inputs.
        OperatorError: Its `specs` failed.
    """
    specs: list[TensorSpec | None] = []
    for value in inputs:
        if value is None:
            specs.append(None)
            continue
        if value.shape is None or value.dtype is None:
            return None
        extents = (each if isinstance(each, int) else Extent(each.value or _NOBODY_KNOWS) for each in value.shape)
        specs.append(TensorSpec(shape=tuple(extents), dtype=str(value.dtype.numpy())))
    return len(specs_of(operator, specs))


class Extent(str):
    """A symbolic dimension that supports arithmetic: the result's name is the expression.

    Comparisons raise: the larger of two is unknown, whatever their names.

    >>> Extent("N") * 2 + 1
    '2*N+1'
    >>> (Extent("H") - 3) // 2
    '(H-3)//2'
    """

    __slots__ = ()

    def _with(self, sign: str, other: Any, *, swapped: bool = False) -> Any:
        if not isinstance(other, (int, str)) or isinstance(other, bool):
            return NotImplemented
        if _NOBODY_KNOWS in (self, other):
            return Extent(_NOBODY_KNOWS)
        left, right = (other, self) if swapped else (self, other)
        loose = sign not in "+-"
        texts = [f"({side})" if loose and any(c in str(side) for c in "+-*/%") else str(side) for side in (left, right)]
        if sign == "*" and isinstance(right, int):
            texts.reverse()
        return Extent(sign.join(texts))

    def __add__(self, other: Any) -> Any:
        return self if other == 0 else self._with("+", other)

    def __radd__(self, other: Any) -> Any:
        return self if other == 0 else self._with("+", other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self if other == 0 else self._with("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self if other == 1 else self._with("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self if other == 1 else self._with("*", other, swapped=True)

    def __floordiv__(self, other: Any) -> Any:
        return self if other == 1 else self._with("//", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with("//", other, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._with("%", other)

    def __lt__(self, other: object) -> bool:
        raise TypeError(f"which is larger, {self} or {other}, is not known")

    __le__ = __gt__ = __ge__ = __lt__


@contextmanager
def standing_in(proto: onnx.ModelProto) -> Iterator[None]:
    """Within the context, ONNX's inference calls registered operators for the shapes and types of their outputs.

    It also knows the types of operators of ai.onnx.ml for which ONNX has no inference, and the shapes of transposed
    convolutions and of images resized by factors that ONNX infers too small.

    Args:
        proto: A temporary model; its nodes of registered operators are replaced.

    Raises:
        Deep5Error: The exception of an operator's `specs`, when the block ends.
    """
    declare_types(proto)
    write_transposed_pads(proto)
    operators: list[tuple[Operator, str]] = []
    for node in _nodes(proto.graph.node):
        name = node.op_type.removesuffix(BACKWARD)
        if not node.domain or registered_operator(node.domain, name) is None:
            continue
        alone = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        made = operator_of(ir.from_proto(alone))
        assert made is not None  # noqa: S101 - it is registered
        given = list(node.input)
        while given and not given[-1]:
            given.pop()
        if gaps := [position for position, one in enumerate(given) if not one]:
            made = _omitting(made, gaps, node.name)
        if gaps or len(given) < len(node.input):
            node.input[:] = [one for one in given if one]
        called = node.name or (node.output[0] if node.output else "")
        operators.append((made, f"node {called!r} ({node.domain}.{node.op_type})"))
        node.op_type, node.domain = _OPERATOR, _DOMAIN
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute(_INDEX, len(operators) - 1))
    if not operators:
        step_up_factors(proto)
        yield
        return
    if all(entry.domain != _DOMAIN for entry in proto.opset_import):
        proto.opset_import.add(domain=_DOMAIN, version=1)
    with _REGISTERING:  # a schema can be registered only once
        if not onnx.defs.has(_OPERATOR, 1, _DOMAIN):
            onnx.defs.register_schema(_schema())
    before, _ACTIVE.operators = getattr(_ACTIVE, "operators", []), operators
    _ACTIVE.failure = None
    try:
        step_up_factors(proto)
        yield
    except Exception:
        if _ACTIVE.failure is not None:
            raise _ACTIVE.failure from None
        raise
    finally:
        _ACTIVE.operators = before


def _nodes(nodes: Any) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for entry in node.attribute:
            for graph in (*entry.graphs, *([entry.g] if entry.HasField("g") else ())):
                yield from _nodes(graph.node)


def _schema() -> onnx.defs.OpSchema:
    """The schema of an operator with any inputs and outputs: an attribute is its index among the active operators."""
    schema = onnx.defs.OpSchema
    kinds = sorted({f"tensor({kind})" for kind in _KINDS})
    variadic = {
        "param_option": schema.FormalParameterOption.Variadic,
        "is_homogeneous": False,
    }
    made = schema(
        _OPERATOR,
        _DOMAIN,
        1,
        "A registered operator of deep5.",
        inputs=[schema.FormalParameter("inputs", "T", "", min_arity=0, **variadic)],
        outputs=[schema.FormalParameter("outputs", "T", "", min_arity=1, **variadic)],
        type_constraints=[("T", kinds, "")],
        attributes=[schema.Attribute(_INDEX, schema.AttrType.INT, "")],
    )
    made.set_type_and_shape_inference_function(_infer)
    return made


_KINDS = (
    *("bool", "float16", "bfloat16", "float", "double"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


def _infer(context: Any) -> None:
    operator, called = _ACTIVE.operators[context.get_attribute(_INDEX).i]
    try:
        _infer_outputs(context, operator, called)
    except Exception as error:
        _ACTIVE.failure = error
        raise


def _infer_outputs(context: Any, operator: Operator, called: str) -> None:
    inputs = []
    for number in range(context.get_num_inputs()):
        given = context.get_input_type(number)
        if given is None or not given.HasField("tensor_type") or not given.tensor_type.HasField("shape"):
            return  # unknown: the executor reports it
        extents = tuple(_extent(extent) for extent in given.tensor_type.shape.dim)
        kind = ir.DataType(given.tensor_type.elem_type)
        inputs.append(TensorSpec(shape=extents, dtype=str(kind.numpy())))
    outputs = specs_of(operator, inputs)
    count = context.get_num_outputs()
    if len(outputs) < count:
        raise OperatorError(f"{called} has {count} outputs; allowed: at most {len(outputs)}, as its specs says")
    for number, spec in enumerate(outputs[:count]):
        made = onnx.TypeProto()
        made.tensor_type.elem_type = int(ir.DataType.from_numpy(numpy_dtype(spec.dtype)))
        made.tensor_type.shape.SetInParent()
        for extent in spec.shape:
            place = made.tensor_type.shape.dim.add()
            if isinstance(extent, int):
                place.dim_value = extent
            elif extent != _NOBODY_KNOWS:
                place.dim_param = str(extent)
        context.set_output_type(number, made)


def _extent(given: Any) -> int | Extent:
    if given.HasField("dim_value"):
        return int(given.dim_value)
    return Extent(given.dim_param or _NOBODY_KNOWS)
