"""Control flow, sequences and optional values: in Python, when a network runs operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.core.errors import NetworkError
from deep5.core.time_limit import check_count, check_iterations, check_length, current_limit
from deep5.frameworks.tensorflow.table import CONTROL, attribute, operator
from deep5.networks.transforms.control_flow import never_stops

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []

Body = Callable[..., Sequence[Any]]


def _control(op_type: str) -> Callable[..., Any]:
    CONTROL.add(op_type)
    return operator(op_type, rankless=True)


def _given(emitter: Emitter, node: ir.Node, count: int) -> str:
    """The identifiers of `count` inputs; `None` for omitted ones."""
    return ", ".join(emitter.name(value) for value in (*node.inputs, *[None] * count)[:count])


def _branch(condition: Any, then: Body, other: Body) -> Sequence[Any]:
    return then() if bool(tf.reshape(condition, [])) else other()


@_control("If")
def _if(emitter: Emitter, node: ir.Node) -> None:
    condition = emitter.name(node.inputs[0])
    then, other = (emitter.nested(attribute(node, name)) for name in ("then_branch", "else_branch"))
    emitter.assign_all(node, f"{emitter.function(_branch)}({condition}, {then}, {other})")


def _stacked(kept: Sequence[Any], empty: tuple[list[int], Any], along: int) -> Any:
    """The results of the iterations, stacked along an axis; with no iterations, unknown dimensions are 0."""
    if kept:
        return tf.stack(kept, along)
    shape, dtype = empty
    along += len(shape) + 1 if along < 0 else 0
    return tf.zeros([*shape[:along], 0, *shape[along:]], dtype)


def _empty(emitter: Emitter, values: Sequence[ir.Value]) -> str:
    """The arguments of `_stacked` that describe the results."""
    shapes = [[extent if isinstance(extent, int) else 0 for extent in value.shape or ()] for value in values]
    return f"[{', '.join(f'({shape}, {emitter.dtype(v)})' for shape, v in zip(shapes, values, strict=True))}]"


def _looped(body: Body, empty: Sequence[Any], counted: bool, count: Any, condition: Any, *state: Any) -> list[Any]:
    most = None if count is None else int(tf.reshape(count, []))
    going = condition is None or bool(tf.reshape(condition, []))
    now, kept, step, limit = list(state), [list[Any]() for _ in empty], 0, current_limit()
    if counted and most is not None:
        check_count(most, limit, "Loop")
    while going and (most is None or step < most):
        check_iterations(step, limit, "Loop")
        more, *results = body(tf.constant(step, tf.int64), tf.constant(True), *now)
        going, now = bool(tf.reshape(more, [])), list(results[: len(now)])
        for row, value in zip(kept, results[len(now) :], strict=True):
            row.append(value)
        step += 1
    return [*now, *(_stacked(row, none, 0) for row, none in zip(kept, empty, strict=True))]


@_control("Loop")
def _loop(emitter: Emitter, node: ir.Node) -> None:
    graph: ir.Graph = attribute(node, "body")
    inputs = _given(emitter, node, len(graph.inputs))
    empty = _empty(emitter, graph.outputs[len(graph.inputs) - 1 :])
    emitter.assign_all(
        node, f"{emitter.function(_looped)}({emitter.nested(graph)}, {empty}, {never_stops(node)}, {inputs})"
    )


def _scanned(
    body: Body,
    empty: Sequence[Any],
    axes: Sequence[int],
    backward: Sequence[int],
    into: Sequence[int],
    reverse: Sequence[int],
    *values: Any,
) -> list[Any]:
    now, arrays = list(values[: len(values) - len(axes)]), values[len(values) - len(axes) :]
    lengths = {int(tf.shape(array)[axis]) for array, axis in zip(arrays, axes, strict=True)}
    if len(lengths) != 1:
        raise NetworkError(f"a Scan over arrays of the lengths {sorted(lengths)}; allowed: one length for all")
    check_length(max(lengths), "Scan")
    rows = [tf.unstack(array, axis=axis) for array, axis in zip(arrays, axes, strict=True)]
    rows = [row[::-1] if flip else row for row, flip in zip(rows, backward, strict=True)]
    kept = [list[Any]() for _ in empty]
    for parts in zip(*rows, strict=True):
        results = body(*now, *parts)
        now = list(results[: len(now)])
        for row, value in zip(kept, results[len(now) :], strict=True):
            row.append(value)
    ends = [row[::-1] if flip else row for row, flip in zip(kept, reverse, strict=True)]
    return [*now, *(_stacked(row, none, axis) for row, none, axis in zip(ends, empty, into, strict=True))]


@_control("Scan")
def _scan(emitter: Emitter, node: ir.Node) -> None:
    graph: ir.Graph = attribute(node, "body")
    scanned = attribute(node, "num_scan_inputs")
    state = len(graph.inputs) - scanned
    stacked = len(graph.outputs) - state
    how = ", ".join(
        str(list(attribute(node, f"scan_{name}", ()) or (0,) * count))
        for name, count in (
            ("input_axes", scanned),
            ("input_directions", scanned),
            ("output_axes", stacked),
            ("output_directions", stacked),
        )
    )
    inputs, empty = _given(emitter, node, len(node.inputs)), _empty(emitter, graph.outputs[state:])
    emitter.assign_all(node, f"{emitter.function(_scanned)}({emitter.nested(graph)}, {empty}, {how}, {inputs})")


def _over_lists(body: Body, outputs: int, *values: Any) -> list[list[Any]]:
    rows = [
        body(*(value[place] if isinstance(value, list) else value for value in values))
        for place in range(len(values[0]))
    ]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(outputs)]


@_control("SequenceMap")
def _sequence_map(emitter: Emitter, node: ir.Node) -> None:
    body, inputs = emitter.nested(attribute(node, "body")), _given(emitter, node, len(node.inputs))
    emitter.assign_all(node, f"{emitter.function(_over_lists)}({body}, {len(node.outputs)}, {inputs})")


# Sequences


def _place(position: Any, count: int, beyond: int) -> int:
    place = int(tf.reshape(position, []))
    if not -count <= place < count + beyond:
        raise NetworkError(f"the position {place} in a sequence of {count}; allowed: {-count} to {count - 1 + beyond}")
    return place + count if place < 0 else place


def _element(values: list[Any], position: Any) -> Any:
    return values[_place(position, len(values), 0)]


def _inserted(values: list[Any], value: Any, position: Any) -> list[Any]:
    place = len(values) if position is None else _place(position, len(values), 1)
    return [*values[:place], value, *values[place:]]


def _erased(values: list[Any], position: Any) -> list[Any]:
    place = _place(-1 if position is None else position, len(values), 0)
    return [*values[:place], *values[place + 1 :]]


def _listed(*values: Any) -> list[Any]:
    return list(values)


def _length(values: list[Any]) -> Any:
    return tf.constant(len(values), tf.int64)


def _held(value: Any) -> Any:
    if value is None:
        raise NetworkError(
            "OptionalGetElement of an optional value that holds nothing; allowed: one that holds a value"
        )
    return value


def _holds(value: Any) -> Any:
    return tf.constant(value is not None)


def _itself(value: Any) -> Any:
    return value


def _entry(op_type: str, function: Callable[..., Any], count: int | None) -> None:
    """Register a function of `count` inputs, `None` for omitted ones; of all inputs if `count` is None."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        inputs = _given(emitter, node, len(node.inputs) if count is None else count)
        emitter.assign(node, f"{emitter.function(function)}({inputs})")

    _control(op_type)(emit)


