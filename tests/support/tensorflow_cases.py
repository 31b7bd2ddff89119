"""Operators for tests of TensorFlow's table: additions to the cases of all tables in `operator_cases`."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FURTHER", "PIECEWISE"]

RNG = np.random.default_rng(17)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*shape: int, below: int = 9, dtype: Any = np.int64) -> np.ndarray:
    return RNG.integers(0, below, shape).astype(dtype)


X, SMALL = normal(2, 3, 4), (0.8 * np.tanh(normal(2, 3))).astype(np.float32)
IMAGE, BYTES = normal(2, 3, 5, 4), whole(2, 3, below=256, dtype=np.uint8)
DISTINCT = RNG.permutation(24).reshape(2, 3, 4).astype(np.float32)
ZERO = np.array([[1.5, 0.0, 2.0, -1.0], [2.0, 3.0, 0.5, 0.25]], np.float32)
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11]]], np.float32)
ROIS = np.array([[0.3, 0.4, 3.1, 2.9], [1.2, 0.1, 3.7, 4.2]], np.float32)

FURTHER: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
    *((op, (SMALL,), {}) for op in ("Acos", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan")),
    ("Acosh", (np.abs(normal(2, 3)) + 1.1,), {}),
    ("IsInf", (np.array([1, np.inf, -np.inf, np.nan], np.float32),), {}),
    ("IsInf", (np.array([1, np.inf, -np.inf], np.float32),), {"detect_negative": 0}),
    ("Mean", (X, normal(3, 1), normal(4)), {}),
    *((op, (whole(2, 3), whole(3)), {}) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    ("BitwiseNot", (whole(2, 3),), {}),
    *(("BitShift", (BYTES, whole(3, dtype=np.uint8)), {"direction": way}) for way in ("LEFT", "RIGHT")),
    # Functions that ONNX writes in other operators
    *((op, (4 * X,), {}) for op in ("Mish", "Selu", "Softsign")),
    ("Selu", (X,), {"alpha": 1.5, "gamma": 0.8}),
    *((op, (X,), a) for op, a in (("ThresholdedRelu", {"alpha": 0.4}), ("Shrink", {"bias": 0.2, "lambd": 0.3}))),
    ("Shrink", (X,), {}),
    ("PRelu", (IMAGE, normal(3, 1, 1)), {}),
    *(("MeanVarianceNormalization", (normal(2, 3, 4, 5),), axes) for axes in ({"axes": [0, 2, 3]}, {"axes": [1, -1]})),
    *(("DepthToSpace", (normal(2, 12, 2, 3),), {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")),
    ("SpaceToDepth", (normal(2, 3, 4, 6),), {"blocksize": 2}),
    # Reductions, and along one axis
    ("ReduceLogSumExp", (X,), {"constants": ([1],)}),
    ("ReduceLogSumExp", (100 * X,), {"keepdims": 0}),
    ("ArgMax", (whole(4, 3, below=2).astype(np.float32),), {"axis": 0, "select_last_index": 1}),
    ("Hardmax", (X,), {"axis": 1}),
    *(("CumSum", (X,), {"constants": (np.int64(1),), "exclusive": e, "reverse": r}) for e in (0, 1) for r in (0, 1)),
    # Searches
    ("NonZero", (np.where(X > 0, X, 0),), {}),
    ("Compress", (X, np.array([True, False, True])), {"axis": 1}),
    ("Compress", (X, np.array([True, False, True])), {}),
    ("OneHot", (np.array([[0, -1], [7, 2]]), np.array([3]), np.array([0.5, 2], np.float32)), {"axis": 1}),
    ("TopK", (DISTINCT, np.array([2])), {"axis": 1, "outputs": 2}),
    ("TopK", (whole(3, 5),), {"constants": ([3],), "largest": 0, "outputs": 2}),
    ("Unique", (whole(8),), {"outputs": 4}),
    ("Unique", (whole(4, 2, below=2),), {"axis": 0, "outputs": 4}),
    # Indices
    ("GatherElements", (X, np.array([[[1, -2, 0, 1]], [[0, 0, -1, 2]]])), {"axis": 1}),
    ("GatherND", (X, np.array([[0, 1], [1, -1]])), {}),
    ("GatherND", (X, np.array([[0], [-2]])), {"batch_dims": 1}),
    *(
        (
            "ScatterElements",
            (X, np.array([[[0, 1, 0, -1]], [[2, 2, 1, 0]]]), normal(2, 1, 4)),
            {"axis": 1, "reduction": r},
        )
        for r in ("none", "add", "mul", "max", "min")
    ),
    *(
        ("ScatterND", (X, np.array([[0, 1], [1, -1]]), normal(2, 4)), {"reduction": r})
        for r in ("none", "add", "mul", "max", "min")
    ),
    ("ReverseSequence", (X, np.array([2, 3])), {"time_axis": 1, "batch_axis": 0}),
    # What is made
    ("EyeLike", (X[0],), {"k": -1, "dtype": 1}),
    ("Range", (np.array(0.5, np.float32), np.array(3.1, np.float32), np.array(0.7, np.float32)), {}),
    ("Range", (np.array(9), np.array(1), np.array(-3)), {}),
    ("Size", (X,), {}),
    *(("Trilu", (X,), {"constants": (np.int64(k),), "upper": up}) for k, up in ((0, 1), (1, 0), (-2, 1))),
    ("Slice", (X, np.array([1, 3]), np.array([9, -9]), np.array([1, 2]), np.array([1, -2])), {}),
    ("Tile", (X, np.array([1, 2, 3])), {}),
    *(("Pad", (X,), {"constants": ([0, 1, 2, 0, 2, 1],), "mode": mode}) for mode in ("edge", "reflect", "wrap")),
    ("Pad", (X, np.array([0, 1, 2, 0, 0, 1]), np.array(0.5, np.float32)), {}),
    # Products
    ("Einsum", (X, normal(2, 4, 5)), {"equation": "bij, bjk -> bik"}),
    ("Det", (normal(2, 3, 3),), {}),
    ("InstanceNormalization", (IMAGE, normal(3), normal(3)), {"epsilon": 0.01}),
    *(("LpNormalization", (X,), {"axis": 1, "p": p}) for p in (1, 2)),
    # Windows
    ("ConvTranspose", (IMAGE, normal(3, 2, 3, 2), normal(2)), {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ("ConvTranspose", (normal(2, 4, 6), normal(4, 2, 3)), {"group": 2, "output_padding": [1], "strides": [2]}),
    ("ConvTranspose", (IMAGE, normal(3, 2, 2, 2)), {"dilations": [2, 1], "auto_pad": "SAME_UPPER"}),
    ("ConvTranspose", (normal(1, 2, 2, 3, 2), normal(2, 2, 2, 2, 2)), {"strides": [1, 2, 2]}),
    ("AveragePool", (IMAGE,), {"kernel_shape": [2, 2], "dilations": [2, 1], "pads": [1, 0, 1, 1]}),
    ("MaxPool", (IMAGE,), {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1], "outputs": 2}),
    *(("LpPool", (IMAGE,), {"kernel_shape": [2, 2], "p": p, "strides": [2, 1]}) for p in (1, 2, 3)),
    ("Col2Im", (normal(1, 8, 9),), {"constants": ([4, 4], [2, 2])}),
    ("Col2Im", (normal(2, 12, 4),), {"constants": ([5, 5], [2, 3]), "strides": [2, 3], "pads": [0, 1, 0, 1]}),
    ("MaxUnpool", (normal(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    # Sampling
    *(
        ("Resize", (IMAGE,), {"constants": (None, None, [2, 3, *size]), "mode": mode, **options})
        for mode in ("linear", "cubic")
        for size in ((8, 2), (3, 8))
        for options in ({}, {"coordinate_transformation_mode": "align_corners"})
    ),
    ("Resize", (IMAGE,), {"constants": (None, None, [2, 3, 3, 7]), "mode": "nearest"}),
    ("Resize", (IMAGE,), {"constants": (None, None, [2, 3, 3, 3]), "mode": "linear", "antialias": 1}),
    *(
        ("GridSample", (IMAGE, SMALL_GRID), {"mode": mode, "padding_mode": padding, "align_corners": align})
        for SMALL_GRID in [(1.2 * np.tanh(normal(2, 3, 2, 2))).astype(np.float32)]
        for mode in ("linear", "cubic")
        for padding, align in (("zeros", 0), ("border", 1), ("reflection", 0))
    ),
    ("RoiAlign", (IMAGE[:, :, :, :4], ROIS, np.array([1, 0])), {"output_height": 2, "output_width": 3}),
    ("NonMaxSuppression", (BOXES, normal(1, 2, 4), np.array([2])), {"constants": (np.array([0.5], np.float32),)}),
    # Quantized numbers
    ("QuantizeLinear", (4 * X,), {"constants": (np.array(0.1, np.float32), np.array(7, np.uint8))}),
    ("QuantizeLinear", (4 * X, np.abs(normal(3)) + 0.1, np.array([0, 1, 2], np.int8)), {"axis": 1}),
    ("DequantizeLinear", (BYTES,), {"constants": (np.array(0.1, np.float32), np.array(7, np.uint8))}),
    ("MatMulInteger", (whole(2, 3, dtype=np.uint8), whole(3, 4, dtype=np.uint8), np.array(3, np.uint8)), {}),
    (
        "ConvInteger",
        (whole(1, 2, 4, 4, dtype=np.uint8), whole(3, 2, 2, 2, dtype=np.uint8), np.array(3, np.uint8)),
        {"pads": [1] * 4},
    ),
    (
        "QLinearMatMul",
        (
            *(
                whole(2, 3, dtype=np.uint8),
                np.array(0.1, np.float32),
                np.array(3, np.uint8),
                whole(3, 4, dtype=np.uint8),
            ),
            *(np.array(0.2, np.float32), np.array(4, np.uint8), np.array(0.15, np.float32), np.array(5, np.uint8)),
        ),
        {},
    ),
    (
        "QLinearConv",
        (
            *(
                whole(1, 2, 4, 4, dtype=np.uint8),
                np.array(0.1, np.float32),
                np.array(3, np.uint8),
                whole(3, 2, 2, 2, dtype=np.uint8),
            ),
            *(np.array(0.2, np.float32), np.array(4, np.uint8), np.array(0.15, np.float32), np.array(5, np.uint8)),
        ),
        {"strides": [2, 1]},
    ),
    # Signals
    ("DFT", (normal(2, 6, 1),), {"onesided": 1}),
    ("DFT", (normal(2, 6, 2), np.array(8)), {"inverse": 1}),
    ("STFT", (normal(1, 16, 1),), {"constants": (np.int64(4), np.hanning(8).astype(np.float32))}),
    (
        "MelWeightMatrix",
        (),
        {"constants": (np.int64(8), np.int64(16), np.int64(8192), np.array(0, np.float32), np.array(4096, np.float32))},
    ),
]
# Outputs that are not floating-point numbers, are piecewise constant, or are random.
PIECEWISE = {
    *("BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "ConvInteger", "DequantizeLinear"),
    *("EyeLike", "Hardmax", "IsInf", "MatMulInteger", "MelWeightMatrix", "NonMaxSuppression", "NonZero"),
    *("QLinearConv", "QLinearMatMul", "QuantizeLinear", "Range", "Size", "Unique"),
    # Its other outputs are integers: see `test_tensorflow_further`.
    *("TopK",),
}
