"""Patterns of the files that `tests/real_files.py` runs, cut down: on every back-end as in plain ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import deep5 as d5
from deep5.core.errors import NetworkWarning
from original import BACK_ENDS, compared, declared, graph_model

DRAW = np.random.default_rng(10)


def drawn(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


WINDOWS: dict[str, dict[str, Any]] = {
    "Conv": {"strides": [2, 3]},
    "MaxPool": {"strides": [2, 2], "kernel_shape": [3, 2]},
    "AveragePool": {"strides": [1, 2], "kernel_shape": [2, 3]},
}


@pytest.mark.parametrize("framework", [name for name in BACK_ENDS if name != "openvino"])
@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("operator", WINDOWS)
def test_same_padding_of_unknown_sizes(operator: str, pad: str, framework: str) -> None:
    # As Paddle's exporter writes a detector of text, which accepts images of any size.
    inputs, initial = (["x", "w"], {"w": drawn(4, 3, 3, 2)}) if operator == "Conv" else (["x"], {})
    node = helper.make_node(operator, inputs, ["y"], auto_pad=pad, **WINDOWS[operator])
    model = graph_model([node], [declared("x", ["n", 3, "h", "w"])], [declared("y", None)], initial)
    feeds = [{"x": drawn(2, 3, *size)} for size in ((7, 8), (6, 5), (2, 3))]
    compared(d5.Network.from_onnx(model), model, framework, *feeds)


def squeezed(extent: int | str) -> onnx.ModelProto:
    """As torch.jit writes `if x.shape[2] == 1: x = x.squeeze(2)`, before an operator that accepts any rank."""
    then = helper.make_graph([helper.make_node("Squeeze", ["h", "two"], ["a"])], "t", [], [declared("a", None)])
    other = helper.make_graph([helper.make_node("Identity", ["h"], ["b"])], "e", [], [declared("b", None)])
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Shape", ["h"], ["sizes"], start=2, end=3),
        helper.make_node("Equal", ["sizes", "one"], ["same"]),
        helper.make_node("If", ["same"], ["q"], then_branch=then, else_branch=other),
        helper.make_node("Gather", ["q", "zero"], ["g"], axis=0),
        helper.make_node("Mul", ["g", "w"], ["y"]),
    ]
    initial = {"one": np.array([1]), "two": np.array([2]), "zero": np.array(0), "w": drawn(4)}
    initial = initial if extent == 1 else {**initial, "w": drawn(4, 1)}
    return graph_model(nodes, [declared("x", ["n", 4, extent])], [declared("y", None)], initial)


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_a_branch_that_known_sizes_decide(framework: str) -> None:
    model = squeezed(1)
    network = d5.Network.from_onnx(model)
    assert "If" not in {node.op_type for node in network.nodes}
    assert network.outputs["y"].shape == (4,)
    compared(network, model, framework, {"x": drawn(2, 4, 1)})


def test_a_branch_that_only_a_run_decides_stays() -> None:
    model = squeezed("t")
    network = d5.Network.from_onnx(model)
    assert "If" in {node.op_type for node in network.nodes}
    compared(network, model, "reference", {"x": drawn(2, 4, 3)}, {"x": drawn(2, 4, 5)})


def test_a_branch_that_a_caller_may_feed_stays() -> None:
    model = squeezed(1)
    condition = next(node for node in model.graph.node if node.op_type == "If").input
    condition[0] = "c"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([True]), "c"))
    model.graph.input.append(declared("c", [1], onnx.TensorProto.BOOL))
    network = d5.Network.from_onnx(model)
    assert "If" in {node.op_type for node in network.nodes}
    assert list(network.default_specs) == ["c"]


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_a_branch_that_onnx_refuses_outside_of_its_if_stays(framework: str) -> None:
    """Engines count up to a vector of one element; ONNX's inference refuses one that it knows."""
    whole = onnx.TensorProto.INT64
    then = helper.make_graph([helper.make_node("Identity", ["four"], ["a"])], "t", [], [declared("a", [1], whole)])
    other = helper.make_graph([helper.make_node("Identity", ["n"], ["b"])], "e", [], [declared("b", [1], whole)])
    nodes = [
        helper.make_node("If", ["taken"], ["limit"], then_branch=then, else_branch=other),
        helper.make_node("Range", ["zero", "limit", "one"], ["y"]),
        helper.make_node("Add", ["n", "one"], ["next"]),
    ]
    initial = {"taken": np.array(True), "four": np.array([4]), "zero": np.array(0), "one": np.array(1)}
    outputs = [declared("y", ["count"], whole), declared("next", [2], whole)]
    model = graph_model(nodes, [declared("n", [1], whole)], outputs, initial)
    with pytest.warns(NetworkWarning, match="contradict what its nodes compute") as told:
        network = d5.Network.from_onnx(model)
    assert len(told) == 1  # the file was read twice
    assert "If" in {node.op_type for node in network.nodes}
    compared(network, model, framework, {"n": np.array([7])})