_entry("Optional", _itself, 1)
_entry("OptionalGetElement", _held, 1)
_entry("OptionalHasElement", _holds, 1)
_entry("SequenceAt", _element, 2)
_entry("SequenceConstruct", _listed, None)
_entry("SequenceEmpty", _listed, 0)
_entry("SequenceErase", _erased, 2)
_entry("SequenceInsert", _inserted, 3)
_entry("SequenceLength", _length, 1)


def _joined(values: list[Any], along: int, new: bool) -> Any:
    if not values:
        raise NetworkError("ConcatFromSequence of an empty sequence; allowed: at least one element")
    return tf.stack(values, along) if new else tf.concat(values, along)


@_control("ConcatFromSequence")
def _concat_from_sequence(emitter: Emitter, node: ir.Node) -> None:
    how = f"{attribute(node, 'axis')}, {bool(attribute(node, 'new_axis', 0))}"
    emitter.assign(node, f"{emitter.function(_joined)}({emitter.name(node.inputs[0])}, {how})")


def _split(x: Any, sizes: Any, along: int, keep: bool) -> list[Any]:
    extent = int(tf.shape(x)[along])
    if sizes is None:
        parts: list[Any] = tf.split(x, extent, along) if keep else tf.unstack(x, axis=along)
        return parts
    if not sizes.shape.rank:
        size = int(sizes)
        if size < 1:
            raise NetworkError(f"SplitToSequence into parts of {size}; allowed: at least 1")
        given = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        given = [int(size) for size in sizes]
        if sum(given) != extent or min(given) < 0:
            raise NetworkError(f"SplitToSequence into {given} of an axis of {extent}; allowed: sizes that add up")
    divided: list[Any] = tf.split(x, given, along)
    return divided


@_control("SplitToSequence")
def _split_to_sequence(emitter: Emitter, node: ir.Node) -> None:
    how = f"{attribute(node, 'axis', 0)}, {bool(attribute(node, 'keepdims', 1))}"
    emitter.assign(node, f"{emitter.function(_split)}({_given(emitter, node, 2)}, {how})")
