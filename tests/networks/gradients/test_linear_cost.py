"""The work of a network's gradients and of the reference's program grows with the number of nodes, not its square."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

import chains
import deep5 as d5
from deep5.networks.engine import engine_model
from deep5.networks.gradients.build import gradient_network


def chain(count: int) -> d5.Network:
    """Pairs of MatMul and Tanh, each pair with its parameter."""
    return d5.Network.from_onnx(chains.chain(count, size=2, opset=18))


def calls(work: Any) -> int:
    """How many functions a piece of work calls, generators' steps included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def lines(work: Any) -> int:
    """How many lines a piece of work runs; in a loop on one line each iteration counts."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def first_step(network: d5.Network) -> None:
    executor = d5.framework("reference").executor(network)
    executor.inference_and_backprop({"x": np.ones((1, 2), np.float32)})


@pytest.mark.parametrize("work", [gradient_network, first_step])
def test_twice_the_nodes_take_twice_the_calls(work: Any) -> None:
    small, large = (chain(count) for count in (60, 240))
    work(small)  # what is made once
    # Four times the nodes; sixteen times the calls if they grew with the square.
    assert calls(lambda: work(large)) < 4.5 * calls(lambda: work(small))


def test_pytorchs_code_for_four_times_the_nodes_takes_four_times_the_lines() -> None:
    """A loop over all values at each node calls no function."""
    framework = d5.framework("pytorch")

    def write(network: d5.Network) -> None:
        framework.executor(network).inference({"x": np.ones((1, 2), np.float32)})

    small, large = (chain(count) for count in (60, 240))
    write(small)
    assert lines(lambda: write(large)) < 4.5 * lines(lambda: write(small))


@pytest.mark.parametrize("work", [d5.Network.from_onnx, lambda model: engine_model(d5.Network.from_onnx(model))])
def test_twice_the_nodes_of_a_file_take_twice_the_calls(work: Any) -> None:
    small, large = (chains.chain(count, size=2, opset=18) for count in (60, 240))
    work(small)
    assert calls(lambda: work(large)) < 4.5 * calls(lambda: work(small))


def layers(kind: str, count: int) -> d5.Network:
    """Batch normalizations, or samplings of an image, one after the other."""
    build = d5.NetworkBuilder(kind)
    x, ones = build.input("x", (2, 3, 4, 4)), d5.networks.ones
    for layer in range(count):
        shapes = [(2, 4, 4, 2)] if kind == "GridSample" else [(3,)] * 4
        x = build.op(kind, x, *(build.parameter(f"{layer}/{place}", shape, ones) for place, shape in enumerate(shapes)))
    return build.network({"loss": build.op("ReduceMean", x, keepdims=0)})


@pytest.mark.parametrize(("kind", "framework"), [("BatchNormalization", "reference"), ("GridSample", "onnxruntime")])
def test_twice_the_layers_that_are_rewritten_take_twice_the_calls(kind: str, framework: str) -> None:
    def step(network: d5.Network) -> None:
        executor = d5.framework(framework).executor(network)
        executor.inference_and_backprop({"x": np.ones((2, 3, 4, 4), np.float32)})

    small, large = layers(kind, 10), layers(kind, 40)
    step(small)
    assert calls(lambda: step(large)) < 4.5 * calls(lambda: step(small))


def test_a_gradient_takes_no_node_but_what_computes_it() -> None:
    """Four nodes by layer: two products of the Gemm, two of the Tanh and its difference to 1; no copy, one constant."""
    counts = Counter(node.op_type for node in gradient_network(chain(20)).nodes)
    assert counts["Identity"] == 0
    assert counts["Gemm"] == 2 * 20 - 1  # no gradient of the network's input
    assert counts["Constant"] == Counter(node.op_type for node in gradient_network(chain(2)).nodes)["Constant"]


def test_a_gradient_that_is_read_again_is_copied() -> None:
    """The gradient of the bias is that of the layer before it: who receives one must not change the other."""
    build = d5.NetworkBuilder("bias")
    x = build.input("x", (4, 3))
    w, b = build.parameter("w", (3, 3)), build.parameter("b", (4, 3))
    y = build.op("Tanh", build.op("Add", build.op("MatMul", x, w), b))
    gradients = gradient_network(build.network({"loss": build.op("ReduceMean", y, keepdims=0)}))
    makers = {str(value.name): node.op_type for node in gradients.nodes for value in node.outputs}
    assert (makers["grad:w"], makers["grad:b"]) == ("Gemm", "Identity")
