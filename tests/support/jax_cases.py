"""Operators for tests of the JAX table: by sheets, each of which becomes one network."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ELSEWHERE", "FURTHER", "Case", "Draw", "fed", "ints", "positive", "trained"]


class Draw:
    """An operand: random from its own stream, and fed, trained or fixed."""

    def __init__(self, kind: str, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> None:
        self.kind, self.shape, self.low, self.high = kind, shape, low, high


def fed(*shape: int) -> Draw:
    return Draw("fed", shape)


def positive(*shape: int) -> Draw:
    return Draw("fed", shape, 0.5, 2.0)


def small(*shape: int) -> Draw:
    return Draw("fed", shape, -0.9, 0.9)


def trained(*shape: int) -> Draw:
    return Draw("trained", shape)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


Case = tuple[str, tuple[Any, ...], dict[str, Any]]
WHOLE = np.array([[7, -7, 5], [-3, 2, -1]])
BYTES = np.array([200, 3, 129], np.uint8)
PLACES = np.array([[0, 2, -1], [1, 1, 0]])
FURTHER: dict[str, list[Case]] = {
    "further functions": [
        *[(name, (small(2, 3),), {}) for name in ("Acos", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan")],
        ("Acosh", (Draw("fed", (2, 3), 1.5, 3.0),), {}),
        ("Mean", (fed(2, 3), fed(3), fed(2, 1)), {}),
        ("IsInf", (fed(2, 3),), {"detect_negative": 0}),
        *[(f"Bitwise{name}", (WHOLE, WHOLE[::-1].copy()), {}) for name in ("And", "Or", "Xor")],
        ("BitwiseNot", (WHOLE,), {}),
        *[("BitShift", (BYTES, np.array([1, 7, 2], np.uint8)), {"direction": way}) for way in ("LEFT", "RIGHT")],
        ("CastLike", (WHOLE, fed(1)), {}),
        ("Det", (fed(2, 3, 3),), {}),
        *[("Einsum", (fed(2, 3), fed(3, 4)), {"equation": text}) for text in ("ij,jk", "ij , jk -> k", "...j,jk->...")],
        ("Size", (fed(2, 3),), {}),
        *[("ArgMax", (WHOLE,), {"axis": axis, "select_last_index": 1}) for axis in (0, -1)],
    ],
    "functions that ONNX writes in other operators": [
        *[(name, (fed(2, 3, 4),), {}) for name in ("Mish", "Selu", "Softsign", "ThresholdedRelu", "Shrink")],
        ("Selu", (fed(2, 3),), {"alpha": 1.5, "gamma": 0.8}),
        ("ThresholdedRelu", (fed(2, 3),), {"alpha": 0.4}),
        ("Shrink", (fed(2, 3),), {"bias": 0.2, "lambd": 0.3}),
        ("PRelu", (fed(2, 3, 4), trained(3, 1)), {}),
        ("ReduceLogSumExp", (fed(2, 3, 4), ints(1)), {}),
        ("ReduceLogSumExp", (fed(2, 3),), {"keepdims": 0}),
        *[("DepthToSpace", (fed(2, 12, 2, 3),), {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")],
        ("SpaceToDepth", (fed(2, 3, 4, 6),), {"blocksize": 2}),
    ],
    "indices": [
        *[("GatherElements", (fed(3 - axis, 3), PLACES), {"axis": axis}) for axis in (0, 1)],
        ("GatherND", (fed(2, 3, 4), np.array([[0, 2], [-1, 1]])), {}),
        ("GatherND", (fed(2, 3, 4), np.array([[2], [-1]])), {"batch_dims": 1}),
        *[
            ("ScatterElements", (fed(3, 3), PLACES, fed(2, 3)), {"reduction": how})
            for how in ("none", "add", "mul", "max", "min")
        ],
        *[
            ("ScatterND", (fed(4, 2), np.array([[3], [-3]]), trained(2, 2)), {"reduction": how})
            for how in ("none", "add", "mul", "max", "min")
        ],
        ("ScatterND", (fed(4), np.array([[3], [3]]), fed(2)), {"reduction": "add"}),
        ("OneHot", (ints(1, -1, 7), np.array(3), ints(2, 5)), {"axis": 0}),
        ("ReverseSequence", (fed(4, 3), ints(1, 4, 2)), {}),
        ("TopK", (fed(2, 5), ints(2)), {"outputs": 2}),
        ("TopK", (fed(5, 2), ints(3)), {"outputs": 2, "axis": 0, "largest": 0}),
        ("TopK", (WHOLE, ints(2)), {"outputs": 2, "largest": 0}),
        ("Hardmax", (fed(2, 3),), {"axis": 0}),
        ("EyeLike", (fed(2, 3),), {"k": 1}),
        *[("Trilu", (fed(2, 3, 3), np.array(k)), {"upper": upper}) for k, upper in ((1, 1), (-1, 0))],
        *[
            ("CumSum", (fed(2, 3), np.array(-1)), {"exclusive": exclusive, "reverse": reverse})
            for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1))
        ],
    ],
    "resize": [
        *[
            ("Resize", (fed(1, 2, 4, 5), None, np.array([1, 1, 0.6, 1.7], np.float32)), {"mode": mode, **options})
            for mode in ("nearest", "linear", "cubic")
            for options in (
                {},
                {"coordinate_transformation_mode": "align_corners"},
                {"coordinate_transformation_mode": "asymmetric"},
                {"coordinate_transformation_mode": "half_pixel_symmetric"},
                *([{"antialias": 1}] if mode != "nearest" else []),
            )
        ],
        ("Resize", (fed(1, 1, 4, 5), None, None, ints(6, 3)), {"axes": [2, 3], "mode": "cubic", "exclude_outside": 1}),
    ],
    "windows": [
        (
            "ConvTranspose",
            (fed(1, 4, 3, 4), trained(4, 3, 2, 3), trained(3)),
            {"strides": [2, 1], "pads": [1, 0, 0, 2]},
        ),
        ("Col2Im", (fed(1, 8, 6), ints(3, 4), ints(2, 2)), {}),
        ("InstanceNormalization", (fed(2, 3, 4), trained(3), trained(3)), {}),
        ("LpNormalization", (fed(2, 3),), {}),
    ],
    "signal": [
        *[("DFT", (fed(1, 5, 2, 1), None, np.array(axis)), {"onesided": half}) for axis, half in ((1, 0), (1, 1))],
        ("DFT", (fed(1, 5, 2), np.array(4)), {}),
        ("DFT", (fed(1, 5, 2),), {"inverse": 1}),
        ("STFT", (fed(1, 12, 1), np.array(3), fed(6)), {"onesided": 1}),
    ],
}
"""Operators beyond the layers of deep5's own networks."""
# In `test_jax_operators.py`: operators that the builder's opset lacks, that draw, that are not functions only of
# arrays, or that onnx's own implementation gets wrong.
ELSEWHERE = {
    *("AffineGrid", "ReduceL2", "Upsample"),
    *("BitCast", "Celu", "CumProd", "GroupNormalization", "TensorScatter"),
    *("MeanVarianceNormalization", "RMSNormalization", "SwiGLU", "Swish"),
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Compress", "If", "Loop", "Scan", "NonMaxSuppression", "NonZero", "Range", "Unique"),
    *("GRU", "LSTM", "RNN"),
    *("DeformConv", "GridSample", "LpPool", "MaxUnpool", "MelWeightMatrix", "RoiAlign"),
    *("ConvInteger", "DequantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear"),
    *(f"ai.onnx.preview.training.{name}" for name in ("Adagrad", "Adam", "Momentum")),
}
