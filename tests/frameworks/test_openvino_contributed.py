"""ONNX Runtime's own operators on OpenVINO, of known and unknown sizes: its results, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper

import deep5 as d5
from deep5.core.errors import Unsupported
from original import compared, declared, graph_model

pytestmark = pytest.mark.usefixtures("warm")

DRAW = np.random.default_rng(5)
QUANTIZED = {
    "s": np.float32(0.013), "t": np.float32(0.021), "v": np.float32(0.031),
    "z": np.array(253, np.uint8), "u": np.array(5, np.uint8),
}  # fmt: skip


def f32(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, shape).astype(np.uint8)


class Case(NamedTuple):
    """One node.

    Attributes:
        op_type: The operator.
        names: Its inputs by name; empty for those left out.
        fed: The inputs that are fed.
        constant: The others.
        attributes: The node's attributes.
        outputs: Its outputs; empty for those left out.
        declared: Their shape; None to declare none.
    """

    op_type: str
    names: str
    fed: Mapping[str, np.ndarray]
    constant: Mapping[str, np.ndarray] = {}
    attributes: Mapping[str, Any] = {}
    outputs: Sequence[str] = ("y",)
    declared: Sequence[int | str] | None = None

    def model(self, known: bool) -> onnx.ModelProto:
        names = ["" if name == "-" else name for name in self.names.split()]
        node = helper.make_node(self.op_type, names, self.outputs, domain="com.microsoft", **self.attributes)
        inputs = [
            declared(
                name, value.shape if known else ["n", *value.shape[1:]], helper.np_dtype_to_tensor_dtype(value.dtype)
            )
            for name, value in self.fed.items()
        ]
        kind = 2 if self.op_type.startswith("QLinear") else 1
        outputs = [declared(name, self.declared, kind) for name in self.outputs if name]
        return graph_model([node], inputs, outputs, self.constant, domains={"com.microsoft": 1})


def product(a: tuple[int, ...], b: tuple[int, ...], **attributes: Any) -> Case:
    return Case("FusedMatMul", "a b", {"a": f32(*a)}, {"b": f32(*b)}, attributes)


def convolution(**attributes: Any) -> Case:
    constant = {"w": f32(6, 4, 3, 3), "b": f32(6)}
    return Case("FusedConv", "x w b", {"x": f32(2, 4, 7, 6)}, constant, {"kernel_shape": [3, 3], **attributes})


def dense(**attributes: Any) -> Case:
    return Case("FusedGemm", "a b c", {"a": f32(3, 4)}, {"b": f32(5, 4), "c": f32(5)}, {"transB": 1, **attributes})


def attended(names: str = "q k v", more: Mapping[str, np.ndarray] = {}, **attributes: Any) -> Case:
    fed = {"q": f32(2, 5, 8), "k": f32(2, 6, 8), "v": f32(2, 6, 8), **more}
    return Case(
        "MultiHeadAttention", names, fed, {"b": f32(24)} if " b" in names else {}, {"num_heads": 2, **attributes}
    )


def normalized(op_type: str, names: str, **attributes: Any) -> Case:
    vectors = {name: f32(8) for name in ("g", "e", "b") if name in names.split()}
    return Case(op_type, names, {"x": f32(2, 3, 8), "s": f32(2, 3, 8)}, vectors, attributes)


def whole(**more: np.ndarray) -> Case:
    """A product of integers, scaled."""
    constant = {"b": u8(4, 5), "s": QUANTIZED["s"], "t": QUANTIZED["t"], **more}
    names = ["a", "b", "s", "t", *(name if name in more else "-" for name in ("z", "u", "c"))]
    return Case("MatMulIntegerToFloat", " ".join(names).rstrip(" -"), {"a": u8(3, 4)}, constant)


COLUMNS = {"t": np.array([0.01, 0.02, 0.03, 0.04, 0.05], np.float32), "u": np.arange(5).astype(np.uint8)}
SKIP, SIMPLE = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
RIGHT = {
    "Gelu": Case("Gelu", "x", {"x": f32(3, 5) * 4}),
    "QuickGelu": Case("QuickGelu", "x", {"x": f32(3, 5) * 4}, attributes={"alpha": 0.5}),
    "FastGelu": Case("FastGelu", "x", {"x": f32(3, 5) * 4}),
    "FastGelu with a bias": Case("FastGelu", "x b", {"x": f32(3, 5) * 4}, {"b": f32(5)}),
    "BiasGelu": Case("BiasGelu", "x b", {"x": f32(2, 3, 5) * 4}, {"b": f32(5)}),
    "FusedMatMul": product((3, 4), (4, 5), alpha=0.3),
    "FusedMatMul of transposed": product((2, 4, 3), (2, 5, 4), transA=1, transB=1),
    "FusedMatMul of a vector": product((4,), (4, 5), transA=1),
    "FusedMatMul of a batch": product((2, 1, 3, 4), (3, 4, 5)),
    "FusedGemm": dense(activation="Relu", alpha=0.5, beta=2.0),
    "FusedGemm, leaky": dense(activation="LeakyRelu", activation_alpha=0.2),
    "FusedConv": convolution(activation="Relu", pads=[1, 0, 1, 2], strides=[2, 1]),
    "FusedConv, leaky": convolution(activation="LeakyRelu", activation_params=[0.2]),
    "FusedConv, clipped": convolution(activation="Clip", activation_params=[-0.5, 0.6]),
    "FusedConv, hard sigmoid": convolution(activation="HardSigmoid", activation_params=[0.3, 0.4]),
    "FusedConv, tanh": convolution(activation="Tanh", auto_pad="SAME_LOWER", strides=[2, 2]),
    "FusedConv with a sum": convolution(activation="Relu", pads=[1, 1, 1, 1])._replace(
        names="x w b r", fed={"x": f32(2, 4, 7, 6), "r": f32(2, 6, 7, 6)}
    ),
    "MatMulIntegerToFloat": whole(),
    "MatMulIntegerToFloat with zero points": whole(z=QUANTIZED["z"], u=QUANTIZED["u"]),
    "MatMulIntegerToFloat by column": whole(z=QUANTIZED["z"], c=f32(5), **COLUMNS),
    "DequantizeLinear": Case("DequantizeLinear", "x s z", {"x": u8(3, 50)}, QUANTIZED),
    "MultiHeadAttention": attended(),
    "MultiHeadAttention, biased and scaled": attended("q k v b", scale=0.1),
    "MultiHeadAttention, masked": attended("q k v - m", {"m": np.array([[0] * 6, [1, 1, 0, 1, 1, 1]], np.int32)}),
    "MultiHeadAttention, lengths": attended("q k v - m", {"m": np.array([3, 6], np.int32)}),
    "MultiHeadAttention, summed": attended("q k v - - m", {"m": f32(2, 2, 5, 6)}),
    SKIP: normalized(SKIP, "x s g e b", epsilon=1e-5),
    f"{SKIP} alone": normalized(SKIP, "x s g"),
    f"{SKIP} with the sum": normalized(SKIP, "x s g e", epsilon=0.1)._replace(
        outputs=("y", "", "", "sum"), declared=("n", 3, 8)
    ),
    SIMPLE: normalized(SIMPLE, "x s g b", epsilon=0.1),
}
REFUSED = {
    "FusedMatMul of transposed batches": (product((3, 3, 3), (3, 3, 3), transBatchA=1), "transBatchA=1"),
    "FusedGemm, tanh": (dense(activation="Tanh"), "activation='Tanh'"),
    "causal": (attended(unidirectional=1), "unidirectional=1"),
    "another filter": (attended(mask_filter_value=-3.0), "mask_filter_value"),
    "the mean": (
        normalized(SIMPLE, "x s g b")._replace(outputs=("y", "mean"), declared=(2, 3, "k")), "outputs of the mean",
    ),
    "a bias without beta": (normalized(SKIP, "x s g - b"), "a bias without beta"),
    "Attention": (
        Case("Attention", "x w b", {"x": f32(2, 5, 8)}, {"w": f32(8, 24), "b": f32(24)}, {"num_heads": 2}), "Attention",
    ),
    "RotaryEmbedding": (
        Case("RotaryEmbedding", "x p c c", {"x": f32(2, 2, 5, 8)}, {"p": np.array([3]), "c": f32(9, 4)}),
        "RotaryEmbedding of the domain",
    ),
    "DynamicQuantizeMatMul": (
        Case("DynamicQuantizeMatMul", "a b t u", {"a": f32(3, 4)}, {**QUANTIZED, "b": u8(4, 5)}),
        "DynamicQuantizeMatMul of the domain",
    ),
    "QLinearMul": (
        Case("QLinearMul", "a s z a t u v u", {"a": u8(3, 4)}, QUANTIZED), "QLinearMul of the domain 'com.microsoft'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("name", RIGHT)
def test_what_runs_is_onnx_runtime_s(name: str, known: bool) -> None:
    model = RIGHT[name].model(known)
    compared(d5.Network.from_onnx(model), model, "openvino", RIGHT[name].fed)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_the_back_end_that_has_them(name: str) -> None:
    case, what = REFUSED[name]
    network = d5.Network.from_onnx(case.model(True))
    with pytest.raises(Unsupported) as refused:
        d5.framework("openvino").executor(network)
    assert what in str(refused.value)
    assert "allowed: " in str(refused.value)
    assert "remedy: framework 'onnxruntime'" in str(refused.value)
    compared(network, case.model(True), "onnxruntime", case.fed)
