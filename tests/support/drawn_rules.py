"""Explanations: where ONNX Runtime or ONNX's reference deviates from the specification, and who decides there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from drawn_answers import Case
from drawn_conditions import (
    FLOAT32,
    backwards_to_the_end,
    below_stride,
    block,
    cached,
    cancels,
    clipped_cell,
    copied,
    dilated,
    empty,
    ends_before_start,
    evaluated_places,
    fractional,
    from_the_back,
    given,
    ignored,
    inexact_step,
    lengths_or_functions,
    mixed_signs,
    open_corner,
    other_defaults,
    pools,
    rows_of_a_matrix,
    short_batch,
    single,
    size_by_rounding,
    summed_short,
    tie,
    underflows,
    unordered,
)

__all__ = ["RULES", "Rule", "explained", "left_out", "open_rule", "rules_of"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A known deviation.

    Attributes:
        name: A few words.
        operators: The operators that it concerns.
        deviates: Who deviates, which may be a back-end of deep5; empty where the specification leaves the result open,
            and nothing is compared.
        says: What the specification says, word for word; "…" stands for words that are left out.
        source: The operators and the versions whose schemas say it.
        third: The implementation that decides, in words.
        applies: Whether it concerns a case of one of the operators.
        always: Whether it concerns a case also where ONNX Runtime and ONNX's reference agree.
        least: The u of what the deviating implementation computes in: it may deviate by that much, and no more. None
            where its answer is another one.
        left_out: Which elements of a right output a back-end of deep5 may have otherwise.
    """

    name: str
    operators: frozenset[str]
    deviates: frozenset[str]
    says: str
    source: str
    third: str
    applies: Callable[[Case], bool] = lambda case: True
    always: bool = False
    least: Callable[[Case], float] | None = None
    left_out: Callable[[np.ndarray], np.ndarray] | None = None


PLAIN, EVALUATOR, BOTH = (
    frozenset({"onnxruntime"}),
    frozenset({"onnx.reference"}),
    frozenset({"onnxruntime", "onnx.reference"}),
)
NUMPY = "the formula, in NumPy and float64"


def _of(names: str) -> frozenset[str]:
    return frozenset(names.split())


