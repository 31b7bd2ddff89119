"""Models of one operator in one opset, drawn from a seed, and what ONNX Runtime and ONNX's reference compute of them.

`DRAWS` in opset_draws.py has a function per operator, which draws inputs and attributes of the version at hand.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

__all__ = [
    "CRASHES",
    "Draw",
    "Drawn",
    "NoAnswer",
    "declare",
    "difference",
    "expected",
    "floating",
    "leaves",
    "model_of",
    "typed",
    "versions",
]

OLDEST = 7
_KINDS = {
    f"tensor({name})": np.dtype(kind)
    for name, kind in {
        "float": "float32", "double": "float64", "float16": "float16", "bool": "bool", "string": "O",
        **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }.items()
}  # fmt: skip
_KINDS["tensor(bfloat16)"] = np.dtype(ml_dtypes.bfloat16)
_WORDS = np.array(["a", "Bc", "de f", "the", "", "éß"], object)


def floating(kind: np.dtype[Any]) -> bool:
    """Whether an element type is floating-point; NumPy calls the kind of bfloat16 "V"."""
    return kind.kind == "f" or kind.name == "bfloat16"


def versions(operator: str, oldest: int = OLDEST) -> list[int]:
    """The opsets from `oldest` on that changed an operator, and `oldest` for the definition that it had then."""
    changed = {each.since_version for each in onnx.defs.get_all_schemas_with_history() if _is(each, operator)}
    first = max((each for each in changed if each <= oldest), default=None)
    return sorted({*(each for each in changed if each > oldest), *([] if first is None else [oldest])})


def _is(schema: onnx.defs.OpSchema, operator: str) -> bool:
    return bool(schema.name == operator and not schema.domain)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A node's inputs and attributes.

    Attributes:
        inputs: Arrays; None for those left out; a list of arrays is a sequence.
        attributes: As `onnx.helper.make_node` takes them.
        outputs: Its number of outputs.
        stored: Positions of inputs that are initial values; the others are fed.
        random: Whether only element types and shapes of the outputs are defined.
        shown: How many of the outputs are outputs of the model; None for all.
        training: Whether the node computes as in training.
        exact: Whether ONNX's reference is asked, not ONNX Runtime, which is wrong there.
    """

    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    stored: frozenset[int] = frozenset()
    random: bool = False
    shown: int | None = None
    training: bool = False
    exact: bool = False