def hidden_lstm() -> onnx.ModelProto:
    """An LSTM of one step, whose sequence and states come from an If each, which hides their ranks and sizes."""
    nodes = []
    for number, name in enumerate(("x", "h")):
        then = helper.make_graph([helper.make_node("Unsqueeze", [name, "zero"], ["a"])], "t", [], [declared("a", None)])
        other = helper.make_graph([helper.make_node("Identity", [name], ["b"])], "e", [], [declared("b", None)])
        nodes.append(helper.make_node("If", ["many"], [f"q{number}"], then_branch=then, else_branch=other))
        nodes.append(helper.make_node("Unsqueeze", [f"q{number}", "zero"], [f"s{number}"]))
    nodes.append(helper.make_node("LSTM", ["s0", "w", "r", "", "", "s1", "s1"], ["", "y"], hidden_size=4))
    initial = {"zero": np.array([0]), "w": drawn(1, 16, 3), "r": drawn(1, 16, 4)}
    inputs = [declared("x", [2, 3]), declared("h", [2, 4]), declared("many", [], onnx.TensorProto.BOOL)]
    return graph_model(nodes, inputs, [declared("y", [1, 2, 4])], initial)


@pytest.mark.parametrize("framework", [name for name in BACK_ENDS if name != "openvino"])
def test_a_recurrent_layer_whose_ranks_an_if_hides(framework: str) -> None:
    # As torch.jit writes an LSTM cell, which accepts inputs with and without a batch.
    model = hidden_lstm()
    feed = {"x": drawn(2, 3), "h": drawn(2, 4), "many": np.array(False)}
    compared(d5.Network.from_onnx(model), model, framework, feed)


