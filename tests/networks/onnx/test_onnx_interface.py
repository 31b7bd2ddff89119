"""`onnx_backend`: the functions that ONNX's tools call, and their results and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError, Unsupported, UsageError
from deep5.networks import onnx_backend

TEXT = '<ir_version: 10, opset_import: ["": 20]> g (float[2] x, float[2] y) => (float[2] z) {z = Sub(x, y)}'
X = np.array([1, -2], np.float32)
RELU = helper.make_node("Relu", ["x"], ["y"])


@d5.register_operator("Halved", domain="test.onnx_interface")
class Halved(d5.Operator):
    """Half of its input."""

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return (x,)

    def forward(self, x: Any) -> Any:
        return x * 0.5

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (output_grads[0] * 0.5,)


@pytest.mark.parametrize("framework", ["reference", "onnxruntime", "pytorch", "tensorflow", "jax"])
def test_a_node(framework: str) -> None:
    pytest.importorskip({"reference": "numpy", "pytorch": "torch"}.get(framework, framework))
    backend = onnx_backend(framework)
    (y,) = backend.run_node(RELU, [X])
    np.testing.assert_array_equal(y, [1, 0])
    assert y.dtype == np.float32
    split = helper.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2)
    assert [part.tolist() for part in backend.run_node(split, [X])] == [[1], [-2]]
    # A name that occurs twice is one input, "" is none; the version and the outputs' types may be given.
    assert backend.run_node(helper.make_node("Mul", ["x", "x"], ["y"]), (X,), opset_version=14)[0].tolist() == [1, 4]
    clip = helper.make_node("Clip", ["x", "", "most"], ["y"])
    told = backend.run_node(clip, [X, np.array(0, np.float32)], outputs_info=[(np.dtype("float32"), (2,))])
    assert told[0].tolist() == [0, -2]


def test_a_node_of_an_operator_that_was_registered() -> None:
    node = helper.make_node("Halved", ["x"], ["y"], domain="test.onnx_interface")
    assert onnx_backend("reference").run_node(node, [X])[0].tolist() == [0.5, -1]


@pytest.mark.parametrize(
    ("node", "inputs", "error", "said"),
    [
        (helper.make_node("Rellu", ["x"], ["y"]), [X], NetworkError, "registered for Rellu .*did you mean 'Relu'"),
        (
            helper.make_node("Foo", ["x"], ["y"], domain="nowhere"),
            [X],
            NetworkError,
            "no operator 'Foo' of the domain 'nowhere' is registered; .*remedy: d5.register_operator",
        ),
        (RELU, [X, X], ShapeError, "run_node: got 2 inputs; expected 1: x"),
        (RELU, {"x": X}, UsageError, "run_node: got inputs=.*; allowed: a list of arrays, in the order of the inputs"),
        (RELU, [[X]], Unsupported, "run_node: an input is a list; allowed: arrays; remedy: run_model"),
        (RELU, [np.array(["a"], object)], NetworkError, "Relu"),
        (helper.make_node("MatMul", ["a", "b"], ["y"]), [X, np.ones(3, np.float32)], NetworkError, "run_node: MatMul"),
        ("Relu", [X], UsageError, "run_node: got node='Relu'; allowed: an onnx.NodeProto; remedy: onnx.helper"),
    ],
)
def test_nodes_that_cannot_run(node: Any, inputs: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        onnx_backend("reference").run_node(node, inputs)


def test_what_is_no_model() -> None:
    with pytest.raises(UsageError, match=r"prepare: got 'm\.onnx'; allowed: an onnx\.ModelProto; remedy: onnx\.load"):
        onnx_backend("reference").prepare("m.onnx")


@pytest.mark.parametrize("inputs", [{"x": X, "y": X}, np.stack([X, X]), "xy"])
def test_inputs_that_are_no_list(inputs: Any) -> None:
    prepared = onnx_backend("reference").prepare(onnx.parser.parse_model(TEXT))
    assert prepared.run((X, X))[0].tolist() == [0, 0]
    with pytest.raises(UsageError, match=r"run: got inputs=.*; allowed: a list of arrays, in the order of the inputs"):
        prepared.run(inputs)
