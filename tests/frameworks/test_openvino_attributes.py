"""Attributes that OpenVINO ignores or misreads: rewritten, or refused by name.

Expected values are those of plain ONNX Runtime without optimizations, or of ONNX's reference, on the file itself. Each
case also fails when plain OpenVINO is right, so the rule can go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import Unsupported
from deep5.frameworks.openvino.model import supports
from deep5.frameworks.openvino.substitutes import substituted
from original import plain

INF = np.float32(np.inf)
DRAW = np.random.default_rng(7)


class Case(NamedTuple):
    """One node on one input `x`.

    Attributes:
        op_type: The operator.
        x: The input.
        others: Further inputs, which are constants; None for those left out.
        attributes: The node's attributes.
        refused: What the message says if the node is refused.
        declared: The declared sizes of the input.
        reference: Whether ONNX's reference computes the expected value.
        outputs: The number of outputs.
    """

    op_type: str
    x: np.ndarray
    others: Sequence[np.ndarray | None] = ()
    attributes: Mapping[str, Any] = {}
    refused: str | None = None
    declared: Sequence[int | str] | None = None
    reference: bool = False
    outputs: int = 1

    def model(self) -> onnx.ModelProto:
        names = ["" if value is None else f"c{number}" for number, value in enumerate(self.others)]
        outputs = [f"y{number}" for number in range(self.outputs)]
        graph = helper.make_graph(
            [helper.make_node(self.op_type, ["x", *names], outputs, name="node", **self.attributes)],
            "graph",
            [helper.make_tensor_value_info("x", 1, self.x.shape if self.declared is None else self.declared)],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in zip(names, self.others, strict=True) if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    def expected(self) -> np.ndarray:
        if self.reference:
            return np.asarray(ReferenceEvaluator(self.model()).run(None, {"x": self.x})[0])
        return np.asarray(plain(self.model(), {"x": self.x})["y0"])


def f32(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


BOXES = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
CASES: dict[str, Case] = {
    "Mod by infinity": Case(
        "Mod", np.array([1, -3, 5.5, -5.5], np.float32), [np.array([INF, -INF, 3, 3], np.float32)], {"fmod": 1}
    ),
    "ConvTranspose SAME of unknown size": Case(
        "ConvTranspose",
        f32(1, 1, 1, 2),
        [f32(1, 1, 1, 3)],
        {"strides": [1, 2], "auto_pad": "SAME_UPPER"},
        declared=[1, 1, 1, "l"],
    ),
    "AveragePool that counts padding": Case(
        "AveragePool",
        np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4),
        [],
        {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1, "count_include_pad": 1},
    ),
    "MaxPool whose last window starts in the padding": Case(
        "MaxPool", f32(1, 1, 7), [], {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1}
    ),
    "ReduceL1 of no axes": Case("ReduceL1", f32(3), [], {"noop_with_empty_axes": 1}),
    "Max of one": Case("Max", f32(4, 3)),
    "NonMaxSuppression of scores below 0": Case(
        "NonMaxSuppression",
        BOXES,
        [np.array([[[-0.5, 0.5]]], np.float32), np.array([2])],
        refused="got no score_threshold",
    ),
    "Resize with antialias": Case(
        "Resize",
        f32(1, 1, 1, 8),
        [None, None, np.array([1, 1, 1, 3])],
        {"mode": "linear", "antialias": 1},
        refused="antialias=1, which OpenVINO ignores",
    ),
    "cubic Resize that excludes the outside": Case(
        "Resize",
        f32(1, 1, 4, 4),
        [None, np.array([1, 1, 2, 2], np.float32)],
        {"mode": "cubic", "exclude_outside": 1},
        refused="exclude_outside=1, which OpenVINO ignores",
    ),
    "RoiAlign of the largest": Case(
        "RoiAlign",
        f32(1, 1, 6, 6),
        [np.array([[0.3, 0.4, 4.1, 4.9]], np.float32), np.array([0])],
        {"mode": "max", "output_height": 2, "output_width": 2, "sampling_ratio": 2},
        refused="mode='max'",
    ),
    "DFT of the last axis but one": Case(
        "DFT", f32(1, 2, 4, 1), [], {}, refused="the axis -2, and OpenVINO computes along axis 1", reference=True
    ),
    "LpPool with an incomplete window": Case(
        "LpPool",
        f32(1, 1, 7),
        [],
        {"kernel_shape": [2], "strides": [3], "ceil_mode": 1, "p": 2},
        refused="got ceil_mode=1",
        reference=False,
    ),
    "AveragePool that counts padding of unknown size": Case(
        "AveragePool",
        np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4),
        [],
        {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1, "count_include_pad": 1},
        refused="got ceil_mode=1 with pads",
        declared=[1, 1, "l"],
    ),
    "Einsum of the input itself": Case("Einsum", f32(2, 3), [], {"equation": "ij"}),
    "Slice by the largest steps": Case(
        "Slice", f32(5, 6), [np.array([3]), np.array([-(2**63)]), np.array([0]), np.array([-(2**63) + 1])]
    ),
    "Shrink of infinities": Case("Shrink", np.array([INF, -INF, 1, -0.25], np.float32), [], {"bias": 0.5}),
    "ThresholdedRelu of an infinity": Case("ThresholdedRelu", np.array([INF, -INF, 1, 1.5], np.float32)),
    "NaN as a bool": Case("Cast", np.array([np.nan, 0, -0.0, 2], np.float32), [], {"to": 9}),
    "NonMaxSuppression of an overlap at the threshold": Case(
        "NonMaxSuppression",
        np.array([[[0, 0, 2, 1], [0, 0, 1, 1]]], np.float32),
        [np.array([[[0.5, 0.25]]], np.float32), np.array([5]), np.array([0.5], np.float32), np.array([0], np.float32)],
    ),
    "ConvTranspose to a shape": Case(
        "ConvTranspose",
        f32(1, 1, 4, 4),
        [f32(1, 1, 3, 3)],
        {"strides": [3, 2], "auto_pad": "SAME_UPPER", "output_shape": [10, 8]},
    ),
    "ConvTranspose to a shape with more output": Case(
        "ConvTranspose",
        f32(1, 2, 4, 4),
        [f32(2, 1, 3, 3)],
        {"group": 2, "strides": [2, 2], "output_padding": [1, 1], "output_shape": [8, 7]},
    ),
    "ConvTranspose to a shape from unknown sizes": Case(
        "ConvTranspose",
        f32(1, 1, 4, 4),
        [f32(1, 1, 3, 3)],
        {"strides": [2, 2], "output_padding": [1, 1], "output_shape": [8, 7]},
        refused="got output_shape",
        declared=[1, 1, "h", "w"],
    ),
    "Resize by a policy": Case(
        "Resize",
        f32(1, 1, 3, 4),
        [None, None, np.array([5, 7])],
        {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        refused="got keep_aspect_ratio_policy='not_larger'",
    ),
    "a sum without elements": Case("Add", f32(1), [f32(0)], refused="its result has no elements"),
}


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.daily
@pytest.mark.parametrize("name", CASES)
def test_right_or_refused(name: str) -> None:
    case = CASES[name]
    network = d5.Network.from_onnx(case.model())
    if case.refused is not None:
        with pytest.raises(Unsupported, match=case.refused):
            d5.framework("openvino").executor(network)
        return
    executor = d5.framework("openvino").executor(network)
    assert same(d5.to_numpy(executor.inference({"x": case.x})["y0"]), case.expected())


@pytest.mark.daily
@pytest.mark.parametrize("name", CASES)
def test_openvino_is_still_wrong(name: str) -> None:
    import openvino

    case = CASES[name]
    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(case.model().SerializeToString()), "CPU", options)
    request, given = compiled.create_infer_request(), np.ascontiguousarray(case.x)
    request.set_input_tensor(openvino.Tensor(given, shared_memory=True))
    lent = np.full(case.expected().shape, 77, case.expected().dtype)
    if (
        lent.size
        and compiled.outputs[0].partial_shape.is_static
        and list(compiled.outputs[0].shape) == list(lent.shape)
    ):
        request.set_output_tensor(0, openvino.Tensor(lent, shared_memory=True))  # as deep5 does
    try:
        request.infer()
    except RuntimeError:
        return
    assert not same(request.get_output_tensor(0).data, case.expected()), (
        f"openvino {openvino.__version__} is right here; remedy: remove the rule for {name}"
    )


def test_computed_repeats_of_bytes_are_refused() -> None:
    inputs = [helper.make_tensor_value_info("x", 3, [2]), helper.make_tensor_value_info("n", 7, [1])]
    output = helper.make_tensor_value_info("y", 3, ["o"])
    graph = helper.make_graph([helper.make_node("Tile", ["x", "n"], ["y"])], "graph", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with pytest.raises(Unsupported, match="got INT8 and computed repeats"):
        d5.framework("openvino").executor(d5.Network.from_onnx(model))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("framework", ["onnxruntime", "openvino"])
def test_a_transposed_kernel_below_its_stride(framework: str, auto_pad: str) -> None:
    """Its result has the input's size times the stride, with nothing but the bias between the kernels."""
    case = Case(
        "ConvTranspose",
        np.array([[[1, 2]]], np.float32),
        [np.array([[[1, 10]]], np.float32)],
        {"strides": [3], "auto_pad": auto_pad},
        declared=[1, 1, "l"],
    )
    executor = d5.framework(framework).executor(d5.Network.from_onnx(case.model()))
    found = d5.to_numpy(executor.inference({"x": case.x})["y0"])
    np.testing.assert_array_equal(found, [[[1, 10, 0, 2, 20, 0]]])


