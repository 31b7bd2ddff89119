"""Explanations: where ONNX Runtime or ONNX's reference deviates from the specification, and who decides there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from drawn_answers import Case

__all__ = ["RULES", "Rule", "rule_of", "rules_of"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A known deviation.

    Attributes:
        name: A few words.
        operators: The operators that it concerns.
        deviates: Who deviates; empty where the specification leaves the result open, and nothing is compared.
        says: The sentence of the specification that decides.
        source: Where that sentence is.
        third: The implementation that decides, in words.
        applies: Whether it concerns a case of one of the operators.
        always: Whether it concerns a case also where ONNX Runtime and ONNX's reference agree.
    """

    name: str
    operators: frozenset[str]
    deviates: frozenset[str]
    says: str
    source: str
    third: str
    applies: Callable[[Case], bool] = lambda case: True
    always: bool = False


PLAIN, EVALUATOR, BOTH = (
    frozenset({"onnxruntime"}),
    frozenset({"onnx.reference"}),
    frozenset({"onnxruntime", "onnx.reference"}),
)
NUMPY = "the formula, in NumPy and float64"


def _double(case: Case) -> bool:
    return any(isinstance(each, np.ndarray) and each.dtype == np.float64 for each in case.drawn.inputs)


def _of(names: str) -> frozenset[str]:
    return frozenset(names.split())


