"""Files that declare something else than their nodes compute: sizes of -1, stale or absent shapes, contradictions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from deep5.core.errors import NetworkError, NetworkWarning, Unsupported
from original import BACK_ENDS, compared, declared, graph_model, plain

DRAW = np.random.default_rng(33)


def drawn(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def branches(rank_3: Any, rank_4: Any) -> list[onnx.NodeProto]:
    """An If that squeezes axis 1 where it has one element, as exporters write it."""
    then = helper.make_graph([helper.make_node("Squeeze", ["x", "one"], ["a"])], "t", [], [declared("a", rank_3)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "e", [], [declared("b", rank_4)])
    return [
        helper.make_node("Shape", ["x"], ["sizes"], start=1, end=2),
        helper.make_node("Equal", ["sizes", "one"], ["same"]),
        helper.make_node("Squeeze", ["same"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["q"], then_branch=then, else_branch=other),
    ]


ONE = {"one": np.array([1])}
WEIGHT = drawn(5, 6)
MATMUL = helper.make_node("MatMul", ["x", "w"], ["h"])


def relu(first: Any, last: Any, between: Any = None) -> onnx.ModelProto:
    """Two Relu, with declared shapes of input, output and the value between them."""
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    info = [] if between is None else [declared("h", between)]
    return graph_model(nodes, [declared("x", first)], [declared("y", last)], value_info=info)


def minus_one() -> onnx.ModelProto:
    return graph_model(
        [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        [declared("x", [-1, 3, -1, -1])],
        [declared("y", [-1, 4, -1, -1])],
        {"w": drawn(4, 3, 3, 3)},
        value_info=[declared("h", [-1, -1, -1, -1])],
    )


def reshaped(shape: Any, between: Any = None) -> onnx.ModelProto:
    return graph_model(
        [MATMUL, helper.make_node("Reshape", ["h", "s"], ["y"])],
        [declared("x", ["n", 5])],
        [declared("y", shape)],
        {"w": WEIGHT, "s": np.array([-1, 1, 6])},
        value_info=[] if between is None else [declared("h", between)],
    )


def computed_target() -> onnx.ModelProto:
    """A Reshape whose target ONNX's inference does not know, with a stale shape that contradicts what follows."""
    return graph_model(
        [
            helper.make_node("Reshape", ["x", "s"], ["h"]),
            helper.make_node("MatMul", ["h", "w"], ["y"]),
        ],
        [declared("x", ["n"]), declared("s", [2], TensorProto.INT64)],
        [declared("y", ["a", 6])],
        {"w": WEIGHT},
        value_info=[declared("h", ["a", 4])],
    )


def in_a_branch() -> onnx.ModelProto:
    """A branch that declares another rank than it computes."""
    return graph_model(
        [*branches(["n", 3], ["n"]), helper.make_node("Neg", ["q"], ["y"])],
        [declared("x", ["n", "k", 3])],
        [declared("y", None)],
        ONE,
    )


STALE = {
    "an output's rank": (reshaped([1, "m"]), {"x": drawn(4, 5)}, r"'y' is declared as \[1, m\], and computed as \["),
    "an output's size": (reshaped(["n", 2, 6]), {"x": drawn(4, 5)}, r"'y' is declared as \[n, 2, 6\], and computed"),
    "a size between": (reshaped(["n", 1, 6], ["n", 7]), {"x": drawn(3, 5)}, r"'h' is declared as \[n, 7\], and comp"),
    "a rank between": (relu(["n", 4], ["n", 4], [4]), {"x": drawn(3, 4)}, r"'h' is declared as \[4\], and computed"),
}


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_a_size_of_minus_one_is_unknown(framework: str) -> None:
    model = minus_one()
    network = d5.Network.from_onnx(model)
    assert network.inputs["x"].shape == ("x:0", 3, "x:2", "x:3")
    compared(network, model, framework, {"x": drawn(2, 3, 8, 8)}, {"x": drawn(1, 3, 5, 9)})


def test_an_unnamed_size_of_an_input_is_followed() -> None:
    """Equal names of sizes are equal sizes: a mask of dropout needs them."""
    nodes = [helper.make_node("Dropout", ["x", "r"], ["y"])]
    model = graph_model(nodes, [declared("x", [-1, None])], [declared("y", [-1, -1])], {"r": np.array(0.5, np.float32)})
    network = d5.Network.from_onnx(model)
    assert network.outputs["y"].shape == ("x:0", "x:1")
    executor = d5.framework("reference").executor(network)
    y = d5.to_numpy(executor.inference({"x": np.ones((50, 40), np.float32)}, training=True)["y"])
    assert set(np.unique(y)) == {0, 2}


