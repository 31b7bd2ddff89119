"""ONNX Runtime's own operators, domain com.microsoft: its quantization tool writes them without types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import deep5 as d5
from deep5.core.errors import NetworkError, NetworkWarning, Unsupported
from original import compared, declared, graph_model, plain

DRAW = np.random.default_rng(36)
SCALE = {name: np.array(value, np.float32) for name, value in (("s", 0.02), ("t", 0.03), ("u", 0.05))}
ZERO = {"z": np.array(128, np.uint8)}
DOMAINS = {"com.microsoft": 1}


def own(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], domain="com.microsoft", **attributes)


def quantized(*nodes: onnx.NodeProto, output: str) -> onnx.ModelProto:
    """Quantize the input, run the nodes on `q`, and dequantize the output."""
    return graph_model(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            *nodes,
            helper.make_node("DequantizeLinear", [output, "u", "z"], ["y"]),
        ],
        [declared("x", ["n", 3, 4, 4])],
        [declared("y", None)],
        {**SCALE, **ZERO},
        domains=DOMAINS,
    )


QUANTIZED = {
    "QLinearAdd": own("QLinearAdd", ["q", "s", "z", "q", "s", "z", "u", "z"], "r"),
    "QLinearMul": own("QLinearMul", ["q", "s", "z", "q", "s", "z", "u", "z"], "r"),
    "QLinearSigmoid": own("QLinearSigmoid", ["q", "s", "z", "u", "z"], "r"),
    "QLinearLeakyRelu": own("QLinearLeakyRelu", ["q", "s", "z", "u", "z"], "r", alpha=0.1),
    "QLinearGlobalAveragePool": own("QLinearGlobalAveragePool", ["q", "s", "z", "u", "z"], "r"),
    "QLinearConcat": own("QLinearConcat", ["u", "z", "q", "s", "z", "q", "s", "z"], "r", axis=1),
}


@pytest.mark.parametrize("what", QUANTIZED)
def test_quantized_operators(what: str) -> None:
    model = quantized(QUANTIZED[what], output="r")
    network = d5.Network.from_onnx(model)
    assert network.outputs["y"].dtype == "float32"
    x = DRAW.standard_normal((2, 3, 4, 4)).astype(np.float32)
    compared(network, model, "onnxruntime", {"x": x})


def test_a_chain_of_quantized_operators() -> None:
    nodes = [
        own("QLinearAdd", ["q", "s", "z", "q", "s", "z", "t", "z"], "a"),
        own("QLinearSigmoid", ["a", "t", "z", "u", "z"], "b"),
    ]
    model = quantized(*nodes, output="b")
    x = DRAW.standard_normal((2, 3, 4, 4)).astype(np.float32)
    compared(d5.Network.from_onnx(model), model, "onnxruntime", {"x": x})


def test_a_dynamically_quantized_product() -> None:
    nodes = [own("DynamicQuantizeMatMul", ["x", "w", "ws", "wz"], "h"), helper.make_node("Relu", ["h"], ["y"])]
    initial = {
        "w": DRAW.integers(0, 255, (4, 5)).astype(np.uint8),
        "ws": np.array(0.02, np.float32),
        "wz": np.array(120, np.uint8),
    }
    model = graph_model(nodes, [declared("x", ["n", 4])], [declared("y", ["n", 5])], initial, domains=DOMAINS)
    x = DRAW.standard_normal((3, 4)).astype(np.float32)
    compared(d5.Network.from_onnx(model), model, "onnxruntime", {"x": x})


def hidden(last: str, opset: int) -> onnx.ModelProto:
    """A Reshape to computed sizes after an operator whose shape ONNX does not infer; `last` is the output."""
    nodes = [
        own("FastGelu", ["x"], "g"),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Mul", ["rows", "two"], ["twice"]),
        helper.make_node("Concat", ["twice", "one", "two"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["g", "sizes"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["y"]),
    ]
    initial = {name: np.array([number]) for number, name in enumerate(("zero", "one", "two"))}
    initial["b"] = np.ones(2, np.float32)
    nodes = nodes[: 1 + next(index for index, node in enumerate(nodes) if last in node.output)]
    given, made = [declared("x", ["n", 4])], [declared(last, [1, "m"])]
    return graph_model(nodes, given, made, initial, opset=opset, domains=DOMAINS)


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("last", ["r", "y"])
def test_a_stale_rank_after_a_hidden_shape(last: str, opset: int) -> None:
    """ONNX's inference reports no contradiction in a model with an operator that it does not know."""
    model = hidden(last, opset)
    with pytest.warns(NetworkWarning, match=rf"'{last}' is declared as \[1, m\], and computed as \[") as caught:
        network = d5.Network.from_onnx(model)
    assert "more" not in str(caught[0].message)
    assert len(network.outputs[last].shape) == 3
    x = DRAW.standard_normal((3, 4)).astype(np.float32)
    compared(network, model, "onnxruntime", {"x": x})
    trained = network.add_loss(last, "mse")
    target = np.zeros((6, 1, 2), np.float32)
    found = d5.framework("onnxruntime").executor(trained).inference({"x": x, "label": target})
    expected = np.mean(np.square(plain(model, {"x": x})[last]))
    np.testing.assert_allclose(d5.to_numpy(found["loss"]), expected, rtol=1e-5)  # a mean of 12 squares


