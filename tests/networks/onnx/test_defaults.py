"""Initial values that are also inputs: defaults, which a call of inference may replace."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError, UsageError
from original import BACK_ENDS, compared, declared, graph_model

DRAW = np.random.default_rng(34)


def drawn(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def linear(ir_version: int = 8, listed: bool = True) -> onnx.ModelProto:
    """A layer with a loss, a weight and a bias; by default both are inputs, too."""
    defaults = [declared("w", [4, 3]), declared("b", [3])] if listed else []
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    outputs = [declared("y", ["n", 3]), declared("loss", [])]
    initial = {"w": drawn(4, 3), "b": drawn(3)}
    return graph_model(nodes, [declared("x", ["n", 4]), *defaults], outputs, initial, opset=11, ir_version=ir_version)


def reshaping() -> onnx.ModelProto:
    """A target that back-ends compile in, a bound, and a value that is added with any shape."""
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["h"]),
        helper.make_node("Clip", ["h", "", "most"], ["c"]),
        helper.make_node("Add", ["c", "shift"], ["y"]),
    ]
    inputs = [
        declared("x", ["n", 4]),
        declared("s", ["k"], TensorProto.INT64),
        declared("most", []),
        declared("shift", ["m"]),
    ]
    initial = {"s": np.array([4, -1]), "most": np.array(0.5, np.float32), "shift": np.ones(1, np.float32)}
    return graph_model(nodes, inputs, [declared("y", None)], initial)


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_a_fed_parameter(framework: str) -> None:
    model, x = linear(), drawn(2, 4)
    network = d5.Network.from_onnx(model)
    assert list(network.inputs) == ["x"]
    assert list(network.parameter_specs) == list(network.default_specs) == ["w", "b"]
    other = {"x": x, "w": drawn(4, 3)}
    compared(network, model, framework, {"x": x}, other, {"x": x}, {**other, "b": drawn(3)})


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_fed_constants(framework: str) -> None:
    model, x = reshaping(), drawn(2, 4)
    network = d5.Network.from_onnx(model)
    target, bound = {"x": x, "s": np.array([2, 2, 2])}, {"x": x, "most": np.array(0.1, np.float32)}
    wider = {"x": x, "shift": np.array([1, 2], np.float32)}
    compared(network, model, framework, {"x": x}, target, bound, wider, {**target, **bound}, {"x": x})


@pytest.mark.parametrize("framework", ["jax", "pytorch", "reference"])
def test_a_fed_call_uses_the_live_values_of_the_others(framework: str) -> None:
    network = d5.Network.from_onnx(linear())
    executor = d5.framework(framework).executor(network, device="cpu")
    x, w = np.ones((2, 4), np.float32), np.zeros((4, 3), np.float32)
    executor.train_step(d5.SGD(1.0))({"x": x}, d5.StepInfo(step=0, batch_size=2))
    state = {name: np.array(value) for name, value in executor.state_dict().items()}
    y = d5.to_numpy(executor.inference({"x": x, "w": w})["y"])
    np.testing.assert_allclose(y, np.broadcast_to(state["b"], (2, 3)), rtol=1e-6)
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, state[name])


def test_before_version_4_every_weight_is_an_input() -> None:
    """Plain ONNX Runtime feeds none of them in these versions: the file of version 8 says what is right."""
    network = d5.Network.from_onnx(linear(ir_version=3))
    assert list(network.inputs) == ["x"]
    assert list(network.trained_specs) == ["w", "b"]
    executor = d5.framework("reference").executor(network)
    x, w = drawn(2, 4), drawn(4, 3)
    y = executor.inference({"x": x, "w": w})["y"]
    np.testing.assert_allclose(y, x @ w + network.initial("b"), rtol=1e-5, atol=1e-6)


def test_what_is_not_listed_is_not_fed() -> None:
    executor = d5.framework("reference").executor(d5.Network.from_onnx(linear(listed=False)))
    with pytest.raises(ShapeError, match="unknown input 'w'; expected: x"):
        executor.inference({"x": drawn(2, 4), "w": drawn(4, 3)})


def test_what_a_call_may_not_feed() -> None:
    network = d5.Network.from_onnx(linear())
    executor = d5.framework("reference").executor(network)
    fed = {"x": drawn(2, 4), "w": drawn(4, 3)}
    with pytest.raises(ShapeError, match=r"'w' is an initial value.*remedy: network.with_values\(\{…\}\) before"):
        executor.inference_and_backprop(fed)
    with pytest.raises(ShapeError, match="'w' is an initial value"):
        executor.train_step(d5.SGD(1.0))(fed, d5.StepInfo(step=0, batch_size=2))
    with pytest.raises(UsageError, match="training=True with a fed value for 'w'"):
        executor.inference(fed, training=True)
    with pytest.raises(ShapeError, match="input 'w': got dtype float64, expected float32"):
        executor.inference({**fed, "w": fed["w"].astype(np.float64)})
    with pytest.raises(NetworkError, match=r"the network with a fed value for 'w'.*MatMul"):
        executor.inference({**fed, "w": drawn(5, 3)})


def test_what_may_be_fed_is_kept_by_edits_and_files(tmp_path: object) -> None:
    network = d5.Network.from_onnx(linear()).rename("w", "weight").freeze("b")
    assert list(network.default_specs) == ["b", "weight"]
    read = d5.Network.from_onnx(network.to_onnx())
    assert list(read.default_specs) == ["b", "weight"]
    assert read.frozen == {"b"}
    x, w = drawn(2, 4), drawn(4, 3)
    y = d5.framework("reference").executor(read).inference({"x": x, "weight": w})["y"]
    np.testing.assert_allclose(y, x @ w + network.initial("b"), rtol=1e-5, atol=1e-6)