def test_sizes_named_by_a_question_mark_may_differ() -> None:
    # As Paddle's exporter writes all unknown sizes.
    model = relu(["n", 3, "?", "?"], [-1, 3, "?", "?"])
    network = d5.Network.from_onnx(model)
    assert network.inputs["x"].shape == ("n", 3, "x:2", "x:3")
    compared(network, model, "reference", {"x": drawn(2, 3, 4, 6)})


@pytest.mark.parametrize("what", STALE)
def test_a_stale_shape_is_dropped_with_a_warning(what: str) -> None:
    model, feed, message = STALE[what]
    with pytest.warns(NetworkWarning, match=message):
        network = d5.Network.from_onnx(model)
    for framework in ("reference", "onnxruntime"):
        compared(network, model, framework, feed)


def test_a_stale_shape_that_cannot_be_inferred() -> None:
    """Plain ONNX Runtime refuses it: what follows from the declared shape contradicts the weight."""
    with pytest.warns(NetworkWarning, match=r"the model declares shapes that contradict .*'h' is declared as \[a, 4\]"):
        network = d5.Network.from_onnx(computed_target())
    x = drawn(10)
    y = d5.framework("reference").executor(network).inference({"x": x, "s": np.array([2, 5])})["y"]
    np.testing.assert_allclose(y, x.reshape(2, 5) @ WEIGHT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_a_stale_rank_on_every_back_end(framework: str) -> None:
    model = reshaped([1, "m"])
    with pytest.warns(NetworkWarning, match=r"'y' is declared as \[1, m\]"):
        network = d5.Network.from_onnx(model)
    assert network.outputs["y"].shape[1:] == (1, 6)
    compared(network, model, framework, {"x": drawn(4, 5)}, {"x": drawn(1, 5)})


def test_a_stale_rank_in_a_branch() -> None:
    model = in_a_branch()
    with pytest.warns(NetworkWarning, match=r"'b' is declared as \[n\], and computed as \[n, k, 3\]"):
        network = d5.Network.from_onnx(model)
    feeds = {"x": drawn(2, 1, 3)}, {"x": drawn(2, 4, 3)}
    compared(network, graph_model_without_shapes(model), "reference", *feeds)


def graph_model_without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose branches declare no shapes: plain ONNX Runtime insists on those."""
    free = onnx.ModelProto.FromString(model.SerializeToString())
    for node in free.graph.node:
        for attribute in node.attribute:
            for value in attribute.g.output:
                value.type.tensor_type.ClearField("shape")
    return free


def test_what_fits_is_kept_without_a_warning() -> None:
    network = d5.Network.from_onnx(reshaped(["n", "one", 6], ["n", 6]))
    assert network.outputs["y"].shape[1:] == (1, 6)


@pytest.mark.parametrize("framework", BACK_ENDS)
@pytest.mark.parametrize("kind", ["no shape", "no type"])
def test_an_output_without_a_shape(framework: str, kind: str) -> None:
    model = reshaped(None)
    if kind == "no type":
        model.graph.output[0].ClearField("type")
    network = d5.Network.from_onnx(model)
    assert network.outputs["y"].shape[1:] == (1, 6)
    compared(network, model, framework, {"x": drawn(4, 5)})


def test_an_output_whose_rank_only_a_run_determines() -> None:
    model = graph_model(branches(None, None), [declared("x", ["n", "k", 3])], [declared("q", None)], ONE)
    network = d5.Network.from_onnx(model)
    assert str(network.outputs["q"]) == "float32 of unknown rank"
    assert not network.outputs["q"].ranked
    with pytest.raises(Unsupported, match="the output 'q', float32 of unknown rank, cannot be differentiated"):
        d5.framework("reference").executor(network).inference_and_backprop({"x": drawn(2, 1, 3)}, loss="q", wrt=["x"])
    for framework in ("reference", "pytorch", "onnxruntime"):
        compared(network, model, framework, {"x": drawn(2, 1, 3)}, {"x": drawn(2, 4, 3)})


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_an_if_of_two_ranks_before_a_node_of_one(framework: str) -> None:
    """The convolution reads rank 3 only: that rank is inferred from its weight."""
    nodes = [*branches(["p", "q", "r"], ["p", "q", "r", "s"]), helper.make_node("Conv", ["q", "w"], ["y"])]
    model = graph_model(
        nodes, [declared("x", ["n", "k", 3, 8])], [declared("y", ["a", "b", "c"])], {**ONE, "w": drawn(2, 3, 3)}
    )
    network = d5.Network.from_onnx(model)
    if framework == "openvino":
        with pytest.raises(Unsupported, match=r"If \(If\): the branches differ in rank.*; remedy: framework 'onnxrun"):
            d5.framework(framework).executor(network)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
        network = d5.Network.from_onnx(model)  # the remedy
    compared(network, model, framework, {"x": drawn(2, 1, 3, 8)})


BAD = {
    "an element type": (
        relu(["n"], ["n"]),
        lambda graph: setattr(graph.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
        r"the model is inconsistent: the output 'y' is declared as float64, but .* computes float32",
    ),
    "an element type between": (
        relu(["n"], ["n"], ["n"]),
        lambda graph: setattr(graph.value_info[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
        "the model is inconsistent: .*'h'|the model is inconsistent: .*[Rr]elu",
    ),
    "an initial value": (
        graph_model(
            [helper.make_node("Add", ["x", "c"], ["y"])],
            [declared("x", [4]), declared("c", [3])],
            [declared("y", [4])],
            {"c": drawn(4)},
        ),
        lambda graph: None,
        r"the input 'c' is declared as float32\[3\], and its initial value is float32\[4\]",
    ),
    "a size below -1": (
        relu(["n", -7], ["n", 3]),
        lambda graph: None,
        "the input 'x' has the dimension -7; allowed: at least 0, or -1 if it is unknown",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_contradiction_is_refused(what: str) -> None:
    model, damage, message = BAD[what]
    damaged = onnx.ModelProto.FromString(model.SerializeToString())
    damage(damaged.graph)
    with pytest.raises(NetworkError, match=message) as caught:
        d5.Network.from_onnx(damaged)
    onnx.checker.check_model(damaged)
    assert "not valid ONNX" not in str(caught.value)


def test_only_what_onnx_refuses_is_called_invalid() -> None:
    model = relu(["n"], ["n"])
    model.graph.node[0].op_type = "Rellu"
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    with pytest.raises(NetworkError, match=r"the model is not valid ONNX: .*Rellu"):
        d5.Network.from_onnx(model)
    assert set(plain(relu(["n"], ["n"]), {"x": drawn(3)})) == {"y"}


def test_an_output_that_is_an_input_or_an_initial_value() -> None:
    outputs = [declared("y", ["n"]), onnx.ValueInfoProto(name="x"), declared("c", None)]
    model = graph_model([helper.make_node("Relu", ["x"], ["y"])], [declared("x", ["n"])], outputs, {"c": drawn(2)})
    network = d5.Network.from_onnx(model)
    assert {name: spec.shape for name, spec in network.outputs.items()} == {"y": ("n",), "x": ("n",), "c": (2,)}
    compared(network, model, "reference", {"x": drawn(3)})


def test_a_rank_that_a_reader_requires_survives_an_edit() -> None:
    nodes = [*branches(None, None), helper.make_node("Conv", ["q", "w"], ["y"])]
    model = graph_model(nodes, [declared("x", ["n", "k", 3, 8])], [declared("y", None)], {**ONE, "w": drawn(2, 3, 3)})
    network = d5.Network.from_onnx(model)
    edited = network.replace_node("Equal", "GreaterOrEqual")  # forgets the shapes of what follows
    assert edited.outputs["y"].shape[1] == network.outputs["y"].shape[1] == 2
    assert len(edited.outputs["y"].shape) == 3


@pytest.mark.parametrize("content", [None, b"\0" * 7])
def test_absent_weights_contradict_no_declared_shape(content: bytes | None, tmp_path: Path) -> None:
    """Only the error is reported: without weights nothing follows, and the declared shapes are right."""
    model = reshaped(["n", 1, 6], ["n", 6])
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    onnx.external_data_helper.set_external_data(weight, "w.bin")
    weight.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    if content is not None:
        (tmp_path / "w.bin").write_bytes(content)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(NetworkError, match="initial value 'w' lies"):
        d5.Network.from_onnx(tmp_path / "m.onnx")
    assert not caught


def test_a_node_that_is_wrong_contradicts_no_declared_shape() -> None:
    model = reshaped(["n", 1, 6], ["n", 6])
    model.graph.node[1].attribute.append(helper.make_attribute("none", 1))
    with warnings.catch_warnings(record=True) as caught, pytest.raises(NetworkError, match="none"):
        d5.Network.from_onnx(model)
    assert not caught