@pytest.mark.parametrize("framework", ["onnxruntime", "pytorch"])
def test_its_gradients_are_those_of_the_reference(framework: str) -> None:
    network = d5.Network.from_onnx(hidden_lstm()).add_node("ReduceMean", ["y"], ["loss"], keepdims=0)
    network = network.with_outputs(["y", "loss"])
    feed = {"x": drawn(2, 3), "h": drawn(2, 4), "many": np.array(False)}
    found = []
    for name in ("reference", framework):
        executor = d5.framework(name).executor(network)
        executor.inference_and_backprop(feed)
        found.append({key: d5.to_numpy(value) for key, value in executor.gradients().items()})
    assert set(found[0]) == {"w", "r"}
    for key, value in found[0].items():
        assert np.abs(value).max() > 0
        np.testing.assert_allclose(found[1][key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("framework", ["reference", "onnxruntime"])
def test_gradients_through_branches_of_two_ranks(framework: str) -> None:
    # As a voice detector squeezes an axis of one element before a convolution; the other branch never runs.
    then = helper.make_graph([helper.make_node("Squeeze", ["h", "one"], ["a"])], "t", [], [declared("a", None)])
    other = helper.make_graph([helper.make_node("Identity", ["h"], ["b"])], "e", [], [declared("b", None)])
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["h"]),
        helper.make_node("Shape", ["h"], ["sizes"], start=1, end=2),
        helper.make_node("Equal", ["sizes", "one"], ["same"]),
        helper.make_node("If", ["same"], ["q"], then_branch=then, else_branch=other),
        helper.make_node("Conv", ["q", "w"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    outputs = [declared("y", None), declared("loss", None)]
    initial = {"one": np.array([1]), "s": drawn(5), "w": drawn(2, 4, 3)}
    network = d5.Network.from_onnx(graph_model(nodes, [declared("x", [2, "c", 4, 5])], outputs, initial))
    feed, found = {"x": drawn(2, 1, 4, 5)}, []
    for name in ("pytorch", framework):
        executor = d5.framework(name).executor(network)
        executor.inference_and_backprop(feed)
        found.append({key: d5.to_numpy(value) for key, value in executor.gradients().items()})
    for key in ("s", "w"):
        np.testing.assert_allclose(found[1][key], found[0][key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("framework", ["reference", "onnxruntime"])
@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER"])
def test_gradients_with_same_padding_of_unknown_sizes(pad: str, framework: str) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], auto_pad=pad, strides=[2, 1], dilations=[1, 2]),
        helper.make_node("MaxPool", ["c"], ["m"], auto_pad=pad, kernel_shape=[2, 3], strides=[1, 2]),
        helper.make_node("Mul", ["m", "m"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    outputs = [declared("y", None), declared("loss", None)]
    model = graph_model(nodes, [declared("x", [2, 3, "h", "v"])], outputs, {"w": drawn(4, 3, 3, 2)})
    network, feed = d5.Network.from_onnx(model), {"x": drawn(2, 3, 7, 6)}
    wanted = d5.framework("pytorch").executor(network)
    found = d5.framework(framework).executor(network)
    for executor in (wanted, found):
        executor.inference_and_backprop(feed, wrt=["x", "w"])
    for name, value in wanted.gradients().items():
        np.testing.assert_allclose(found.gradients()[name], d5.to_numpy(value), rtol=1e-4, atol=1e-6)


def test_gradients_of_a_loop_that_passes_its_weight_on() -> None:
    # As tf2onnx writes a recurrent layer: weights are states of the loop, which its body returns as they are.
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["again"]),
            helper.make_node("MatMul", ["s", "v"], ["p"]),
            helper.make_node("Tanh", ["p"], ["t"]),
        ],
        "body",
        [
            declared("i", [], onnx.TensorProto.INT64),
            declared("going", [], onnx.TensorProto.BOOL),
            *(declared("s", [2, 3]), declared("v", [3, 3])),
        ],
        [declared("again", [], onnx.TensorProto.BOOL), declared("t", [2, 3]), declared("v", [3, 3])],
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x", "w"], ["y", "last"], body=body),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    inputs = [declared("x", [2, 3]), declared("n", [], onnx.TensorProto.INT64)]
    model = graph_model(nodes, inputs, [declared("y", [2, 3]), declared("loss", [])], {"w": drawn(3, 3)})
    network, feed = d5.Network.from_onnx(model), {"x": drawn(2, 3), "n": np.array(3)}
    found = []
    for name in ("pytorch", "reference"):
        executor = d5.framework(name).executor(network)
        executor.inference_and_backprop(feed)
        found.append(d5.to_numpy(executor.gradients()["w"]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("framework", ["reference", "onnxruntime"])
def test_gradients_of_clip_whose_bound_is_an_initial_value(framework: str) -> None:
    # The bound stays a setting, also where the gradient compares with it.
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Clip", ["h", "low"], ["c"]),
        helper.make_node("Clip", ["c", "low", "high"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    initial = {"w": drawn(3), "low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}
    outputs = [declared("y", None), declared("loss", None)]
    network = d5.Network.from_onnx(graph_model(nodes, [declared("x", ["n", 3])], outputs, initial))
    x, w = drawn(4, 3), initial["w"]
    executor = d5.framework(framework).executor(network)
    executor.inference_and_backprop({"x": x})
    inside = (x * w >= -0.5) & (x * w <= 0.75)
    np.testing.assert_allclose(d5.to_numpy(executor.gradients()["w"]), (inside * x).sum(0) / 12, rtol=1e-5, atol=1e-7)