def test_an_operator_of_onnx_runtime_s_own_is_refused_with_a_remedy_that_has_it() -> None:
    extents = {
        "x": ([3, 1, 2], ir.DataType.FLOAT),
        "w": ([1, 2, 8], ir.DataType.INT8),
        "r": ([1, 2, 8], ir.DataType.INT8),
    }
    inputs = [
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind)) for name, (shape, kind) in extents.items()
    ]
    node = ir.node("DynamicQuantizeLSTM", inputs, {"hidden_size": 2}, domain="com.microsoft")
    support = supports(node)
    assert not support
    assert support.reason.endswith("remedy: framework 'onnxruntime'")


TIES = np.arange(-40, 40, dtype=np.float32) / 2


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("zero", [np.int8(7), np.int8(-4), np.uint8(7), np.uint8(8), np.uint16(701), np.int16(-3)])
def test_ties_round_to_even_before_the_zero_point(zero: np.generic, scale: float) -> None:
    case = Case("QuantizeLinear", TIES * scale, [np.array(scale, np.float32), np.array(zero)], declared=["n"])
    model = case.model()
    model.opset_import[0].version = 21  # 16 bits
    expected = plain(model, {"x": case.x})["y0"]
    found = d5.framework("openvino").executor(d5.Network.from_onnx(model)).inference({"x": case.x})["y0"]
    np.testing.assert_array_equal(d5.to_numpy(found), expected)


