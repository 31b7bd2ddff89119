"""Draws of operators that move, select and describe elements, for opset_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from opset_cases import Draw, Drawn

__all__ = ["SHAPE"]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def joined(draw: Draw) -> Drawn:
    shape, kind = draw.shape(1, 4), draw.kind()
    axis = draw.axis(len(shape))
    parts = []
    for _ in range(draw.whole(1, 3)):
        sizes = list(shape)
        sizes[axis] = draw.size()
        parts.append(draw.array(sizes, kind))
    return Drawn(inputs=parts, attributes={"axis": axis})


def reshape(draw: Draw) -> Drawn:
    shape, kind = draw.shape(0, 4), draw.kind()
    goal = list(draw.rng.permutation(shape)) if shape else draw.one_of([], [1], [1, 1])
    if goal and draw.chance() and 0 not in goal:
        goal[draw.whole(0, len(goal) - 1)] = -1
    allow = {"allowzero": 1} if draw.since >= 14 and -1 not in goal and draw.chance(0.4) else {}
    if not allow and 0 in goal:
        goal = list(shape)
    return Drawn(
        inputs=[draw.array(shape, kind), np.array(goal, np.int64)],
        attributes=allow,
        stored=frozenset({1} if draw.chance(0.7) else ()),
    )


def flatten(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4)
    axis = draw.whole(-len(shape) if draw.since >= 11 else 0, len(shape))
    return Drawn(inputs=[draw.array(shape, draw.kind())], attributes={"axis": axis} if draw.chance(0.8) else {})


def with_axes(draw: Draw, x: np.ndarray, axes: list[int] | None) -> Drawn:
    if "axes" in draw.schema.attributes:
        return Drawn(inputs=[x], attributes={} if axes is None else {"axes": axes})
    if axes is None:
        return Drawn(inputs=[x])
    return Drawn(inputs=[x, ints(*axes)], stored=frozenset({1} if draw.chance(0.7) else ()))


def squeeze(draw: Draw) -> Drawn:
    shape = [1 if draw.chance(0.5) else size for size in draw.shape(1, 4)]
    ones = [index for index, size in enumerate(shape) if size == 1]
    axes = None
    if ones and draw.chance(0.75):
        axes = [
            each - (len(shape) if draw.since >= 11 and draw.chance(0.4) else 0) for each in ones[: draw.whole(1, 4)]
        ]
    return with_axes(draw, draw.array(shape, draw.kind()), axes)


def unsqueeze(draw: Draw) -> Drawn:
    shape = draw.shape(0, 3)
    rank = len(shape) + draw.whole(1, 2)
    axes = sorted(int(each) for each in draw.rng.permutation(rank)[: rank - len(shape)])
    axes = [each - (rank if draw.since >= 11 and draw.chance(0.4) else 0) for each in axes]
    return with_axes(draw, draw.array(shape, draw.kind()), axes)


def transpose(draw: Draw) -> Drawn:
    shape = draw.shape(0, 4)
    perm = [int(each) for each in draw.rng.permutation(len(shape))]
    return Drawn(inputs=[draw.array(shape, draw.kind())], attributes=draw.some(perm=perm) if shape else {})


def expand(draw: Draw) -> Drawn:
    shape = draw.shape(0, 3)
    goal = [draw.size() if size == 1 else draw.one_of(1, size) for size in shape]
    goal = [draw.size() for _ in range(draw.whole(0, 2))] + goal
    return Drawn(inputs=[draw.array(shape, draw.kind()), np.array(goal, np.int64)], stored=frozenset({1}))


def tile(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4)
    repeats = draw.whole_array((len(shape),), 0 if draw.chance(0.1) else 1, 3)
    return Drawn(inputs=[draw.array(shape, draw.kind()), repeats], stored=frozenset({1} if draw.chance() else ()))


def slices(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4)
    x, axes = draw.array(shape, draw.kind()), draw.axes(len(shape), since=10)
    bound = [shape[axis] for axis in axes]
    starts = [draw.whole(-size - 1, size + 1) for size in bound]
    ends = [draw.one_of(draw.whole(-size - 1, size + 1), 2**31 - 1) for size in bound]
    if draw.since < 10:
        if draw.chance(0.25):
            starts, ends = (list(draw.rng.integers(-2, 3, len(shape))) for _ in range(2))
            return Drawn(inputs=[x], attributes={"starts": starts, "ends": ends})
        return Drawn(inputs=[x], attributes={"starts": starts, "ends": ends, "axes": axes})
    steps = [draw.one_of(1, 1, 2, -1, -2) for _ in axes]
    if draw.since >= 11:  # there ONNX Runtime still has INT_MAX as the end of a backward slice, ONNX has INT_MIN
        ends = [min(end, 20) if step < 0 else end for end, step in zip(ends, steps, strict=True)]
    kind = draw.one_of("int64", "int32")
    inputs: list[Any] = [x, *(np.array(each, kind) for each in (starts, ends, axes, steps))]
    if draw.chance(0.4):
        inputs.pop()
    return Drawn(inputs=inputs, stored=frozenset({1, 2, 3, 4}))


def split(draw: Draw) -> Drawn:
    shape, parts = list(draw.shape(1, 4)), draw.whole(1, 3)
    axis = draw.axis(len(shape))
    sizes = [draw.whole(0, 3) for _ in range(parts)]
    attributes = {"axis": axis}
    if axis == 0 and draw.chance():
        attributes = {}
    kind = draw.kind()
    if draw.chance(0.4):
        each = draw.whole(1, 2)
        shape[axis] = each * parts - (1 if draw.since >= 18 and each > 1 and parts <= 2 and draw.chance(0.4) else 0)
        more = {"num_outputs": parts} if draw.since >= 18 else {}
        return Drawn(inputs=[draw.array(shape, kind)], attributes={**attributes, **more}, outputs=parts)
    shape[axis] = sum(sizes)
    x = draw.array(shape, kind)
    if draw.since < 13:
        return Drawn(inputs=[x], attributes={**attributes, "split": sizes}, outputs=parts)
    return Drawn(inputs=[x, ints(*sizes)], attributes=attributes, outputs=parts, stored=frozenset({1}))


def pad(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    modes = ["constant", "reflect", "edge", *(["wrap"] if draw.since >= 19 else [])]
    attributes: dict[str, Any] = {"mode": draw.one_of(*modes)} if draw.chance(0.7) else {}
    mode, rank = attributes.get("mode", "constant"), len(shape)
    most = [min(2, size - 1) if mode == "reflect" else min(2, size) if mode == "wrap" else 2 for size in shape]
    least = -1 if mode == "constant" and draw.chance(0.4) else 0
    pads = [
        draw.whole(max(least, -((size - 1) // 2)), top) for _ in range(2) for size, top in zip(shape, most, strict=True)
    ]
    kind = draw.kind()
    x = draw.array(shape, kind)
    if draw.since < 11:
        return Drawn(inputs=[x], attributes={**attributes, "pads": pads, **draw.some(value=0.3)})
    inputs: list[Any] = [x, ints(*pads)]
    if draw.chance():
        inputs.append(draw.array((), kind, 0, 2))
    if draw.since >= 18 and draw.chance():
        axes = draw.axes(rank)
        picked = [axis % rank for axis in axes]
        inputs[1] = ints(*[pads[axis] for axis in picked], *[pads[rank + axis] for axis in picked])
        inputs = [*inputs, *([None] if len(inputs) == 2 else []), ints(*axes)]
    return Drawn(inputs=inputs, attributes=attributes, stored=frozenset({1, 2, 3}))


def shape_of(draw: Draw) -> Drawn:
    shape = draw.shape(0, 4)
    attributes = draw.some(start=draw.whole(-5, 5), end=draw.whole(-5, 5))
    return Drawn(inputs=[draw.array(shape, draw.kind())], attributes=attributes)


def gather(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    axis = draw.axis(len(shape), since=1)
    size = shape[axis]
    indices = draw.whole_array(
        draw.shape(0, 2), -size if draw.since >= 11 else 0, size - 1, draw.one_of("int64", "int32")
    )
    return Drawn(inputs=[draw.array(shape, draw.kind()), indices], attributes={"axis": axis})


def gather_elements(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    axis = draw.axis(len(shape))
    sizes = [draw.whole(1, size) for size in shape]
    indices = draw.whole_array(sizes, -shape[axis], shape[axis] - 1)
    return Drawn(inputs=[draw.array(shape, draw.kind()), indices], attributes={"axis": axis})


def gather_nd(draw: Draw) -> Drawn:
    shape = draw.shape(2, 4, empty=0)
    batch = draw.whole(0, 1) if draw.since >= 12 else 0
    depth = draw.whole(1, len(shape) - batch)
    outer = (*shape[:batch], *draw.shape(1, 2, empty=0))
    columns = [draw.whole_array(outer, -size, size - 1) for size in shape[batch : batch + depth]]
    return Drawn(
        inputs=[draw.array(shape, draw.kind()), np.stack(columns, -1)], attributes=draw.known(batch_dims=batch)
    )


def scatter(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    axis = draw.axis(len(shape))
    sizes = [draw.whole(1, size) for size in shape]
    indices = np.zeros(sizes, np.int64)
    along = axis % len(shape)
    for place in np.ndindex(*(sizes[:along] + sizes[along + 1 :])):
        line = draw.rng.permutation(shape[along])[: sizes[along]]
        indices[(*place[:along], slice(None), *place[along:])] = line
    kind = draw.kind()
    reductions = {16: ("none", "add", "mul"), 18: ("none", "add", "mul", "max", "min")}.get(draw.since, ())
    attributes: dict[str, Any] = {"axis": axis}
    if reductions and kind.kind not in "bO":
        attributes["reduction"] = draw.one_of(*reductions)
    return Drawn(inputs=[draw.array(shape, kind), indices, draw.array(sizes, kind)], attributes=attributes)


def scatter_nd(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    kind, rows = draw.kind(), draw.whole(1, shape[0])
    indices = draw.rng.permutation(shape[0])[:rows].reshape(rows, 1).astype(np.int64)
    reductions = {16: ("none", "add", "mul"), 18: ("none", "add", "mul", "max", "min")}.get(draw.since, ())
    attributes = {"reduction": draw.one_of(*reductions)} if reductions and kind.kind not in "bO" else {}
    return Drawn(inputs=[draw.array(shape, kind), indices, draw.array((rows, *shape[1:]), kind)], attributes=attributes)


def blocks(draw: Draw) -> Drawn:
    block, n, c, h, w = 2, draw.whole(1, 2), draw.whole(1, 3), draw.whole(1, 2), draw.whole(1, 3)
    kind = draw.kind(but=("bool",))
    shape = (n, c * block**2, h, w) if draw.operator == "DepthToSpace" else (n, c, h * block, w * block)
    attributes = {"blocksize": block, **draw.some(mode=draw.one_of("DCR", "CRD"))}
    return Drawn(inputs=[draw.array(shape, kind)], attributes=attributes)


def filled(draw: Draw) -> Drawn:
    shape = np.array(draw.shape(0, 3), np.int64)
    value = onnx.numpy_helper.from_array(draw.array((1,), draw.one_of("float32", "int64", "bool", "float64", "int32")))
    return Drawn(inputs=[shape], attributes=draw.some(value=value), stored=frozenset({0} if draw.chance(0.7) else ()))


def eye(draw: Draw) -> Drawn:
    x = draw.array((draw.size(), draw.size()), draw.kind(but=("bool",)))
    return Drawn(inputs=[x], attributes=draw.some(k=draw.whole(-2, 2), dtype=draw.one_of(1, 7, 11)))


def triangle(draw: Draw) -> Drawn:
    x = draw.array(draw.shape(2, 4), draw.kind())
    inputs = [x, np.array(draw.whole(-2, 2), np.int64)]
    return Drawn(inputs=inputs[: draw.whole(1, 2)], attributes=draw.some(upper=draw.whole(0, 1)), stored=frozenset({1}))


def compress(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    if draw.chance(0.3):
        return Drawn(inputs=[draw.array(shape, draw.kind()), draw.array((int(np.prod(shape)),), "bool")])
    axis = draw.axis(len(shape))
    chosen = draw.array((draw.whole(1, shape[axis]),), "bool")
    return Drawn(inputs=[draw.array(shape, draw.kind()), chosen], attributes={"axis": axis})


def nonzero(draw: Draw) -> Drawn:
    return Drawn(inputs=[np.round(draw.array(draw.shape(1, 3))).astype(draw.kind(but=("string",)))])


def one_hot(draw: Draw) -> Drawn:
    shape, depth = draw.shape(1, 3), draw.whole(2, 4)
    indices = draw.whole_array(shape, -depth, depth + 1, draw.one_of("int64", "int32", "float32"))
    values = draw.array((2,), draw.one_of("float32", "int64", "int32"))
    return Drawn(
        inputs=[indices, np.array(depth if draw.chance() else [depth], np.int64), values],
        attributes={"axis": draw.whole(-1 if draw.since < 11 else -len(shape) - 1, len(shape))}
        if draw.chance(0.7)
        else {},
        stored=frozenset({1}),
    )


def top(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    axis = draw.axis(len(shape), since=1)
    kind = draw.kind(but=("bool",))
    x = (
        draw.array(shape, kind)
        if kind.kind == "f"
        else draw.rng.permutation(int(np.prod(shape))).reshape(shape).astype(kind)
    )
    count = draw.whole(1, shape[axis])
    attributes = {} if axis == -1 and draw.chance() else {"axis": axis}
    if draw.since < 10:
        return Drawn(inputs=[x], attributes={**attributes, "k": count}, outputs=2)
    attributes |= draw.some(largest=draw.whole(0, 1))
    return Drawn(inputs=[x, ints(count)], attributes=attributes, outputs=2, stored=frozenset({1}))


def unique(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    kind = draw.kind(but=("bool",))
    x = draw.array(shape, kind) if kind.kind == "O" else draw.whole_array(shape, 0, 3, kind)
    attributes = draw.some(sorted=draw.whole(0, 1))
    return Drawn(
        inputs=[x], attributes=attributes | ({"axis": draw.axis(len(shape))} if draw.chance() else {}), outputs=4
    )


def reverse(draw: Draw) -> Drawn:
    time, batch = draw.whole(1, 5), draw.whole(1, 3)
    first = draw.chance()
    shape = (time, batch, *draw.shape(0, 2)) if first else (batch, time, *draw.shape(0, 2))
    attributes = {"time_axis": 0, "batch_axis": 1} if first else {"time_axis": 1, "batch_axis": 0}
    return Drawn(inputs=[draw.array(shape, draw.kind()), draw.whole_array((batch,), 1, time)], attributes=attributes)


def center(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, empty=0)
    axes = draw.axes(len(shape))
    return Drawn(
        inputs=[draw.array(shape), draw.whole_array((len(axes),), 1, 6)],
        attributes={"axes": axes},
        stored=frozenset({1}),
    )


def constant(draw: Draw) -> Drawn:
    value = onnx.numpy_helper.from_array(
        draw.array(draw.shape(0, 3), draw.one_of("float32", "int64", "bool", "float64"))
    )
    options: list[dict[str, Any]] = [{"value": value}]
    if draw.since >= 12:
        options += [{"value_float": 0.1}, {"value_int": 3}, {"value_floats": [0.1, 2.0]}, {"value_ints": [1, -2]}]
    return Drawn(inputs=[], attributes=draw.one_of(*options))


def tensor_scatter(draw: Draw) -> Drawn:
    past = draw.array((2, 3, 5, 2))
    return Drawn(
        inputs=[past, draw.array((2, 3, 2, 2)), draw.whole_array((2,), 0, 3)], attributes=draw.some(mode="linear")
    )


SHAPE = {
    "CenterCropPad": center,
    "Compress": compress,
    "Concat": joined,
    "Constant": constant,
    "ConstantOfShape": filled,
    "DepthToSpace": blocks,
    "Expand": expand,
    "EyeLike": eye,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "NonZero": nonzero,
    "OneHot": one_hot,
    "Pad": pad,
    "Reshape": reshape,
    "ReverseSequence": reverse,
    "Scatter": scatter,
    "ScatterElements": scatter,
    "ScatterND": scatter_nd,
    "Shape": shape_of,
    "Size": shape_of,
    "Slice": slices,
    "SpaceToDepth": blocks,
    "Split": split,
    "Squeeze": squeeze,
    "TensorScatter": tensor_scatter,
    "Tile": tile,
    "TopK": top,
    "Transpose": transpose,
    "Trilu": triangle,
    "Unique": unique,
    "Unsqueeze": unsqueeze,
}
