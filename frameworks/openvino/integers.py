"""Which integers OpenVINO computes exactly: its CPU plugin uses 32 bits, and float32 for many operators.

int64 and uint64 are cut to 32 bits. Comparisons, quotients and reductions use float32, exact up to 2^24. 8-bit types
saturate, where ONNX wraps around. So every integer is bounded by its inputs, and a node whose result could be wrong is
rejected. Inputs are checked when a network runs. Values computed only from shapes and constants are sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.nodes import of_shapes
from deep5.networks.onnx.attributes import attribute
from deep5.networks.strings import elsewhere

__all__ = ["LARGEST", "reason"]

# float32 holds every integer up to here.
LARGEST = 1 << 24
_INT32 = (1 << 31) - 1
# Chains of integer operators are short; longer ones are not followed to their end.
_DEPTH = 64
# Operators that move elements, with the inputs that provide them.
_MOVING: dict[str, Sequence[int]] = {
    **dict.fromkeys(("Compress", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"), (0,)),
    **dict.fromkeys(("Transpose", "Trilu", "Unsqueeze"), (0,)),
    "Concat": range(1 << 16),
    "OneHot": (2,),
    "Pad": (0, 2),
    "Where": (1, 2),
    **dict.fromkeys(("ScatterElements", "ScatterND"), (0, 2)),
}
_COMPARING = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_CHOOSING = {"Abs", "Clip", "Max", "Min", "Neg", "ReduceMax", "ReduceMin", "Relu", "Sign"}
_COUNTING: dict[str, Callable[[int, int], int]] = {
    "Add": int.__add__,
    "Mul": int.__mul__,
    "Sub": int.__add__,
    "Sum": int.__add__,
}
_EXTENTS = {"Shape", "Size"}
_PLACES = {"ArgMax", "ArgMin", "NonZero", "TopK"}
_LONG = {ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
_UNSIGNED = {ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}


def reason(node: ir.Node) -> str | None:
    """Why a node's integers could be wrong, or None."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _EXTENTS:
        return None
    # In a Slice, a number that is too large means the end.
    constants = [*(() if node.op_type == "Slice" else node.inputs), *filter(ir.Value.is_graph_output, node.outputs)]
    for value in constants:
        if value is not None and (bound := _constant_bound(value)) is not None and bound > _INT32:
            return (
                f"the constant {value.name!r} holds {bound}; OpenVINO has 32 bits; allowed: up to {_INT32}; remedy: "
                f"{elsewhere(node)}"
            )
    if node.op_type == "Cast":
        return _cast(node)
    if all(of_shapes(value) for value in node.inputs if _whole(value)):
        return None
    if node.op_type in _MOVING:
        added = _whole(node.outputs[0]) and attribute(node, "reduction", "none") != "none"
        return _refusal(node, "adds inexactly") if added else None
    if node.op_type in _COMPARING | _CHOOSING | {"ArgMax", "ArgMin", "Div", "Mod"}:
        bounds = [_bound(value, {}, _DEPTH) for value in node.inputs if _whole(value)]
        return None if _fit(bounds, LARGEST) else _refusal(node, "compares and divides in float32")
    if node.op_type in _COUNTING:
        unsigned = node.op_type == "Sub" and node.outputs[0].dtype in _UNSIGNED
        result = None if unsigned else _counted(node, {}, _DEPTH)
        return None if _fit([result], min(_INT32, _most(node.outputs[0]))) else _refusal(node, "counts in 32 bits")
    return _refusal(node, "computes inexactly") if any(map(_whole, node.outputs)) else None


def _refusal(node: ir.Node, what: str) -> str:
    kind = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return (
        f"OpenVINO {what}: large values of {kind.name if kind else 'integers'} would give a wrong result; allowed: "
        "floating-point numbers, or small integers"
    )


def _cast(node: ir.Node) -> str | None:
    source, target = node.inputs[0], node.outputs[0].dtype
    if source is None or source.dtype is None or target not in _LONG or not source.dtype.is_floating_point():
        return None
    if of_shapes(source):
        return None
    return f"OpenVINO casts to {target.name} by 32 bits; allowed: INT32"


def _fit(bounds: Sequence[int | None], most: int) -> bool:
    return all(bound is not None and bound <= most for bound in bounds)


def _whole(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_integer()


def _most(value: ir.Value) -> int:
    """The largest value of an integer dtype."""
    return int(np.iinfo(value.dtype.numpy()).max)  # type: ignore[union-attr]  # it is an integer dtype


def _constant_bound(value: ir.Value | None) -> int | None:
    array = constant_value(value) if _whole(value) else None
    if array is None:
        return None
    return max((abs(int(bound)) for bound in (array.min(), array.max())), default=0) if array.size else 0


def _bound(value: ir.Value | None, known: dict[ir.Value, int | None], depth: int) -> int | None:
    """The largest possible magnitude of an integer, or None if unknown."""
    if not _whole(value) or value is None:
        return 1  # a boolean
    if (constant := _constant_bound(value)) is not None:
        return constant
    if value not in known:
        most = _most(value)
        known[value] = most if most < LARGEST else None
        found = _computed(value, known, depth) if depth else None
        if found is not None:
            known[value] = min(found, most)
    return known[value]


def _computed(value: ir.Value, known: dict[ir.Value, int | None], depth: int) -> int | None:
    node = value.producer()
    if node is None or node.op_type in _EXTENTS | _PLACES or of_shapes(value):
        return LARGEST if node is not None or value.is_graph_input() else None
    if node.op_type in _MOVING:
        chosen = [own for position, own in enumerate(node.inputs) if position in _MOVING[node.op_type]]
    elif node.op_type == "Cast":
        source = node.inputs[0]
        signed = source is not None and source.dtype not in _UNSIGNED
        if source is None or source.dtype is None or source.dtype.is_floating_point():
            return None
        if signed and value.dtype in _UNSIGNED and source.dtype != ir.DataType.BOOL:
            return None
        chosen = [source]
    elif node.op_type in _CHOOSING | {"Div"}:
        chosen = list(node.inputs)
    elif node.op_type == "Mod":
        chosen = [node.inputs[1]]
    else:
        return _counted(node, known, depth) if node.op_type in _COUNTING else None
    bounds = [_bound(own, known, depth - 1) for own in chosen if own is not None]
    return None if None in bounds else max(bounds)  # type: ignore[type-var]


def _counted(node: ir.Node, known: dict[ir.Value, int | None], depth: int) -> int | None:
    """The largest magnitude of a sum, difference or product."""
    total: int | None = None
    for value in node.inputs:
        bound = _bound(value, known, depth - 1)
        if bound is None:
            return None
        total = bound if total is None else _COUNTING[node.op_type](total, bound)
    return total