def test_an_output_of_a_hidden_shape_needs_no_declared_one() -> None:
    node, x = own("FastGelu", ["x"], "y"), DRAW.standard_normal((3, 4)).astype(np.float32)
    model = graph_model([node], [declared("x", ["n", 4])], [declared("y", None)], domains=DOMAINS)
    network = d5.Network.from_onnx(model)
    assert str(network.outputs["y"]) == "float32 of unknown rank"
    compared(network, model, "onnxruntime", {"x": x})
    with pytest.raises(NetworkError, match=r"'y' is of unknown rank; allowed: a value of known rank.*; remedy: decl"):
        network.add_loss("y", "mse")


@pytest.mark.parametrize("framework", ["pytorch", "reference"])
def test_other_back_ends_name_the_one_that_runs_it(framework: str) -> None:
    network = d5.Network.from_onnx(quantized(QUANTIZED["QLinearAdd"], output="r"))
    with pytest.raises(Unsupported, match=r"com\.microsoft.*remedy: .*onnxruntime"):
        d5.framework(framework).executor(network)


def test_the_remedy_without_a_gradient_is_no_other_back_end() -> None:
    nodes = [own("FastGelu", ["x"], "g"), helper.make_node("ReduceMean", ["g"], ["loss"], keepdims=0)]
    model = graph_model(nodes, [declared("x", ["n", 3])], [declared("loss", [])], {}, domains=DOMAINS)
    executor = d5.framework("onnxruntime").executor(d5.Network.from_onnx(model))
    with pytest.raises(Unsupported, match=r"FastGelu.*; remedy: train the file before its conversion to them, or"):
        executor.inference_and_backprop({"x": np.ones((2, 3), np.float32)}, "loss", wrt=["x"])


def test_attention_without_a_bias_is_refused_as_the_engine_would_crash() -> None:
    node = own("Attention", ["x", "w"], "y", num_heads=2)
    initial = {"w": DRAW.standard_normal((8, 24)).astype(np.float32)}
    model = graph_model([node], [declared("x", ["n", 5, 8])], [declared("y", None)], initial, domains=DOMAINS)
    with pytest.raises(Unsupported, match=r"got no bias.*allowed: one, also of zeros"):
        d5.framework("onnxruntime").executor(d5.Network.from_onnx(model))


def test_an_output_of_an_operator_of_unknown_type_is_refused() -> None:
    model = graph_model([own("NoSuch", ["x"], "y")], [declared("x", ["n"])], [onnx.ValueInfoProto(name="y")])
    model.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(d5.Deep5Error, match="'y' has no shape, and none can be inferred"):
        d5.Network.from_onnx(model)
