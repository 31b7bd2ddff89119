"""Constant folding: compute ahead of time what a graph computes from constants only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from deep5.networks.constants import FLOATS, constant_tensor, constant_value
from deep5.networks.onnx.name_lists import DEFAULTS, listed_names
from deep5.networks.onnx.shapes import infer_shapes

__all__ = ["evaluated", "fold_constants", "lift", "lift_constants"]

# Operators that move elements of their first input (Concat: of all), which may be partly known.
_MOVING = frozenset({"Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
# Operators that are pure functions of their inputs.
# fmt: off
_COMPUTING = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "ConstantOfShape", "Div", "Equal", "Erf", "Exp", "Expand",
    "Flatten", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg",
    "NonZero", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Round", "ScatterND", "Sign", "Split", "Sqrt", "Sub", "Sum", "Tile", "Transpose", "Trilu", "Where", "Xor",
})
# fmt: on
_FOLDED = _MOVING | _COMPUTING
# Nothing larger is folded: a small file must not exhaust memory.
_MOST_ELEMENTS = 1 << 20
# Numbers from here on represent unknown dimensions, one per name; no element of a real shape is that small.
_UNKNOWN, _NAMES = np.iinfo(np.int64).min + 7, 1 << 56


def fold_constants(model: ir.Model, what: str) -> None:
    """Replace nodes that compute from constants only by Constant nodes, and complete partly known Reshape targets.

    Args:
        model: The model, with inferred shapes; changed in place. Parameters and running statistics are not constants,
            nor are initial values that a caller may feed.
        what: Its name in messages.
    """
    while _fold_once(model):
        infer_shapes(model, what)


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes without floating-point numbers (shapes, axes, indices) into initial values."""
    graph = model.graph
    for node in list(graph):
        if node.domain == "" and node.op_type == "Constant" and not node.outputs[0].is_graph_output():
            tensor = constant_tensor(node.outputs[0])
            if tensor is not None and tensor.dtype not in FLOATS:
                lift(graph, node, tensor)


