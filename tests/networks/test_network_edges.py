"""Outputs that no node computes, parameters of rank 0, and parameters that no node reads: on every back-end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deep5 as d5
from deep5.training.checkpointer import restore
from trajectory_cases import FRAMEWORKS


def network(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], **initial: np.ndarray) -> d5.Network:
    graph = helper.make_graph(
        [*nodes, helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0)],
        "edges",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", nodes_wide(initial)])],
        [*outputs, helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    opset = [helper.make_opsetid("", 20)]
    return d5.Network.from_onnx(helper.make_model(graph, opset_imports=opset, ir_version=10))


def nodes_wide(initial: dict[str, np.ndarray]) -> int:
    return next(array.size for array in initial.values() if array.ndim == 1)


@pytest.mark.daily
@pytest.mark.parametrize("width", [3, 3000])
@pytest.mark.parametrize("framework", [*FRAMEWORKS, "openvino"])
def test_outputs_that_are_inputs_or_parameters(framework: str, width: int) -> None:
    """Small and large ones, which are bound to memory in different ways."""
    outputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [width]),
    ]
    made = network([helper.make_node("Mul", ["x", "w"], ["y"])], outputs, w=np.full(width, 2, np.float32))
    executor = d5.framework(framework).executor(made)
    rng, w = np.random.default_rng(0), np.full(width, 2, np.float32)
    step = executor.train_step(d5.Momentum(0.1))
    for number in range(3):
        x = rng.random((2, width), np.float32)
        for run in (executor.inference, executor.inference_and_backprop):
            found = {name: np.array(d5.to_numpy(value)) for name, value in run({"x": x}).items()}
            np.testing.assert_array_equal(found["x"], x)
            np.testing.assert_array_equal(found["w"], w)
        found = {name: np.array(d5.to_numpy(value)) for name, value in step({"x": x}, d5.StepInfo(number, 2)).items()}
        np.testing.assert_array_equal(found["x"], x)
        np.testing.assert_array_equal(found["w"], w)  # the value that the step used
        w = np.array(d5.to_numpy(executor.parameters()["w"]))
    assert not np.array_equal(w, np.full(width, 2))


@pytest.mark.daily
@pytest.mark.parametrize("framework", [*FRAMEWORKS, "openvino"])
def test_a_parameter_of_the_branch_that_is_not_taken(framework: str) -> None:
    """It stays a parameter, and its gradient is zero."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Mul", ["x", weight], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3])],
        )
        for name, weight in (("then", "wa"), ("else", "wb"))
    }
    halves = {"wa": np.full(3, 0.5, np.float32), "wb": np.full(3, 0.5, np.float32)}
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "zero"], ["taken"]),
        helper.make_node("If", ["taken"], ["y"], **branches),
    ]
    made = network(nodes, [], zero=np.zeros((), np.float32), **halves)
    assert made.parameter_specs.keys() == halves.keys()
    executor = d5.framework(framework).executor(made)
    executor.inference_and_backprop({"x": np.ones((2, 3), np.float32)})
    gradients = {name: d5.to_numpy(value) for name, value in executor.gradients().items()}
    np.testing.assert_allclose(gradients["wa"], 1 / 3, rtol=1e-6)
    np.testing.assert_array_equal(gradients["wb"], np.zeros(3))


@pytest.mark.daily
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_checkpoint_of_a_parameter_without_axes(framework: str, tmp_path: Path) -> None:
    build = d5.NetworkBuilder("scaled", seed=0)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    logits = build.op("Gemm", x, build.parameter("w", (3, 4)), transB=1)
    logits = build.op("Mul", logits, build.parameter("scale", (), d5.networks.ones))
    made = build.network({"logits": logits, "loss": build.op("SoftmaxCrossEntropyLoss", logits, label)})
    data = d5.datasets.synthetic(shape=(4,), classes=3, train=64, test=64)

    def trainer() -> d5.Trainer:
        samplers = d5.ShuffleSampler(data.train, 32), d5.OrderedSampler(data.test, 32)
        return d5.Trainer(d5.framework(framework).executor(made), d5.Adam(0.01), *samplers)

    first = trainer()
    first.train(1, [d5.Checkpointer(tmp_path, every_steps=2)])
    again = trainer()
    restore(again, tmp_path)
    for name, value in first.executor.parameters().items():
        np.testing.assert_array_equal(d5.to_numpy(again.executor.parameters()[name]), d5.to_numpy(value))
