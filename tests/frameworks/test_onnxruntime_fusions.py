"""Optimizations of ONNX Runtime that a session leaves out; the values are those of plain ONNX Runtime without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.frameworks.onnxruntime.fusions import left_out

DRAW = np.random.default_rng(11)
WRONG = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion", "Pad_Fusion", "MatMulScaleFusion")


def model(nodes: list[Any], x: np.ndarray, weights: dict[str, Any], declared: Any = None) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", kind, x.shape if declared is None else declared)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)


def plainly(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """What ONNX Runtime computes from the file itself without any optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def in_deep5(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    executor = d5.framework("onnxruntime").executor(d5.Network.from_onnx(proto))
    return d5.to_numpy(executor.inference({"x": x})["y"])


def padded(pool: str, pads: list[int], value: float | None, **attributes: Any) -> list[onnx.NodeProto]:
    inputs = ["x", "pads"] if value is None else ["x", "pads", "value"]
    return [
        helper.make_node("Pad", inputs, ["padded"]),
        helper.make_node(pool, ["padded"], ["y"], kernel_shape=[2, 2], strides=[2, 2], **attributes),
    ]


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pads", [[0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0, 1, 1]])
@pytest.mark.parametrize("value", [None, -1.5, -np.inf])
def test_a_pad_before_a_pool(pool: str, pads: list[int], value: float | None) -> None:
    """ONNX Runtime's Pad_Fusion replaces zeros around negative numbers by the least number."""
    x = -1 - DRAW.random((2, 3, 5, 7), np.float32)
    attributes: dict[str, Any] = {"count_include_pad": 1} if pool == "AveragePool" else {}
    weights: dict[str, Any] = {"pads": np.array(pads)}
    if value is not None:
        weights["value"] = np.float32(value)
    proto = model(padded(pool, pads, value, **attributes), x, weights)
    np.testing.assert_allclose(in_deep5(proto, x), plainly(proto, x), rtol=1e-6)


def norm(*, simple: bool, bias: bool) -> list[onnx.NodeProto]:
    """A layer norm as exporters write it out, with its scale and perhaps a bias."""
    node = helper.make_node
    first = [] if simple else [node("ReduceMean", ["x", "axis"], ["m"]), node("Sub", ["x", "m"], ["c"])]
    centered = "x" if simple else "c"
    return [
        *first,
        node("Pow", [centered, "two"], ["sq"]),
        node("ReduceMean", ["sq", "axis"], ["var"]),
        node("Add", ["var", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["sd"]),
        node("Div", [centered, "sd"], ["nm"]),
        node("Mul", ["nm", "scale"], ["scaled" if bias else "y"]),
        *([node("Add", ["scaled", "bias"], ["y"])] if bias else []),
    ]


@pytest.mark.parametrize("declared", ["known", "unknown"])
@pytest.mark.parametrize("scale", [(3,), (1,), (), (2, 3), (2, 1), (4, 2, 3)])
@pytest.mark.parametrize(("simple", "bias"), [(True, False), (False, False), (False, True)])
def test_a_written_out_layer_norm_with_a_scale_of_any_shape(
    simple: bool, bias: bool, scale: tuple[int, ...], declared: str
) -> None:
    for width in (3, 1):
        x = DRAW.standard_normal((2, width)).astype(np.float32)
        weights = {
            "axis": np.array([-1]),
            "two": np.float32(2),
            "eps": np.float32(1e-5),
            "scale": DRAW.standard_normal(scale).astype(np.float32),
            **({"bias": DRAW.standard_normal(scale).astype(np.float32)} if bias else {}),
        }
        proto = model(norm(simple=simple, bias=bias), x, weights, ["N", "d"] if declared == "unknown" else None)
        np.testing.assert_allclose(in_deep5(proto, x), plainly(proto, x), rtol=2e-5, atol=2e-6)


def test_a_usual_layer_norm_is_still_fused() -> None:
    x = DRAW.standard_normal((2, 3)).astype(np.float32)
    weights = {
        "axis": np.array([-1]),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "scale": np.ones(3, np.float32),
        "bias": np.ones(3, np.float32),
    }
    network = d5.Network.from_onnx(model(norm(simple=False, bias=True), x, weights, ["N", 3]))
    assert not set(WRONG) & set(left_out(network.model)) - {"MatMulScaleFusion"}


def test_what_is_left_out_finds_nothing_to_do() -> None:
    """One whose operators are in the network stays."""
    network = d5.networks.mlp(features=4, hidden=3, classes=2)
    assert {"NchwcTransformer", "QDQPropagationTransformer", "AttentionFusion"} <= set(left_out(network.model))
    network = d5.networks.lenet()
    assert not {"NchwcTransformer", "ConvAddActivationFusion"} & set(left_out(network.model))


@pytest.mark.parametrize("name", ["lenet", "mlp", "transformer"])
def test_what_is_left_out_changes_no_optimized_network(name: str, tmp_path: Path) -> None:
    """The optimized model of ONNX Runtime is the same with and without the optimizations that find nothing to do."""
    network = getattr(d5.networks, name)()
    without = [each for each in left_out(network.model) if each not in WRONG]
    assert without
    models = []
    for disabled in ([], without):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{len(disabled)}.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(
            network.to_onnx().SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=disabled,
        )
        models.append(onnx.load(options.optimized_model_filepath).graph.node)
    assert [node.op_type for node in models[0]] == [node.op_type for node in models[1]]
