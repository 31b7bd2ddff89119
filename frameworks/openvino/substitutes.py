"""Substitutes for attributes that OpenVINO ignores or misreads, by other nodes or attributes that it computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from deep5.frameworks.openvino.attributes import adds_before_rounding, has_elements, misread, starts_outside
from deep5.frameworks.openvino.computed_axes import sum_each_axis, sums_computed_axes
from deep5.frameworks.openvino.outer_values import pass_as_states, reads_outer_values
from deep5.networks.batch_first import is_batch_first, write_batch_second
from deep5.networks.constants import constant_value
from deep5.networks.draft import Change, Draft, changed
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute
from deep5.networks.same_padding import is_same, same_pads, shaped_pads, spatial_sizes, transposed_pads
from deep5.networks.window import Window

__all__ = ["substitute", "substituted"]


def substitute(node: ir.Node) -> Change | None:
    """The rewrite of a node into others; None if the node runs unchanged, or not at all."""
    if node.domain:
        return None
    for applies, write in _RULES.get(node.op_type, ()):
        if applies(node):
            return partial(_written, write)
    return None


def substituted(network: Network) -> Network:
    """A network whose nodes OpenVINO computes as ONNX defines them; the network itself if nothing changes."""
    model = changed(network.model, substitute)
    return network if model is network.model else Network(model)


def _written(write: Callable[[Draft, ir.Node], None], graph: ir.Graph, node: ir.Node) -> None:
    write(Draft(graph, node), node)


def _truncates(node: ir.Node) -> bool:
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    return bool(kind is not None and kind.is_floating_point() and attribute(node, "fmod", 0))


def _keep_smaller(draft: Draft, node: ir.Node) -> None:
    """The remainder x - y trunc(x / y) with the sign of x, and smaller than y, where x / y is rounded to an integer.

    A number of smaller magnitude than the divisor is its own remainder; by infinity OpenVINO gives NaN.
    """
    x, y = node.inputs
    (rest,) = draft.same(node.inputs)
    size, way, zero = draft.op("Abs", y), draft.op("Sign", x), draft.constant(0, "float32")
    step, along = draft.op("Mul", size, way), draft.op("Mul", rest, way)
    rest = draft.op("Where", draft.op("Less", along, zero), draft.op("Add", rest, step), rest)
    rest = draft.op("Where", draft.op("GreaterOrEqual", along, size), draft.op("Sub", rest, step), rest)
    draft.replace(draft.op("Where", draft.op("Less", draft.op("Abs", x), size), x, rest))


def _divide_by_norm(draft: Draft, node: ir.Node) -> None:
    """A number over its norm, and 0 over 0 is 0; OpenVINO adds a number to the norm."""
    x, kind = node.inputs[0], f"ReduceL{attribute(node, 'p', 2)}"
    norm = draft.op(kind, x, draft.constant([attribute(node, "axis", -1)], "int64"), keepdims=1)
    none = draft.op("Equal", norm, draft.constant(0, "float32"))
    draft.replace(draft.op("Div", x, draft.op("Where", none, draft.constant(1, "float32"), norm)))


def _padded_same(node: ir.Node) -> bool:
    return is_same(node) and transposed_pads(node) is not None


def _transposed_pads(draft: Draft, node: ir.Node) -> None:
    draft.replace(*draft.same(node.inputs, **(transposed_pads(node) or {})))


def _shaped(node: ir.Node) -> bool:
    return bool(attribute(node, "output_shape", ())) and shaped_pads(node) is not None


def _shape_by_pads(draft: Draft, node: ir.Node) -> None:
    """The padding that gives the shape; OpenVINO places it otherwise."""
    draft.replace(*draft.same(node.inputs, **(shaped_pads(node) or {})))


def _counts_padding(node: ir.Node) -> bool:
    padded = attribute(node, "count_include_pad", 0) and attribute(node, "ceil_mode", 0)
    return bool(padded and any(attribute(node, "pads", ())) and spatial_sizes(node) is not None)


def _missing(node: ir.Node) -> tuple[Window, list[int]]:
    """The window of a pool of known sizes, and what its last positions need after the image."""
    sizes = spatial_sizes(node)
    assert sizes is not None  # noqa: S101 - checked before
    window = Window.of(node, len(sizes))
    counts, begins, _ = window.fit(sizes, window.kernel)
    spans = window.spans(window.kernel)
    last = [(count - 1) * stride + span for count, stride, span in zip(counts, window.strides, spans, strict=True)]
    return window, [end - size - begin for end, size, begin in zip(last, sizes, begins, strict=True)]


def _pad_before(draft: Draft, node: ir.Node) -> None:
    """Zeros around the image, which count as a part of it; what a last window has beyond them does not count."""
    window, missing = _missing(node)
    zeros = [min(end, need) for end, need in zip(window.ends, missing, strict=True)]
    beyond = [need - zero for need, zero in zip(missing, zeros, strict=True)]
    padded = draft.op("Pad", node.inputs[0], draft.constant([0, 0, *window.begins, 0, 0, *zeros], "int64"))
    none = [0] * len(zeros)
    draft.replace(*draft.same([padded], pads=none + beyond, ceil_mode=None, count_include_pad=None))


def _incomplete(node: ir.Node) -> bool:
    known = attribute(node, "ceil_mode", 0) and not is_same(node) and spatial_sizes(node) is not None
    return bool(known and starts_outside(node))


def _pad_to_the_end(draft: Draft, node: ir.Node) -> None:
    """As much padding as the last position needs, but none for one that would start in the padding."""
    window, missing = _missing(node)
    ends = [max(need, 0) for need in missing]
    changes = {"storage_order": None} if len(node.outputs) == 1 else {}
    draft.replace(*draft.same(node.inputs, pads=[*window.begins, *ends], ceil_mode=None, **changes))


def _reduces_nothing(node: ir.Node) -> bool:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    known = None if axes is None else constant_value(axes)
    none = axes is None or (known is not None and known.size == 0)
    return none and bool(attribute(node, "noop_with_empty_axes", 0))


def _reduce_each(draft: Draft, node: ir.Node) -> None:
    """Of no axes, each number is its own total."""
    x = node.inputs[0]
    if node.op_type in ("ReduceL1", "ReduceL2"):
        draft.replace(draft.op("Abs", x))
    elif node.op_type == "ReduceSumSquare":
        draft.replace(draft.op("Mul", x, x))
    else:
        draft.replace(draft.op("Log", x) if node.op_type == "ReduceLogSum" else draft.op("Identity", x))


def _alone(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _copy(draft: Draft, node: ir.Node) -> None:
    """Of one input it is that input; OpenVINO leaves the output unwritten."""
    draft.replace(draft.op("Identity", node.inputs[0]))


def _has_norm(node: ir.Node) -> bool:
    return attribute(node, "p", 2) in (1, 2)


def _always(node: ir.Node) -> bool:
    return True


def _first_largest(draft: Draft, node: ir.Node) -> None:
    """A 1 at the first of the largest elements; OpenVINO takes another of equal ones."""
    x, axis = node.inputs[0], attribute(node, "axis", -1)
    place = draft.op("ArgMax", x, axis=axis, keepdims=0)
    end = {} if axis == -1 else {"end": axis + 1}
    depth = draft.op("Squeeze", draft.op("Shape", x, start=axis, **end))
    draft.replace(draft.op("OneHot", place, depth, draft.constant([0, 1], "float32"), axis=axis))


def _stored_otherwise(node: ir.Node) -> bool:
    cut = attribute(node, "ceil_mode", 0) and starts_outside(node)
    return bool(attribute(node, "storage_order", 0) and not cut) and len(node.outputs) == 1


def _store_by_rows(draft: Draft, node: ir.Node) -> None:
    """The order in which indices count, of which there are none."""
    draft.replace(*draft.same(node.inputs, storage_order=None))


def _same_of_known(node: ir.Node) -> bool:
    return is_same(node) and same_pads(node) is not None


def _counts_by_columns(node: ir.Node) -> bool:
    """Whether indices count by columns, which OpenVINO refuses."""
    return bool(attribute(node, "storage_order", 0)) and len(node.outputs) > 1


def _pooled_same(node: ir.Node) -> bool:
    return _same_of_known(node) and not _counts_by_columns(node)


def _pooled_incomplete(node: ir.Node) -> bool:
    return _incomplete(node) and not _counts_by_columns(node)


def _write_pads(draft: Draft, node: ir.Node) -> None:
    changes = {"storage_order": None} if node.op_type == "MaxPool" and len(node.outputs) == 1 else {}
    draft.replace(*draft.same(node.inputs, auto_pad=None, pads=same_pads(node), **changes))


def _rounds_sum(node: ir.Node) -> bool:
    x, zero = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    kind = None if zero is None else zero.dtype
    fits = kind in _NARROW and not attribute(node, "block_size", 0) and not attribute(node, "precision", 0)
    return fits and x is not None and x.shape is not None and adds_before_rounding(node)


def _round_quotient(draft: Draft, node: ir.Node) -> None:
    """x / scale rounded half to even, then the zero point; OpenVINO rounds the sum, which moves ties if it is odd."""
    x, scale, zero = node.inputs
    assert x is not None and x.shape is not None  # noqa: S101, PT018 - checked before
    assert zero is not None and zero.dtype is not None  # noqa: S101, PT018 - checked before
    axis = attribute(node, "axis", 1) % max(len(x.shape), 1)
    scale, offset = draft.setting(scale), draft.cast(draft.setting(zero), ir.DataType.FLOAT)
    if scale.shape is None or len(scale.shape) == 1:
        ones = [1] * (len(x.shape) - axis - 1)
        column = draft.constant([-1, *ones], "int64")
        scale, offset = draft.op("Reshape", scale, column), draft.op("Reshape", offset, column)
    draft.replace(_limited(draft, draft.op("Add", draft.op("Round", draft.op("Div", x, scale)), offset), zero.dtype))


def _limited(draft: Draft, value: ir.Value, kind: ir.DataType) -> ir.Value:
    """A number limited to an integer type, and cast to it."""
    ends = np.iinfo(kind.numpy())
    clipped = draft.op("Clip", value, draft.constant(ends.min, "float32"), draft.constant(ends.max, "float32"))
    return draft.cast(clipped, kind)


def _quantize_by_range(draft: Draft, node: ir.Node) -> None:
    """ONNX's definition; OpenVINO rounds the sum of a quotient and the zero point."""
    zero, one, most = (draft.constant(number, "float32") for number in (0, 1, 255))
    x = node.inputs[0]
    low, high = (draft.op(kind, draft.op(f"Reduce{kind}", x, keepdims=0), zero) for kind in ("Min", "Max"))
    step = draft.op("Div", draft.op("Sub", high, low), most)
    scale = draft.op("Where", draft.op("Equal", step, zero), one, step)
    shift = draft.op("Round", draft.op("Clip", draft.op("Div", draft.op("Neg", low), scale), zero, most))
    moved = draft.op("Add", draft.op("Round", draft.op("Div", x, scale)), shift)
    kind = ir.DataType.UINT8
    draft.replace(_limited(draft, moved, kind), scale, draft.cast(shift, kind))