RULES: list[Rule] = [
    Rule(
        name="a matrix that begins at the axis",
        operators=_of("Hardmax If LogSoftmax Loop Softmax"),
        deviates=EVALUATOR,
        says="input will be coerced into a 2-dimensional tensor with dimensions [a_0 * … * a_{k-1}, a_k * … * a_{n-1}]",
        source="Softmax-11",
        third=NUMPY,
        applies=lambda case: case.opset < 13,
    ),
    Rule(
        name="scalars that a loop collects",
        operators=_of("Loop"),
        deviates=EVALUATOR,
        says="Each scan_output is created by concatenating the value of the specified output value",
        source="Loop-13",
        third=NUMPY,
    ),
    Rule(
        name="a logarithm of numbers near 0",
        operators=_of("LogSoftmax"),
        deviates=EVALUATOR,
        says="LogSoftmax(input, axis) = Log(Softmax(input, axis=axis)); in float16 and float32 the inner one becomes 0",
        source="LogSoftmax-13",
        third=NUMPY,
    ),
    Rule(
        name="stored statistics",
        operators=_of("BatchNormalization"),
        deviates=EVALUATOR,
        says="Y = (X - input_mean) / sqrt(input_var + epsilon) * scale + B",
        source="BatchNormalization-9 and 15",
        third=NUMPY,
        applies=lambda case: case.since < 14,
    ),
    Rule(
        name="the rank of a global pool",
        operators=_of("GlobalMaxPool"),
        deviates=EVALUATOR,
        says="The output tensor has the same rank as the input",
        source="GlobalMaxPool-1",
        third=NUMPY,
    ),
    Rule(
        name="absolute values, and norms of 0",
        operators=_of("LpNormalization"),
        deviates=BOTH,
        says="output = input / Lp_norm(input, axis); when the Lp norm is zero, the output is defined to be zero",
        source="LpNormalization-22",
        third=NUMPY,
    ),
    Rule(
        name="channels of a response",
        operators=_of("LRN"),
        deviates=EVALUATOR,
        says="max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))",
        source="LRN-13",
        third=NUMPY,
    ),
    Rule(
        name="float64 computed in float32",
        operators=_of("AffineGrid DeformConv Erf Gelu GridSample HardSwish OneHot RoiAlign"),
        deviates=BOTH,
        says="tensor(double) is among the element types",
        source="the schema of each operator",
        third="SciPy, PyTorch, or the formula in float64",
        applies=_double,
        always=True,
    ),
    Rule(
        name="nothing to reduce",
        operators=_of(
            "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
            "ReduceSumSquare"
        ),
        deviates=BOTH,
        says="Reduction over an empty set of values yields 0 (1, minus infinity, …)",
        source="ReduceSum-13 and the others",
        third="NumPy",
        applies=lambda case: case.drawn.inputs[0].size == 0,
    ),
    Rule(
        name="angles rounded to float32",
        operators=_of("DFT STFT"),
        deviates=PLAIN,
        says="The Discrete Fourier Transform",
        source="DFT-17",
        third="numpy.fft in float64",
    ),
    Rule(
        name="positions in a sequence",
        operators=_of("SequenceInsert"),
        deviates=EVALUATOR,
        says="'position' is optional, by default it inserts 'tensor' to the back of 'input_sequence'",
        source="SequenceInsert-11",
        third="list.insert of Python",
    ),
    Rule(
        name="dimensions from a start after the end",
        operators=_of("Shape"),
        deviates=EVALUATOR,
        says="If start > end, the result will be an empty shape",
        source="Shape-15",
        third="a slice of Python",
    ),
    Rule(
        name="INT_MAX ends a slice in either direction",
        operators=_of("Slice"),
        deviates=EVALUATOR,
        says="For slicing to the end of a dimension with unknown size, it is recommended to pass in INT_MAX",
        source="Slice-10",
        third=NUMPY,
        applies=lambda case: case.since == 10,
    ),
    Rule(
        name="negative axes in any order",
        operators=_of("Unsqueeze"),
        deviates=EVALUATOR,
        says="The order of values in `axes` does not matter and can come in any order",
        source="Unsqueeze-11",
        third="numpy.expand_dims",
        applies=lambda case: case.since < 13,
    ),
    Rule(
        name="strings of a block",
        operators=_of("Gather"),
        deviates=PLAIN,
        says="gather entries of the axis dimension of `data` indexed by `indices`",
        source="Gather-13",
        third="numpy.take",
        applies=lambda case: case.drawn.inputs[0].dtype.kind == "O",
    ),
    Rule(
        name="a grid of one position with both corners",
        operators=_of("AffineGrid"),
        deviates=frozenset(),
        says="if align_corners=1, consider -1 and 1 to refer to the centers of the corner pixels: of one pixel, both",
        source="AffineGrid-20",
        third="PyTorch has 0, ONNX's function -1",
        applies=lambda case: bool(case.attribute("align_corners", 0)) and 1 in case.drawn.inputs[1][2:].tolist(),
    ),
    Rule(
        name="activations, clipping and directions of a recurrent layer",
        operators=_of("GRU LSTM RNN"),
        deviates=EVALUATOR,
        says="A list of 3 (or 6 if bidirectional) activation functions for input, output, forget, cell, and hidden",
        source="LSTM-14",
        third=NUMPY,
    ),
    Rule(
        name="functions of a recurrent layer that ONNX Runtime lacks",
        operators=_of("GRU LSTM RNN"),
        deviates=BOTH,
        says="Affine(x) - alpha*x + beta, LeakyRelu(x), ThresholdedRelu(x), …; default of alpha and beta of the same "
        "operators of ONNX",
        source="LSTM-14",
        third=NUMPY,
        applies=lambda case: not set(case.attribute("activations", ())) <= {"Relu", "Sigmoid", "Tanh"},
    ),
    Rule(
        name="where a recurrent layer clips",
        operators=_of("GRU LSTM RNN"),
        deviates=BOTH,
        says="Clipping bounds the elements of a tensor in the range of [-threshold, +threshold] and is applied to the "
        "input of activations",
        source="LSTM-14",
        third=NUMPY,
        applies=lambda case: case.attribute("clip") is not None,
    ),
    Rule(
        name="a scale rounded to float32",
        operators=_of("Attention"),
        deviates=BOTH,
        says="Scaling factor applied to Q*K^T. Default value is 1/sqrt(head_size)",
        source="Attention-23",
        third=NUMPY,
        applies=_double,
        always=True,
    ),
    Rule(
        name="the soft cap before the mask",
        operators=_of("Attention"),
        deviates=BOTH,
        says="The soft cap is applied before mask / bias addition and softmax",
        source="Attention-25",
        third=NUMPY,
        applies=lambda case: bool(case.attribute("softcap", 0)),
    ),
    Rule(
        name="windows of a pool",
        operators=_of("AveragePool LpPool MaxPool"),
        deviates=EVALUATOR,
        says="ceil((input_spatial_shape[i] + pad_shape[i] - dilation[i] * (kernel_shape[i] - 1) - 1) / "
        "strides_spatial_shape[i] + 1)",
        source="AveragePool-19",
        third=NUMPY,
    ),
    Rule(
        name="a transposed convolution whose strides exceed its kernel",
        operators=_of("ConvTranspose"),
        deviates=BOTH,
        says="pad the input so that `output_shape[i] = input_shape[i] * strides[i]`; padding is greater than or equal "
        "to 0",
        source="ConvTranspose-11",
        third=NUMPY,
        applies=lambda case: str(case.attribute("auto_pad", "")).startswith("SAME"),
    ),
    Rule(
        name="groups and dilations of a transposed convolution",
        operators=_of("ConvTranspose"),
        deviates=EVALUATOR,
        says="stride[i] * (input_size[i] - 1) + output_padding[i] + ((kernel_shape[i] - 1) * dilations[i] + 1) - "
        "pads[start_i] - pads[end_i]",
        source="ConvTranspose-11",
        third=NUMPY,
    ),
    Rule(
        name="coordinates of a resized image",
        operators=_of("Resize Upsample"),
        deviates=EVALUATOR,
        says="x_original = (x_resized + 0.5) / scale - 0.5, and the other formulas of coordinate_transformation_mode",
        source="Resize-11 to 19",
        third=NUMPY,
    ),
    Rule(
        name="corners of an image whose scale gives no integer size",
        operators=_of("Resize"),
        deviates=PLAIN,
        says="x_original = x_resized * (length_original - 1) / (length_resized - 1); in the test vector 4 * 0.6 is 2.4",
        source="Resize-19 and resize_downsample_scales_linear_align_corners",
        third=NUMPY,
        applies=lambda case: case.attribute("coordinate_transformation_mode") == "align_corners",
    ),
    Rule(
        name="the maximum of a region",
        operators=_of("RoiAlign"),
        deviates=BOTH,
        says="the pooling method, 'avg' or 'max'; in the test vector, the largest of the weighted corners",
        source="RoiAlign-16 and roialign_mode_max",
        third=NUMPY,
        applies=lambda case: case.attribute("mode") == "max",
    ),
    Rule(
        name="points of a region",
        operators=_of("RoiAlign"),
        deviates=EVALUATOR,
        says="the value of the sampled locations are computed directly through bilinear interpolation",
        source="RoiAlign-16",
        third=NUMPY,
    ),
    Rule(
        name="elements of values as they are",
        operators=_of("OneHot"),
        deviates=EVALUATOR,
        says="Rank 1 tensor containing exactly two elements, in the format [off_value, on_value]",
        source="OneHot-11",
        third="NumPy",
    ),
    Rule(
        name="odd padding before the first element",
        operators=_of("LpPool"),
        deviates=PLAIN,
        says="the extra padding is added at the end for SAME_UPPER and at the beginning for SAME_LOWER",
        source="LpPool-18",
        third=NUMPY,
        applies=lambda case: case.attribute("auto_pad") == "SAME_LOWER",
    ),
    Rule(
        name="a variance without cancellation",
        operators=_of("MeanVarianceNormalization"),
        deviates=BOTH,
        says="(X-EX)/sqrt(E(X-EX)^2)",
        source="MeanVarianceNormalization-13",
        third="NumPy",
    ),
    Rule(
        name="elements outside an image",
        operators=_of("GridSample"),
        deviates=EVALUATOR,
        says="border: use border values for out-of-bound grid locations",
        source="GridSample-20",
        third="PyTorch",
    ),
    Rule(
        name="strings that pad",
        operators=_of("Pad"),
        deviates=EVALUATOR,
        says="The constant value to be used (by default it is 0, empty string or False)",
        source="Pad-13",
        third="numpy.pad",
        applies=lambda case: case.drawn.inputs[0].dtype.kind == "O",
    ),
    Rule(
        name="labels that are left out",
        operators=_of("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
        deviates=EVALUATOR,
        says="Specifies a target value that is ignored and does not contribute to the input gradient",
        source="NegativeLogLikelihoodLoss-13",
        third=NUMPY,
        applies=lambda case: case.attribute("ignore_index") is not None,
    ),
    Rule(
        name="positions that are a tie but for the rounding of a scale",
        operators=_of("Resize Upsample"),
        deviates=BOTH,
        says="round_prefer_floor (default, as known as round half down), round_prefer_ceil, floor, ceil",
        source="Resize-11 to 19",
        third=NUMPY,
        applies=lambda case: case.attribute("mode", "nearest") == "nearest",
    ),
    Rule(
        name="columns whose windows are dilated and strided",
        operators=_of("Col2Im"),
        deviates=BOTH,
        says="The operator rearranges column blocks back into a multidimensional image; overlapping values are added",
        source="Col2Im-18",
        third=NUMPY,
    ),
    Rule(
        name="the causal mask of an attention",
        operators=_of("Attention"),
        deviates=PLAIN,
        says="the attention masking is a lower triangular matrix when the mask is a square matrix",
        source="Attention-23",
        third=NUMPY,
        applies=lambda case: bool(case.attribute("is_causal", 0)),
    ),
    Rule(
        name="interpolated images that shrink",
        operators=_of("Resize"),
        deviates=BOTH,
        says="x_original = x_resized / scale for asymmetric; antialias stretches the filter by max(1, 1 / scale)",
        source="Resize-18",
        third=NUMPY,
        applies=lambda case: case.attribute("mode", "nearest") != "nearest",
    ),
    Rule(
        name="equal parts along an axis",
        operators=_of("Unique"),
        deviates=EVALUATOR,
        says="subtensors sliced along the `axis` will be compared",
        source="Unique-11",
        third="Python's comparison of tuples",
        applies=lambda case: case.attribute("axis") is not None,
    ),
]


def rules_of(case: Case) -> list[Rule]:
    """The rules that concern a case."""
    return [rule for rule in RULES if case.operator in rule.operators and rule.applies(case)]


def rule_of(case: Case, deviating: set[str]) -> Rule | None:
    """The first rule that explains why these deviate from the specification in a case."""
    for rule in rules_of(case):
        found = bool(deviating) if rule.deviates else not deviating
        if found and deviating <= rule.deviates:
            return rule
    return None
