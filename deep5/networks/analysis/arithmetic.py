"""Formulas for the cost of a node: floating-point operations, multiply-adds and depth.

A multiplication and an addition are two operations; any other function of one number (an exponential, a root, a
comparison) is one, whatever its cost on a processor. Depth counts dependent operations, given as many processors as are
useful: a sum of n numbers has depth ceil(log2 n). Padding counts like any other number. Moves and look-ups are not
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

from deep5.core.tensors import TensorSpec
from deep5.operators.work import RECURRENT, flops

__all__ = ["Arithmetic", "arithmetic"]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The cost of one forward pass of a node.

    Attributes:
        flops: Floating-point operations, W of a work-depth model.
        macs: Multiplications whose products are accumulated; 0 if there are none.
        depth: Length of the longest chain of dependent operations, D.
    """

    flops: int
    macs: int
    depth: int


_Rule = Callable[[Sequence[TensorSpec], Sequence[TensorSpec], Mapping[str, Any]], Arithmetic]

# No arithmetic: views, copies, look-ups, and operators that create values from integers.
_MOVES = frozenset((
    "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "OneHot", "Pad", "Range", "Reshape", "Scatter",
    "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
    "Trilu", "Unsqueeze",
))  # fmt: skip
# One operation per output element.
_ONCE = frozenset((
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Cos", "Cosh", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "IsInf",
    "IsNaN", "Less", "LessOrEqual", "Log", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round",
    "Sign", "Sin", "Sinh", "Sqrt", "Sub", "Tan", "Tanh", "Where", "Xor",
))  # fmt: skip
# Operations per element and their depth: clip is a maximum and a minimum, the sigmoid 1 / (1 + e^-x).
_FORMULAS = {
    "Celu": (5, 5), "Clip": (2, 2), "Dropout": (1, 1), "Elu": (4, 4), "Gelu": (5, 5), "HardSigmoid": (4, 4),
    "HardSwish": (5, 5), "LeakyRelu": (2, 2), "Mish": (5, 5), "PRelu": (2, 2), "Selu": (5, 5), "Shrink": (3, 3),
    "Sigmoid": (4, 4), "Softplus": (3, 3), "Softsign": (3, 3), "Swish": (5, 5), "ThresholdedRelu": (2, 2),
}  # fmt: skip
# Operations per input element before the sum, and on the sum.
_SUMS = {
    "ReduceL1": (1, 0), "ReduceL2": (1, 1), "ReduceLogSum": (0, 1), "ReduceLogSumExp": (1, 1), "ReduceMax": (0, 0),
    "ReduceMean": (0, 1), "ReduceMin": (0, 0), "ReduceProd": (0, 0), "ReduceSum": (0, 0), "ReduceSumSquare": (1, 0),
}  # fmt: skip


