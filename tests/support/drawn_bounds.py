"""How far two right answers to a drawn case may be apart: bounds derived from the case in float64.

With u, half the distance from 1 to the next number of the narrowest element type that takes part, two computations of
the same function differ for two reasons:

- Each rounds what it computes on the way: a number of size 1 (exp(0), 1 + erf) or of the result's size, a few times.
  `16 u (1 + |y|)` allows sixteen such roundings, whatever the operator.
- Where large terms cancel, or many are added, rounding costs more, and how much depends on the numbers. A backward
  stable computation gives the exact result of inputs that differ by a few u. So the case is computed in float64, of
  its own inputs and of four in which each number is multiplied by 1 + 4 u or 1 - 4 u, drawn at random; eight times the
  largest change of an element is allowed in addition. The float64 computation is the third implementation, or that of
  ONNX's reference, or of deep5's where that one fails; only changes are taken from it, no values.
- Operators that resample an image compute coordinates. One as large as the image, n, is rounded by n u, which changes
  the result by at most that times the difference of two neighbors.

Operators that move, select, compare or round elements have one right answer: nothing is allowed. Integers of the
quantizing operators may differ by as much as they change in float64, which is 0 unless a number lies on a tie.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

import deep5 as d5
from deep5.networks import Network
from drawn_answers import Case, evaluated
from drawn_thirds import THIRDS, third
from opset_cases import leaves

__all__ = ["EXACT", "apart", "widened"]

# Their results are elements of their inputs, comparisons, or numbers that a rounding defines.
EXACT = frozenset(
    [
        "Abs",
        "And",
        "ArgMax",
        "ArgMin",
        "BitCast",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "CastLike",
        "Ceil",
        "CenterCropPad",
        "Clip",
        "Compress",
        "Concat",
        "ConcatFromSequence",
        "Constant",
        "ConstantOfShape",
        "DepthToSpace",
        "Equal",
        "Expand",
        "EyeLike",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "GlobalMaxPool",
        "Greater",
        "GreaterOrEqual",
        "Hardmax",
        "Identity",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Max",
        "MaxPool",
        "MaxRoiPool",
        "MaxUnpool",
        "Min",
        "Neg",
        "NonZero",
        "Not",
        "OneHot",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "Or",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "RegexFullMatch",
        "Relu",
        "Reshape",
        "ReverseSequence",
        "Round",
        "Scatter",
        "ScatterND",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "Shape",
        "Sign",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "SplitToSequence",
        "Squeeze",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "TensorScatter",
        "ThresholdedRelu",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unique",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)
# Inputs that say how an operator works: a change of one is another function.
SETTINGS = {"Resize": {1, 2}, "Upsample": {1}, "Range": {0, 1, 2}, "CumSum": {1}, "NonMaxSuppression": {3, 4}}
_TRIES, _ROUNDINGS, _CHANGE, _FACTOR = 4, 16.0, 4.0, 8.0


# They compute coordinates, which may be as large as an image.
RESAMPLING = frozenset({"AffineGrid", "DeformConv", "GridSample", "Resize", "RoiAlign", "Upsample"})


def _reach(case: Case) -> float:
    """The largest coordinate times the largest difference of neighbors; 0 where one neighbor is taken."""
    x = case.drawn.inputs[0]
    if case.attribute("mode", "nearest") == "nearest" and case.operator in ("Resize", "Upsample"):
        return 0.0
    return 2.0 * max(x.shape[2:], default=1) * float(np.abs(x).max(initial=0))


def _cancellation(case: Case) -> float:
    """What the operator's function in ONNX, a mean of squares minus the square of a mean, loses: x^2 / variance."""
    x = case.drawn.inputs[0].astype(np.float64)
    variance = x.var(tuple(case.attribute("axes", [0, 2, 3])))
    least = float(np.min(variance, initial=np.inf, where=variance > 0))
    return 1.0 + float(np.square(x).max(initial=0)) / least


def _narrow(array: Any) -> bool:
    return isinstance(array, np.ndarray) and (array.dtype.name in ("float16", "float32", "bfloat16"))


def unit(case: Case, right: np.ndarray) -> float:
    """The largest u of the element types that take part."""
    kinds = {str(each.dtype) for each in leaves(list(case.drawn.inputs)) if each is not None} | {right.dtype.name}
    units = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    if "stash_type" in onnx.defs.get_schema(case.operator, case.opset, "").attributes:
        kinds.add("float32")  # in which these compute, whatever the type of the input
    return max((units[kind] for kind in kinds if kind in units), default=2.0**-24)


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its floating-point inputs and initial values in float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    for value in wide.graph.input:
        for kind in (value.type.tensor_type, value.type.sequence_type.elem_type.tensor_type):
            if kind.elem_type in floats:
                kind.elem_type = onnx.TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        if tensor.data_type in floats:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return wide


def _moved(value: Any, change: float, rng: np.random.Generator) -> Any:
    if isinstance(value, list):
        return [_moved(each, change, rng) for each in value]
    if not _narrow(value) and not (isinstance(value, np.ndarray) and value.dtype == np.float64):
        return value
    wide = value.astype(np.float64)
    return wide if not change else wide * (1 + change * rng.choice([-1.0, 1.0], wide.shape))


