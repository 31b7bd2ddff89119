"""Products of uint8 and int8 on ONNX Runtime, compared with 64-bit integers, on any processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.frameworks.onnxruntime.eight_bits import saturates

DRAW = np.random.default_rng(3)
A = DRAW.integers(0, 256, (4, 16)).astype(np.uint8)
B = DRAW.integers(-128, 128, (16, 5)).astype(np.int8)
X = DRAW.integers(0, 256, (1, 8, 6, 6)).astype(np.uint8)
W = DRAW.integers(-128, 128, (4, 8, 3, 3)).astype(np.int8)
SCALE, STEP = np.float32(2**-6), np.float32(0.25)  # powers of two: quotients are exact
ZERO, POINT, SHIFT = np.array(3, np.uint8), np.array(-5, np.int8), np.array(128, np.uint8)
PRODUCT = (A.astype(np.int64) - 3) @ (B.astype(np.int64) + 5)


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), w.shape[2:], (2, 3))
    return np.einsum("ncijkl,ockl->noij", windows, w.astype(np.int64))


CONVOLVED = convolved(X, W) - 3 * W.astype(np.int64).sum((1, 2, 3)).reshape(1, -1, 1, 1)


def quantized(y: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(y * (float(SCALE) ** 2 / float(STEP))) + 128, 0, 255)


# Operator, its inputs, what is right, and the element type of the output.
CASES: dict[str, tuple[Sequence[Any], np.ndarray, Any]] = {
    "MatMulInteger": ([A, B, ZERO, POINT], PRODUCT, np.int32),
    "QLinearMatMul": ([A, SCALE, ZERO, B, SCALE, POINT, STEP, SHIFT], quantized(PRODUCT), np.uint8),
    "QLinearConv": (
        [X, SCALE, ZERO, W, SCALE, np.array(0, np.int8), STEP, SHIFT], quantized(CONVOLVED), np.uint8,
    ),
    "MatMulIntegerToFloat": ([A, B, SCALE, SCALE, ZERO, POINT], PRODUCT * float(SCALE) ** 2, np.float32),
    "QGemm": ([A, SCALE, ZERO, B, SCALE, POINT, None, STEP, SHIFT], quantized(PRODUCT), np.uint8),
    # 0 and 255 are among the data, so that their scale is 1 and their zero point 0.
    "DynamicQuantizeMatMul": (
        [np.concatenate([A, [[0, 255] * 8]]).astype(np.float32), B, SCALE, POINT],
        np.concatenate([A, [[0, 255] * 8]]).astype(np.int64) @ (B.astype(np.int64) + 5) * float(SCALE),
        np.float32,
    ),
}  # fmt: skip
STANDARD = ("MatMulInteger", "QLinearMatMul", "QLinearConv")


def model(operator: str, fed: Sequence[int]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    inputs, right, kind = CASES[operator]
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    arrays = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if name}
    given = {f"x{at}": arrays[f"x{at}"] for at in fed}
    domain = "" if operator in STANDARD else "com.microsoft"
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in (*given.items(), ("y", np.empty(right.shape, kind)))
    ]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in given]
    node = helper.make_node(operator, names, ["y"], domain=domain)
    graph = helper.make_graph([node], "g", values[:-1], values[-1:], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


@pytest.mark.parametrize("weights_are_fed", [False, True])
@pytest.mark.parametrize("operator", CASES)
def test_products_are_exact(operator: str, weights_are_fed: bool) -> None:
    weights = 3 if operator in ("QLinearMatMul", "QLinearConv", "QGemm") else 1
    proto, given = model(operator, [0, weights] if weights_are_fed else [0])
    y = d5.to_numpy(d5.framework("onnxruntime").executor(d5.Network.from_onnx(proto)).inference(given)["y"])
    # Integers are exact; floats are rounded once or twice to float32.
    np.testing.assert_allclose(y, CASES[operator][1], rtol=3e-7 if y.dtype == np.float32 else 0)


@pytest.mark.parametrize("operator", CASES)
def test_the_rewrite_is_needed_where_this_processor_saturates(operator: str) -> None:
    """Fails where plain ONNX Runtime is right though `saturates` says that it is not, or the other way round."""
    proto, given = model(operator, [0])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    exact = np.allclose(session.run(None, given)[0], CASES[operator][1], rtol=3e-7, atol=0)
    assert exact != saturates()


@pytest.mark.parametrize("zero", [np.array(0, np.int8), np.zeros(4, np.int8)], ids=["one", "per_channel"])
def test_a_convolution_between_quantizations_is_exact(zero: np.ndarray) -> None:
    """With all optimizations, ONNX Runtime fuses it into a quantized convolution."""
    factor = np.full(zero.shape, SCALE, np.float32)
    arrays = {"s": SCALE, "z": ZERO, "w": W, "f": factor, "p": zero, "t": STEP, "h": SHIFT}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "f", "p"], ["b"], axis=0),
        helper.make_node("Conv", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "h"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape)
        for name, shape in (("x", X.shape), ("y", CONVOLVED.shape))
    ]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    y = d5.to_numpy(d5.framework("onnxruntime").executor(d5.Network.from_onnx(proto)).inference({"x": X})["y"])
    np.testing.assert_array_equal(y, quantized(CONVOLVED))