def test_what_is_dequantized_again_stays_as_it_is_and_differs_by_one_step_at_most() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    initial = [numpy_helper.from_array(np.array(0.5, np.float32), "s"), numpy_helper.from_array(np.uint8(7), "z")]
    x, y = (helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "graph", [x], [y], initial), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    network = d5.Network.from_onnx(model)
    assert substituted(network) is network
    expected = plain(model, {"x": TIES / 2})["y"]
    found = d5.to_numpy(d5.framework("openvino").executor(network).inference({"x": TIES / 2})["y"])
    assert set(np.abs(found - expected)) == {0.0, 0.5}  # if only 0, OpenVINO rounds as ONNX does


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_ties_by_slice(axis: int, known: bool) -> None:
    x = np.ascontiguousarray(np.moveaxis(np.stack([TIES, TIES * 2, TIES / 2]).reshape(3, 8, 10), 0, axis))
    others = [np.array([1, 2, 0.5], np.float32), np.array([3, 8, 251], np.uint8)]
    case = Case("QuantizeLinear", x, others, {"axis": axis}, declared=None if known else ["a", "b", "c"])
    found = d5.framework("openvino").executor(d5.Network.from_onnx(case.model())).inference({"x": x})["y0"]
    np.testing.assert_array_equal(d5.to_numpy(found), case.expected())


@pytest.mark.parametrize("low", [-120, -255, 0, -37])
def test_dynamic_quantization_rounds_ties_to_even(low: int) -> None:
    x = np.concatenate([[low, low + 255], DRAW.integers(2 * low, 2 * low + 510, 60) / 2]).astype(np.float32)
    case = Case("DynamicQuantizeLinear", x, declared=["n"], outputs=3)
    network = d5.Network.from_onnx(case.model())
    executor = d5.framework("openvino").executor(network)
    for fed in (x, np.zeros_like(x)):
        expected = plain(case.model(), {"x": fed})
        found = executor.inference({"x": fed})
        for name, value in expected.items():
            np.testing.assert_array_equal(d5.to_numpy(found[name]), value, err_msg=name)


def test_a_computed_zero_point_of_unknown_rank_is_refused() -> None:
    inputs = [
        ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT)),
        ir.Value(name="s", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT)),
        ir.Value(name="z", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.UINT8)),
    ]
    support = supports(ir.node("QuantizeLinear", inputs))
    assert not support
    assert "moves ties" in support.reason
    assert "allowed: even zero points" in support.reason