def _in_float64(case: Case, outputs: Sequence[Any], change: float, number: int) -> Sequence[Any] | None:
    rng = np.random.default_rng([zlib.crc32(case.name.encode()), number])
    kept = SETTINGS.get(case.operator, set())
    if case.operator in THIRDS:
        inputs = [_moved(each, 0.0 if at in kept else change, rng) for at, each in enumerate(case.drawn.inputs)]
        with np.errstate(all="ignore"):
            found = third(case.with_inputs(inputs))
        if found is not None:
            return found
    model = widened(case.model)
    settings = {f"x{position}" for position in SETTINGS.get(case.operator, ())}
    fed = {name: _moved(value, 0.0 if name in settings else change, rng) for name, value in case.fed.items()}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE and tensor.name not in settings:
            array = _moved(onnx.numpy_helper.to_array(tensor), change, rng)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    found = evaluated(model, fed, types=False).outputs
    if found is not None and [np.shape(each) for each in leaves(list(found))] == [
        np.shape(each) for each in leaves(list(outputs))
    ]:
        return found
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for value in model.graph.output:
                value.CopyFrom(onnx.ValueInfoProto(name=value.name))
            executor = d5.framework("reference").executor(Network.from_onnx(model))
            got = executor.inference(fed, training=case.drawn.training)
            return [got[value.name] for value in model.graph.output]
    except Exception:  # no float64 computation: the first part of the bound remains
        return None


def _changes(case: Case, outputs: Sequence[Any]) -> list[np.ndarray] | None:
    """The largest change of each element of each output by changes of the inputs of a few u."""
    rights = [np.asarray(each) for each in leaves(list(outputs)) if each is not None]
    change = _CHANGE * max(unit(case, each) for each in rights)
    start = _in_float64(case, outputs, 0.0, 0)
    if start is None:
        return None
    largest = [np.zeros(each.shape) for each in rights]
    starts = [np.asarray(each) for each in leaves(list(start)) if each is not None]
    # To the other side of a tie leads only one of the four ways in which two numbers change.
    for number in range(1, (8 * _TRIES if case.operator in QUANTIZING else _TRIES) + 1):
        found = _in_float64(case, outputs, change, number)
        arrays = [] if found is None else [np.asarray(each) for each in leaves(list(found)) if each is not None]
        for index, (first, second) in enumerate(zip(starts, arrays, strict=False)):
            if first.shape == second.shape == largest[index].shape and first.dtype.kind in "fiu":
                with np.errstate(all="ignore"):
                    moved = np.abs(second.astype(np.float64) - first.astype(np.float64))
                largest[index] = np.maximum(largest[index], np.nan_to_num(moved, nan=0.0, posinf=0.0))
    return largest


def _plain(right: np.ndarray) -> np.ndarray:
    return right.astype(np.float64) if right.dtype.kind in "fV" else right


def apart(case: Case, want: Sequence[Any], got: Sequence[Any]) -> str | None:
    """What differs between two answers beyond rounding; None if nothing does."""
    rights, arrays = list(leaves(list(want))), list(leaves(list(got)))
    if len(rights) != len(arrays):
        return f"{len(arrays)} arrays, expected {len(rights)}"
    changes: list[np.ndarray] | None = None
    known = False
    place = -1
    for want_one, got_one in zip(rights, arrays, strict=True):
        if want_one is None or got_one is None:
            if want_one is not got_one:
                return "one of the two is nothing"
            continue
        place += 1
        strings = want_one.dtype.kind in "OUS"
        right, array = (each.astype(str) if strings else each for each in (want_one, got_one))
        if not strings and right.dtype != array.dtype:
            return f"element type {array.dtype}, expected {right.dtype}"
        if right.shape != array.shape:
            return f"shape {array.shape}, expected {right.shape}"
        if case.drawn.random:
            continue
        numbers = right.dtype.kind in "fV" or (right.dtype.kind in "iu" and case.operator in QUANTIZING)
        if not numbers or case.operator in EXACT:
            same = _plain(right) == _plain(array)
            if right.dtype.kind in "fV":
                same |= np.isnan(_plain(right)) & np.isnan(_plain(array))
            if not np.all(same):
                return _said(right, array, ~np.asarray(same))
            continue
        with np.errstate(all="ignore"):
            x, y, u = right.astype(np.float64), array.astype(np.float64), unit(case, right)
            allowed = _ROUNDINGS * u * (1 + np.abs(x)) if right.dtype.kind in "fV" else np.zeros(x.shape)
            if case.operator in ("GRU", "LSTM", "RNN"):  # 1 - z, of a z that is rounded, times an unbounded function
                allowed = allowed * (1 + np.abs(x).max(initial=0))
            if case.operator == "MeanVarianceNormalization":
                allowed = allowed * _cancellation(case)
            if case.operator in RESAMPLING:
                allowed = allowed + _CHANGE * u * _reach(case)
            same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= allowed)
            if np.all(same):
                continue
            if not known:
                changes, known = _changes(case, want), True
            if changes is not None and place < len(changes) and changes[place].shape == x.shape:
                allowed = allowed + _FACTOR * changes[place]
                same |= np.abs(x - y) <= allowed
            if right.dtype.kind in "iu" and changes is None:
                same |= np.abs(x - y) <= 0
        if not np.all(same):
            return _said(right, array, ~np.asarray(same))
    return None


# Operators that round numbers to integers: in float64 a number on a tie may fall on the other side.
QUANTIZING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})


def _said(right: np.ndarray, array: np.ndarray, wrong: np.ndarray) -> str:
    places = np.flatnonzero(np.atleast_1d(wrong).ravel())[:4]
    some = [f"{np.ravel(array)[place]} for {np.ravel(right)[place]} at {place}" for place in places]
    return f"{', '.join(some)} ({int(np.sum(wrong))} of {right.size})"
