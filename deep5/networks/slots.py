"""What each operator does with a tensor of the file: the one table of weights, statistics and settings.

The rules of `deep5.networks.onnx.parameters` read the whole table when they import a file. `deep5.networks.constants`
reads the statistics, and the settings that are constants in every network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

__all__ = ["SLOTS", "Kind", "Slot", "slot_of"]

Kind = Literal["weight", "statistic", "setting"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One input of an operator.

    Attributes:
        kind: `"weight"` is trained at any size, `"statistic"` is changed by training without a gradient, `"setting"`
            configures the operator and is never trained.
        what: What it is, for messages.
        constant: An initial value in this slot is a constant in every network, also in one written in Python.
        dead: No gradient passes: a tensor that only reaches such slots, through whatever operators, is a setting.
    """

    kind: Kind
    what: str
    constant: bool = False
    dead: bool = False


_Rows = Mapping[str, Mapping[int, str]]
_RECURRENT = {1: "input weights", 2: "recurrent weights", 3: "bias"}
_NORM = {1: "scale", 2: "bias"}
_COMPARED = {0: "operand", 1: "operand"}
_RANGE = {0: "start", 1: "limit", 2: "step"}
_BOXES = {0: "boxes", 1: "scores", 2: "limit", 3: "threshold", 4: "threshold"}