def _float(node: ir.Node) -> bool:
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    return bool(kind is not None and kind.is_floating_point() and has_elements(node))


def _not_zero(draft: Draft, node: ir.Node) -> None:
    """Whether a number is not 0, as NaN is not; OpenVINO takes NaN for False."""
    x = node.inputs[0]
    assert x is not None and x.dtype is not None  # noqa: S101, PT018 - checked before
    draft.replace(draft.op("Not", draft.op("Equal", x, draft.constant(0, x.dtype))))


def _cast_to_bool(node: ir.Node) -> bool:
    return bool(_float(node) and attribute(node, "to", 0) == ir.DataType.BOOL)


def _shrink(draft: Draft, node: ir.Node) -> None:
    """ONNX's definition; of an infinity OpenVINO gives NaN."""
    x, bias, limit = node.inputs[0], attribute(node, "bias", 0.0), attribute(node, "lambd", 0.5)
    assert x is not None and x.dtype is not None  # noqa: S101, PT018 - checked before
    least, most, shift, zero = (draft.constant(number, x.dtype) for number in (-limit, limit, bias, 0))
    above = draft.op("Where", draft.op("Greater", x, most), draft.op("Sub", x, shift), zero)
    draft.replace(draft.op("Where", draft.op("Less", x, least), draft.op("Add", x, shift), above))


