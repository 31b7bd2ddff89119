"""Nodes of registered operators that omit an optional input in the middle, on every back-end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from backends import COMPUTING, ENGINES, Backend, parametrized
from deep5.core.errors import Deep5Error


@d5.register_operator("Shifted", domain="test.omitting")
class Shifted(d5.Operator):
    """y = x · s + b, in which b may be omitted."""

    def specs(self, x: Any, b: Any = None, s: Any = None) -> Any:
        return (x,)

    def forward(self, x: Any, b: Any = None, s: Any = None) -> Any:
        y = x if s is None else x * s
        return y if b is None else y + b

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        x, b, s = (*inputs, None, None)[:3]
        (dy,) = output_grads
        xp = d5.array_namespace(dy)
        found = [dy if s is None else dy * s]
        if len(inputs) > 1:
            found.append(xp.sum(dy, axis=0) if b is not None and needs[1] else None)
        if len(inputs) > 2:
            found.append(xp.sum(dy * x, axis=0) if s is not None and needs[2] else None)
        return [gradient if needed else None for gradient, needed in zip(found, needs, strict=True)]


def model(inputs: list[str]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(4).astype(np.float32) for name in ("b", "s") if name in inputs}
    nodes = [
        helper.make_node("Shifted", inputs, ["y"], domain="test.omitting", name="shift"),
        helper.make_node("Mul", ["y", "y"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "omitted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
        ],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("test.omitting", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("inputs", [["x", "", "s"], ["x", "b"], ["x", "b", ""], ["x", "", ""], ["x", "b", "s"]])
@parametrized(*COMPUTING, "pytorch:compiled", "tensorflow:xla", *ENGINES, slow=("pytorch:compiled",))
def test_omitted_inputs_are_none(backend: Backend, inputs: list[str]) -> None:
    network = d5.Network.from_onnx(model(inputs))
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    executor = backend.framework.executor(network)
    held = {name: network.initial(name).astype(np.float64) for name in network.parameter_specs}
    y = x * held.get("s", 1.0) + held.get("b", 0.0)
    np.testing.assert_allclose(d5.to_numpy(executor.inference({"x": x})["y"]), y, rtol=1e-5, atol=1e-6)
    names = ["x", *held]
    executor.inference_and_backprop({"x": x}, wrt=names)
    found = executor.gradients()
    dy = 2 * y / y.size
    wanted = {"x": dy * held.get("s", 1.0), "b": dy.sum(0), "s": (dy * x).sum(0)}
    for name in names:
        np.testing.assert_allclose(d5.to_numpy(found[name]), wanted[name], rtol=1e-4, atol=1e-6)
    if held:
        step = executor.train_step(d5.SGD(lr=0.1))
        losses = [float(d5.to_numpy(step({"x": x}, d5.StepInfo(step=n, batch_size=3))["loss"])) for n in range(3)]
        assert losses[-1] < losses[0]


def test_a_network_keeps_its_form(tmp_path: Any) -> None:
    network = d5.Network.from_onnx(model(["x", "", "s"]))
    d5.framework("reference").executor(network)
    network.save(tmp_path / "omitted.onnx")
    (node, *_) = onnx.load(tmp_path / "omitted.onnx").graph.node
    assert list(node.input) == ["x", "", "s"]
    assert not node.attribute


def test_an_operator_in_cpp_needs_all_inputs() -> None:
    from backend_operators import DOMAIN

    graph_inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    node = helper.make_node("CppPow", ["", "x"], ["y"], domain=DOMAIN, name="power")
    graph = helper.make_graph(
        [node], "g", graph_inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(Deep5Error, match=r"omits input 0 of CppPow, which is written in C\+\+; allowed: .*; remedy"):
        d5.framework("reference").executor(d5.Network.from_onnx(proto))
