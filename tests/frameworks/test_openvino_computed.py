"""What OpenVINO does not read, written with what it reads: a computed number of axes, and outer values of a Scan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from original import compared, declared, graph_model

DRAW = np.random.default_rng(11)


def drawn(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def gradients(model: onnx.ModelProto, feed: Mapping[str, np.ndarray], wrt: list[str]) -> None:
    """Compare gradients on OpenVINO with those of torch, which differentiates by itself."""
    network, found = d5.Network.from_onnx(model), {}
    for framework in ("openvino", "pytorch"):
        executor = d5.framework(framework).executor(network)
        executor.inference_and_backprop(feed, loss="loss", wrt=wrt)
        found[framework] = {name: d5.to_numpy(value) for name, value in executor.gradients().items()}
    for name in wrt:  # sums of at most a hundred float32 products
        np.testing.assert_allclose(found["openvino"][name], found["pytorch"][name], rtol=1e-4, atol=1e-6)


def test_a_sum_over_computed_axes() -> None:
    nodes = [
        helper.make_node("Equal", ["mask", "one"], ["chosen"]),
        helper.make_node("NonZero", ["chosen"], ["places"]),
        helper.make_node("Squeeze", ["places", "zero"], ["first"]),
        helper.make_node("Sub", ["first", "shift"], ["axes"]),
        helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1, noop_with_empty_axes=1),
    ]
    inputs = [declared("x", ["n", 3, "m"]), *(declared(name, [3], TensorProto.INT64) for name in ("mask", "shift"))]
    inputs[2].type.tensor_type.shape.dim[0].dim_value = 1
    initial = {"zero": np.array([0]), "one": np.array([1])}
    model = graph_model(nodes, inputs, [declared("y", ["a", "b", "c"])], initial)
    masks = [[0, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1]]
    feeds = [{"x": drawn(2, 3, 4), "mask": np.array(mask), "shift": np.array([3])} for mask in masks]
    compared(d5.Network.from_onnx(model), model, "openvino", *feeds, {**feeds[2], "shift": np.array([0])})


@pytest.mark.parametrize("rows", [1, 4])
def test_the_gradient_of_what_may_be_broadcast(rows: int) -> None:
    nodes = [
        helper.make_node("Add", ["x", "g"], ["s"]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("ReduceMean", ["t"], ["loss"], keepdims=0),
    ]
    model = graph_model(nodes, [declared("x", ["n", 3]), declared("g", ["m", 3])], [declared("loss", [])])
    gradients(model, {"x": drawn(4, 3), "g": drawn(rows, 3)}, ["g"])


def scan(*, branch: bool) -> onnx.ModelProto:
    """Sums of rows times `w`, which the body reads; with an If whose branches read it, too."""
    body = [helper.make_node("Mul", ["row", "w"], ["p"]), helper.make_node("Add", ["state", "p"], ["next"])]
    if branch:
        arms = [
            helper.make_graph([helper.make_node(operator, ["next", "w"], [name])], name, [], [declared(name, [3])])
            for operator, name in (("Add", "then"), ("Sub", "else"))
        ]
        body.append(helper.make_node("If", ["up"], ["out"], then_branch=arms[0], else_branch=arms[1]))
    else:
        body.append(helper.make_node("Tanh", ["next"], ["out"]))
    inner = helper.make_graph(
        body, "body", [declared("state", [3]), declared("row", [3])], [declared("next", [3]), declared("out", [3])]
    )
    nodes = [
        helper.make_node("Scan", ["s", "x"], ["end", "y"], num_scan_inputs=1, body=inner),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    inputs = [declared("s", [3]), declared("x", ["t", 3]), *([declared("up", [], TensorProto.BOOL)] if branch else [])]
    outputs = [declared("end", [3]), declared("y", ["t", 3]), declared("loss", [])]
    return graph_model(nodes, inputs, outputs, {"w": drawn(3)})


@pytest.mark.parametrize("branch", [False, True])
def test_a_scan_that_reads_outer_values(branch: bool) -> None:
    model = scan(branch=branch)
    feeds = [
        {"s": drawn(3), "x": drawn(length, 3), **({"up": np.array(up)} if branch else {})}
        for length, up in ((1, True), (5, True), (4, False))
    ]
    compared(d5.Network.from_onnx(model), model, "openvino", *feeds)


def test_the_gradient_of_a_scan_that_reads_outer_values() -> None:
    gradients(scan(branch=False), {"s": drawn(3), "x": drawn(5, 3)}, ["w", "x"])


def test_the_gradient_of_a_recurrent_layer_over_sequences_of_any_length() -> None:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    initial = {"w": drawn(1, 16, 3), "r": drawn(1, 16, 4)}
    model = graph_model(nodes, [declared("x", ["t", 2, 3])], [declared("loss", [])], initial)
    gradients(model, {"x": drawn(5, 2, 3)}, ["w", "r"])