def _above(draft: Draft, node: ir.Node) -> None:
    """ONNX's definition of ThresholdedRelu; of -infinity OpenVINO gives NaN."""
    x = node.inputs[0]
    assert x is not None and x.dtype is not None  # noqa: S101, PT018 - checked before
    limit, zero = (draft.constant(number, x.dtype) for number in (attribute(node, "alpha", 1.0), 0))
    draft.replace(draft.op("Where", draft.op("Greater", x, limit), x, zero))


def _of_bools(node: ir.Node) -> bool:
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    return bool(kind == ir.DataType.BOOL and has_elements(node))


def _pad_as_numbers(draft: Draft, node: ir.Node) -> None:
    """OpenVINO pads with False whatever the value."""
    x, pads, fill, *axes = [*node.inputs, None][: max(len(node.inputs), 3)]
    kind = ir.DataType.FLOAT
    known = None if fill is None else constant_value(fill)
    filled = draft.constant(known, kind) if known is not None else None if fill is None else draft.cast(fill, kind)
    (padded,) = draft.same([draft.cast(x, kind), pads, filled, *axes])
    draft.replace(draft.cast(padded, ir.DataType.BOOL))


def _to_no_shape(node: ir.Node) -> bool:
    known = constant_value(node.inputs[1])
    return known is not None and known.size == 0 and has_elements(node)


def _repeats_indices(node: ir.Node) -> bool:
    """Whether an Einsum of one input is that input."""
    equation = str(attribute(node, "equation", "")).replace(" ", "")
    given, arrow, wanted = equation.partition("->")
    letters = [letter for letter in given if letter != "."]
    if not arrow:
        wanted = ("..." if "..." in given else "") + "".join(sorted(letters))
    once = len(set(letters)) == len(letters)
    return len(node.inputs) == 1 and given == wanted and once and has_elements(node)