class Draw:
    """The source of a case's random choices.

    Attributes:
        opset: The version of the model.
        since: The version that defined the operator.
        even: Whether floating-point numbers are integers, with zeros and ties among them.
    """

    def __init__(self, operator: str, opset: int, number: int) -> None:
        self.operator, self.opset = operator, opset
        self.schema = onnx.defs.get_schema(operator, opset, "")
        self.since = self.schema.since_version
        self.even = number % 5 == 4
        self.rng = np.random.default_rng([zlib.crc32(operator.encode()), opset, number])

    def one_of(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def size(self, empty: float = 0.04) -> int:
        return 0 if self.chance(empty) else int(self.one_of(1, 1, 2, 3, 3, 4, 5, 7))

    def shape(self, least: int = 1, most: int = 4, empty: float = 0.04) -> tuple[int, ...]:
        sizes = [self.size(empty) for _ in range(self.whole(least, most))]
        if sizes and self.chance(0.04):  # a large batch, and many blocks of a vector instruction
            sizes[self.one_of(0, -1)] = self.one_of(17, 33, 64)
        return tuple(sizes)

    def axis(self, rank: int, since: int = 11) -> int:
        """A dimension of a rank; negative ones are allowed from an opset on."""
        negative = self.since >= since and self.chance(0.4)
        return self.whole(-rank, -1) if negative else self.whole(0, rank - 1)

    def axes(self, rank: int, since: int = 11, least: int = 1) -> list[int]:
        """Different dimensions of a rank, in any order."""
        chosen = self.rng.permutation(rank)[: self.whole(least, max(rank, least))]
        return [int(each) - (rank if self.since >= since and self.chance(0.4) else 0) for each in chosen]

    def kind(self, position: int = 0, common: float = 0.5, but: Sequence[str] = ()) -> np.dtype[Any]:
        """An element type that the version allows at an input, often float32."""
        names = [name for name in self.schema.inputs[position].types if name in _KINDS]
        allowed = [_KINDS[name] for name in names if name.removeprefix("tensor(").removesuffix(")") not in but]
        allowed.sort(key=str)
        if np.dtype("float32") in allowed and self.chance(common):
            return np.dtype("float32")
        return allowed[int(self.rng.integers(len(allowed)))]

    def array(self, shape: Sequence[int], kind: Any = "float32", low: float = -3, high: float = 3) -> np.ndarray:
        kind = np.dtype(kind)
        if kind.kind == "b":
            return np.asarray(self.rng.random(tuple(shape)) < 0.5)
        if kind.kind == "O":
            return np.asarray(_WORDS[self.rng.integers(0, len(_WORDS), tuple(shape))], object)
        if floating(kind):
            drawn = np.asarray(self.rng.uniform(low, high, tuple(shape)))
            # Every fifth case has zeros and equal numbers.
            return np.asarray(np.round(drawn) if self.even and low <= 0 else drawn).astype(kind)
        least = 0 if kind.kind == "u" else int(low)
        return np.asarray(self.rng.integers(least, max(int(high), least + 1) + 1, tuple(shape))).astype(kind)

    def whole_array(self, shape: Sequence[int], low: int, high: int, kind: Any = "int64") -> np.ndarray:
        return np.asarray(self.rng.integers(low, high + 1, tuple(shape))).astype(kind)

    def some(self, **attributes: Any) -> dict[str, Any]:
        """A part of the attributes, of those that the version has; any may be left out."""
        return {name: each for name, each in attributes.items() if name in self.schema.attributes and self.chance(0.7)}

    def known(self, **attributes: Any) -> dict[str, Any]:
        """The attributes that the version has."""
        return {name: each for name, each in attributes.items() if name in self.schema.attributes}


def model_of(
    operator: str, opset: int, drawn: Drawn, *, symbolic: bool = False, nested: bool = False
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model of one node, and what to feed it.

    Args:
        operator: The operator.
        opset: The version of the model.
        drawn: What to build.
        symbolic: Whether inputs have only names as dimensions.
        nested: Whether the node is in a branch of an If, whose condition is fed.
    """
    names = ["" if each is None else f"x{index}" for index, each in enumerate(drawn.inputs)]
    outputs = [f"y{index}" for index in range(drawn.outputs)]
    node = onnx.helper.make_node(operator, names, outputs, name="node", **drawn.attributes)
    fed, stored = dict[str, Any](), list[onnx.TensorProto]()
    inputs = []
    for index, (name, value) in enumerate(zip(names, drawn.inputs, strict=True)):
        if not name:
            continue
        if index in drawn.stored:
            stored.append(onnx.numpy_helper.from_array(value, name))
            continue
        fed[name] = value
        inputs.append(_value(name, value, symbolic=symbolic))
    nodes = [node]
    if nested:
        nodes, fed["chosen"] = [_branches(node)], np.array(True)
        inputs.append(_value("chosen", fed["chosen"], symbolic=False))
    graph = onnx.helper.make_graph(
        nodes, "graph", inputs, [onnx.ValueInfoProto(name=name) for name in outputs[: drawn.shown]], stored
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    # From IR version 4 on initial values are not inputs.
    version = max(8, onnx.helper.find_min_ir_version_for(imports))
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=version)
    return model, fed


def _branches(node: onnx.NodeProto) -> onnx.NodeProto:
    """An If of the same node in both branches, which read the values of the graph around them."""
    bodies = []
    for name in ("then", "else"):
        same = onnx.NodeProto()
        same.CopyFrom(node)
        same.name, same.output[:] = f"{name}_{node.name}", [f"{name}_{output}" for output in node.output]
        outputs = [onnx.ValueInfoProto(name=output) for output in same.output]
        bodies.append(onnx.helper.make_graph([same], name, [], outputs))
    return onnx.helper.make_node(
        "If", ["chosen"], list(node.output), name="choice", then_branch=bodies[0], else_branch=bodies[1]
    )


def _value(name: str, value: Any, *, symbolic: bool) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        kind = onnx.helper.np_dtype_to_tensor_dtype(value[0].dtype)
        return onnx.helper.make_tensor_sequence_value_info(name, kind, None)
    kind = onnx.TensorProto.STRING if value.dtype.kind in "OU" else onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    names = [f"{name}_{axis}" for axis in range(value.ndim)]
    return onnx.helper.make_tensor_value_info(name, kind, names if symbolic else value.shape)


# Where the process of ONNX Runtime ends.
CRASHES = {("DFT", 20): "onnxruntime 1.31 crashes where an optional input is left out"}


class NoAnswer(Exception):
    """Neither ONNX Runtime nor ONNX's reference runs a model."""


def expected(model: onnx.ModelProto, fed: Mapping[str, Any], drawn: Drawn) -> tuple[str, list[Any]]:
    """Who ran a model, and its outputs: ONNX Runtime without optimizations, or ONNX's reference where it does not."""
    # A nested node is the first of a branch.
    first = next((each.g.node[0] for each in model.graph.node[0].attribute if each.HasField("g")), model.graph.node[0])
    refused = CRASHES.get((first.op_type, model.opset_import[0].version), "")
    refused = "ONNX Runtime is wrong there" if drawn.exact else refused
    try:
        if refused:
            raise NoAnswer(refused)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return "onnxruntime", list(session.run(None, dict(fed)))
    except Exception as error:  # what ONNX Runtime raises is its own
        refused = str(error)
    try:
        with np.errstate(all="ignore"):
            return "onnx.reference", typed(model, list(ReferenceEvaluator(model).run(None, dict(fed))))
    except Exception as error:  # any
        raise NoAnswer(f"{refused[:300]} / {type(error).__name__}: {str(error)[:200]}") from error


def typed(model: onnx.ModelProto, outputs: list[Any]) -> list[Any]:
    """The outputs in the element types that the schemas require; ONNX's reference computes some in wider ones."""
    kinds = [value.type.tensor_type.elem_type for value in onnx.shape_inference.infer_shapes(model).graph.output]
    return [
        output.astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        if isinstance(output, np.ndarray) and kind and output.dtype.kind in "iuf"
        else output
        for output, kind in zip(outputs, kinds, strict=True)
    ]


def declare(model: onnx.ModelProto, outputs: Sequence[Any]) -> None:
    """Declare the outputs of a model: the element types that ONNX infers, and the shapes of what was computed."""
    try:
        inferred = {value.name: value.type for value in onnx.shape_inference.infer_shapes(model).graph.output}
    except Exception:  # onnx raises its own private classes
        inferred = {}
    for value, computed in zip(model.graph.output, outputs, strict=True):
        kind = inferred.get(value.name, onnx.TypeProto())
        if kind.HasField("optional_type") or computed is None:
            value.type.CopyFrom(kind)
        elif isinstance(computed, list):
            element = kind.sequence_type.elem_type.tensor_type.elem_type or _element(np.asarray(computed[0]))
            value.type.CopyFrom(onnx.helper.make_tensor_sequence_value_info("", element, None).type)
        else:
            element = kind.tensor_type.elem_type or _element(np.asarray(computed))
            names = [f"{value.name}_{axis}" for axis in range(np.ndim(computed))]
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(element, names))


def _element(array: np.ndarray) -> int:
    if array.dtype.kind in "OUS":
        return int(onnx.TensorProto.STRING)
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def difference(want: Any, got: Any, *, random: bool = False) -> str | None:
    """What differs between an output and the expected one; None if nothing beyond rounding does."""
    expected_arrays, arrays = list(leaves(want)), list(leaves(got))
    if len(expected_arrays) != len(arrays):
        return f"{len(arrays)} arrays, expected {len(expected_arrays)}"
    for right, array in zip(expected_arrays, arrays, strict=True):
        if right is None or array is None:
            if right is not array:
                return "one of the two is nothing"
        elif (said := _apart(right, array, random=random)) is not None:
            return said
    return None


def _apart(right: np.ndarray, array: np.ndarray, *, random: bool) -> str | None:
    if right.dtype.kind in "OUS":
        right, array = right.astype(str), array.astype(str)
    elif right.dtype != array.dtype:
        return f"element type {array.dtype}, expected {right.dtype}"
    if right.shape != array.shape:
        return f"shape {array.shape}, expected {right.shape}"
    if random:
        return None
    if right.dtype.kind == "f":
        bound = 2e-2 if right.itemsize == 2 else 1e-4
        same = np.allclose(right.astype(float), array.astype(float), bound, bound, equal_nan=True)
    else:
        same = np.array_equal(right, array)
    return None if same else f"{array.ravel()[:8]}, expected {right.ravel()[:8]}"


def leaves(value: Any) -> Iterator[np.ndarray | None]:
    """The arrays of a value, which may be a sequence or nothing."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
    else:
        yield None if value is None else np.asarray(value)