def arithmetic(
    op_type: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic | None:
    """The cost of one forward pass; None if no formula is known.

    Args:
        op_type: ONNX's name.
        inputs: The node's inputs, with integer dimensions.
        outputs: The node's outputs.
        attributes: The node's attributes.

    >>> a, b = TensorSpec(shape=(2, 8)), TensorSpec(shape=(8, 4))
    >>> arithmetic("MatMul", (a, b), (TensorSpec(shape=(2, 4)),), {})
    Arithmetic(flops=128, macs=64, depth=4)
    """
    if op_type in _MOVES:
        return Arithmetic(flops=0, macs=0, depth=0)
    if op_type in _ONCE:
        return Arithmetic(flops=outputs[0].size, macs=0, depth=1)
    if op_type in _FORMULAS:
        each, depth = _FORMULAS[op_type]
        return Arithmetic(flops=each * outputs[0].size, macs=0, depth=depth)
    if op_type in _SUMS:
        before, after = _SUMS[op_type]
        each = inputs[0].size // max(1, outputs[0].size)
        return Arithmetic(
            flops=before * inputs[0].size + inputs[0].size - outputs[0].size + after * outputs[0].size,
            macs=0,
            depth=bool(before) + _levels(each) + after,
        )
    rule = _RULES.get(op_type)
    return None if rule is None else rule(inputs, outputs, attributes)


def _levels(count: int) -> int:
    """Depth of a sum of `count` numbers, as a tree."""
    return ceil(log2(count)) if count > 1 else 0


def _product(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any], op: str
) -> Arithmetic:
    counted = flops(op, inputs, outputs, attributes)
    assert counted is not None  # noqa: S101 - all callers' operators have a formula
    bias = len(inputs) > 2
    macs = (counted - (outputs[0].size if bias else 0)) // 2
    # Each output is a sum of this many products.
    terms = max(1, macs // max(1, outputs[0].size))
    return Arithmetic(flops=counted, macs=macs, depth=1 + _levels(terms) + bias)


def _of(op: str) -> _Rule:
    return lambda inputs, outputs, attributes: _product(inputs, outputs, attributes, op)


def _recurrent(op: str) -> _Rule:
    def rule(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Arithmetic:
        counted = flops(op, inputs, outputs, attributes) or 0
        steps, batch, width = _extents(inputs[0])
        directions, _, hidden = _extents(inputs[2])
        # After the products: sums of both and of a bias, activations, and the combination of gates (LSTM: 4 sums of
        # three, 5 activations of four operations, 4 of the states).
        each = {"RNN": 6, "GRU": 26, "LSTM": 32}[op]
        wait = {"RNN": 6, "GRU": 11, "LSTM": 12}[op]
        return Arithmetic(
            flops=counted + each * directions * steps * batch * hidden,
            macs=counted // 2,
            depth=steps * (1 + _levels(width + hidden) + wait),
        )

    return rule


def _window(attributes: Mapping[str, Any]) -> int:
    return prod(attributes.get("kernel_shape", (1,)))


def _max_pool(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Arithmetic:
    window = _window(attributes)
    return Arithmetic(flops=(window - 1) * outputs[0].size, macs=0, depth=_levels(window))


def _average_pool(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic:
    window = _window(attributes)
    return Arithmetic(flops=window * outputs[0].size, macs=0, depth=_levels(window) + 1)


def _global(mean: bool) -> _Rule:
    def rule(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Arithmetic:
        window = inputs[0].size // max(1, outputs[0].size)
        return Arithmetic(flops=(window - 1 + mean) * outputs[0].size, macs=0, depth=_levels(window) + mean)

    return rule


def _batch_normalization(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic:
    """With given statistics: a scale and a shift, computed from them in four operations per channel."""
    channels = inputs[1].size
    return Arithmetic(flops=2 * outputs[0].size + 4 * channels, macs=outputs[0].size, depth=6)


def _normalized(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic:
    """Mean, differences, the mean of their squares, a root, a quotient, scale and shift."""
    rows = max(1, _rows(inputs[0], attributes))
    each = inputs[0].size // rows
    return Arithmetic(flops=7 * inputs[0].size + 3 * rows, macs=inputs[0].size, depth=2 * _levels(each) + 8)


def _rows(spec: TensorSpec, attributes: Mapping[str, Any]) -> int:
    shape, axis = _extents(spec), int(attributes.get("axis", -1))
    return prod(shape[: axis if axis >= 0 else axis + len(shape)])


def _group_normalization(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic:
    shape = _extents(inputs[0])
    rows = max(1, shape[0] * int(attributes.get("num_groups", shape[1])))
    each = inputs[0].size // rows
    return Arithmetic(flops=7 * inputs[0].size + 3 * rows, macs=inputs[0].size, depth=2 * _levels(each) + 8)


def _softmax(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Arithmetic:
    """Maximum, differences, exponentials, their sum, quotients (or differences of logarithms)."""
    shape = _extents(inputs[0])
    each = shape[int(attributes.get("axis", -1))] if shape else 1
    rows = inputs[0].size // max(1, each)
    return Arithmetic(flops=5 * inputs[0].size - 2 * rows, macs=0, depth=2 * _levels(each) + 3)


def _cross_entropy(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic:
    classes = _extents(inputs[0])[1]
    samples = inputs[0].size // max(1, classes)
    soft = _softmax(inputs, outputs, {"axis": 1})
    mean = _levels(samples) + 1 if outputs[0].size < samples else 0
    return Arithmetic(flops=soft.flops + 2 * samples, macs=0, depth=soft.depth + 1 + mean)


def _likelihood(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> Arithmetic:
    samples = inputs[1].size
    mean = _levels(samples) + 1 if outputs[0].size < samples else 0
    return Arithmetic(flops=2 * samples, macs=0, depth=1 + mean)


def _lrn(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Arithmetic:
    """Squares, their sums over `size` channels, scale and shift, a power, a quotient."""
    size = int(attributes.get("size", 1))
    return Arithmetic(flops=(size + 4) * inputs[0].size, macs=0, depth=_levels(size) + 5)


def _sum(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Arithmetic:
    return Arithmetic(flops=(len(inputs) - 1) * outputs[0].size, macs=0, depth=_levels(len(inputs)))


def _extents(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(extent) for extent in spec.shape)


_RULES: dict[str, _Rule] = {
    **{op: _of(op) for op in ("Conv", "ConvTranspose", "Gemm", "MatMul")},
    **{op: _recurrent(op) for op in RECURRENT},
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "GlobalAveragePool": _global(True),
    "GlobalMaxPool": _global(False),
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _group_normalization,
    "LRN": _lrn,
    "LayerNormalization": _normalized,
    "LogSoftmax": _softmax,
    "Max": _sum,
    "MaxPool": _max_pool,
    "Min": _sum,
    "NegativeLogLikelihoodLoss": _likelihood,
    "RMSNormalization": _normalized,
    "Softmax": _softmax,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "Sum": _sum,
}
