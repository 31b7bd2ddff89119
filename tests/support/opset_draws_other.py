"""Draws of control flow, sequences, strings, signals and images in files, for opset_cases.py."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from opset_cases import Draw, Drawn

__all__ = ["OTHER"]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def squeezed(draw: Draw, source: str, goal: str) -> list[onnx.NodeProto]:
    """Nodes whose versions differ: a softmax over the dimensions from 1 on before opset 13, and an Unsqueeze."""
    soft = helper.make_node("Softmax", [source], [f"{goal}_soft"], axis=1)
    if draw.opset < 13:
        return [soft, helper.make_node("Unsqueeze", [f"{goal}_soft"], [goal], axes=[0])]
    axes = helper.make_node("Constant", [], [f"{goal}_axes"], value=onnx.numpy_helper.from_array(np.array([0])))
    return [soft, axes, helper.make_node("Unsqueeze", [f"{goal}_soft", f"{goal}_axes"], [goal])]


def branches(draw: Draw) -> Drawn:
    """The branches take a value of the graph around them, a Constant, and nodes of changed operators."""
    fill = onnx.numpy_helper.from_array(draw.array((2, 3, 4)))
    bodies = []
    for name in ("then", "other"):
        start = helper.make_node("Constant", [], [f"{name}_start"], value=fill)
        nodes = [start, *squeezed(draw, f"{name}_start", f"{name}_end")]
        if name == "other":
            nodes[1:] = (
                [helper.make_node("Unsqueeze", [f"{name}_start"], [f"{name}_end"], axes=[0])]
                if draw.opset < 13
                else squeezed(draw, f"{name}_start", f"{name}_end")
            )
        bodies.append(helper.make_graph(nodes, name, [], [value(f"{name}_end", FLOAT, [1, 2, 3, 4])]))
    return Drawn(inputs=[draw.array((), "bool")], attributes={"then_branch": bodies[0], "else_branch": bodies[1]})


def loop(draw: Draw) -> Drawn:
    nodes = [
        helper.make_node("Identity", ["go"], ["next_go"]),
        *squeezed(draw, "state", "wide"),
        helper.make_node("ReduceSum", ["wide"], ["row"], keepdims=0),
        helper.make_node("Add", ["state", "row"], ["next_state"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("step", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2, 3, 4])],
        [value("next_go", BOOL, []), value("next_state", FLOAT, [2, 3, 4]), value("row", FLOAT, [])],
    )
    count = np.array(draw.whole(0, 3), np.int64)
    return Drawn(
        inputs=[count, np.array(True), draw.array((2, 3, 4))],
        attributes={"body": body},
        outputs=2,
        stored=frozenset({0, 1} if draw.chance() else ()),
    )


def scan(draw: Draw) -> Drawn:
    steps, batch = draw.whole(1, 4), draw.whole(1, 3)
    axes = ("ReduceSum", {"keepdims": 0})
    nodes = [
        helper.make_node("Add", ["state", "row"], ["next_state"]),
        helper.make_node("Softmax", ["next_state"], ["soft"], axis=0),
        helper.make_node(axes[0], ["soft"], ["all"], keepdims=0),
        helper.make_node("Mul", ["row", "all"], ["out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("state", FLOAT, [3]), value("row", FLOAT, [3])],
        [value("next_state", FLOAT, [3]), value("out", FLOAT, [3])],
    )
    attributes = {"body": body, "num_scan_inputs": 1}
    if draw.since == 8:
        lengths = draw.one_of(None, draw.whole_array((batch,), 1, steps))
        attributes |= {"directions": [draw.whole(0, 1)]} if draw.chance() else {}
        return Drawn(
            inputs=[lengths, draw.array((batch, 3)), draw.array((batch, steps, 3))], attributes=attributes, outputs=2
        )
    attributes |= draw.some(scan_input_directions=[draw.whole(0, 1)], scan_output_directions=[draw.whole(0, 1)])
    axis = draw.whole(0, 1) if draw.chance(0.4) else 0
    rows = draw.array((3, steps) if axis else (steps, 3))
    attributes |= {"scan_input_axes": [axis]} if axis else {}
    return Drawn(inputs=[draw.array((3,)), rows], attributes=attributes, outputs=2)


def sequence(draw: Draw, shape: tuple[int, ...] = (2, 3)) -> list[np.ndarray]:
    return [draw.array(shape) for _ in range(draw.whole(1, 3))]


def at(draw: Draw) -> Drawn:
    items = sequence(draw)
    return Drawn(inputs=[items, np.array(draw.whole(-len(items), len(items) - 1), np.int64)])


def erased(draw: Draw) -> Drawn:
    drawn = at(draw)
    return Drawn(inputs=drawn.inputs[: draw.whole(1, 2)])


def inserted(draw: Draw) -> Drawn:
    items = sequence(draw)
    inputs = [items, draw.array((2, 3)), np.array(draw.whole(-len(items), len(items)), np.int64)]
    return Drawn(inputs=inputs[: draw.whole(2, 3)])


def from_sequence(draw: Draw) -> Drawn:
    return Drawn(
        inputs=[sequence(draw)], attributes={"axis": draw.whole(-2, 1), **draw.some(new_axis=draw.whole(0, 1))}
    )


def to_sequence(draw: Draw) -> Drawn:
    x = draw.array((4, 3))
    sizes = draw.one_of(None, np.array(2, np.int64), np.array([1, 3], np.int64))
    attributes = draw.some(axis=0, keepdims=draw.whole(0, 1))
    return Drawn(inputs=[x] if sizes is None else [x, sizes], attributes=attributes, stored=frozenset({1}))


def mapped(draw: Draw) -> Drawn:
    body = helper.make_graph(
        [helper.make_node("Softmax", ["one"], ["soft"], axis=0)],
        "body",
        [value("one", FLOAT, [2, 3])],
        [value("soft", FLOAT, [2, 3])],
    )
    return Drawn(inputs=[sequence(draw)], attributes={"body": body})


def strings(draw: Draw, shape: tuple[int, ...] = (3,)) -> np.ndarray:
    words = np.array(["a", "Bc", "de f", "the"], object)
    return words[draw.rng.integers(0, len(words), shape)]


def normalizer(draw: Draw) -> Drawn:
    attributes = draw.some(
        case_change_action=draw.one_of("LOWER", "UPPER", "NONE"), stopwords=["the"], is_case_sensitive=draw.whole(0, 1)
    )
    return Drawn(inputs=[strings(draw)], attributes=attributes)


def grams(draw: Draw) -> Drawn:
    attributes = {
        "mode": draw.one_of("TF", "IDF", "TFIDF"),
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": draw.whole(0, 2),
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2],
        "pool_int64s": [1, 2, 1, 2],
        "weights": [0.5, 1.0, 2.0],
    }
    return Drawn(inputs=[draw.whole_array((6,), 1, 3)], attributes=attributes)


def transform(draw: Draw) -> Drawn:
    complexes = draw.chance()
    x = draw.array((2, draw.whole(2, 5), draw.whole(1, 4), 2 if complexes else 1))
    axis = draw.one_of(1, 2, -2, -3)
    attributes = draw.some(inverse=draw.whole(0, 1) if complexes else 0)
    if not complexes and not attributes.get("inverse"):
        attributes |= draw.some(onesided=draw.whole(0, 1))
    length = draw.one_of(None, np.array(draw.whole(2, 6), np.int64))
    if draw.since < 20:
        attributes |= draw.some(axis=axis)
        return Drawn(inputs=[x, length], attributes=attributes, stored=frozenset({1}))
    return Drawn(
        inputs=[x, length, draw.one_of(None, np.array(axis, np.int64))], attributes=attributes, stored=frozenset({1, 2})
    )


def short_time(draw: Draw) -> Drawn:
    inputs = [draw.array((1, 12, 1)), np.array(3, np.int64), draw.array((4,)), np.array(4, np.int64)]
    return Drawn(inputs=inputs, attributes=draw.some(onesided=draw.whole(0, 1)), stored=frozenset({1, 3}))


def window(draw: Draw) -> Drawn:
    return Drawn(
        inputs=[np.array(draw.whole(2, 8), np.int64)],
        attributes=draw.some(periodic=draw.whole(0, 1)),
        stored=frozenset({0}),
    )


def mel(draw: Draw) -> Drawn:
    values = [np.array(each, np.int64) for each in (8, 16, 8000)] + [np.array(each, np.float32) for each in (0, 4000)]
    return Drawn(inputs=values, stored=frozenset(range(5)))


def optional(draw: Draw) -> Drawn:
    return Drawn(inputs=[draw.array((2, 3))])


OTHER = {
    "BlackmanWindow": window,
    "ConcatFromSequence": from_sequence,
    "DFT": transform,
    "HammingWindow": window,
    "HannWindow": window,
    "If": branches,
    "Loop": loop,
    "MelWeightMatrix": mel,
    "Optional": optional,
    "OptionalGetElement": optional,
    "OptionalHasElement": optional,
    "RegexFullMatch": lambda draw: Drawn(inputs=[strings(draw)], attributes={"pattern": "[a-z]+"}),
    "STFT": short_time,
    "Scan": scan,
    "SequenceAt": at,
    "SequenceConstruct": lambda draw: Drawn(inputs=sequence(draw)),
    "SequenceEmpty": lambda draw: Drawn(inputs=[], attributes=draw.some(dtype=INT64)),
    "SequenceErase": erased,
    "SequenceInsert": inserted,
    "SequenceLength": lambda draw: Drawn(inputs=[sequence(draw)]),
    "SequenceMap": mapped,
    "SplitToSequence": to_sequence,
    "StringConcat": lambda draw: Drawn(inputs=[strings(draw), strings(draw)]),
    "StringNormalizer": normalizer,
    "StringSplit": lambda draw: Drawn(inputs=[strings(draw)], outputs=2),
    "TfIdfVectorizer": grams,
}
