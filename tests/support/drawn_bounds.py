"""How far two right answers to a drawn case may be apart: bounds derived from the case in float64.

Let u be half the distance from 1 to the next number of the narrowest element type that takes part, and y a right
answer. Two computations of the same function differ for these reasons, and for no others:

- Operators that move, select, compare or round elements (EXACT) have one right answer: nothing is allowed.
- Each computation rounds its result, and what it computes on the way: each rounding changes the result by u |y|. The
  difference of two answers is at most 2 k u |y|, where k is the number of roundings: 1 for one operation of IEEE 754
  (add, multiply, divide, a root), 2 where a factor is rounded first, 4 for an elementary function (two units in the
  last place, as mathematical libraries promise), 8 for everything else. Nothing else is allowed for the first three.
- Some formulas have a term of size 1, whose rounding does not shrink with the result: 1 + erf(x), exp(x) - 1, the
  logarithm of a number near 1 (also of a probability, in a loss), an angle that is reduced by a multiple of pi, 1 - z
  of a gate z, a sigmoid by way of tanh. These (UNIT) are allowed 2 k u (1 + |y|).
- A mean is subtracted with the rounding of numbers as large as the inputs: MeanVarianceNormalization is allowed
  2 k u max |x| / deviation in addition, which no change of the inputs shows where few elements are normalized.
- Of one or two elements x that a BatchNormalization in training, GroupNormalization or InstanceNormalization normalizes
  together, the result hardly depends: their mean m moves with them. It is computed of numbers of the size of them,
  x t - m t, where t is the scale over the deviation: u t |x| for the first product, u t |m| for the second, for what is
  subtracted from the bias, and for the mean itself. Two answers differ by 2 u t (|x| + 3 |m|) in addition.
- The variance v of numbers with the mean m may be the mean of squares less m^2, of which each rounds as m^2 + v does:
  three such roundings move a factor 1 / sqrt(v + epsilon) by 1.5 u (m^2 + v) / (v + epsilon). LayerNormalization is
  allowed 4 u of that, since two answers differ by twice as much, times what it multiplies.
- Fourier transforms, and recurrent layers with functions that have no bound, carry the error of one element to the
  others: they (SPREAD) are allowed 2 k u max |y| in addition.
- Where terms cancel, or many are added, rounding costs more, and how much depends on the numbers. A backward stable
  computation gives the exact result of inputs that differ by a few u. So the case is computed in float64, of its own
  inputs and of eight in which each number is multiplied by 1 + 4 c u, where c is drawn from -1 to 1. Both answers may
  move that far, and eight draws may miss the largest change by a factor of 2: four times the largest change of an
  element is allowed. The float64 computation is the third implementation, or that of ONNX's reference, or of deep5's
  where that one fails; only changes are taken from it, no values.
- Operators that resample an image compute coordinates, in float32 at least, or in the element type of the coordinates
  that are given. One as large as the image, n, is rounded by n u, four times, and moves the result by at most that
  times the difference of two neighbors. Of cubic interpolation, a position up to two elements outside an image counts,
  and the weights of an axis change by up to D in total for each element that a position moves, while those of each
  other axis add up to S in magnitude. Its weights are polynomials whose terms are larger than they are, evaluated by
  Horner's rule: `_cubic` adds up what each step rounds, times what follows multiplies it by; two answers differ by
  twice that.
- DequantizeLinear may be computed as a difference of two products, the zero point times the scale and the number times
  the scale: it is allowed 4 u of the largest such product.
- A remainder may be computed as x - y trunc(x / y): Mod is allowed 4 u |x|.
- Below four times the smallest normal number, some processors and libraries round to 0.

Integers of the quantizing operators may differ by as much as they change in float64, which is 0 unless a number lies on
a tie.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

import deep5 as d5
from deep5.networks import Network
from drawn_answers import Case, evaluated
from drawn_thirds import THIRDS, resized, third
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
        "Dropout",
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
SETTINGS = {
    "CumSum": {1},
    "DeformConv": {2},
    "GridSample": {1},
    "NonMaxSuppression": {3, 4},
    "Range": {0, 1, 2},
    "Resize": {1, 2},
    "RoiAlign": {1},
    "Upsample": {1},
}
# One operation of IEEE 754; a multiplication by a rounded factor; one elementary function.
STEPS = {
    **dict.fromkeys(("Add", "DequantizeLinear", "Div", "Mul", "Reciprocal", "Sqrt", "Sub"), 1),
    **dict.fromkeys(("LeakyRelu", "Mod", "PRelu"), 2),
    **dict.fromkeys(
        ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "Log", "Sigmoid"), 4
    ),
    **dict.fromkeys(("Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh"), 4),
}
# Their formulas have a term of size 1.
UNIT = frozenset({
    *("Acos", "Acosh", "AffineGrid", "Asinh", "Atanh", "BlackmanWindow", "Celu", "Cos", "Elu", "Erf", "GRU", "Gelu"),
    *("HammingWindow", "HannWindow", "LSTM", "LogSoftmax", "MelWeightMatrix", "Mish", "RNN", "Selu", "Sigmoid", "Sin"),
    *("SoftmaxCrossEntropyLoss", "Softplus", "Swish", "Tan"),
})  # fmt: skip
SPREAD = frozenset({"DFT", "GRU", "LSTM", "RNN", "STFT"})
TOGETHER = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization"})
_TRIES, _CHANGE, _FACTOR = 8, 4.0, 4.0
# They compute coordinates, which may be as large as an image, of the coordinates at this input.
RESAMPLING = {"AffineGrid": None, "DeformConv": 2, "GridSample": 1, "Resize": None, "RoiAlign": 1, "Upsample": None}
_TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
_UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _coordinates(case: Case, least: float) -> float:
    """What the rounding of coordinates moves a result by; 0 where one neighbor is taken."""
    x = case.drawn.inputs[0]
    if case.attribute("mode", "nearest") == "nearest" and case.operator in ("Resize", "Upsample"):
        return 0.0
    given = RESAMPLING[case.operator]
    kind = x.dtype.name if given is None else case.drawn.inputs[given].dtype.name
    u = _UNITS[kind] if given is not None or kind == "float64" else _UNITS["float32"]
    u, most = max(u, least), float(np.abs(x.astype(np.float64)).max(initial=0))
    extent = max(x.shape[2:], default=1)
    if "cubic" not in case.attribute("mode", ""):
        return _CHANGE * u * 2.0 * extent * most
    slope, total, rounded = _cubic(float(np.float32(case.attribute("cubic_coeff_a", -0.75))))
    axes = (
        x.ndim - 2
        if case.operator == "GridSample"
        else sum(axis.places != [*range(axis.size)] for axis in resized(case))
    )
    reach = extent + 2 if case.operator == "GridSample" else extent
    return axes * total ** max(axes - 1, 0) * (_CHANGE * u * reach * slope + 2 * u * rounded) * most


@functools.cache
def _cubic(a: float) -> tuple[float, float, float]:
    """Of the four weights of cubic interpolation, at the worst position: the sum of their slopes, that of themselves,
    and what evaluating them rounds, in u.
    """
    t = np.linspace(0, 1, 1025)
    found = np.zeros((3, len(t)))
    for distance, factors in ((t + 1, (a, -5 * a, 8 * a, -4 * a)), (t, (a + 2, -(a + 3), 0.0, 1.0))):
        # The other two are at the mirrored distances.
        value, error = np.full_like(t, factors[0]), np.zeros_like(t)
        for factor in factors[1:]:
            made = value * distance
            error, value = error * distance + np.abs(made) + np.abs(made + factor), made + factor
        change = np.abs((3 * factors[0] * distance + 2 * factors[1]) * distance + factors[2])
        each = np.stack([change, np.abs(value), error])
        found += each + each[:, ::-1]
    slope, total, rounded = found.max(1)
    return float(slope), float(total), float(rounded)


def _together(case: Case, right: np.ndarray) -> float | np.ndarray:
    """t (|x| + 3 |m|) of one or two elements x that are normalized together, with the mean m and the factor t."""
    x, scale = (each.astype(np.float64) for each in case.drawn.inputs[:2])
    groups = len(scale)
    if case.operator == "GroupNormalization":
        groups = case.attribute("num_groups")
    apart = 1 if case.operator == "BatchNormalization" else len(x)
    if right.shape != x.shape or not 1 <= x.size // (apart * groups) <= 2:
        return 0.0
    if case.operator == "BatchNormalization":
        parts = np.moveaxis(x, 1, 0).reshape(groups, -1)
    else:
        parts = x.reshape(apart * groups, -1)
    mean, variance = parts.mean(1, keepdims=True), parts.var(1, keepdims=True)
    found = (np.abs(parts) + 3 * np.abs(mean)) / np.sqrt(variance + case.attribute("epsilon", 1e-5))
    if case.operator == "BatchNormalization":
        found = np.moveaxis(found.reshape(x.shape[1], x.shape[0], *x.shape[2:]), 0, 1)
    factors = np.abs(np.repeat(scale, x.shape[1] // len(scale))).reshape(-1, *[1] * (x.ndim - 2))
    return np.asarray(found.reshape(x.shape) * factors)


def _one_pass(case: Case, right: np.ndarray) -> float | np.ndarray:
    """(m^2 + v) / (v + epsilon) times the normalized and scaled numbers, or the factors, of a LayerNormalization."""
    x, scale = (each.astype(np.float64) for each in case.drawn.inputs[:2])
    axes = tuple(range(case.attribute("axis", -1) % x.ndim, x.ndim))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    whole = variance + case.attribute("epsilon", 1e-5)
    factors = 1 / np.sqrt(whole)
    if right.shape == x.shape:
        return np.asarray(np.abs((x - mean) * factors * scale) * (mean**2 + variance) / whole)
    is_factor = right.shape == factors.shape and np.allclose(right.astype(np.float64), factors, rtol=1e-2)
    return np.asarray(factors * (mean**2 + variance) / whole) if is_factor else 0.0


def _centering(case: Case) -> np.ndarray:
    """The largest |x| over the deviation, of what is normalized together."""
    x = case.drawn.inputs[0].astype(np.float64)
    axes = tuple(case.attribute("axes", [0, 2, 3]))
    return np.asarray(np.abs(x).max(axes, keepdims=True, initial=0) / (x.std(axes, keepdims=True) + 1e-9))


def _narrow(array: Any) -> bool:
    return isinstance(array, np.ndarray) and (array.dtype.name in ("float16", "float32", "bfloat16"))


def unit(case: Case, right: np.ndarray) -> float:
    """The largest u of the element types that take part."""
    kinds = {str(each.dtype) for each in leaves(list(case.drawn.inputs)) if each is not None} | {right.dtype.name}
    if "stash_type" in onnx.defs.get_schema(case.operator, case.opset, "").attributes:
        kinds.add("float32")  # in which these compute, whatever the type of the input
    return max((_UNITS[kind] for kind in kinds if kind in _UNITS), default=2.0**-24)


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
    return wide if not change else wide * (1 + change * rng.uniform(-1.0, 1.0, wide.shape))


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


def _changes(case: Case, outputs: Sequence[Any], least: float) -> list[np.ndarray]:
    """The largest change of each element of each output by changes of the inputs of a few u; empty if unknown."""
    rights = [np.asarray(each) for each in leaves(list(outputs)) if each is not None]
    change = _CHANGE * max(least, *(unit(case, each) for each in rights))
    start = _in_float64(case, outputs, 0.0, 0)
    if start is None:
        return []
    largest = [np.zeros(each.shape) for each in rights]
    starts = [np.asarray(each) for each in leaves(list(start)) if each is not None]
    # To the other side of a tie leads only one of the four ways in which two numbers change.
    for number in range(1, (4 * _TRIES if case.operator in QUANTIZING else _TRIES) + 1):
        found = _in_float64(case, outputs, change, number)
        arrays = [] if found is None else [np.asarray(each) for each in leaves(list(found)) if each is not None]
        for index, (first, second) in enumerate(zip(starts, arrays, strict=False)):
            if first.shape == second.shape == largest[index].shape and first.dtype.kind in "fiu":
                with np.errstate(all="ignore"):
                    moved = np.abs(second.astype(np.float64) - first.astype(np.float64))
                largest[index] = np.maximum(largest[index], np.nan_to_num(moved, nan=0.0, posinf=0.0))
    return largest


def _plain(right: np.ndarray) -> np.ndarray:
    """Numbers in which differences are exact enough; others as they are."""
    return right.astype(np.float64) if right.dtype.kind in "fV" else right


def apart(case: Case, want: Sequence[Any], got: Sequence[Any], *, least: float = 0.0) -> str | None:
    """What differs between two answers beyond rounding; None if nothing does.

    Args:
        case: The case.
        want: A right answer.
        got: Another one.
        least: The u of what `got` was computed in, if it is larger than that of the element types.
    """
    rights, arrays = list(leaves(list(want))), list(leaves(list(got)))
    if len(rights) != len(arrays):
        return f"{len(arrays)} arrays, expected {len(rights)}"
    changes: list[np.ndarray] | None = None
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
        same = _equal(right, array)
        rounded = right.dtype.kind in "fV" or case.operator in QUANTIZING
        if rounded and (least or case.operator not in EXACT) and not np.all(same):
            with np.errstate(all="ignore"):
                distance = np.abs(right.astype(np.float64) - array.astype(np.float64))
            allowed = _allowed(case, right, least)
            if case.operator not in STEPS and not np.all(same | (distance <= allowed)):
                changes = _changes(case, want, least) if changes is None else changes
                if place < len(changes) and changes[place].shape == right.shape:
                    allowed = allowed + (_FACTOR if right.dtype.kind in "fV" else 1.0) * changes[place]
            same |= distance <= allowed
        if not np.all(same):
            return _said(right, array, ~np.asarray(same))
    return None


def _equal(right: np.ndarray, array: np.ndarray) -> np.ndarray:
    x, y = _plain(right), _plain(array)
    same = np.asarray(x == y)
    return same | (np.isnan(x) & np.isnan(y)) if right.dtype.kind in "fV" else same


def _allowed(case: Case, right: np.ndarray, least: float) -> np.ndarray:
    """The bound of each element, but for what cancels."""
    if right.dtype.kind not in "fV":
        return np.zeros(right.shape)
    with np.errstate(all="ignore"):
        y, u = np.abs(_plain(right)), max(unit(case, right), least)
        allowed = 2 * STEPS.get(case.operator, 8) * u * (y + (case.operator in UNIT)) + 4 * _TINY[right.dtype.name]
        if case.operator in SPREAD:
            allowed = allowed + 16 * u * np.max(y, initial=0, where=np.isfinite(y))
        if case.operator == "LayerNormalization":
            allowed = allowed + 4 * u * _one_pass(case, right)
        if case.operator == "MeanVarianceNormalization":
            allowed = allowed + 16 * u * _centering(case)
        if case.operator in TOGETHER and (case.operator != "BatchNormalization" or case.drawn.training):
            allowed = allowed + 2 * u * _together(case, right)
        if case.operator == "Mod":
            allowed = allowed + 4 * u * np.broadcast_to(np.abs(_plain(case.drawn.inputs[0])), right.shape)
        if case.operator == "DequantizeLinear" and case.array(2) is not None:
            scale, zero = (np.abs(case.array(at).astype(np.float64)).max(initial=0) for at in (1, 2))
            allowed = allowed + 4 * u * scale * zero
        return np.asarray(allowed + _coordinates(case, least) if case.operator in RESAMPLING else allowed)


# Operators that round numbers to integers: in float64 a number on a tie may fall on the other side.
QUANTIZING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})


def _said(right: np.ndarray, array: np.ndarray, wrong: np.ndarray) -> str:
    places = np.flatnonzero(np.atleast_1d(wrong).ravel())[:4]
    some = [f"{np.ravel(array)[place]} for {np.ravel(right)[place]} at {place}" for place in places]
    return f"{', '.join(some)} ({int(np.sum(wrong))} of {right.size})"