RULES: list[Rule] = [
    Rule(
        name="a matrix that begins at the axis",
        operators=_of("Hardmax If LogSoftmax Loop Softmax"),
        deviates=EVALUATOR,
        says="input will be coerced into a 2-dimensional tensor with dimensions [a_0 * ... * a_{k-1}, a_k * ... * "
        "a_{n-1}]",
        source="Softmax-11",
        third=NUMPY,
        applies=rows_of_a_matrix,
    ),
    Rule(
        name="scalars that a loop collects",
        operators=_of("Loop"),
        deviates=EVALUATOR,
        says="Each scan_output is created by concatenating the value of the specified output value at the end of each "
        "iteration of the loop",
        source="Loop-13",
        third=NUMPY,
    ),
    Rule(
        name="a logarithm of numbers that underflow",
        operators=_of("LogSoftmax"),
        deviates=EVALUATOR,
        says="LogSoftmax(input, axis) = Log(Softmax(input, axis=axis))",
        source="LogSoftmax-13",
        third=NUMPY,
        applies=underflows,
    ),
    Rule(
        name="stored statistics",
        operators=_of("BatchNormalization"),
        deviates=EVALUATOR,
        says="running (training) or estimated (testing) mean tensor of shape (C).",
        source="BatchNormalization-9",
        third=NUMPY,
        applies=lambda case: case.since < 14,
    ),
    Rule(
        name="the rank of a global pool",
        operators=_of("GlobalMaxPool"),
        deviates=EVALUATOR,
        says="The output tensor has the same rank as the input.",
        source="GlobalMaxPool-1",
        third=NUMPY,
        applies=lambda case: case.drawn.inputs[0].ndim != 4,
    ),
    Rule(
        name="absolute values in a norm",
        operators=_of("LpNormalization"),
        deviates=EVALUATOR,
        says="The output is computed as: `output = input / Lp_norm(input, axis)`.",
        source="LpNormalization-22",
        third=NUMPY,
        applies=lambda case: given(case, p=1) and bool((case.drawn.inputs[0] < 0).any()),
    ),
    Rule(
        name="channels of a response",
        operators=_of("LRN"),
        deviates=EVALUATOR,
        says="`max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))`",
        source="LRN-13",
        third=NUMPY,
        applies=short_batch,
    ),
    Rule(
        name="float64 computed in float32",
        operators=_of("AffineGrid Attention DeformConv Erf Gelu GridSample HardSwish LRN Resize RoiAlign"),
        deviates=BOTH,
        says="tensor(double)",
        source="Erf-13",
        third="SciPy, PyTorch, or the formula in float64",
        applies=single,
        always=True,
        least=lambda case: FLOAT32,
    ),
    Rule(
        name="nothing to reduce",
        operators=_of(
            "MatMul ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
            "ReduceSumSquare"
        ),
        deviates=PLAIN,
        says="If `keepdims` equals 0, then the resulting tensor has the reduced dimension pruned. … Reduction over an "
        "empty set of values yields 0. … Matrix product that behaves like",
        source="ReduceSum-13, MatMul-13",
        third="NumPy",
        applies=empty,
    ),
    Rule(
        name="a sum in a short element type",
        operators=_of("ReduceSumSquare"),
        deviates=EVALUATOR,
        says="Computes the sum square of the input tensor's elements along the provided axes.",
        source="ReduceSumSquare-13",
        third="NumPy in float64",
        applies=lambda case: case.drawn.inputs[0].dtype.name in ("bfloat16", "float16"),
        least=summed_short,
    ),
    Rule(
        name="a position after the last",
        operators=_of("SequenceInsert"),
        deviates=EVALUATOR,
        says="Accepted range for 'position' is in `[-n, n]`, where `n` is the number of tensors in 'input_sequence'.",
        source="SequenceInsert-11",
        third="list.insert of Python",
        applies=lambda case: case.array(2) is not None and int(case.array(2)) == len(case.drawn.inputs[0]),
    ),
    Rule(
        name="dimensions from a start after the end",
        operators=_of("Shape"),
        deviates=EVALUATOR,
        says="If start > end, the result will be an empty shape.",
        source="Shape-15",
        third="a slice of Python",
        applies=ends_before_start,
    ),
    Rule(
        name="INT_MAX ends a slice in either direction",
        operators=_of("Slice"),
        deviates=EVALUATOR,
        says="For slicing to the end of a dimension with unknown size, it is recommended to pass in `INT_MAX`.",
        source="Slice-10",
        third=NUMPY,
        applies=lambda case: case.since == 10 and backwards_to_the_end(case),
    ),
    Rule(
        name="axes in any order",
        operators=_of("Unsqueeze"),
        deviates=EVALUATOR,
        says="The order of values in `axes` does not matter and can come in any order.",
        source="Unsqueeze-11",
        third="numpy.expand_dims",
        applies=unordered,
    ),
    Rule(
        name="strings of a block",
        operators=_of("Gather"),
        deviates=PLAIN,
        says="Each entry in `indices` produces a `r-1` dimensional slice of the input tensor.",
        source="Gather-13",
        third="numpy.take",
        applies=block,
    ),
    Rule(
        name="a grid of one position with both corners",
        operators=_of("AffineGrid"),
        deviates=frozenset(),
        says="if align_corners=1, consider -1 and 1 to refer to the centers of the corner pixels.",
        source="AffineGrid-20",
        third="PyTorch has 0 for the only position, ONNX's function -1",
        applies=open_corner,
    ),
    Rule(
        name="lengths, functions, clipping and coupling of a recurrent layer",
        operators=_of("GRU LSTM RNN"),
        deviates=EVALUATOR,
        says="The activation functions must be one of the activation functions specified above.",
        source="LSTM-14",
        third=NUMPY,
        applies=lengths_or_functions,
    ),
    Rule(
        name="functions of a recurrent layer with other constants",
        operators=_of("GRU LSTM RNN"),
        deviates=BOTH,
        says="Default values are the same as of corresponding ONNX operators.",
        source="LSTM-14",
        third=NUMPY,
        applies=other_defaults,
    ),
    Rule(
        name="the cell of an LSTM that clips",
        operators=_of("LSTM"),
        deviates=BOTH,
        says="Clipping bounds the elements of a tensor in the range of [-threshold, +threshold] and is applied to the "
        "input of activations.",
        source="LSTM-14",
        third=NUMPY,
        applies=clipped_cell,
    ),
    Rule(
        name="a causal mask of cached keys",
        operators=_of("Attention"),
        deviates=PLAIN,
        says="query in-block index `i` attends key `j` iff `j <= i + offset`",
        source="Attention-24",
        third=NUMPY,
        applies=cached,
    ),
    Rule(
        name="windows of a pool",
        operators=_of("AveragePool LpPool MaxPool"),
        deviates=EVALUATOR,
        says="output_spatial_shape[i] = ceil((input_spatial_shape[i] + pad_shape[i] - dilation[i] * (kernel_shape[i] - "
        "1) - 1) / strides_spatial_shape[i] + 1)",
        source="AveragePool-19",
        third=NUMPY,
        applies=pools,
    ),
    Rule(
        name="SAME padding of windows below their strides",
        operators=_of("AveragePool Conv ConvInteger ConvTranspose LpPool MaxPool QLinearConv"),
        deviates=BOTH,
        says="Padding for the beginning and ending along each spatial axis, it can take any value greater than or "
        "equal to 0.",
        source="Conv-11",
        third=f"{NUMPY}, which has the padding of TensorFlow, at least 0; the others leave out the first elements",
        applies=below_stride,
        always=True,
    ),
    Rule(
        name="products of uint8 and int8 on processors without VNNI",
        operators=_of("MatMulInteger QLinearMatMul"),
        deviates=PLAIN,
        says="The production MUST never overflow. The accumulation may overflow if and only if in 32 bits.",
        source="MatMulInteger-10",
        third="the sum of products, in NumPy and 64 bits",
        applies=mixed_signs,
    ),
    Rule(
        name="groups of a transposed convolution",
        operators=_of("ConvTranspose"),
        deviates=EVALUATOR,
        says="number of groups input channels and output channels are divided into.",
        source="ConvTranspose-11",
        third=NUMPY,
        applies=lambda case: case.attribute("group", 1) > 1,
    ),
    Rule(
        name="a size that is an integer in float32",
        operators=_of("Resize Upsample"),
        deviates=EVALUATOR,
        says="output_dimension = floor(input_dimension * (roi_end - roi_start) * scale)",
        source="Resize-11",
        third=NUMPY,
        applies=size_by_rounding,
    ),
    Rule(
        name="places of an image that is cropped, of one pixel, or between integers",
        operators=_of("Resize"),
        deviates=EVALUATOR,
        says='When coordinate_transformation_mode is "tf_crop_and_resize" and x_original is outside the range [0, '
        "length_original - 1], this value is used as the corresponding output value. … x_original = length_resized > 1 "
        "? (x_resized + 0.5) / scale - 0.5 : 0 … it calculates every value in the output tensor as a weighted average "
        "of neighborhood (a.k.a. sampling locations) in the input tensor.",
        source="Resize-11",
        third=NUMPY,
        applies=evaluated_places,
    ),
    Rule(
        name="an image that keeps its size",
        operators=_of("Resize Upsample"),
        deviates=PLAIN,
        says="it calculates every value in the output tensor as a weighted average of neighborhood (a.k.a. sampling "
        "locations) in the input tensor.",
        source="Resize-11",
        third=NUMPY,
        applies=copied,
    ),
    Rule(
        name="corners of an image whose scale gives no integer size",
        operators=_of("Resize"),
        deviates=PLAIN,
        says="the target length on the axis x which can be a fractional number when it is calculated out of a scale "
        "factor",
        source="Resize-19",
        third=NUMPY,
        applies=fractional,
    ),
    Rule(
        name="dimensions counted from the back, and a policy",
        operators=_of("Resize"),
        deviates=PLAIN,
        says="If provided, it specifies a subset of axes that 'roi', 'scales' and 'sizes' refer to. … Negative value "
        "means counting dimensions from the back.",
        source="Resize-19",
        third=NUMPY,
        applies=from_the_back,
    ),
    Rule(
        name="positions that are a tie but for rounding",
        operators=_of("GridSample Resize Upsample"),
        deviates=BOTH,
        says="Four modes: round_prefer_floor (default, as known as round half down), round_prefer_ceil (as known as "
        'round half up), floor, ceil. … The "nearest" mode rounds to the nearest even index when the sampling point '
        "falls halfway between two indices.",
        source="Resize-11, GridSample-20",
        third=NUMPY,
        applies=tie,
    ),
    Rule(
        name="regions without a shift",
        operators=_of("RoiAlign"),
        deviates=EVALUATOR,
        says="Use the value 'output_half_pixel' to omit the pixel shift for the input (use this for a "
        "backward-compatible behavior).",
        source="RoiAlign-16",
        third=NUMPY,
        applies=lambda case: case.since < 16,
    ),
    Rule(
        name="elements of values as they are",
        operators=_of("OneHot"),
        deviates=EVALUATOR,
        says="'on_value' is the value used for filling locations specified in 'indices' input tensor",
        source="OneHot-11",
        third="NumPy",
        applies=inexact_step,
    ),
    Rule(
        name="a variance without cancellation",
        operators=_of("MeanVarianceNormalization"),
        deviates=BOTH,
        says="`(X-EX)/sqrt(E(X-EX)^2)`",
        source="MeanVarianceNormalization-13",
        third="NumPy",
        always=True,
        least=cancels,
    ),
    Rule(
        name="cubic weights outside an image",
        operators=_of("GridSample"),
        deviates=EVALUATOR,
        says="border: use border values for out-of-bound grid locations",
        source="GridSample-20",
        third="PyTorch",
        applies=lambda case: "cubic" in case.attribute("mode", "") and not given(case, padding_mode="zeros"),
    ),
    Rule(
        name="strings that pad",
        operators=_of("Pad"),
        deviates=EVALUATOR,
        says="(by default it is 0, empty string or False)",
        source="Pad-13",
        third="numpy.pad",
        applies=lambda case: case.drawn.inputs[0].dtype.kind == "O" and case.array(2) is None,
    ),
    Rule(
        name="labels that are left out",
        operators=_of("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
        deviates=EVALUATOR,
        says="loss is zero for the case when target-value equals ignore_index.",
        source="NegativeLogLikelihoodLoss-13",
        third=NUMPY,
        applies=ignored,
    ),
    Rule(
        name="columns of dilated windows, of other than two dimensions",
        operators=_of("Col2Im"),
        deviates=PLAIN,
        says="The operator rearranges column blocks back into a multidimensional image",
        source="Col2Im-18",
        third=NUMPY,
        applies=dilated,
    ),
    Rule(
        name="the larger of 0 and NaN",
        operators=_of("Relu"),
        deviates=frozenset({"openvino"}),
        says="the rectified linear function, y = max(0, x), is applied to the tensor elementwise.",
        source="Relu-14",
        third="NumPy has NaN, C's fmax and OpenVINO have 0; with NaN, OpenVINO would not fuse it with a convolution",
        left_out=np.isnan,
    ),
    Rule(
        name="equal parts along an axis",
        operators=_of("Unique"),
        deviates=EVALUATOR,
        says="When an optional attribute 'axis' is provided, unique subtensors sliced along the 'axis' are returned.",
        source="Unique-11",
        third="Python's comparison of tuples",
        applies=lambda case: case.attribute("axis") is not None,
    ),
]


def left_out(case: Case, framework: str) -> tuple[Rule, Callable[[np.ndarray], np.ndarray]] | None:
    """The rule by which a back-end may have some elements otherwise, and which."""
    for rule in rules_of(case):
        if framework in rule.deviates and rule.left_out is not None:
            return rule, rule.left_out
    return None


def rules_of(case: Case) -> list[Rule]:
    """The rules that concern a case."""
    return [rule for rule in RULES if case.operator in rule.operators and rule.applies(case)]


def open_rule(case: Case) -> Rule | None:
    """The rule by which the specification leaves a case open."""
    return next((rule for rule in rules_of(case) if not rule.deviates), None)


def explained(case: Case, deviating: Mapping[str, Callable[[float], bool]]) -> Rule | None:
    """The rule that explains an answer; None unless there is one for each answer that deviates.

    Args:
        case: The case.
        deviating: Who deviates; with each, whether its answer is right but for computing with a given u.
    """
    found = [
        next((rule for rule in rules_of(case) if who in rule.deviates and _covers(rule, case, within)), None)
        for who, within in deviating.items()
    ]
    return found[0] if found and None not in found else None


def _covers(rule: Rule, case: Case, within: Callable[[float], bool]) -> bool:
    least = None if rule.least is None else rule.least(case)
    return least is None or math.isinf(least) or within(least)