def _far_steps(node: ir.Node) -> bool:
    steps = constant_value(node.inputs[4]) if len(node.inputs) > 4 else None
    return steps is not None and bool((np.abs(steps.astype(np.float64)) > _FARTHEST).any()) and has_elements(node)


def _limit_steps(draft: Draft, node: ir.Node) -> None:
    """Steps beyond every axis; OpenVINO adds them to positions, which overflow."""
    steps = constant_value(node.inputs[4])
    assert steps is not None  # noqa: S101 - checked before
    limited = draft.constant(np.clip(steps, -_FARTHEST, _FARTHEST), steps.dtype)
    draft.replace(*draft.same([*node.inputs[:4], limited]))


def _counts_none(draft: Draft, node: ir.Node) -> None:
    """No numbers where the step leads away from the limit; OpenVINO counts them all the same."""
    start, limit, step = (draft.setting(value) for value in node.inputs)
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    along = draft.op("Mul", draft.op("Sub", limit, start), draft.op("Sign", step))
    away = draft.op("Less", along, draft.constant(0, kind))
    draft.replace(*draft.same([start, draft.op("Where", away, start, limit), step]))


def _computed_range(node: ir.Node) -> bool:
    return _float(node) and any(constant_value(value) is None for value in node.inputs)


def _reads_scores(node: ir.Node) -> bool:
    return misread(node) is None


def _overlap_more(draft: Draft, node: ir.Node) -> None:
    """The next larger threshold: OpenVINO leaves out a box whose overlap is as large as the threshold."""
    given = node.inputs[3] if len(node.inputs) > 3 else None
    known, least = (np.zeros(1, np.float32) if given is None else constant_value(given)), np.finfo(np.float32).tiny
    if known is not None:
        more = draft.constant(np.maximum(np.nextafter(known, np.float32(2)), least), "float32")
    else:
        grown = draft.op("Mul", given, draft.constant(1 + 2.0**-23, "float32"))
        more = draft.op("Max", grown, draft.constant(least, "float32"))
    inputs = [*node.inputs, None, None, None][:5]
    draft.replace(*draft.same([*inputs[:3], more, inputs[4]]))


# Larger than every axis; sums with positions fit into 64 bits.
_FARTHEST = 2**31 - 1
_NARROW = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)
_Rules = list[tuple[Callable[[ir.Node], bool], Callable[[Draft, ir.Node], None]]]
_NO_AXES: _Rules = [(_reduces_nothing, _reduce_each)]
_ONE: _Rules = [(_alone, _copy)]
_BATCH_FIRST: _Rules = [(is_batch_first, write_batch_second)]
_RULES: dict[str, _Rules] = {
    "AveragePool": [(_same_of_known, _write_pads), (_counts_padding, _pad_before), (_incomplete, _pad_to_the_end)],
    "Cast": [(_cast_to_bool, _not_zero)],
    "ConvTranspose": [(_shaped, _shape_by_pads), (_padded_same, _transposed_pads)],
    "DynamicQuantizeLinear": [(_always, _quantize_by_range)],
    "Einsum": [(_repeats_indices, _copy)],
    "Expand": [(_to_no_shape, _copy)],
    "GRU": _BATCH_FIRST,
    "Hardmax": [(_always, _first_largest)],
    "LSTM": _BATCH_FIRST,
    "LpNormalization": [(_has_norm, _divide_by_norm)],
    "Max": _ONE,
    "MaxPool": [
        (_pooled_same, _write_pads),
        (_pooled_incomplete, _pad_to_the_end),
        (_stored_otherwise, _store_by_rows),
    ],
    "Mean": _ONE,
    "Min": _ONE,
    "Mod": [(_truncates, _keep_smaller)],
    "NonMaxSuppression": [(_reads_scores, _overlap_more)],
    "Pad": [(_of_bools, _pad_as_numbers)],
    "QuantizeLinear": [(_rounds_sum, _round_quotient)],
    "RNN": _BATCH_FIRST,
    "Range": [(_computed_range, _counts_none)],
    "ReduceL1": _NO_AXES,
    "ReduceL2": _NO_AXES,
    "ReduceLogSum": _NO_AXES,
    "ReduceLogSumExp": _NO_AXES,
    "ReduceSum": [(sums_computed_axes, sum_each_axis)],
    "ReduceSumSquare": _NO_AXES,
    "Scan": [(reads_outer_values, pass_as_states)],
    "Shrink": [(_float, _shrink)],
    "Slice": [(_far_steps, _limit_steps)],
    "Sum": _ONE,
    "ThresholdedRelu": [(_float, _above)],
}
"""By operator: a test for the nodes to rewrite, and the rewrite."""