def lift(graph: ir.Graph, node: ir.Node, tensor: ir.TensorProtocol) -> None:
    """Replace a node without inputs by an initial value of the same name.

    Args:
        graph: The graph; changed in place.
        node: A node of it with one output, which is no output of the graph.
        tensor: The numbers.
    """
    old = node.outputs[0]
    tensor.name = old.name
    value = ir.Value(
        name=old.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    old.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.initializers[str(value.name)] = value


def evaluated(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> dict[ir.Value, np.ndarray]:
    """The outputs of a node for known inputs; empty if its operator is not one that is computed ahead of time."""
    return _run(node, inputs, opset) if node.op_type in _FOLDED else {}


def _fold_once(model: ir.Model) -> bool:
    graph, known, changed = model.graph, dict[ir.Value, np.ndarray](), False
    folded: list[ir.Node] = []
    fed = frozenset(listed_names(model, DEFAULTS))
    for node in list(graph):
        if node.domain:
            continue
        if node.op_type == "Reshape":
            changed |= _complete(graph, node, known)
        for value, array in _evaluate(node, known, fed, graph.opset_imports[""]).items():
            known[value] = array
        if node.op_type != "Constant" and all(_whole(known.get(value)) for value in node.outputs):
            folded.append(node)
    for node in reversed(folded):
        # Consumers come first: of a chain only the values that other nodes read become constants.
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            _replace(graph, node, known)
        else:
            graph.remove(node, safe=True)
    return changed or bool(folded)


def _evaluate(
    node: ir.Node, known: Mapping[ir.Value, np.ndarray], fed: Collection[str], opset: int
) -> dict[ir.Value, np.ndarray]:
    """The outputs of a node that follow from known values; shapes may be partly known."""
    inputs = [None if value is not None and value.name in fed else _held(value, known) for value in node.inputs]
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "Shape" and first is not None and first.shape is not None:
        extents = [extent if isinstance(extent, int) else _stand_in(extent) for extent in first.shape]
        part = slice(*(node.attributes[key].as_int() if key in node.attributes else None for key in ("start", "end")))
        return {node.outputs[0]: np.array(extents[part], np.int64)}
    if node.op_type == "Size" and first is not None and first.shape is not None and first.shape.is_static():
        return {node.outputs[0]: np.array(np.prod(first.shape.numpy(), dtype=np.int64))}
    if node.op_type == "Constant":
        array = constant_value(node.outputs[0])
        return {} if array is None else {node.outputs[0]: array}
    if node.op_type == "CastLike" and inputs[0] is not None and node.inputs[1] is not None:
        # Only the element type of the second input matters.
        kind = node.inputs[1].dtype
        return {} if kind is None else {node.outputs[0]: inputs[0].astype(kind.numpy())}
    if node.op_type not in _FOLDED:
        return {}
    partly = {"Concat": len(inputs)}.get(node.op_type, 1) if node.op_type in _MOVING else 0
    for index, (value, array) in enumerate(zip(node.inputs, inputs, strict=True)):
        if value is not None and (
            array is None or array.dtype.kind in "OSU" or (index >= partly and not _whole(array))
        ):
            return {}
    return _run(node, inputs, opset) if all(_bounded(value) for value in node.outputs) else {}


def _held(value: ir.Value | None, known: Mapping[ir.Value, np.ndarray]) -> np.ndarray | None:
    if value is None or value in known:
        return None if value is None else known[value]
    return constant_value(value) if value.is_initializer() and value.dtype not in FLOATS else None


def _whole(array: np.ndarray | None) -> bool:
    return array is not None and not (array.dtype == np.int64 and bool(_unknown(array).any()))


def _unknown(array: np.ndarray) -> np.ndarray:
    found: np.ndarray = (array >= _UNKNOWN) & (array < _UNKNOWN + _NAMES)
    return found


def _stand_in(extent: ir.SymbolicDim) -> int:
    """A number that represents a symbolic dimension; equal names give equal numbers."""
    if extent.value is None:
        return _UNKNOWN
    return _UNKNOWN + 1 + int.from_bytes(hashlib.blake2b(extent.value.encode(), digest_size=7).digest()) % (_NAMES - 1)


def _bounded(value: ir.Value) -> bool:
    """Whether a value is known to be small."""
    if value.shape is None or not value.shape.is_static():
        return False
    return bool(np.prod(value.shape.numpy(), dtype=float) <= _MOST_ELEMENTS)


def _run(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> dict[ir.Value, np.ndarray]:
    """The outputs of a node by ONNX's reference implementation; empty if that cannot run the node."""
    if node.op_type == "Identity" and inputs[0] is not None:
        return {node.outputs[0]: inputs[0]}  # a function that is expanded may be thousands of these
    from onnx.reference import ReferenceEvaluator

    feed = {str(value.name): array for value, array in zip(node.inputs, inputs, strict=True) if value is not None}
    outputs = [str(value.name) for value in node.outputs]
    graph = onnx.GraphProto(
        node=[ir.to_proto(node)],
        input=[onnx.ValueInfoProto(name=name) for name in feed],
        output=[onnx.ValueInfoProto(name=name) for name in outputs],
    )
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(graph, opsets={"": opset}).run(outputs, feed)
    except Exception:  # any type, such as an index out of range; the node stays, and fails when it runs
        return {}
    return dict(zip(node.outputs, map(np.asarray, results), strict=True))


def _replace(graph: ir.Graph, node: ir.Node, known: Mapping[ir.Value, np.ndarray]) -> None:
    made = []
    for index, value in enumerate(node.outputs):
        name = f"{node.name or node.op_type}" + (f"_{index}" if index else "")
        made.append(ir.node("Constant", [], {"value": ir.tensor(known[value])}, name=name))
    new = [constant.outputs[0] for constant in made]
    ir.convenience.replace_nodes_and_values(graph, node, [node], made, node.outputs, new)


def _complete(graph: ir.Graph, node: ir.Node, known: Mapping[ir.Value, np.ndarray]) -> bool:
    """Replace the unknown dimensions of a Reshape's target by -1, and by 0 (copied from the input)."""
    goal = known.get(node.inputs[1]) if node.inputs[1] is not None else None
    data = node.inputs[0]
    copies = "allowzero" not in node.attributes or not node.attributes["allowzero"].as_int()
    if goal is None or _whole(goal):
        return False
    shape = [] if not copies or data is None or data.shape is None else list(data.shape)
    target, rest = goal.tolist(), list(shape)
    several = int(_unknown(goal).sum()) + target.count(-1) > 1
    for axis, extent in enumerate(shape[: len(target)] if several else ()):
        if isinstance(extent, ir.SymbolicDim) and extent.value is not None and target[axis] == _stand_in(extent):
            target[axis] = 0
            rest.remove(extent)
    target = [-1 if extent < _UNKNOWN + _NAMES else extent for extent in target]
    if target.count(-1) > 1 or (target.count(0) > len(shape) - len(rest)):
        return False
    counted = [extent for extent in target if extent > 0]
    if -1 in target and 0 in target and all(isinstance(extent, int) for extent in rest):
        # For an empty batch the value of -1 would be ambiguous.
        elements, taken = math.prod(rest), math.prod(counted)
        if elements and elements % taken == 0:
            target[target.index(-1)] = elements // taken
    made = ir.node("Constant", [], {"value": ir.tensor(np.array(target, np.int64))})
    made.outputs[0].name = f"{node.outputs[0].name}/shape"
    graph.insert_before(node, made)
    node.replace_input_with(1, made.outputs[0])
    return True