# Trained at any size. A domain other than ONNX's own precedes the operator.
_WEIGHTS: _Rows = {
    "BatchNormalization": _NORM,
    "Conv": {1: "kernel", 2: "bias"},
    "ConvTranspose": {1: "kernel", 2: "bias"},
    "DeformConv": {1: "kernel", 3: "bias"},
    "GRU": _RECURRENT,
    "Gather": {0: "embedding"},
    "Gemm": {0: "matrix", 1: "matrix", 2: "bias"},
    "GroupNormalization": _NORM,
    "InstanceNormalization": _NORM,
    "LSTM": {**_RECURRENT, 7: "peepholes"},
    "LayerNormalization": _NORM,
    "MatMul": {0: "matrix", 1: "matrix"},
    "PRelu": {1: "slope"},
    "RMSNormalization": {1: "scale"},
    "RNN": _RECURRENT,
    "com.microsoft.Attention": {1: "matrix", 2: "bias"},
    "com.microsoft.BiasGelu": {1: "bias"},
    "com.microsoft.EmbedLayerNormalization": {
        2: "embedding", 3: "embedding", 4: "embedding", 5: "scale", 6: "bias",
    },
    "com.microsoft.FastGelu": {1: "bias"},
    "com.microsoft.FusedConv": {1: "kernel", 2: "bias"},
    "com.microsoft.FusedMatMul": {0: "matrix", 1: "matrix"},
    "com.microsoft.GroupNorm": _NORM,
    "com.microsoft.MultiHeadAttention": {3: "bias"},
    "com.microsoft.SkipLayerNormalization": {2: "scale", 3: "bias", 4: "bias"},
    "com.microsoft.SkipSimplifiedLayerNormalization": {2: "scale", 3: "bias"},
}  # fmt: skip
# Changed by training without a gradient.
_STATISTICS: _Rows = {"BatchNormalization": {3: "running mean", 4: "running variance"}}
# Constants in every network. A bound and an initial state are trained where the file or the caller states it.
_CONSTANTS: _Rows = {
    "Clip": {1: "lower bound", 2: "upper bound"},
    "GRU": {5: "initial state"},
    "LSTM": {5: "initial state", 6: "initial state"},
    "RNN": {5: "initial state"},
}
_DEAD_CONSTANTS: _Rows = {
    "Dropout": {1: "ratio"},
    "NegativeLogLikelihoodLoss": {2: "class weights"},
    "Pad": {2: "padding value"},
    "Range": _RANGE,
    "Resize": {1: "region", 2: "scales"},
    "SoftmaxCrossEntropyLoss": {2: "class weights"},
}
# Never trained where a file stores them as constants. They are ordinary values where a network computes them, or where
# the file or the caller states that they are parameters.
_SETTINGS: _Rows = {
    "Attention": {3: "mask", 4: "past keys", 5: "past values"},
    "GridSample": {1: "grid"},
    "MaxRoiPool": {1: "regions"},
    "Pow": {1: "exponent"},
    "RoiAlign": {1: "regions"},
    "RotaryEmbedding": {1: "cosines", 2: "sines"},
    "STFT": {2: "window"},
    "Where": {0: "condition", 1: "operand", 2: "operand"},
    "DequantizeLinear": {1: "quantization scale"},
    "QLinearConv": {1: "quantization scale", 4: "quantization scale", 6: "quantization scale"},
    "QLinearMatMul": {1: "quantization scale", 4: "quantization scale", 6: "quantization scale"},
    "QuantizeLinear": {1: "quantization scale"},
    "com.microsoft.DequantizeLinear": {1: "quantization scale"},
    "com.microsoft.DynamicQuantizeMatMul": {2: "quantization scale"},
    "com.microsoft.GroupQueryAttention": {7: "cosines", 8: "sines"},
    "com.microsoft.MatMulIntegerToFloat": {2: "quantization scale", 3: "quantization scale"},
    "com.microsoft.MatMulNBits": {2: "quantization scale"},
    "com.microsoft.QAttention": {3: "quantization scale", 4: "quantization scale"},
    "com.microsoft.QGemm": {1: "quantization scale", 4: "quantization scale", 7: "quantization scale"},
    "com.microsoft.QLinearAdd": {1: "quantization scale", 4: "quantization scale", 6: "quantization scale"},
    "com.microsoft.QLinearAveragePool": {1: "quantization scale", 3: "quantization scale"},
    "com.microsoft.QLinearGlobalAveragePool": {1: "quantization scale", 3: "quantization scale"},
    "com.microsoft.QLinearLeakyRelu": {1: "quantization scale", 3: "quantization scale"},
    "com.microsoft.QLinearMul": {1: "quantization scale", 4: "quantization scale", 6: "quantization scale"},
    "com.microsoft.QLinearSigmoid": {1: "quantization scale", 3: "quantization scale"},
    "com.microsoft.QLinearSoftmax": {1: "quantization scale", 3: "quantization scale"},
    "com.microsoft.QuantizeLinear": {1: "quantization scale"},
    "com.microsoft.RotaryEmbedding": {2: "cosines", 3: "sines"},
}
# The same, and no gradient passes.
_DEAD_SETTINGS: _Rows = {
    "CastLike": {1: "element type"},
    "ConstantOfShape": {0: "shape"},
    "Equal": _COMPARED,
    "EyeLike": {0: "shape"},
    "Greater": _COMPARED,
    "GreaterOrEqual": _COMPARED,
    "IsInf": {0: "operand"},
    "IsNaN": {0: "operand"},
    "Less": _COMPARED,
    "LessOrEqual": _COMPARED,
    "MelWeightMatrix": {3: "lower edge", 4: "upper edge"},
    "NonMaxSuppression": _BOXES,
    "NonZero": {0: "operand"},
    "OneHot": {0: "indices", 1: "depth", 2: "values"},
    "RandomNormalLike": {0: "shape"},
    "RandomUniformLike": {0: "shape"},
    "Shape": {0: "shape"},
    "Size": {0: "shape"},
}


def _table() -> Iterator[tuple[tuple[str, int], Slot]]:
    groups: tuple[tuple[_Rows, Kind, bool, bool], ...] = (
        (_WEIGHTS, "weight", False, False),
        (_STATISTICS, "statistic", False, False),
        (_CONSTANTS, "setting", True, False),
        (_DEAD_CONSTANTS, "setting", True, True),
        (_SETTINGS, "setting", False, False),
        (_DEAD_SETTINGS, "setting", False, True),
    )
    for rows, kind, constant, dead in groups:
        for operator, places in rows.items():
            for position, what in places.items():
                yield (operator, position), Slot(kind=kind, what=what, constant=constant, dead=dead)


SLOTS: Mapping[tuple[str, int], Slot] = dict(_table())
"""By operator (with its domain if that is not ONNX's own) and position of the input."""


def slot_of(node: ir.Node, position: int) -> Slot | None:
    """What an operator does with an input; None if the table does not say."""
    operator = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    return SLOTS.get((operator, position))
