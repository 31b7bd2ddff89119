"""Operators that move, select, repeat and create elements, and that return shapes."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import index, parts, shape
from deep5.frameworks.reference.kernels.text import decoded
from deep5.frameworks.reference.table import (
    Call,
    Operator,
    Site,
    axes_refusal,
    by_position,
    configured,
    first,
    plain,
    with_constants,
)
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]


def _reshape(site: Site) -> Call:
    allow_zero = bool(site.attribute("allowzero", 0))
    return with_constants(site, partial(shape.reshape, allow_zero=allow_zero), "shape")


def _transpose(site: Site) -> Call:
    perm = site.attribute("perm")
    if perm is not None and tuple(perm) == (*range(1, len(perm)), 0):
        return Call(shape.first_to_last, (0,))
    return Call(partial(np.transpose, axes=None if perm is None else tuple(perm)), (0,))


def _slice(site: Site) -> Call:
    return with_constants(site, shape.slices, "starts", "ends", "axes", "steps")


def _pad(site: Site) -> Call:
    function = partial(shape.pad, mode=site.attribute("mode", "constant"))
    return Call(by_position(function, site.given), site.given)


def _pad_refusal(node: ir.Node) -> str | None:
    mode, allowed = attribute(node, "mode", "constant"), ("constant", "edge", "reflect", "wrap")
    return None if mode in allowed else f"got mode={mode!r}; allowed: {', '.join(allowed)}"


def _concat(site: Site) -> Call:
    axis = site.attribute("axis")
    return Call(lambda *values: np.concatenate(values, axis=axis), site.given)


def _shape(site: Site) -> Call:
    part = slice(site.attribute("start", 0), site.attribute("end"))
    return Call(lambda x: np.array(np.shape(x)[part], dtype=np.int64), (0,))


def _constant_of_shape(site: Site) -> Call:
    value = site.attribute("value")
    fill = np.zeros(1, dtype=np.float32) if value is None else value.numpy()
    return Call(lambda goal: np.full(tuple(map(int, goal)), fill.reshape(()), dtype=fill.dtype), (0,))


def _eye_like(site: Site) -> Call:
    kind = site.attribute("dtype")
    dtype = None if kind is None else ir.DataType(kind).numpy()
    return Call(partial(parts.eye_like, dtype=dtype, diagonal=site.attribute("k", 0)), (0,))


def _tensor_scatter(site: Site) -> Call:
    circular = site.attribute("mode", "linear") == "circular"
    return Call(partial(parts.tensor_scatter, axis=site.attribute("axis", -2), circular=circular), site.given)


def _tensor_scatter_refusal(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "linear")
    return None if mode in ("linear", "circular") else f"got mode={mode!r}; allowed: linear, circular"


def _split(site: Site) -> Call:
    function = partial(shape.split, axis=site.attribute("axis", 0), parts=len(site.node.outputs))
    call = with_constants(site, function, "sizes")
    return Call(first(call.function, site.outputs), call.inputs)


def _trilu(site: Site) -> Call:
    return Call(partial(shape.trilu, upper=bool(site.attribute("upper", 1))), site.given)


_CONSTANTS = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


def _constant(site: Site) -> Call:
    given = [(name, dtype) for name, dtype in _CONSTANTS.items() if name in site.node.attributes]
    value = np.array(site.attribute(given[0][0]), given[0][1]) if given else decoded(site.attribute("value").numpy())
    return Call(lambda: value, ())


def _constant_refusal(node: ir.Node) -> str | None:
    known = {"value", *_CONSTANTS} & set(node.attributes)
    return None if known else f"got {', '.join(node.attributes)}; allowed: a dense constant"


OPERATORS: dict[str, Operator] = {
    "Compress": Operator(lambda site: Call(partial(parts.compress, axis=site.attribute("axis")), (0, 1))),
    "Concat": Operator(_concat),
    "Constant": Operator(_constant, refusal=_constant_refusal),
    "ConstantOfShape": Operator(_constant_of_shape),
    "Expand": Operator(lambda site: with_constants(site, shape.expand, "shape"), view=True),
    "EyeLike": Operator(_eye_like),
    "Flatten": Operator(lambda site: Call(partial(shape.flatten, axis=site.attribute("axis", 1)), (0,)), view=True),
    "Gather": configured(index.gather, axis=0),
    "GatherElements": configured(index.gather_elements, axis=0),
    "GatherND": configured(index.gather_nd, batch_dims=0),
    "Identity": plain(lambda x: x, view=True),
    "NonZero": plain(lambda x: np.argwhere(x).T.astype(np.int64)),
    "OneHot": configured(shape.one_hot, axis=-1),
    "Pad": Operator(_pad, refusal=_pad_refusal),
    "Range": plain(shape.number_range),
    "Reshape": Operator(_reshape, view=True),
    "ReverseSequence": configured(parts.reverse_sequence, batch_axis=1, time_axis=0),
    "ScatterElements": configured(index.scatter_elements, axis=0, reduction="none"),
    "ScatterND": configured(index.scatter_nd, reduction="none"),
    "Shape": Operator(_shape),
    "Size": plain(lambda x: np.array(np.size(x), dtype=np.int64)),
    "Slice": Operator(_slice, view=True),
    "Split": Operator(_split, view=True),
    "Squeeze": Operator(lambda site: with_constants(site, shape.squeeze, "axes"), view=True, refusal=axes_refusal),
    "TensorScatter": Operator(_tensor_scatter, refusal=_tensor_scatter_refusal),
    "Tile": Operator(lambda site: with_constants(site, shape.tile, "repeats")),
    "Transpose": Operator(_transpose, view=True),
    "Trilu": Operator(_trilu),
    "Unsqueeze": Operator(lambda site: with_constants(site, shape.unsqueeze, "axes"), view=True, refusal=axes_refusal),
}
